package netstack

import (
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/softrdma/softrdma/pktio"
)

const (
	nicID = 1

	// arpWait is how long one ARP request, or neighbour solicitation, waits for its answer. After three of them the
	// host counts as unreachable.
	arpWait = 500 * time.Millisecond

	// timeWait is how long what is left of a connection that we closed first waits for stray segments: twice the
	// longest life of a segment on a network of a data center, rather than on the Internet of RFC 9293. gVisor keeps
	// 16 KiB for each of them; a thousand closed a second would come to a GiB with the minute that is usual.
	timeWait = 10 * time.Second
)

// userStack is the user-space carrier: gVisor's TCP/IP between our link endpoint and our ready queue.
type userStack struct {
	st   *Stack
	conf Config
	link *link
	tcp  *stack.Stack
	sent *tcpip.StatCounter // segments

	due []*userConn // with octets to give back; the receive goroutine's

	*sleeper
}

func newUserStack(s *Stack, port pktio.Port, c Config) (*userStack, error) {
	u := &userStack{st: s, conf: c, sleeper: newSleeper()}
	s.ready.kick = u.kick
	link, err := newLink(port, &c)
	if err != nil {
		return nil, err
	}
	u.link = link
	link.others.init(c.Addrs, &link.info)
	link.others.wake = s.Wake
	if err := link.probe(c.AddressProbe); err != nil {
		return nil, err
	}
	u.tcp = stack.New(stack.Options{
		NetworkProtocols:   u.protocols(),
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
		Clock:              link.clock,
		HandleLocal:        true, // a connection to one of our own addresses does not touch the wire
		NUDConfigs:         nudConfig(),
	})
	u.sent = u.tcp.Stats().TCP.SegmentsSent
	if err := u.configure(); err != nil {
		u.tcp.Destroy()
		return nil, err
	}
	if !c.Handoff {
		link.rx.inline = newInline(u.tcp, link, &c)
	}
	u.link.neighbours.tcp, u.link.neighbours.anew = u.tcp, s.askSoon
	u.link.start(c.SpinFor, s.fail)
	if c.AddressProbe > 0 {
		u.link.announce()
	}
	return u, nil
}

// configure sets TCP's options and makes the interface.
func (u *userStack) configure() error {
	c := &u.conf
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: c.SendBuffer, Max: MaxBuffer}
	recv := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: c.RecvBuffer, Max: MaxBuffer}
	moderate := tcpip.TCPModerateReceiveBufferOption(false)
	sack := tcpip.TCPSACKEnabled(true)
	delay := tcpip.TCPDelayEnabled(false)
	maxRTO, maxRetries := c.Keepalive.retransmission(c.MinRTO)
	rto, most := tcpip.TCPMinRTOOption(c.MinRTO), tcpip.TCPMaxRTOOption(maxRTO)
	retries := tcpip.TCPMaxRetriesOption(maxRetries)
	// A port of ours in TIME_WAIT may serve a new connection after a second; sequence numbers that grow with time keep
	// the two apart.
	wait := tcpip.TCPTimeWaitTimeoutOption(timeWait)
	reuse := tcpip.TCPTimeWaitReuseOption(tcpip.TCPTimeWaitReuseGlobal)
	reno := tcpip.CongestionControlOption("reno")
	recovery := tcpip.TCPRecovery(0)
	if c.Recovery == RecoveryRACK {
		recovery = tcpip.TCPRACKLossDetection
	}
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &recv, &moderate, &sack, &delay, &rto, &most, &retries, &wait, &reuse, &reno, &recovery} {
		if err := u.tcp.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return fmt.Errorf("netstack: TCP option %T: %s", o, err)
		}
	}
	if err := u.tcp.CreateNICWithOptions(nicID, u.link, stack.NICOptions{QDisc: noQueue{u.link}}); err != nil {
		return fmt.Errorf("netstack: interface %s: %s", u.link.info.Name, err)
	}
	return u.configureNetwork()
}

// admit lets segments of an established connection take the short way. A connection to ourselves does not touch the link.
func (u *userStack) admit(uc *userConn) {
	if _, err := u.ours(uc.c.remote.Addr()); err != nil {
		uc.sent = &uc.ep.Stats().(*tcp.Stats).SegmentsSent
		uc.snd = u.link.rx.inline.add(uc.ep, &uc.flow)
	}
}

