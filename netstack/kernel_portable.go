//go:build !linux || netstack_portable

package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
)

// kernelStack is the carrier on the system's TCP where there is no epoll: two goroutines a connection over net.Conn,
// one a listener. It is there for programs to run anywhere, not for speed.
type kernelStack struct {
	*sleeper
	st   *Stack
	conf KernelConfig
	run  sync.WaitGroup // all goroutines

	mu   sync.Mutex
	live map[*kernelConn]int // goroutines of each, those of closed connections included; guarded by mu

	opened, accepted atomic.Uint64
}

func newKernelStack(s *Stack, c KernelConfig) (*kernelStack, error) {
	k := &kernelStack{sleeper: newSleeper(), st: s, conf: c, live: make(map[*kernelConn]int)}
	s.ready.kick = k.kick
	return k, nil
}

// look is for carriers that Poll has to ask.
func (k *kernelStack) look() {}

func (k *kernelStack) close() error {
	k.mu.Lock()
	for kc := range k.live {
		kc.stop()
	}
	k.mu.Unlock()
	k.run.Wait()
	return nil
}

func (k *kernelStack) addStats(st *Stats) {
	st.Opened, st.Accepted = k.opened.Load(), k.accepted.Load()
}

func (k *kernelStack) dial(c *Conn, local netip.Addr) error {
	local, remote, err := endpoints(local, c.remote.Addr())
	if err != nil {
		return err
	}
	c.remote = netip.AddrPortFrom(remote, c.remote.Port())
	d := net.Dialer{KeepAlive: -1}
	if local.IsValid() {
		// Found out here, as the attempt itself is told of later.
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0)))
		if err != nil {
			return cause(err)
		}
		_ = l.Close()
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	ctx, cancel := context.WithCancel(context.Background())
	kc := newKernelConn(c, k)
	kc.cancel = cancel
	c.kern = kc
	c.startDeadline(k.st.timeout)
	k.run.Add(1)
	go func() {
		defer k.run.Done()
		defer cancel()
		conn, err := d.DialContext(ctx, "tcp", c.remote.String())
		kc.dialled(conn, err)
	}()
	return nil
}

// listen leaves the backlog to the system, which package net does not let one choose.
func (k *kernelStack) listen(l *Listener, _ int) error {
	local, port := l.addr.Addr().Unmap(), l.addr.Port()
	network, at := "tcp", fmt.Sprintf(":%d", port) // both families, or the one there is
	if !both(local) {
		local, err := zoned(local)
		if err != nil {
			return err
		}
		network, at = "tcp4", netip.AddrPortFrom(local, port).String()
		if local.Is6() {
			network = "tcp6"
		}
	}
	nl, err := net.Listen(network, at)
	if err != nil {
		return cause(err)
	}
	l.addr = addrPort(nl.Addr())
	kl := &kernelListener{l: l, k: k, nl: nl}
	l.kern = kl
	k.run.Add(1)
	go kl.serve()
	return nil
}

// begin and ended count the goroutines of a connection.
func (k *kernelStack) begin(kc *kernelConn) {
	k.run.Add(1)
	k.mu.Lock()
	k.live[kc]++
	k.mu.Unlock()
}

func (k *kernelStack) ended(kc *kernelConn) {
	k.mu.Lock()
	if k.live[kc]--; k.live[kc] == 0 {
		delete(k.live, kc)
	}
	k.mu.Unlock()
	k.run.Done()
}

// kernelListener is a Listener over net.Listener.
type kernelListener struct {
	l  *Listener
	k  *kernelStack
	nl net.Listener

	mu      sync.Mutex // guards what follows
	waiting []*net.TCPConn
	over    bool
}

func (kl *kernelListener) serve() {
	defer kl.k.run.Done()
	for {
		conn, err := kl.nl.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		kl.mu.Lock()
		if kl.over {
			kl.mu.Unlock()
			reset(conn.(*net.TCPConn))
			return
		}
		kl.waiting = append(kl.waiting, conn.(*net.TCPConn))
		kl.mu.Unlock()
		kl.l.st.ready.push(Event{Listener: kl.l})
	}
}

func (kl *kernelListener) accept() *Conn {
	kl.mu.Lock()
	if len(kl.waiting) == 0 || kl.over {
		kl.mu.Unlock()
		return nil
	}
	conn := kl.waiting[0]
	kl.waiting = kl.waiting[1:]
	kl.mu.Unlock()

	c := &Conn{st: kl.l.st, remote: addrPort(conn.RemoteAddr()), local: addrPort(conn.LocalAddr())}
	kc := newKernelConn(c, kl.k)
	c.kern = kc
	kc.up = true
	c.out.open()
	if c.st.add(c) != nil {
		reset(conn)
		return nil
	}
	kl.k.accepted.Add(1)
	kc.start(conn)
	kc.fresh.Store(true)
	c.st.ready.push(Event{Conn: c})
	return c
}

func (kl *kernelListener) close() {
	kl.mu.Lock()
	kl.over = true
	waiting := kl.waiting
	kl.waiting = nil
	kl.mu.Unlock()
	_ = kl.nl.Close()
	for _, conn := range waiting {
		reset(conn)
	}
}

// reset closes conn so that its peer sees a reset.
func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// cause digs the system's error number out of what package net returns.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
