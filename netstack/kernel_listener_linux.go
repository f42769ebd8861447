//go:build !netstack_portable

package netstack

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// acceptAgain is when a listener that could not accept for want of descriptors or memory tries again.
const acceptAgain = 50 * time.Millisecond

// kernelListener is a Listener on a kernel socket.
type kernelListener struct {
	l     *Listener
	k     *kernelStack
	slot  int32
	again atomic.Bool // a timer is set to try again

	mu sync.Mutex // guards fd, which Close takes away under Accept
	fd int        // -1 when closed
}

func (kl *kernelListener) accept() *Conn {
	kl.mu.Lock()
	defer kl.mu.Unlock()
	for kl.fd >= 0 {
		fd, sa, err := unix.Accept4(kl.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			if c := kl.adopt(fd, fromSockaddr(sa)); c != nil {
				return c
			}
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			// The edge that told of the connection is spent.
			if kl.again.CompareAndSwap(false, true) {
				time.AfterFunc(acceptAgain, func() {
					kl.again.Store(false)
					kl.l.st.ready.push(Event{Listener: kl.l})
				})
			}
			return nil
		default:
			return nil
		}
	}
	return nil
}

func (kl *kernelListener) adopt(fd int, remote netip.AddrPort) *Conn {
	c := &Conn{st: kl.l.st, remote: remote}
	kc := newKernelConn(c, kl.k, fd)
	kc.up = true
	kc.c.out.open()
	kc.fresh.Store(true)
	c.kern = kc
	if name, err := unix.Getsockname(fd); err == nil {
		c.local = fromSockaddr(name)
	}
	kl.k.tune(fd)
	kl.k.conf.Keepalive.set(fd)
	var err error
	if kc.slot, err = kl.k.watch(fd, slot{conn: kc}, connEvents); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	if c.st.add(c) != nil {
		kc.kill()
		return nil
	}
	kl.k.accepted.Add(1)
	c.st.ready.push(Event{Conn: c})
	return c
}

func (kl *kernelListener) close() {
	kl.mu.Lock()
	defer kl.mu.Unlock()
	kl.k.unwatch(kl.slot)
	_ = unix.Close(kl.fd)
	kl.fd = -1
}