// sleep lets the pump receive meanwhile.
func (u *userStack) sleep(d time.Duration) {
	u.settle()                                           // the last look may have found frames
	u.link.rx.stream.from = u.link.count.octetsIn.Load() // silence ends a stream
	u.link.leave()
	u.sleeper.sleep(d)
}

// unacknowledged reports whether TCP still waits for a peer to acknowledge the FIN of a connection.
func (u *userStack) unacknowledged() bool {
	for _, e := range u.tcp.RegisteredEndpoints() {
		if ep, ok := e.(*tcp.Endpoint); ok {
			switch ep.EndpointState() {
			case tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
				return true
			}
		}
	}
	return false
}

// close ends TCP and the link. The connections known to the Stack are dead already; here go those TCP still holds for
// itself: handshakes, and what was closed and waits for the peer.
func (u *userStack) close() error {
	// Without arriving frames nothing new begins while the old is taken down.
	err := u.link.stop()
	for i := 0; len(u.tcp.RegisteredEndpoints()) > 0 && i < 100; i++ {
		u.tcp.Close()
	}
	u.tcp.Destroy()
	return err
}

func (u *userStack) dial(c *Conn, local netip.Addr) error {
	remote, err := u.reach(c.remote.Addr())
	if err != nil {
		return err
	}
	c.remote = netip.AddrPortFrom(remote, c.remote.Port())
	bind := local.IsValid() && !local.IsUnspecified()
	if bind {
		if local, err = u.ours(local.Unmap()); err != nil {
			return err
		}
		if local.Is4() != remote.Is4() {
			return errMixed(local, remote)
		}
	}
	uc, err := newUserConn(c)
	if err != nil {
		return err
	}
	c.user = uc
	if bind {
		if err := toError(uc.ep.Bind(tcpip.FullAddress{Addr: toAddress(local)})); err != nil {
			uc.discardEndpoint()
			return err
		}
	}
	c.startDeadline(u.st.timeout)
	terr := uc.ep.Connect(tcpip.FullAddress{NIC: nicID, Addr: toAddress(remote), Port: c.remote.Port()})
	if _, started := terr.(*tcpip.ErrConnectStarted); !started && terr != nil {
		c.deadline.Stop()
		uc.discardEndpoint()
		return toError(terr)
	}
	c.local = uc.localAddr()
	return nil
}

func (u *userStack) listen(l *Listener, backlog int) error {
	local, only, err := u.listenAt(l.addr.Addr().Unmap())
	if err != nil {
		return err
	}
	ul := &userListener{l: l}
	ep, terr := u.tcp.NewEndpoint(tcp.ProtocolNumber, protocolOf(local), &ul.wq)
	if terr != nil {
		return toError(terr)
	}
	ul.ep = ep
	ep.SocketOptions().SetV6Only(only)
	bind := tcpip.FullAddress{Port: l.addr.Port()}
	if !local.IsUnspecified() {
		bind.Addr = toAddress(local)
	}
	if terr := ep.Bind(bind); terr != nil {
		ep.Close()
		return toError(terr)
	}
	at, terr := ep.GetLocalAddress()
	if terr != nil {
		ep.Close()
		return toError(terr)
	}
	l.addr = netip.AddrPortFrom(local, at.Port)
	l.user = ul
	ul.register()
	// gVisor's own callers add one, as Linux does inside; without, a backlog of one is always full.
	if terr := ep.Listen(backlog + 1); terr != nil {
		ul.close()
		return toError(terr)
	}
	return nil
}

// listenAt returns the address to listen on for one asked for, and whether an IPv6 one is to keep IPv4 peers out.
func (u *userStack) listenAt(local netip.Addr) (at netip.Addr, only bool, err error) {
	switch {
	case local == netip.IPv4Unspecified():
		return local, true, u.hasFamily(local)
	case !both(local):
		local, err = u.ours(local)
		return local, true, err
	case u.conf.has6():
		return netip.IPv6Unspecified(), !u.conf.has4(), nil
	}
	return netip.IPv4Unspecified(), true, nil
}

// toError gives a gVisor error the system's number for it.
func toError(err tcpip.Error) error {
	switch err.(type) {
	case nil:
		return nil
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionAborted, *tcpip.ErrAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrHostDown:
		return syscall.EHOSTDOWN
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrNotConnected:
		return syscall.ENOTCONN
	case *tcpip.ErrPortInUse:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrNoPortAvailable:
		return errNoPort
	case *tcpip.ErrNoBufferSpace:
		return syscall.ENOBUFS
	}
	return fmt.Errorf("TCP: %s", err)
}
