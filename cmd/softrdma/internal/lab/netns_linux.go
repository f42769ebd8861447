package lab

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inNamespace runs f on a thread that is in the network namespace of that
// name. f must not start goroutines that need to be there too.
func inNamespace(name string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := enter(name)
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		err = f()
		// If there is no way back the thread stays locked and ends with the
		// goroutine, so that nobody else finds himself where we were.
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		home.Close()
		done <- err
	}()
	return <-done
}

// enter moves the calling thread to a namespace and returns the one it was in.
func enter(name string) (home *os.File, err error) {
	there, err := os.Open(namespacePath(name))
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", name, err)
	}
	defer there.Close()
	home, err = os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		home.Close()
		return nil, fmt.Errorf("namespace %s cannot be entered: %w", name, err)
	}
	return home, nil
}

// hurry puts this process before the ones it works for: a frame that waits
// because they keep the processors busy is delayed as nobody wished. Without the
// right it goes on as it is.
func hurry() {
	const nice = -10
	// A thread has its own priority and gives it to those it starts.
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, nice)
		}
	}
}

// offloads are the features of an interface that make super-frames, by the
// command of ethtool(8)'s system call that sets each.
var offloads = []struct {
	name string
	set  uint32
}{
	{"TCP segmentation offload", unix.ETHTOOL_STSO},
	{"generic segmentation offload", unix.ETHTOOL_SGSO},
	{"generic receive offload", unix.ETHTOOL_SGRO},
}

// offloadsOff makes what leaves and what enters an interface no longer than its
// MTU.
func offloadsOff(namespace, name string) error {
	return inNamespace(namespace, func() error {
		for _, o := range offloads {
			if _, err := ethtool(name, o.set, 0); err != nil {
				return fmt.Errorf("%s of %s cannot be switched off: %w", o.name, name, err)
			}
		}
		return nil
	})
}

// ethtool runs one of the commands that have a number and return one.
func ethtool(name string, command, value uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	v := &struct{ command, value uint32 }{command, value}
	var request struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	request.data = unsafe.Pointer(v)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, errno
	}
	return v.value, nil
}
