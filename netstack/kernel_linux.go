//go:build !netstack_portable

package netstack

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelStack is the carrier on the kernel's TCP: non-blocking sockets in an epoll instance of our own, edge-triggered,
// which Poll asks and sleeps in. Go's netpoller has no part in it; a spinning Poll is twice as fast without.
type kernelStack struct {
	st   *Stack
	conf KernelConfig
	bufs buffers

	opened, accepted atomic.Uint64

	polling sync.Mutex // held while the epoll instance is asked; guards what follows
	epoll   int
	closed  bool
	events  [128]unix.EpollEvent

	bell int // eventfd that ends a sleep in epoll

	mu    sync.Mutex // guards what follows
	slots []slot
	spare []int32 // free slots
}

// slot is what an epoll event names: its index and, as the descriptor may be another's by then, its generation.
type slot struct {
	conn     *kernelConn
	listener *kernelListener
	gen      int32
}

const bellSlot = -1

func newKernelStack(s *Stack, c KernelConfig) (*kernelStack, error) {
	k := &kernelStack{st: s, conf: c, bufs: buffers{most: c.RecvBuffers}}
	var err error
	if k.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("netstack: epoll_create1", err)
	}
	if k.bell, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC); err != nil {
		_ = unix.Close(k.epoll)
		return nil, os.NewSyscallError("netstack: eventfd", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: bellSlot}
	if err := unix.EpollCtl(k.epoll, unix.EPOLL_CTL_ADD, k.bell, &ev); err != nil {
		_ = unix.Close(k.bell)
		_ = unix.Close(k.epoll)
		return nil, os.NewSyscallError("netstack: epoll_ctl", err)
	}
	s.ready.kick = k.kick
	return k, nil
}

// kick ends a sleep of Poll.
func (k *kernelStack) kick() {
	one := [8]byte{1}
	_, _ = unix.Write(k.bell, one[:])
}

// look takes note of what epoll has to tell now.
func (k *kernelStack) look() {
	k.polling.Lock()
	defer k.polling.Unlock()
	for !k.closed {
		// A raw system call: it returns at once, so there is no need to tell Go's scheduler.
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(k.epoll), uintptr(unsafe.Pointer(&k.events[0])), uintptr(len(k.events)), 0, 0, 0)
		if e != 0 || n == 0 {
			return
		}
		k.note(int(n))
		if int(n) < len(k.events) {
			return
		}
	}
}

// sleep blocks in epoll until something happens, or for d unless d is below 0.
func (k *kernelStack) sleep(d time.Duration) {
	k.polling.Lock()
	defer k.polling.Unlock()
	if k.closed {
		return
	}
	ms := -1
	if d >= 0 {
		ms = int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	n, err := unix.EpollWait(k.epoll, k.events[:], ms)
	k.st.ready.up()
	if err == nil {
		k.note(n)
	}
}

// note tells connections and listeners what the first n events say. Caller holds polling.
func (k *kernelStack) note(n int) {
	for i := range k.events[:n] {
		ev := &k.events[i]
		if ev.Fd == bellSlot {
			var b [8]byte
			_, _ = unix.Read(k.bell, b[:])
			continue
		}
		k.mu.Lock()
		s := k.slots[ev.Fd]
		k.mu.Unlock()
		switch {
		case s.gen != ev.Pad:
		case s.conn != nil:
			s.conn.note(ev.Events)
		case s.listener != nil:
			k.st.ready.push(Event{Listener: s.listener.l})
		}
	}
}

// watch adds fd to the epoll instance and returns the number of its slot.
func (k *kernelStack) watch(fd int, s slot, events uint32) (int32, error) {
	k.mu.Lock()
	var i int32
	if n := len(k.spare); n > 0 {
		i = k.spare[n-1]
		k.spare = k.spare[:n-1]
	} else {
		i = int32(len(k.slots))
		k.slots = append(k.slots, slot{})
	}
	s.gen = k.slots[i].gen
	k.slots[i] = s
	k.mu.Unlock()
	ev := unix.EpollEvent{Events: events | unix.EPOLLET, Fd: i, Pad: s.gen}
	if err := unix.EpollCtl(k.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		k.unwatch(i)
		return -1, err
	}
	return i, nil
}

// unwatch frees a slot. The descriptor leaves the epoll instance when it is closed.
func (k *kernelStack) unwatch(i int32) {
	k.mu.Lock()
	k.slots[i] = slot{gen: k.slots[i].gen + 1}
	k.spare = append(k.spare, i)
	k.mu.Unlock()
}

func (k *kernelStack) close() error {
	// The ready queue is closed: a Poll that sleeps was kicked, and none begins.
	k.polling.Lock()
	defer k.polling.Unlock()
	k.closed = true
	err := unix.Close(k.epoll)
	_ = unix.Close(k.bell)
	return err
}

func (k *kernelStack) addStats(st *Stats) {
	st.Opened, st.Accepted = k.opened.Load(), k.accepted.Load()
}

// socket makes a TCP socket for addresses like a.
func (k *kernelStack) socket(a netip.Addr) (int, error) {
	family := unix.AF_INET
	if a.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err == unix.EAFNOSUPPORT {
		return -1, fmt.Errorf("%s is off on this host: %w", familyOf(a), err)
	} else if err != nil {
		return -1, err
	}
	k.tune(fd)
	return fd, nil
}

// tune sets the options of a connection, or of a listener, for its connections to inherit. None is worth failing for.
func (k *kernelStack) tune(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if n := k.conf.SendBuffer; n > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
	if n := k.conf.RecvBuffer; n > 0 {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, n)
	}
}

