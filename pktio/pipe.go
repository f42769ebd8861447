package pktio

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/mempool"
)

const (
	defaultPipeMTU   = 1500
	defaultPipeDepth = 256
	// defaultPipeLent is how many frames a receiver may have lent before the sender runs out of buffers.
	defaultPipeLent = 64
)

// PipeConfig describes an in-memory link. The zero value is a link of Ethernet's usual MTU without offloads.
type PipeConfig struct {
	// MTU is the longest IP packet, in octets, from 68 to 65535. 0 means 1500.
	MTU int
	// Depth is how many frames wait in each direction before the sender finds no room. 0 means 256.
	Depth int
	// Buffers is how many frame buffers each direction has, for frames that wait and frames lent to the receiver.
	// 0 means Depth and 64 more.
	Buffers int
	// GSO lets super-frames of up to 64 KiB pass whole. It implies Checksum.
	GSO bool
	// Checksum lets frames pass with an unfinished checksum, which nobody finishes: memory makes no errors.
	Checksum bool
}

// PipeStats counts what passed one end of a Pipe, in frames unless the name says octets.
type PipeStats struct {
	TxFrames, TxOctets uint64 // sent to the other end
	RxFrames, RxOctets uint64 // received from it
	QueueFull          uint64 // not taken: Depth frames were waiting already
	NoBuffer           uint64 // not taken: no buffer was free
	NoPeer             uint64 // taken and dropped: the other end is closed
}

// Pipe is one end of a link in memory. It copies a sent frame once, into a buffer of its own, which the receiver is
// lent. It never runs a goroutine and never blocks a sender: with the queue full or no buffer free, Send takes
// fewer frames. Like a cable, it does not tell one end that the other was closed.
//
// Any number of goroutines may Send at once. Blocking is on channels and timers, so a Pipe may be used inside a
// testing/synctest bubble.
type Pipe struct {
	link   Link
	tx, rx *lane
	closed atomic.Bool
	once   sync.Once

	// The receiver's.
	receiving atomic.Bool
	lent      []*mempool.Buf
	timer     *time.Timer

	txFrames, txOctets, rxFrames, rxOctets atomic.Uint64
	queueFull, noBuffer, noPeer            atomic.Uint64
}

// lane is one direction.
type lane struct {
	q    chan waiting
	pool *mempool.Pool
	done chan struct{} // closed when the receiving end was
}

type waiting struct {
	buf *mempool.Buf
	off Offload
}

// NewPipe makes a link and returns its two ends.
func NewPipe(c PipeConfig) (a, b *Pipe, err error) {
	if c.MTU == 0 {
		c.MTU = defaultPipeMTU
	}
	if c.Depth == 0 {
		c.Depth = defaultPipeDepth
	}
	if c.Buffers == 0 {
		c.Buffers = c.Depth + defaultPipeLent
	}
	if c.MTU < minMTU || c.MTU > maxMTU {
		return nil, nil, fmt.Errorf("pktio: a pipe's MTU is from %d to %d octets, not %d", minMTU, maxMTU, c.MTU)
	}
	if c.Depth < 0 || c.Buffers < 0 {
		return nil, nil, fmt.Errorf("pktio: a pipe cannot have a depth of %d and %d buffers", c.Depth, c.Buffers)
	}
	link := Link{MTU: c.MTU, MaxFrame: c.MTU + EthernetHeader, GSO: c.GSO, Checksum: c.GSO || c.Checksum}
	if c.GSO {
		link.MaxFrame = MaxSuperFrame
	}
	ab, err := newLane(c, link.MaxFrame)
	if err != nil {
		return nil, nil, err
	}
	ba, err := newLane(c, link.MaxFrame)
	if err != nil {
		return nil, nil, err
	}
	a = &Pipe{link: link, tx: ab, rx: ba}
	a.link.Name, a.link.Addr = "pipe-a", [6]byte{2, 0, 0, 0, 0, 0xa}
	b = &Pipe{link: link, tx: ba, rx: ab}
	b.link.Name, b.link.Addr = "pipe-b", [6]byte{2, 0, 0, 0, 0, 0xb}
	return a, b, nil
}

func newLane(c PipeConfig, size int) (*lane, error) {
	pool, err := mempool.New(mempool.Config{Count: c.Buffers, Size: size})
	if err != nil {
		return nil, fmt.Errorf("pktio: buffers of a pipe: %w", err)
	}
	return &lane{q: make(chan waiting, c.Depth), pool: pool, done: make(chan struct{})}, nil
}

