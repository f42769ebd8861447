package netstack

import (
	"net/netip"
	"sync"
)

// Listener is a TCP port on which connections arrive.
type Listener struct {
	st   *Stack
	user *userListener   // one of the two carriers
	kern *kernelListener // is not nil
	mark mark            // guarded by st.ready.mu
	addr netip.AddrPort
	once sync.Once
}

// Accept returns the next connection that waits, or false. The peer may have sent before: look at the connection at
// once, or wait for the event that follows. After Close it returns false. Receive goroutine.
func (l *Listener) Accept() (*Conn, bool) {
	var c *Conn
	if l.user != nil {
		c = l.user.accept()
	} else {
		c = l.kern.accept()
	}
	return c, c != nil
}

// Addr returns the address and port listened on. Any goroutine.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Close stops listening. Connections that wait are reset, those accepted live on. No event follows. Any goroutine;
// a second call changes nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.st.ready.drop(Event{Listener: l})
		l.st.mu.Lock()
		delete(l.st.listeners, l)
		l.st.mu.Unlock()
		if l.user != nil {
			l.user.close()
		} else {
			l.kern.close()
		}
	})
	return nil
}
