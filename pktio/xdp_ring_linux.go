package pktio

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// xdpRing is one of the four rings of a socket, each with one producer and one consumer: we and the kernel. Both
// indices count up and wrap at 2^32; masked, they are places. We write ours here first and let the kernel see it when
// a batch is complete.
type xdpRing struct {
	prod, cons *uint32
	flags      *uint32
	ours       uint32 // the index that is ours to move, as far as we have got
	mask       uint32
	addrs      []uint64       // of the fill and the completion ring
	descs      []unix.XDPDesc // of the receive and the transmit ring
	mem        []byte
}

// mapXDPRing maps the ring of fd that lies at page, which has a power of two of entries: addresses or descriptors.
func mapXDPRing(fd int, page int64, at unix.XDPRingOffset, entries int) (r xdpRing, err error) {
	descs := page == unix.XDP_PGOFF_RX_RING || page == unix.XDP_PGOFF_TX_RING
	size := unsafe.Sizeof(uint64(0))
	if descs {
		size = unsafe.Sizeof(unix.XDPDesc{})
	}
	mem, err := unix.Mmap(fd, page, int(at.Desc)+entries*int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return r, err
	}
	r = xdpRing{
		prod:  (*uint32)(unsafe.Pointer(&mem[at.Producer])),
		cons:  (*uint32)(unsafe.Pointer(&mem[at.Consumer])),
		flags: (*uint32)(unsafe.Pointer(&mem[at.Flags])),
		mask:  uint32(entries - 1),
		mem:   mem,
	}
	if descs {
		r.descs = unsafe.Slice((*unix.XDPDesc)(unsafe.Pointer(&mem[at.Desc])), entries)
	} else {
		r.addrs = unsafe.Slice((*uint64)(unsafe.Pointer(&mem[at.Desc])), entries)
	}
	return r, nil
}

func (r *xdpRing) unmap() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
	}
	*r = xdpRing{}
}

// filled returns how many entries the kernel has put into a ring that we consume.
func (r *xdpRing) filled() uint32 { return atomic.LoadUint32(r.prod) - r.ours }

// pending returns how many entries of a ring that we produce the kernel has not consumed.
func (r *xdpRing) pending() uint32 { return r.ours - atomic.LoadUint32(r.cons) }

// produced and consumed let the kernel see how far we are.
func (r *xdpRing) produced() { atomic.StoreUint32(r.prod, r.ours) }
func (r *xdpRing) consumed() { atomic.StoreUint32(r.cons, r.ours) }

// needsWakeup tells whether the kernel looks at the ring only when it is asked to by a system call.
func (r *xdpRing) needsWakeup() bool {
	return atomic.LoadUint32(r.flags)&unix.XDP_RING_NEED_WAKEUP != 0
}

// umemRegion returns n octets of memory in whole pages for frames, to be returned with umemRelease. A child process
// does not inherit it: copying pages that a device writes to ends badly.
func umemRegion(n int) ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	return mem, nil
}

func umemRelease(mem []byte) { _ = unix.Munmap(mem) }

// setXDPOption and xdpOption are setsockopt and getsockopt for the structures of AF_XDP. getsockopt tells how many
// octets it has filled in.
func setXDPOption[T any](fd, option int, v *T) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(unsafe.Pointer(v)), unsafe.Sizeof(*v), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func xdpOption[T any](fd, option int, v *T) (int, error) {
	size := uint32(unsafe.Sizeof(*v))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}
