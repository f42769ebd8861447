package netstack

import (
	"net/netip"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// userConn is a Conn on gVisor. Its halves are in user_rx.go and user_tx.go.
type userConn struct {
	c     *Conn
	ep    *tcp.Endpoint
	wq    *waiter.Queue
	entry waiter.Entry
	flow  flow
	// What TCP knows of sending; nil until it is connected, and where segments go gVisor's way. Guarded by the endpoint's
	// lock, but for the pointer.
	snd  *tcp.TCPSenderState
	sent *tcpip.StatCounter // segments

	// Set by gVisor's callback, taken back by Peek.
	fresh atomic.Bool // something arrived or ended since the last look

	in    userInbox    // receive half
	pay   payload      // guarded by c.out.mu
	stage *buffer.View // send half: lent by Conn.Stage
	few   [1][]byte    // send half: the parts of a Commit that is copied

	// How often askSoon has asked the peer since heard segments had arrived. Guarded by the Stack's mu.
	asked int
	heard uint64
}

// newUserConn makes the endpoint of a connection that we start.
func newUserConn(c *Conn) (*userConn, error) {
	wq := new(waiter.Queue)
	ep, terr := c.st.user.tcp.NewEndpoint(tcp.ProtocolNumber, protocolOf(c.remote.Addr()), wq)
	if terr != nil {
		return nil, toError(terr)
	}
	return attachUserConn(c, ep, wq), nil
}

// adoptUserConn takes over the endpoint of a connection that a listener accepted.
func adoptUserConn(c *Conn, ep tcpip.Endpoint, wq *waiter.Queue) *userConn {
	uc := attachUserConn(c, ep, wq)
	uc.c.out.open()
	uc.in.up = true
	c.st.user.admit(uc)
	c.st.user.conf.Keepalive.arm(ep)
	// What arrived before we listened to the endpoint made no event.
	uc.fresh.Store(true)
	c.st.ready.push(Event{Conn: c})
	return uc
}

func attachUserConn(c *Conn, tep tcpip.Endpoint, wq *waiter.Queue) *userConn {
	ep := tep.(*tcp.Endpoint) // the only kind of endpoint that tcp.NewProtocol makes
	uc := &userConn{c: c, ep: ep, wq: wq}
	c.out.pool = &c.st.spare
	c.out.tcp = sender{write: uc.write, give: uc.give, finish: uc.finish, release: func() { uc.release(false) }}
	uc.flow.mss.Store(int32(c.st.user.link.info.MTU - headersFor(c.remote.Addr())))
	// gVisor reads the owner with its lock held while it sends, and does not take it to set it.
	ep.LockUser()
	ep.SetOwner(&uc.flow)
	ep.UnlockUser()
	// A fixed size: with the automatic one the notice that there is room again comes at moving marks.
	ep.SocketOptions().SetSendBufferSize(int64(c.st.user.conf.SendBuffer), true)
	uc.entry.Init(uc, waiter.ReadableEvents|waiter.WritableEvents|waiter.EventHUp|waiter.EventErr|waiter.EventRdHUp)
	wq.EventRegister(&uc.entry)
	return uc
}

// NotifyEvent is called by gVisor, with its locks held: the endpoint cannot be used here.
func (uc *userConn) NotifyEvent(mask waiter.EventMask) {
	if mask&waiter.WritableEvents != 0 {
		uc.c.out.writable.Store(true)
	}
	if mask&^waiter.WritableEvents != 0 {
		uc.fresh.Store(true)
	}
	uc.c.st.ready.push(Event{Conn: uc.c})
}

// discardEndpoint frees an endpoint that was never used.
func (uc *userConn) discardEndpoint() {
	uc.wq.EventUnregister(&uc.entry)
	uc.ep.Close()
}

func (uc *userConn) state() tcp.EndpointState { return tcp.EndpointState(uc.ep.State()) }

func (uc *userConn) localAddr() netip.AddrPort {
	a, terr := uc.ep.GetLocalAddress()
	if terr != nil {
		return netip.AddrPort{}
	}
	return uc.c.st.user.addrPort(a)
}

// connected is Conn.Connected.
func (uc *userConn) connected() (bool, error) {
	in := &uc.in
	if in.up || in.err != nil {
		return in.up, in.err
	}
	if err := uc.c.st.Err(); err != nil {
		return false, uc.refuse(err)
	}
	switch uc.state() {
	case tcp.StateInitial, tcp.StateBound, tcp.StateConnecting, tcp.StateSynSent, tcp.StateSynRecv:
		if !uc.c.late.Load() {
			return false, nil
		}
		return false, uc.refuse(syscall.ETIMEDOUT)
	case tcp.StateError, tcp.StateClose:
		err := toError(uc.ep.LastError())
		if err == nil {
			err = deadBefore
		}
		return false, uc.refuse(err)
	}
	in.up = true
	uc.c.st.user.admit(uc)
	// The handshake holds the endpoint's lock until its last segment is sent, and localAddr takes it: from here on
	// the segment size is known.
	uc.c.local = uc.localAddr()
	uc.c.out.open()
	uc.c.st.user.conf.Keepalive.arm(uc.ep)
	return true, nil
}

// refuse notes why there will be no connection.
func (uc *userConn) refuse(err error) error {
	uc.in.err = dialError(uc.c.remote, err)
	uc.c.out.fail(uc.in.err)
	uc.ep.Abort()
	return uc.in.err
}

// end is Conn.Abort or Conn.Close.
func (uc *userConn) end(abort bool) {
	// TCP must not take octets for unread that only we have not given back yet.
	uc.giveBack()
	uc.in.forget()
	if abort || uc.c.out.let() {
		uc.release(abort)
	}
}

// release lets go of the endpoint.
func (uc *userConn) release(abort bool) {
	uc.c.out.shut()
	uc.c.st.user.link.rx.inline.drop(uc.ep)
	uc.c.gone()
	uc.wq.EventUnregister(&uc.entry)
	if abort {
		uc.ep.Abort()
	} else {
		uc.ep.Close()
	}
}

// kill ends the connection with its Stack.
func (uc *userConn) kill() {
	uc.c.out.shut()
	uc.c.st.user.link.rx.inline.drop(uc.ep)
	uc.wq.EventUnregister(&uc.entry)
	uc.ep.Abort()
}
