package pktio

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/mempool"
)

// FaultyStats counts what a Faulty did, in frames.
type FaultyStats struct {
	Sent       uint64 // handed to the port and taken, duplicates included
	Lost       uint64 // dropped by Loss
	Duplicated uint64 // second copies made by Duplicate
	Reordered  uint64 // held back by Reorder
	Corrupted  uint64 // flips made: one bit in one frame each
	Delayed    uint64 // put into the queue for Delay or Jitter
	CutTx      uint64 // dropped on their way out while the link was cut
	CutRx      uint64 // dropped on their way in while the link was cut
	NoQueue    uint64 // dropped because Queue frames were held already
	NoRoom     uint64 // held or doubled frames dropped because the port had no room
}

// Faulty wraps a [Port] and does [Faults] to the frames sent through it; received frames pass untouched unless the
// link is cut. To damage both directions, wrap both ends. Once frames have to wait it runs one goroutine, which ends
// with Close.
type Faulty struct {
	port Port
	link Link
	cut  atomic.Bool

	mu     sync.Mutex // guards all below and port.Send, which the goroutine calls too
	faults Faults
	fates  random        // what happens to which frame
	detail random        // how: apart, so that changing one fault leaves the pattern of the others
	pool   *mempool.Pool // where held frames are; nil until needed
	held   []entry       // frames held back by Reorder, oldest first
	queue  []entry       // frames that wait for their time: a heap, earliest first
	seq    uint64
	one    [1]Frame // to send a held frame
	epoch  time.Time
	armed  time.Duration // when the goroutine looks at the queue next
	closed bool
	kick   chan struct{} // made with the goroutine
	done   chan struct{}
	gone   chan struct{} // closed when the goroutine has ended

	sent, lost, duplicated, reordered, corrupted, delayed, cutTx, cutRx, noQueue, noRoom atomic.Uint64
}

// random is a generator and its source, to be seeded anew.
type random struct {
	*rand.Rand
	source *rand.PCG
}

func newRandom() random {
	source := rand.NewPCG(0, 0)
	return random{rand.New(source), source}
}

// entry is a frame that waits.
type entry struct {
	due   time.Duration // since epoch
	seq   uint64        // order among those due at once
	after int           // held back: frames still to overtake it
	buf   *mempool.Buf
	off   Offload
}

// NewFaulty wraps p, which it takes: Close closes both. It panics if f.Check fails.
func NewFaulty(p Port, f Faults) *Faulty {
	y := &Faulty{port: p, link: p.Link(), epoch: time.Now(), fates: newRandom(), detail: newRandom()}
	y.SetFaults(f)
	return y
}

