package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noSuperFrames makes what leaves an interface no longer than its MTU: the kernel cuts
// super-frames before. (Not so with ip link's gso_max_segs: the kernel does not count
// the segments of what comes from a packet socket.)
func noSuperFrames(namespace, name string) error {
	return within(namespace, func() error {
		for _, feature := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO} {
			if err := ethtool(name, feature, 0); err != nil {
				return fmt.Errorf("segmentation offload of %s cannot be switched off: %w", name, err)
			}
		}
		return nil
	})
}

// ethtool is that one of the system calls of ethtool(8) that sets a number.
func ethtool(name string, command, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
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
		return errno
	}
	return nil
}