func (k *kernelStack) dial(c *Conn, local netip.Addr) error {
	local, remote, err := endpoints(local, c.remote.Addr())
	if err != nil {
		return err
	}
	c.remote = netip.AddrPortFrom(remote, c.remote.Port())
	fd, err := k.socket(remote)
	if err != nil {
		return err
	}
	if local.IsValid() {
		// The port is chosen by connect: the same one may serve several peers.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		if err := unix.Bind(fd, toSockaddr(netip.AddrPortFrom(local, 0))); err != nil {
			_ = unix.Close(fd)
			return err
		}
	}
	kc := newKernelConn(c, k, fd)
	c.kern = kc
	err = unix.Connect(fd, toSockaddr(c.remote))
	switch err {
	case nil, unix.EINPROGRESS, unix.EINTR:
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ETIMEDOUT:
		// The answer came that fast. It is told as if it had not.
		kc.early = err
		kc.fresh.Store(true)
	case unix.EADDRNOTAVAIL:
		// The address was bound, if there was one: it is the port that connect does not find.
		_ = unix.Close(fd)
		return fmt.Errorf("%w (or widen net.ipv4.ip_local_port_range)", errNoPort)
	default:
		_ = unix.Close(fd)
		return err
	}
	if kc.slot, err = k.watch(fd, slot{conn: kc}, connEvents); err != nil {
		_ = unix.Close(fd)
		return err
	}
	c.startDeadline(k.st.timeout)
	return nil
}

func (k *kernelStack) listen(l *Listener, backlog int) error {
	local, port := l.addr.Addr().Unmap(), l.addr.Port()
	if !both(local) {
		at, err := zoned(local)
		if err != nil {
			return err
		}
		return k.listenAt(l, netip.AddrPortFrom(at, port), true, backlog)
	}
	err := k.listenAt(l, netip.AddrPortFrom(netip.IPv6Unspecified(), port), false, backlog)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return k.listenAt(l, netip.AddrPortFrom(netip.IPv4Unspecified(), port), true, backlog)
	}
	return err
}

// listenAt listens on one socket. only keeps IPv4 peers out of an IPv6 one.
func (k *kernelStack) listenAt(l *Listener, at netip.AddrPort, only bool, backlog int) error {
	fd, err := k.socket(at.Addr())
	if err != nil {
		return err
	}
	fail := func(err error) error {
		_ = unix.Close(fd)
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fail(err)
	}
	if at.Addr().Is6() {
		v6only := 0
		if only {
			v6only = 1
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, v6only); err != nil {
			return fail(err)
		}
	}
	if err := unix.Bind(fd, toSockaddr(at)); err != nil {
		return fail(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fail(err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return fail(err)
	}
	l.addr = netip.AddrPortFrom(at.Addr(), fromSockaddr(name).Port())
	kl := &kernelListener{l: l, k: k, fd: fd}
	l.kern = kl
	if kl.slot, err = k.watch(fd, slot{listener: kl}, unix.EPOLLIN); err != nil {
		return fail(err)
	}
	return nil
}