// SetFaults changes the faults from the next frame on and starts the random numbers anew from f.Seed. Frames that
// wait keep waiting. It panics if f.Check fails.
func (y *Faulty) SetFaults(f Faults) {
	if err := f.Check(); err != nil {
		panic(err.Error())
	}
	if f.Queue == 0 {
		f.Queue = defaultFaultQueue
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if f.holds() && (y.pool == nil || y.pool.Config().Count != f.Queue) {
		pool, err := mempool.New(mempool.Config{Count: f.Queue, Size: max(y.link.MaxFrame, y.link.MTU+EthernetHeader)})
		if err != nil {
			panic(fmt.Sprintf("pktio: a queue of %d frames: %v", f.Queue, err))
		}
		y.pool = pool // what is held goes back to the pool it came from
	}
	y.faults = f
	y.fates.source.Seed(f.Seed, 1)
	y.detail.source.Seed(f.Seed, 2)
}

// Cut cuts the link or joins it again. While it is cut every frame is dropped, in both directions, those that come
// due included.
func (y *Faulty) Cut(cut bool) { y.cut.Store(cut) }

// Stats returns the counters.
func (y *Faulty) Stats() FaultyStats {
	return FaultyStats{
		Sent: y.sent.Load(), Lost: y.lost.Load(), Duplicated: y.duplicated.Load(), Reordered: y.reordered.Load(),
		Corrupted: y.corrupted.Load(), Delayed: y.delayed.Load(), CutTx: y.cutTx.Load(), CutRx: y.cutRx.Load(),
		NoQueue: y.noQueue.Load(), NoRoom: y.noRoom.Load(),
	}
}

// Link describes the link of the wrapped port.
func (y *Faulty) Link() Link { return y.link }

// Recv receives from the wrapped port, see [Port].
func (y *Faulty) Recv(batch []Frame, wait time.Duration) (int, error) {
	for {
		n, err := y.port.Recv(batch, wait)
		if n == 0 || !y.cut.Load() {
			return n, err
		}
		y.cutRx.Add(uint64(n))
		if wait >= 0 {
			return 0, err
		}
	}
}

// Send does the faults to the frames and sends what is left of them, see [Port]. A frame that was dropped or waits
// counts as taken. Any goroutine may call.
func (y *Faulty) Send(batch []Frame) (int, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.closed {
		return 0, ErrClosed
	}
	if y.cut.Load() {
		y.cutTx.Add(uint64(len(batch)))
		return len(batch), nil
	}
	if !y.faults.active() && len(y.held) == 0 {
		n, err := y.port.Send(batch)
		y.sent.Add(uint64(n))
		return n, err
	}
	for i := range batch {
		if taken, err := y.treat(batch[i : i+1]); !taken {
			return i, err
		}
	}
	return len(batch), nil
}

// fate is what was drawn for a frame.
type fate struct{ lost, doubled, held, hit bool }

// draw draws the same count of numbers for each frame, whatever the probabilities.
func (y *Faulty) draw() fate {
	f := &y.faults
	return fate{
		lost:    y.fates.Float64() < f.Loss,
		doubled: y.fates.Float64() < f.Duplicate,
		held:    y.fates.Float64() < f.Reorder,
		hit:     y.fates.Float64() < f.Corrupt,
	}
}

// treat does the faults to the one frame in one. taken is false if the port had no room for it.
func (y *Faulty) treat(one []Frame) (taken bool, err error) {
	f := &one[0]
	if err := y.link.check(f.Len(), &f.Offload); err != nil {
		return false, err
	}
	fate := y.draw()
	switch {
	case fate.lost:
		y.lost.Add(1)
		return true, nil
	case fate.hit, fate.held, y.faults.Delay > 0, y.faults.Jitter > 0:
		y.hold(f, fate)
		return true, nil
	}
	n, err := y.port.Send(one)
	if n == 0 {
		return false, err
	}
	y.sent.Add(1)
	if fate.doubled {
		y.duplicated.Add(1)
		if n, _ = y.port.Send(one); n == 0 {
			y.noRoom.Add(1)
		}
		y.sent.Add(uint64(n))
	}
	y.overtake()
	return true, nil
}

// hold copies f and does to the copy what cannot be done to the original: damage it or keep it.
func (y *Faulty) hold(f *Frame, fate fate) {
	buf := y.pool.Get()
	if buf == nil {
		y.noQueue.Add(1)
		return
	}
	buf.SetLen(f.Len())
	f.CopyTo(buf.Bytes())
	e := entry{buf: buf, off: f.Offload}
	if fate.hit && y.faults.flip(buf.Bytes(), &e.off, y.detail.Rand) {
		y.corrupted.Add(1)
	}
	if fate.doubled {
		y.duplicated.Add(1)
		buf.Retain()
	}
	if fate.held {
		y.reordered.Add(1)
		e.after = 1 + y.detail.IntN(reorderSpan)
		e.due = y.now() + reorderLimit
		y.held = append(y.held, e)
		y.wake(e.due)
	} else {
		y.depart(e)
	}
	if fate.doubled {
		y.depart(entry{buf: e.buf, off: e.off})
	}
	if !fate.held {
		y.overtake()
	}
}

// Close closes the wrapped port and ends the goroutine. Frames that wait are dropped.
func (y *Faulty) Close() error {
	y.mu.Lock()
	if y.closed {
		y.mu.Unlock()
		return nil
	}
	y.closed = true
	for _, e := range append(y.held, y.queue...) {
		e.buf.Release()
	}
	y.held, y.queue = nil, nil
	if y.done != nil {
		close(y.done)
	}
	y.mu.Unlock()
	err := y.port.Close()
	if y.gone != nil {
		<-y.gone
	}
	return err
}
