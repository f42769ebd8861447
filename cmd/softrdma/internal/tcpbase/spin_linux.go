package tcpbase

import (
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// CanSpin tells whether this system has the spinning form.
const CanSpin = true

// spinStream asks a non-blocking socket until it has something. It is used by
// one goroutine.
type spinStream struct {
	fd   int
	quit quitFunc
}

// quitEvery calls take some milliseconds.
const quitEvery = 4096

// spinning takes a connection out of Go's netpoller: the descriptor is
// duplicated and the connection, with the poller's registration, closed. It
// takes conn, also when it fails.
func spinning(conn *net.TCPConn, quit quitFunc) (*spinStream, error) {
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(old uintptr) {
		r, _, errno := syscall.Syscall(syscall.SYS_FCNTL, old, syscall.F_DUPFD_CLOEXEC, 0)
		if errno != 0 {
			dupErr = os.NewSyscallError("fcntl", errno)
			return
		}
		fd = int(r)
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return nil, err
	}
	return &spinStream{fd: fd, quit: quit}, nil
}

// call makes the system call until it does something.
func (s *spinStream) call(trap uintptr, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	var idle time.Time // since the first time of asking
	for i := 1; ; i++ {
		n, _, errno := syscall.RawSyscall(trap, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		switch errno {
		case 0:
			return int(n), nil
		case syscall.EAGAIN, syscall.EINTR:
		default:
			return 0, errno
		}
		if i%quitEvery == 0 {
			if i == quitEvery {
				idle = time.Now()
			}
			if err := s.quit(time.Since(idle)); err != nil {
				return 0, err
			}
			runtime.Gosched()
		}
	}
}

func (s *spinStream) Read(b []byte) (int, error) {
	n, err := s.call(syscall.SYS_READ, b)
	if n == 0 && err == nil && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

func (s *spinStream) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := s.call(syscall.SYS_WRITE, b[done:])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *spinStream) CloseWrite() error { return syscall.Shutdown(s.fd, syscall.SHUT_WR) }

func (s *spinStream) Close() error {
	fd := s.fd
	if fd < 0 {
		return nil
	}
	s.fd = -1
	return syscall.Close(fd)
}
