package pktio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	vnetHdrLen = 10
	// slotHeader is what the kernel puts in front of a frame in its slot, rounded up: the TPACKET_V2 header with
	// its address, padding and the vnet header.
	slotHeader = 128
	// ringBlock is the size of the pieces the kernel allocates a ring in. It rounds each up to a power of two, so
	// we give it one.
	ringBlock = 1 << 20
	// lookEvery is how many empty polls with a wait of 0 lie between two looks at the interface: some milliseconds.
	lookEvery = 1 << 16
	// lookAgain is how often a waiting Recv looks whether a down interface came up or went away.
	lookAgain = 100 * time.Millisecond
)

// packetRx is the receive half of a Packet: whoever is in Recv may touch it.
type packetRx struct {
	ring     []byte
	block    int         // octets
	slot     int         // octets
	longest  int         // octets a frame may have
	room     int         // octets of a frame that a slot has room for
	long     *longFrames // where frames come from that have more; nil if none may have
	perBlock int         // slots
	slots    int         // in all
	cur      int         // the slot the kernel fills next, as far as we have seen
	lent     int         // slots before cur that are not given back

	empty  uint32 // polls since the last look
	polls  uint32 // since the last wait
	deaf   bool   // arriving frames do not wake the poller
	broken error  // there is no more to be had

	// For tryRecv and others, which are made into functions once so that Recv does not allocate.
	try   func(fd uintptr) bool
	look  func(fd uintptr)
	ears  func(fd uintptr)
	tell  func(fd uintptr)
	epoll int
	op    int
	event unix.EpollEvent
	heard error
	batch []Frame
	n     int
	err   error
	armed bool // the next look at a down interface is seen to
}

// queueLong lets frames that are longer than the interface's MTU come by way of the socket's receive queue, if there are
// to be such, so that the ring has slots for the others only.
func (r *packetRx) queueLong(fd, mtu int, c *PacketConfig) {
	r.longest, r.room = c.MaxFrame, c.MaxFrame
	if c.WholeRing || c.MaxFrame <= mtu+EthernetHeader {
		return
	}
	// What the kernel lets everyone have holds a handful of super-frames. It takes twice of what it is told.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 2*longQueue) != nil ||
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_COPY_THRESH, 1) != nil {
		return
	}
	r.room = mtu + EthernetHeader
	r.long = new(longFrames)
	r.long.fetch = r.long.fetchFd
}

// mapRing makes the ring on fd and maps it.
func (r *packetRx) mapRing(fd int, c *PacketConfig) error {
	// An odd count of cache lines spreads the slots over all sets of the cache.
	const line = 64
	r.slot = (r.room+slotHeader+line-1)/line*line | line
	frames := c.RingFrames
	if frames == 0 {
		frames = min(max(defaultRingOctets/r.slot, defaultRingFrames), defaultRingMost)
	}
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
		return fmt.Errorf("pktio: no receive ring of %d frames in %d octets: lower RingFrames or MaxFrame: %w", r.slots, r.block*blocks, err)
	}
	ring, err := unix.Mmap(fd, 0, r.block*blocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("pktio: the receive ring of %d octets does not map: lower RingFrames or MaxFrame: %w", r.block*blocks, err)
	}
	r.ring = ring
	return nil
}

// at returns where slot i begins.
func (r *packetRx) at(i int) int { return i/r.perBlock*r.block + i%r.perBlock*r.slot }

func (r *packetRx) header(at int) *unix.Tpacket2Hdr {
	return (*unix.Tpacket2Hdr)(unsafe.Pointer(&r.ring[at]))
}

// giveBack returns all lent slots to the kernel. Never some of them: the kernel stops at the first it finds taken, and
// we would wait for each other.
func (r *packetRx) giveBack() {
	i := r.cur - r.lent
	if i < 0 {
		i += r.slots
	}
	for ; r.lent > 0; r.lent-- {
		atomic.StoreUint32(&r.header(r.at(i)).Status, unix.TP_STATUS_KERNEL)
		if i++; i == r.slots {
			i = 0
		}
	}
}

// Recv receives from the interface, see [Port].
func (p *Packet) Recv(batch []Frame, wait time.Duration) (int, error) {
	old := p.state.Or(stateReceiving)
	if old&stateReceiving != 0 {
		panic("pktio: two goroutines in Recv")
	}
	if old&stateClosed != 0 {
		p.leave(0)
		return 0, ErrClosed
	}
	r := &p.rx
	r.giveBack()
	n := p.take(batch)
	var err error
	if n == 0 {
		err = r.broken
	}
	if n == 0 && err == nil && len(batch) > 0 {
		if wait != 0 {
			n, err = p.park(batch, wait)
		} else if r.empty++; r.empty >= lookEvery {
			n, err = p.glance(batch)
		}
	}
	if wait == 0 && !r.deaf {
		if r.polls++; r.polls >= deafAfter {
			p.setDeaf(true)
		}
	}
	if p.leave(n) && n == 0 {
		return 0, ErrClosed
	}
	return n, err
}

// leave ends a Recv that lends n frames and tells whether the port is closed.
func (p *Packet) leave(n int) (closed bool) {
	next := uint32(0)
	if n > 0 {
		next = stateLent
	}
	for {
		old := p.state.Load()
		closed = old&stateClosed != 0
		if closed && n == 0 {
			p.unmapRing()
		}
		if p.state.CompareAndSwap(old, old&stateClosed|next) {
			return closed
		}
	}
}

