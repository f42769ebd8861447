package pktio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	vnetHdrLen = 10
	// lookEvery is how many empty polls with a wait of 0 lie between two looks at the interface: some milliseconds.
	lookEvery = 1 << 16
	// lookAgain is how often a waiting Recv looks whether a down interface came up or went away.
	lookAgain = 100 * time.Millisecond
)

// packetRx is the receive half of a Packet: whoever is in Recv may touch it.
type packetRx struct {
	short   packetRing // of frames up to the MTU
	long    *longRing  // of longer ones; nil if there are none, or queue has them
	queue   *longQueue // where the octets of longer ones are that short announces; nil unless asked for
	longest int        // octets a frame may have

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

// giveBack returns all lent slots to the kernel.
func (r *packetRx) giveBack() {
	r.short.giveBack()
	if r.long != nil {
		r.long.giveBack()
	}
}

// oldest returns the ring that has the frame that came first of those we have not seen, nil if there is none.
func (r *packetRx) oldest() *packetRing {
	short := r.short.filled()
	if r.long == nil {
		if short == nil {
			return nil
		}
		return &r.short
	}
	// A frame that came before one we see is seen by whoever looks after that.
	long := r.long.filled()
	if long != nil && short == nil {
		short = r.short.filled()
	}
	switch {
	case long != nil && (short == nil || cameBefore(long, short)):
		return &r.long.packetRing
	case short != nil:
		return &r.short
	}
	return nil
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
			p.closeRings()
		}
		if p.state.CompareAndSwap(old, old&stateClosed|next) {
			return closed
		}
	}
}

// take lends what the kernel has put into the rings, never more than half of one: the other half is the kernel's to
// fill meanwhile.
func (p *Packet) take(batch []Frame) int {
	r := &p.rx
	n, octets, super := 0, 0, 0
	for n < len(batch) && r.broken == nil {
		ring := r.oldest()
		if ring == nil {
			break
		}
		if ring.lent == ring.slots/2 {
			if n > 0 {
				break
			}
			r.giveBack() // nothing but frames not wanted
		}
		at := ring.lend()
		h := ring.header(at)
		status := atomic.LoadUint32(&h.Status)
		if !p.wanted(h, status) {
			continue
		}
		at += int(h.Mac)
		f := &batch[n]
		if data := ring.mem[at : at+int(h.Snaplen) : at+int(h.Snaplen)]; status&unix.TP_STATUS_COPY == 0 {
			f.Data = append(f.Data[:0], data)
		} else if !p.fetch(n, f, data, int(h.Len)) {
			continue
		}
		if ring != &r.short {
			r.long.writer.look(f.Data[0])
		}
		f.Offload = parseVnet(ring.mem[at-vnetHdrLen : at])
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
		r.broken = r.queue.drop(p)
	}
	return false
}

// fetch makes f, at place i of its batch, the oldest of the long frames. It has size octets, the first of which are data.
func (p *Packet) fetch(i int, f *Frame, data []byte, size int) bool {
	r := &p.rx
	room := f.Room
	if len(room) < size {
		room = r.queue.place(i, size)
	}
	f.Data, r.broken = r.queue.next(p, f.Data[:0], data, room, size)
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
