package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/waiter"
)

// userListener is a Listener on gVisor.
type userListener struct {
	l     *Listener
	ep    tcpip.Endpoint
	wq    waiter.Queue
	entry waiter.Entry
}

func (ul *userListener) register() {
	ul.entry.Init(ul, waiter.ReadableEvents|waiter.EventHUp|waiter.EventErr)
	ul.wq.EventRegister(&ul.entry)
}

// NotifyEvent is called by gVisor, with its locks held.
func (ul *userListener) NotifyEvent(waiter.EventMask) { ul.l.st.ready.push(Event{Listener: ul.l}) }

func (ul *userListener) accept() *Conn {
	var from tcpip.FullAddress
	ep, wq, terr := ul.ep.Accept(&from)
	if terr != nil {
		return nil
	}
	c := &Conn{st: ul.l.st, remote: ul.l.st.user.addrPort(from)}
	c.user = adoptUserConn(c, ep, wq)
	c.local = c.user.localAddr()
	if ul.l.st.add(c) != nil {
		c.user.kill()
		return nil
	}
	return c
}

func (ul *userListener) close() {
	ul.wq.EventUnregister(&ul.entry)
	ul.ep.Close()
}
