//go:build !netstack_portable

package netstack

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// mssEvery is after how many looks the segment size is asked for again: it changes with the path.
	mssEvery = 256
	// maxIOV is how many parts one system call takes.
	maxIOV = 1024
)

// write is sender.write.
func (kc *kernelConn) write(parts [][]byte, n int) (took int, err error) {
	for took < n {
		kc.iov = kc.iov[:0]
		batch, used := 0, 0
		for _, p := range parts {
			if len(kc.iov) == maxIOV {
				break
			}
			used++
			if len(p) > 0 {
				kc.iov = append(kc.iov, unix.Iovec{Base: &p[0]})
				kc.iov[len(kc.iov)-1].SetLen(len(p))
				batch += len(p)
			}
		}
		parts = parts[used:]
		w, err := kc.sendmsg()
		clear(kc.iov)
		took += w
		if err != nil {
			return took, streamError(kc.c.remote, err)
		}
		if w < batch {
			break
		}
	}
	return took, nil
}

// sendmsg sends what iov names and returns how much the kernel took.
func (kc *kernelConn) sendmsg() (int, error) {
	kc.msg.Iov = &kc.iov[0]
	kc.msg.SetIovlen(len(kc.iov))
	beforeWrite()
	for {
		n, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(kc.fd), uintptr(unsafe.Pointer(&kc.msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, nil
		default:
			return 0, e
		}
	}
}

// finish is sender.finish.
func (kc *kernelConn) finish() error {
	if err := unix.Shutdown(kc.fd, unix.SHUT_WR); err != nil {
		return streamError(kc.c.remote, err)
	}
	return nil
}

func (kc *kernelConn) mss() int {
	kc.c.out.mu.Lock()
	defer kc.c.out.mu.Unlock()
	if kc.seg == 0 || kc.age >= mssEvery {
		if n, err := unix.GetsockoptInt(kc.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG); err == nil && n > 0 {
			kc.seg = n
		}
		kc.age = 0
	}
	kc.age++
	if !kc.c.out.up {
		// The size before the handshake is a guess of the kernel's: do not keep it.
		kc.age = mssEvery
	}
	return max(kc.seg, 536)
}
