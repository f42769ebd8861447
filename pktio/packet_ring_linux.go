package pktio

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/internal/cacheline"
)

const (
	// slotHeader is what the kernel puts in front of a frame in its slot, rounded up: the TPACKET_V2 header with
	// its address, padding and the vnet header.
	slotHeader = 128
	// ringBlock is the size of the pieces the kernel allocates a ring in. It rounds each up to a power of two, so
	// we give it one.
	ringBlock = 1 << 20
)

// packetRing is memory shared with the kernel, in which it puts the frames that a socket receives into one slot after
// the other: a TPACKET_V2 receive ring.
type packetRing struct {
	mem      []byte
	block    int // octets
	slot     int // octets
	perBlock int // slots
	slots    int // in all
	cur      int // the slot the kernel fills next, as far as we have seen
	here     int // where that begins
	lent     int // slots before cur that are not given back
}

// open makes the ring, for frames of up to room octets, on the socket fd and maps it.
func (r *packetRing) open(fd, room, frames int) error {
	r.slot = slotFor(room)
	r.block = ringBlock
	for r.block/2 >= r.slot*frames && r.block/2 >= os.Getpagesize() {
		r.block /= 2
	}
	r.perBlock = r.block / r.slot
	blocks := (frames + r.perBlock - 1) / r.perBlock
	r.slots = blocks * r.perBlock
	req := unix.TpacketReq{
		Block_size: uint32(r.block), Block_nr: uint32(blocks),
		Frame_size: uint32(r.slot), Frame_nr: uint32(r.slots),
	}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return fmt.Errorf("pktio: no receive ring of %d frames in %d octets: lower RingFrames, LongFrames or MaxFrame: %w", r.slots, r.block*blocks, err)
	}
	mem, err := unix.Mmap(fd, 0, r.block*blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("pktio: the receive ring of %d octets does not map: lower RingFrames, LongFrames or MaxFrame: %w", r.block*blocks, err)
	}
	r.mem = mem
	return nil
}

// slotFor returns how many octets the slot of a frame of up to room octets takes.
func slotFor(room int) int {
	// An odd count of cache lines spreads the slots over all sets of the cache.
	const line = 64
	return (room+slotHeader+line-1)/line*line | line
}

// close unmaps the ring, if there is one.
func (r *packetRing) close() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem = nil
	}
}

// at returns where slot i begins.
func (r *packetRing) at(i int) int { return i/r.perBlock*r.block + i%r.perBlock*r.slot }

func (r *packetRing) header(at int) *unix.Tpacket2Hdr {
	return (*unix.Tpacket2Hdr)(unsafe.Pointer(&r.mem[at]))
}

// filled returns the header of the oldest frame not lent, nil if there is none.
func (r *packetRing) filled() *unix.Tpacket2Hdr {
	h := r.header(r.here)
	if atomic.LoadUint32(&h.Status)&unix.TP_STATUS_USER == 0 {
		return nil
	}
	return h
}

// lend passes the oldest frame, which is there, and returns where its slot begins.
func (r *packetRing) lend() (at int) {
	at = r.here
	r.lent++
	if r.cur++; r.cur == r.slots {
		r.cur = 0
	}
	r.here = r.at(r.cur)
	return at
}

// giveBack returns all lent slots to the kernel. Never some of them: the kernel stops at the first it finds taken, and
// we would wait for each other.
func (r *packetRing) giveBack() {
	for i := r.firstLent(); r.lent > 0; r.lent-- {
		atomic.StoreUint32(&r.header(r.at(i)).Status, unix.TP_STATUS_KERNEL)
		if i++; i == r.slots {
			i = 0
		}
	}
}

// flush drops the frames in lent slots from the processors' caches.
func (r *packetRing) flush() {
	i := r.firstLent()
	for range r.lent {
		at := r.at(i)
		h := r.header(at)
		cacheline.Flush(r.mem[at+int(h.Mac)-vnetHdrLen : at+int(h.Mac)+int(h.Snaplen)])
		if i++; i == r.slots {
			i = 0
		}
	}
}

func (r *packetRing) firstLent() int {
	i := r.cur - r.lent
	if i < 0 {
		i += r.slots
	}
	return i
}

// cameBefore tells whether frame a came before b, as the kernel's clock has it.
func cameBefore(a, b *unix.Tpacket2Hdr) bool {
	if a.Sec != b.Sec {
		return int32(a.Sec-b.Sec) < 0
	}
	return a.Nsec < b.Nsec
}