// take lends what the kernel has put into the ring, never more than half of it: the other half is the kernel's to
// fill meanwhile.
func (p *Packet) take(batch []Frame) int {
	r := &p.rx
	n, octets, super := 0, 0, 0
	for n < len(batch) && r.broken == nil {
		if r.lent == r.slots/2 {
			if n > 0 {
				break
			}
			r.giveBack() // nothing but frames not wanted
		}
		at := r.at(r.cur)
		h := r.header(at)
		status := atomic.LoadUint32(&h.Status)
		if status&unix.TP_STATUS_USER == 0 {
			break
		}
		r.lent++
		if r.cur++; r.cur == r.slots {
			r.cur = 0
		}
		if !p.wanted(h, status) {
			continue
		}
		at += int(h.Mac)
		f := &batch[n]
		if data := r.ring[at : at+int(h.Snaplen) : at+int(h.Snaplen)]; status&unix.TP_STATUS_COPY == 0 {
			f.Data = append(f.Data[:0], data)
		} else if !p.fetch(n, f, data, int(h.Len)) {
			continue
		}
		f.Offload = parseVnet(r.ring[at-vnetHdrLen : at])
		if f.GSO != GSONone {
			super++
		}
		octets += int(h.Len)
		n++
	}
	if n == 0 {
		r.giveBack()
		return 0
	}
	r.empty = 0
	if !p.dev.downSince.IsZero() {
		p.dev.downSince = time.Time{} // or it counts towards the next outage
	}
	p.rxFrames.Add(uint64(n))
	p.rxOctets.Add(uint64(octets))
	if super > 0 {
		p.rxSuper.Add(uint64(super))
	}
	return n
}

// wanted counts and drops frames that are not for the receiver.
func (p *Packet) wanted(h *unix.Tpacket2Hdr, status uint32) bool {
	r := &p.rx
	queued := status&unix.TP_STATUS_COPY != 0
	switch {
	case h.Len < EthernetHeader, int(h.Len) > r.longest:
		p.rxTooLong.Add(1)
	case status&unix.TP_STATUS_VLAN_VALID != 0:
		p.rxTagged.Add(1)
	case h.Snaplen < h.Len && !queued:
		p.rxQueueFull.Add(1)
	default:
		return true
	}
	if queued {
		r.broken = r.long.drop(p)
	}
	return false
}

// fetch makes f, at place i of its batch, the oldest of the long frames. It has size octets, the first of which are data.
func (p *Packet) fetch(i int, f *Frame, data []byte, size int) bool {
	r := &p.rx
	room := f.Room
	if len(room) < size {
		room = r.long.place(i, size)
	}
	f.Data, r.broken = r.long.next(p, f.Data[:0], data, room, size)
	return r.broken == nil
}

func parseVnet(b []byte) Offload {
	o := Offload{
		NeedsCsum: b[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0,
		CsumValid: b[0]&unix.VIRTIO_NET_HDR_F_DATA_VALID != 0,
	}
	if o.NeedsCsum {
		o.CsumStart = binary.LittleEndian.Uint16(b[6:])
		o.CsumOffset = binary.LittleEndian.Uint16(b[8:])
	}
	switch b[1] &^ unix.VIRTIO_NET_HDR_GSO_ECN {
	case unix.VIRTIO_NET_HDR_GSO_TCPV4:
		o.GSO = GSOTCPv4
	case unix.VIRTIO_NET_HDR_GSO_TCPV6:
		o.GSO = GSOTCPv6
	default:
		return o
	}
	o.HdrLen = binary.LittleEndian.Uint16(b[2:])
	o.GSOSize = binary.LittleEndian.Uint16(b[4:])
	return o
}

// park waits for frames in Go's poller.
func (p *Packet) park(batch []Frame, wait time.Duration) (int, error) {
	r := &p.rx
	r.batch, r.n, r.err = batch, 0, nil
	defer func() { r.batch = nil }()
	var until time.Time
	if wait > 0 {
		until = time.Now().Add(wait)
	}
	r.polls = 0
	if r.deaf {
		p.setDeaf(false)
	}
	for {
		deadline := until
		r.armed = !p.dev.downSince.IsZero()
		if r.armed {
			if soon := time.Now().Add(lookAgain); until.IsZero() || soon.Before(until) {
				deadline = soon
			}
		}
		p.alarm.arm(p.file, deadline)
		err := p.wait.Read(r.try)
		switch {
		case r.n > 0:
			return r.n, nil
		case r.err != nil:
			return 0, r.err
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			p.alarm.rang()
		case p.state.Load()&stateClosed != 0:
			return 0, nil
		default:
			return 0, fmt.Errorf("pktio: waiting for interface %s: %w", p.link.Name, err)
		}
		if !until.IsZero() && !time.Now().Before(until) {
			return 0, nil
		}
	}
}

// tryRecv is asked by the poller, before it waits and at each event. It returns true to end the wait.
func (p *Packet) tryRecv(uintptr) bool {
	r := &p.rx
	if r.n = p.take(r.batch); r.n > 0 || r.broken != nil {
		r.err = r.broken
		return true
	}
	_ = p.raw.Control(r.look)
	return r.err != nil || !p.dev.downSince.IsZero() && !r.armed
}

// glance looks at the interface and then at the ring, without waiting.
func (p *Packet) glance(batch []Frame) (int, error) {
	r := &p.rx
	r.empty, r.err = 0, nil
	_ = p.raw.Control(r.look)
	if n := p.take(batch); n > 0 {
		return n, nil
	}
	if r.broken != nil {
		return 0, r.broken
	}
	return 0, r.err
}

// lookFd looks how the interface fares and sets what it finds. The socket would tell too, but once, and to
// whoever asks first, sender or receiver.
func (p *Packet) lookFd(fd uintptr) {
	p.rx.err = p.dev.look(int(fd))
}
