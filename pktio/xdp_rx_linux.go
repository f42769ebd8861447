package pktio

import (
	"time"

	"golang.org/x/sys/unix"
)

// xdpMaxPieces is more buffers than the longest frame takes.
const xdpMaxPieces = 32

// xdpRx is the receive half of an XDP: whoever is in Recv may touch it.
type xdpRx struct {
	next    int  // the queue to ask first
	trusted bool // the device is virtual: its frames may have checksums that nobody has finished

	empty uint32 // polls since the last look
	polls uint32 // since the last wait
	deaf  bool   // arriving frames do not wake the poller

	// For tryRecv and listen, which are made into functions once so that Recv does not allocate.
	try   func(fd uintptr) bool
	ears  func(fd uintptr)
	event unix.EpollEvent
	batch []Frame
	n     int
	err   error
	armed bool // the next look at what waits is seen to
}

// Recv receives from the interface, see [Port].
func (p *XDP) Recv(batch []Frame, wait time.Duration) (int, error) {
	old := p.state.Or(stateReceiving)
	if old&stateReceiving != 0 {
		panic("pktio: two goroutines in Recv")
	}
	if old&stateClosed != 0 {
		p.leave(stateReceiving|stateLent, 0)
		return 0, ErrClosed
	}
	if old&stateLent != 0 {
		for _, q := range p.queues {
			q.giveBack()
		}
	}
	if p.kickDue.Load() {
		p.kickAgain()
	}
	n, err := p.take(batch), error(nil)
	if n == 0 && len(batch) > 0 {
		p.wakeRx()
		if r := &p.rx; wait != 0 {
			n, err = p.park(batch, wait)
		} else if r.empty++; r.empty >= lookEvery {
			n, err = p.glance(batch)
		}
	}
	if r := &p.rx; wait == 0 && !r.deaf {
		if r.polls++; r.polls >= deafAfter {
			p.setDeaf(true)
		}
	}
	left := uint32(0)
	if n > 0 {
		left = stateLent
	}
	if p.leave(stateReceiving|stateLent, left) && n == 0 {
		return 0, ErrClosed
	}
	return n, err
}

// take lends what the kernel has put into the rings, beginning with another queue each time.
func (p *XDP) take(batch []Frame) int {
	r := &p.rx
	n, octets := 0, 0
	for range p.queues {
		k, o := p.takeFrom(p.queues[r.next], batch[n:])
		if r.next++; r.next == len(p.queues) {
			r.next = 0
		}
		n += k
		octets += o
		if n == len(batch) {
			break
		}
	}
	if n == 0 {
		return 0
	}
	r.empty = 0
	if !p.dev.downSince.IsZero() {
		p.dev.downSince = time.Time{} // or it counts towards the next outage
	}
	p.rxFrames.Add(uint64(n))
	p.rxOctets.Add(uint64(octets))
	return n
}

// takeFrom lends frames of one queue, and never more than half of its buffers: the other half is the kernel's to fill
// meanwhile. It returns how many, and how many octets.
func (p *XDP) takeFrom(q *xdpQueue, batch []Frame) (n, octets int) {
	ring := &q.rx
	filled := ring.filled()
	if filled == 0 {
		return 0, 0
	}
	for n < len(batch) && filled > 0 && len(q.lent) < cap(q.lent)/2 {
		f := &batch[n]
		f.Data = f.Data[:0]
		size, used, whole := 0, uint32(0), false
		for used < filled && !whole {
			d := &ring.descs[(ring.ours+used)&ring.mask]
			if used < xdpMaxPieces {
				f.Data = append(f.Data, q.umem[d.Addr:d.Addr+uint64(d.Len):d.Addr+uint64(d.Len)])
			}
			size += int(d.Len)
			whole = d.Options&unix.XDP_PKT_CONTD == 0
			used++
		}
		if !whole && int(used) < cap(q.lent)/2 {
			break // the rest is still to come
		}
		for range used {
			q.lent = append(q.lent, bufferOf(ring.descs[ring.ours&ring.mask].Addr))
			ring.ours++
		}
		filled -= used
		if !whole || size > MaxSuperFrame || size < EthernetHeader {
			p.rxTooLong.Add(1)
			continue
		}
		f.Offload = Offload{}
		if p.rx.trusted {
			f.Offload = unfinished(f.Data[0], size)
		}
		octets += size
		n++
	}
	ring.consumed()
	if n == 0 {
		q.giveBack() // nothing but frames not wanted
	}
	return n, octets
}

// wakeRx wakes devices that ran out of buffers and now have some. Only a device that takes buffers itself asks for it.
func (p *XDP) wakeRx() {
	if !p.zero {
		return
	}
	for _, q := range p.queues {
		q.wakeRx()
	}
}

// glance looks at the interface and then at the rings, without waiting.
func (p *XDP) glance(batch []Frame) (int, error) {
	p.rx.empty = 0
	err := p.dev.look(p.news)
	if n := p.take(batch); n > 0 {
		return n, nil
	}
	return 0, err
}