// Link describes the link; the two ends differ in Addr and Name.
func (p *Pipe) Link() Link { return p.link }

// Pool returns the pool that holds the frames this end has sent, until the other end has done with them. Once both
// ends are closed and their receivers gone, none is out.
func (p *Pipe) Pool() *mempool.Pool { return p.tx.pool }

// Stats returns the counters of this end.
func (p *Pipe) Stats() PipeStats {
	return PipeStats{
		TxFrames: p.txFrames.Load(), TxOctets: p.txOctets.Load(),
		RxFrames: p.rxFrames.Load(), RxOctets: p.rxOctets.Load(),
		QueueFull: p.queueFull.Load(), NoBuffer: p.noBuffer.Load(), NoPeer: p.noPeer.Load(),
	}
}

// Send copies frames to the other end, see [Port].
func (p *Pipe) Send(batch []Frame) (int, error) {
	if p.closed.Load() {
		return 0, ErrClosed
	}
	var n int
	var octets uint64
	var err error
	for n < len(batch) {
		f := &batch[n]
		size := f.Len()
		if err = p.link.check(size, &f.Offload); err != nil {
			break
		}
		buf := p.tx.pool.Get()
		if buf == nil {
			p.noBuffer.Add(uint64(len(batch) - n))
			break
		}
		buf.SetLen(size)
		f.CopyTo(buf.Bytes())
		w := waiting{buf, f.Offload}
		w.off.CsumValid = false // nobody on the way has looked
		if !p.tx.put(w) {
			buf.Release()
			p.queueFull.Add(uint64(len(batch) - n))
			break
		}
		n++
		octets += uint64(size)
	}
	if n > 0 {
		if p.tx.over() {
			p.noPeer.Add(uint64(n))
		} else {
			p.txFrames.Add(uint64(n))
			p.txOctets.Add(octets)
		}
	}
	return n, err
}

// Recv receives frames from the other end, see [Port].
func (p *Pipe) Recv(batch []Frame, wait time.Duration) (int, error) {
	if !p.receiving.CompareAndSwap(false, true) {
		panic("pktio: two goroutines in Recv")
	}
	defer p.receiving.Store(false)
	for i, b := range p.lent {
		b.Release()
		p.lent[i] = nil
	}
	p.lent = p.lent[:0]
	if p.closed.Load() {
		p.rx.over()
		return 0, ErrClosed
	}
	n := p.take(batch)
	if n == 0 && wait != 0 && len(batch) > 0 {
		w, ok := p.await(wait)
		if !ok && p.closed.Load() {
			return 0, ErrClosed
		}
		if ok {
			p.lend(&batch[0], w)
			n = 1 + p.take(batch[1:])
		}
	}
	return n, nil
}

// await blocks for one frame. ok is false when the time is over or the port closed.
func (p *Pipe) await(wait time.Duration) (w waiting, ok bool) {
	var expired <-chan time.Time
	if wait > 0 {
		if p.timer == nil {
			p.timer = time.NewTimer(wait)
		} else {
			p.timer.Reset(wait)
		}
		defer p.timer.Stop()
		expired = p.timer.C
	}
	select {
	case w = <-p.rx.q:
		return w, true
	case <-p.rx.done:
	case <-expired:
	}
	return waiting{}, false
}

// take lends out what is in the queue, without waiting.
func (p *Pipe) take(batch []Frame) int {
	for i := range batch {
		select {
		case w := <-p.rx.q:
			p.lend(&batch[i], w)
		default:
			return i
		}
	}
	return len(batch)
}

func (p *Pipe) lend(f *Frame, w waiting) {
	p.lent = append(p.lent, w.buf)
	f.Data = append(f.Data[:0], w.buf.Bytes())
	f.Offload = w.off
	p.rxFrames.Add(1)
	p.rxOctets.Add(uint64(w.buf.Len()))
}

// Close ends this end: see [Port]. Frames that nobody received are dropped.
func (p *Pipe) Close() error {
	p.once.Do(func() {
		p.closed.Store(true)
		close(p.rx.done)
		p.rx.over()
	})
	return nil
}

func (l *lane) put(w waiting) bool {
	select {
	case l.q <- w:
		return true
	default:
		return false
	}
}

// over tells whether the receiving end was closed and drops what waits for it if so. Whoever finds the lane closed
// empties it: the receiver's Close, and each Send, which may have come in beside it.
func (l *lane) over() bool {
	select {
	case <-l.done:
	default:
		return false
	}
	for {
		select {
		case w := <-l.q:
			w.buf.Release()
		default:
			return true
		}
	}
}
