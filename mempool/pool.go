package mempool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// ErrClosed is what Wait returns once the pool was closed.
var ErrClosed = errors.New("mempool: the pool is closed")

const (
	// align is the distance buffers keep: two never share a cache line.
	align = 64
	// maxRegion is the most octets one pool may have: above it a size is a mistake, not a wish.
	maxRegion = 1 << 40

	// The head of the free list is one word, so that it changes at once: index+1 of the first free buffer (0: none)
	// in the lowest bits, above it how many are free, above that a count of changes. The count tells a head that
	// was popped and pushed back from the one seen before.
	indexBits = 20
	indexMask = 1<<indexBits - 1
	oneFree   = 1 << indexBits
	oneChange = 1 << (2 * indexBits)
	maxCount  = indexMask
)

// Config describes a pool.
type Config struct {
	// Count is how many buffers the pool has, at most 1,048,575.
	Count int
	// Size is the room for data in each buffer, in octets, without the headroom.
	Size int
	// Headroom is how many octets lie free in front of the data of a fresh buffer, for Prepend.
	Headroom int
}

// Stats counts what a pool did. Count and Out are of now, the others since the pool was made.
type Stats struct {
	Count int    // buffers the pool has
	Out   int    // buffers somebody holds
	Empty uint64 // Gets that found no buffer
	Waits uint64 // Waits that found no buffer at once
}

// Pool is a set of buffers of one size. All methods may be called by any goroutine at any time.
type Pool struct {
	c    Config
	bufs []Buf
	wake chan struct{} // one token: "a buffer may be free, look again"
	done chan struct{} // closed by Close

	closeOnce sync.Once
	closed    atomic.Bool
	empty     atomic.Uint64
	waits     atomic.Uint64
	waiting   atomic.Int32 // goroutines in Wait

	_    [align]byte
	head atomic.Uint64 // free list, see indexBits
	_    [align - 8]byte
}

// New makes a pool. All its memory is allocated here; pages are touched when a buffer is first used.
func New(c Config) (*Pool, error) {
	if c.Count <= 0 || c.Size <= 0 || c.Headroom < 0 {
		return nil, fmt.Errorf("mempool: count %d, size %d and headroom %d make no pool: count and size must be above 0, headroom not below", c.Count, c.Size, c.Headroom)
	}
	if c.Count > maxCount || c.Size > maxRegion || c.Headroom > maxRegion || c.Size+c.Headroom+align > maxRegion/c.Count {
		return nil, fmt.Errorf("mempool: %d buffers of %d+%d octets are too many: a pool has at most %d buffers and %d octets", c.Count, c.Headroom, c.Size, maxCount, maxRegion)
	}
	room := c.Headroom + c.Size
	stride := (room + align - 1) &^ (align - 1)
	region := make([]byte, stride*c.Count)
	p := &Pool{
		c:    c,
		bufs: make([]Buf, c.Count),
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	for i := range p.bufs {
		b := &p.bufs[i]
		b.pool = p
		b.index = uint32(i)
		b.mem = region[i*stride : i*stride+room : i*stride+room]
		b.next.Store(uint32(i)) // index+1 of the buffer before this one
	}
	p.head.Store(uint64(c.Count) | uint64(c.Count)*oneFree)
	return p, nil
}

// Config returns what the pool was made with.
func (p *Pool) Config() Config { return p.c }

// Get takes a buffer with one reference, empty and with its headroom free. It never blocks: with no buffer left,
// or after Close, it returns nil and counts Stats.Empty.
func (p *Pool) Get() *Buf {
	if b := p.pop(); b != nil {
		return b
	}
	p.empty.Add(1)
	return nil
}

// Wait takes a buffer as Get does and waits for one while there is none. It returns ctx's error when ctx ends
// first and ErrClosed when the pool is closed. Waiters are served in no particular order.
func (p *Pool) Wait(ctx context.Context) (*Buf, error) {
	if b := p.pop(); b != nil {
		return b, nil
	}
	p.waits.Add(1)
	// Counted as waiting before looking again: a Release either is seen by pop or sees the count.
	p.waiting.Add(1)
	defer p.waiting.Add(-1)
	for {
		if b := p.pop(); b != nil {
			// One token may stand for several releases. Pass it on to the next waiter, who looks for himself.
			if p.waiting.Load() > 1 {
				p.signal()
			}
			return b, nil
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.done:
			return nil, ErrClosed
		}
	}
}

// Out returns how many buffers somebody holds.
func (p *Pool) Out() int { return p.c.Count - int(p.head.Load()>>indexBits&indexMask) }

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	return Stats{Count: p.c.Count, Out: p.Out(), Empty: p.empty.Load(), Waits: p.waits.Load()}
}

// Close ends the pool: Get finds nothing from now on and Wait returns ErrClosed. It returns an error that says how
// many buffers are still out, if any; those stay good until released, and Close may be called again to see.
func (p *Pool) Close() error {
	p.closed.Store(true)
	p.closeOnce.Do(func() { close(p.done) })
	if n := p.Out(); n != 0 {
		return fmt.Errorf("mempool: closed with %d of %d buffers still out: release them first", n, p.c.Count)
	}
	return nil
}

func (p *Pool) pop() *Buf {
	if p.closed.Load() {
		return nil
	}
	for {
		head := p.head.Load()
		i := head & indexMask
		if i == 0 {
			return nil
		}
		b := &p.bufs[i-1]
		if p.head.CompareAndSwap(head, head&^indexMask-oneFree+oneChange|uint64(b.next.Load())) {
			b.start, b.end = p.c.Headroom, p.c.Headroom
			b.refs.Store(1)
			return b
		}
	}
}

func (p *Pool) push(b *Buf) {
	for {
		head := p.head.Load()
		b.next.Store(uint32(head & indexMask))
		if p.head.CompareAndSwap(head, head&^indexMask+oneFree+oneChange|uint64(b.index+1)) {
			break
		}
	}
	if p.waiting.Load() > 0 {
		p.signal()
	}
}

func (p *Pool) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
