//go:build !netstack_portable

package netstack

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (kc *kernelConn) peek() ([][]byte, error) {
	if !kc.up {
		if _, err := kc.connected(); !kc.up {
			return nil, err
		}
	}
	if kc.err == nil && kc.in.n < peekEnough && kc.fresh.Load() {
		kc.fill()
		if kc.err != nil && kc.err != io.EOF {
			kc.c.out.fail(kc.err) // the same reason for both halves
			kc.c.st.lost(kc.err)
		}
	}
	return kc.in.pieces(), kc.err
}

// fill reads what the kernel has, as far as there is room.
func (kc *kernelConn) fill() {
	if kc.in.buf == nil {
		if kc.in.buf = kc.k.bufs.get(kc.c); kc.in.buf == nil {
			return // still fresh: the event that there is memory leads here again
		}
	}
	for kc.err == nil {
		a, b := kc.in.free()
		if len(a)+len(b) == 0 {
			break
		}
		kc.fresh.Store(false)
		n, err := readv(kc.fd, a, b)
		switch {
		case err == unix.EINTR:
			kc.fresh.Store(true)
			continue
		case err == unix.EAGAIN:
			kc.trim()
			return
		case err != nil:
			kc.err = streamError(kc.c.remote, err)
		case n == 0:
			kc.err = kc.howEnded()
		}
		kc.in.n += n
		if n < len(a)+len(b) && !kc.hup.Load() {
			break
		}
		kc.fresh.Store(true)
	}
	kc.trim()
}

// trim gives the ring's memory back while it is empty.
func (kc *kernelConn) trim() {
	if kc.in.n == 0 && kc.in.buf != nil {
		kc.k.bufs.put(kc.in.buf)
		kc.in = ring{}
	}
}

// howEnded tells a FIN from a reset of which a write was told already: the kernel tells each error once, and a read
// then finds the end as if it were orderly.
func (kc *kernelConn) howEnded() error {
	kc.c.out.mu.Lock()
	defer kc.c.out.mu.Unlock()
	if kc.c.out.err != nil {
		return kc.c.out.err
	}
	if kc.c.out.fin {
		return io.EOF
	}
	const tcpClose = 7 // TCP_CLOSE in linux/tcp_states.h: not reached by a FIN of the peer alone
	if info, err := unix.GetsockoptTCPInfo(kc.fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.State == tcpClose {
		return streamError(kc.c.remote, syscall.ECONNRESET)
	}
	return io.EOF
}

func (kc *kernelConn) discard(n int) {
	kc.in.drop(n)
	if kc.in.n == 0 {
		kc.trim()
	}
}

// readv reads into a and then b.
func readv(fd int, a, b []byte) (int, error) {
	iov := [2]unix.Iovec{{Base: unsafe.SliceData(a)}, {Base: unsafe.SliceData(b)}}
	iov[0].SetLen(len(a))
	iov[1].SetLen(len(b))
	n, _, e := unix.Syscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), 2)
	if e != 0 {
		return 0, e
	}
	afterRead()
	return int(n), nil
}
