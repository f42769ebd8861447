package netstack

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// Stack is a TCP/IP with its connections. New and NewKernel make one; see the package comment for who may call what.
type Stack struct {
	ready   ready
	spin    time.Duration
	vain    int           // calls of Poll without wait that found nothing; the receive goroutine's
	timeout time.Duration // for attempts to connect

	user *userStack   // one of the two carriers
	kern *kernelStack // is not nil

	spare  sync.Pool             // buffers of outboxes
	failed atomic.Pointer[error] // why the carrier works no longer
	silent atomic.Uint64         // connections whose peer answered no more

	mu        sync.Mutex
	conns     map[*Conn]struct{} // guarded by mu
	peers     peers              // of conns
	listeners map[*Listener]struct{}
	closed    bool
	done      chan struct{} // closed when Close has finished
}

func newStack(spin, timeout time.Duration) *Stack {
	return &Stack{
		spin:      spin,
		timeout:   timeout,
		conns:     make(map[*Conn]struct{}),
		peers:     make(peers),
		listeners: make(map[*Listener]struct{}),
		done:      make(chan struct{}),
	}
}

// New runs TCP/IP in user space on port. It takes the port: Close closes it, and so does New when it fails.
func New(port pktio.Port, c Config) (*Stack, error) {
	c, err := c.withDefaults()
	if err != nil {
		_ = port.Close()
		return nil, err
	}
	s := newStack(c.SpinFor, c.ConnectTimeout)
	if s.user, err = newUserStack(s, port, c); err != nil {
		_ = port.Close()
		return nil, err
	}
	return s, nil
}

// NewKernel runs on the TCP sockets of the operating system.
func NewKernel(c KernelConfig) (*Stack, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	s := newStack(c.SpinFor, c.ConnectTimeout)
	if s.kern, err = newKernelStack(s, c); err != nil {
		return nil, err
	}
	return s, nil
}

// Dial starts a connection to remote and returns at once. An event follows when it is established or has failed;
// Connected tells which. local, if valid, is the address to use, one of ours. An error returned here says that the
// attempt could not even start, for want of a route (ENETUNREACH), of an address of that family (EAFNOSUPPORT), of the
// local address (EADDRNOTAVAIL) or of a port. Any goroutine.
func (s *Stack) Dial(local netip.Addr, remote netip.AddrPort) (*Conn, error) {
	if !remote.IsValid() || remote.Port() == 0 {
		return nil, dialError(remote, &net.AddrError{Err: "no address and port to connect to", Addr: remote.String()})
	}
	// Events wait until this call is over: before that the connection is not the caller's.
	c := &Conn{st: s, remote: netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port()), mark: mark{gone: true}}
	if err := s.add(c); err != nil {
		return nil, dialError(remote, err)
	}
	var err error
	if s.user != nil {
		err = s.user.dial(c, local)
	} else {
		err = s.kern.dial(c, local)
	}
	if err != nil {
		c.gone()
		return nil, dialError(remote, err)
	}
	s.ready.admit(Event{Conn: c})
	if c.happened() {
		s.ready.push(Event{Conn: c})
	}
	return c, nil
}

// add makes c known, unless the Stack is closed.
func (s *Stack) add(c *Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	s.conns[c] = struct{}{}
	s.peers.add(c.remote)
	return nil
}

// minBacklog is how many connections may always wait for Accept. Peers that find no room try again after one second,
// after two more, and so on: with a short queue a thousand that come at once would take minutes, however fast they are
// accepted. Linux allows as many (net.core.somaxconn).
const minBacklog = 4096

// Listen takes connections on local: no address, or "::", is all of ours, 0.0.0.0 all of IPv4. Port 0 picks a free one.
// backlog is how many connections may wait for Accept, 4096 at least; further ones are kept in the handshake or dropped,
// for the peer to try again. A port in use gives an error matching syscall.EADDRINUSE. Any goroutine.
func (s *Stack) Listen(local netip.AddrPort, backlog int) (*Listener, error) {
	l := &Listener{st: s, addr: local}
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil, listenError(local, net.ErrClosed)
	}
	backlog = max(backlog, minBacklog)
	var err error
	if s.user != nil {
		err = s.user.listen(l, backlog)
	} else {
		err = s.kern.listen(l, backlog)
	}
	if err != nil {
		return nil, listenError(local, err)
	}
	s.mu.Lock()
	closed = s.closed
	if !closed {
		s.listeners[l] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		_ = l.Close()
		return nil, listenError(local, net.ErrClosed)
	}
	return l, nil
}

// Close resets all connections, closes all listeners, stops every goroutine of the Stack and closes the port. A Poll
// that runs returns. The receive goroutine and the send sides must not use the Stack's connections any more, nor
// octets borrowed from them. Any goroutine; a second call waits for the first and returns nil.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.done
		return nil
	}
	s.closed = true
	conns, listeners := s.conns, s.listeners
	s.conns, s.listeners = nil, nil
	s.mu.Unlock()
	defer close(s.done)

	s.ready.close()
	for l := range listeners {
		_ = l.Close()
	}
	for c := range conns {
		if c.user != nil {
			c.user.kill()
		} else {
			c.kern.kill()
		}
	}
	if s.user != nil {
		return s.user.close()
	}
	return s.kern.close()
}

// Err returns why the Stack works no longer, for example because its interface is gone, or nil. All connections have
// this error then. Any goroutine.
func (s *Stack) Err() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// fail ends all connections with err.
func (s *Stack) fail(err error) {
	s.failed.Store(&err)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		s.ready.push(Event{Conn: c})
	}
	for l := range s.listeners {
		s.ready.push(Event{Listener: l})
	}
}

// MTU returns the octets an IP packet may have, or 0 where the system decides per route. Any goroutine.
func (s *Stack) MTU() int {
	if s.user != nil {
		return s.user.link.info.MTU
	}
	return 0
}

// Addrs returns our addresses. Any goroutine.
func (s *Stack) Addrs() []netip.Prefix {
	if s.user != nil {
		return append([]netip.Prefix(nil), s.user.conf.Addrs...)
	}
	return systemAddrs()
}

// systemAddrs lists the addresses of the system's interfaces that are up.
func systemAddrs() []netip.Prefix {
	var addrs []netip.Prefix
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		ones, bits := n.Mask.Size()
		ip = ip.Unmap()
		if ip.Is4() && bits == 128 {
			ones -= 96
		}
		addrs = append(addrs, netip.PrefixFrom(ip, ones))
	}
	return addrs
}
