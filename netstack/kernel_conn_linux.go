//go:build !netstack_portable

package netstack

import (
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// connEvents are the edges that make an event of a connection.
const connEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP

// kernelConn is a Conn on a kernel socket.
type kernelConn struct {
	c    *Conn
	k    *kernelStack
	fd   int // -1 when closed. Changed under c.out.mu by the receive half, which so may read it without
	slot int32

	// Set as epoll tells, taken back by the half that looks.
	fresh atomic.Bool // something arrived or ended since the last look
	hup   atomic.Bool // the end is in what arrived: read up to it

	// Receive half.
	up    bool
	err   error // why there is no connection, or how the stream ended
	early error // what connect said at once
	in    ring

	// Send half, and Poll. Guarded by c.out.mu.
	iov []unix.Iovec
	msg unix.Msghdr
	seg int // segment size
	age int // looks at seg since it was asked for
}

// note tells what epoll told. Poll's goroutine.
func (kc *kernelConn) note(events uint32) {
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		kc.hup.Store(true)
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		kc.fresh.Store(true)
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		kc.c.out.writable.Store(true)
	}
	kc.c.st.ready.push(Event{Conn: kc.c})
}

func newKernelConn(c *Conn, k *kernelStack, fd int) *kernelConn {
	kc := &kernelConn{c: c, k: k, fd: fd}
	c.out.pool = &k.st.spare
	c.out.tcp = sender{write: kc.write, finish: kc.finish, release: func() { kc.release(false) }}
	return kc
}

func (kc *kernelConn) happened() bool { return kc.fresh.Load() || kc.c.out.writable.Load() }

func (kc *kernelConn) connected() (bool, error) {
	if kc.up || kc.err != nil {
		return kc.up, kc.err
	}
	if !kc.happened() {
		if kc.c.late.Load() {
			return false, kc.refuse(syscall.ETIMEDOUT)
		}
		return false, nil
	}
	err := kc.early
	if err == nil {
		e, gerr := unix.GetsockoptInt(kc.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err = gerr; e != 0 {
			err = syscall.Errno(e)
		}
	}
	if err != nil {
		return false, kc.refuse(err)
	}
	if _, err := unix.Getpeername(kc.fd); err != nil {
		return false, nil // something else than the answer
	}
	if name, err := unix.Getsockname(kc.fd); err == nil {
		kc.c.local = fromSockaddr(name)
	}
	kc.k.opened.Add(1)
	kc.k.conf.Keepalive.set(kc.fd)
	kc.up = true
	kc.c.out.open()
	return true, nil
}

func (kc *kernelConn) refuse(err error) error {
	kc.err = dialError(kc.c.remote, err)
	kc.c.out.fail(kc.err)
	return kc.err
}

func (kc *kernelConn) end(abort bool) {
	// The kernel does not know that octets in the ring are unread.
	abort = abort || kc.in.n > 0
	kc.in.n = 0
	kc.trim()
	if abort || kc.c.out.let() {
		kc.release(abort)
	}
}

// release closes the socket.
func (kc *kernelConn) release(abort bool) {
	kc.c.gone()
	o := &kc.c.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failLocked(net.ErrClosed)
	if kc.fd < 0 {
		return
	}
	if abort {
		_ = unix.SetsockoptLinger(kc.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	kc.k.unwatch(kc.slot)
	_ = unix.Close(kc.fd)
	kc.fd = -1
}

// kill ends the connection with its Stack.
func (kc *kernelConn) kill() { kc.release(true) }
