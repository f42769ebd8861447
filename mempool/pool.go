package mempool

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
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
	// in the lowest bits, above it whether the pool is closed, above that how many are free, above that a count of
	// changes. The count tells a head that was popped and pushed back from the one seen before.
	indexBits = 20
	indexMask = 1<<indexBits - 1
	shut      = 1 << indexBits
	freeShift = indexBits + 1
	oneFree   = 1 << freeShift
	oneChange = oneFree << indexBits
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
	// PowerOfTwo lays the buffers out at a distance that is a power of two, so that none lies across the border of
	// two pages that could hold it. Without it the distance is the least that keeps two out of one cache line.
	PowerOfTwo bool
	// Pages is the best kind of memory to try, as in RegionConfig. The zero value is Heap, which the garbage collector
	// frees and the race detector watches. Anything else is a Region, which is freed by Close and the last Release;
	// in a program built with the race detector it is Heap all the same.
	Pages Pages
	// Prefault and NoLock are those of RegionConfig. Nothing on the heap is locked.
	Prefault, NoLock bool
}

// stride returns the distance from one buffer to the next, in octets.
func (c *Config) stride() int {
	room := c.Headroom + c.Size
	if c.PowerOfTwo {
		return 1 << bits.Len(uint(max(room, align)-1))
	}
	return roundUp(room, align)
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

	mem    *Region // where the octets are; nil on the heap
	heap   Info    // of the pool then
	retire sync.Once
	unmap  error // why mem was not closed; written by retire

	closeOnce sync.Once
	empty     atomic.Uint64
	waits     atomic.Uint64
	waiting   atomic.Int32 // goroutines in Wait

	_    [align]byte
	head atomic.Uint64 // free list, see indexBits
	_    [align - 8]byte
}

// New makes a pool. All its memory is allocated here; without Config.Prefault pages are touched when a buffer is
// first used, and the buffers released last are used first, so that a pool takes no more than was once out.
func New(c Config) (*Pool, error) {
	if c.Count <= 0 || c.Size <= 0 || c.Headroom < 0 {
		return nil, fmt.Errorf("mempool: count %d, size %d and headroom %d make no pool: count and size must be above 0, headroom not below", c.Count, c.Size, c.Headroom)
	}
	if c.Count > maxCount || c.Size > maxRegion || c.Headroom > maxRegion || c.Size+c.Headroom+align > maxRegion/c.Count || c.stride() > maxRegion/c.Count {
		return nil, fmt.Errorf("mempool: %d buffers of %d+%d octets are too many: a pool has at most %d buffers and %d octets", c.Count, c.Headroom, c.Size, maxCount, maxRegion)
	}
	if c.Pages > Huge {
		return nil, fmt.Errorf("mempool: there is no kind of pages %d", c.Pages)
	}
	p := &Pool{
		c:    c,
		bufs: make([]Buf, c.Count),
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	mem, err := p.allocate()
	if err != nil {
		return nil, err
	}
	room, stride := c.Headroom+c.Size, c.stride()
	for i := range p.bufs {
		b := &p.bufs[i]
		b.pool = p
		b.index = uint32(i)
		b.mem = mem[i*stride : i*stride+room : i*stride+room]
		b.next.Store(uint32(i)) // index+1 of the buffer before this one
	}
	p.head.Store(uint64(c.Count) | uint64(c.Count)*oneFree)
	return p, nil
}

// allocate returns the memory of all buffers.
func (p *Pool) allocate() ([]byte, error) {
	c := &p.c
	size := c.stride() * c.Count
	if c.Pages != Heap && !raceEnabled {
		r, err := NewRegion(RegionConfig{Size: size, Pages: c.Pages, Prefault: c.Prefault, NoLock: c.NoLock})
		if err != nil {
			return nil, err
		}
		p.mem = r
		return r.Bytes(), nil
	}
	p.heap = heapInfo(size)
	if c.Pages != Heap {
		p.heap.because("the race detector watches no other memory")
	}
	border := align
	if c.PowerOfTwo {
		border = os.Getpagesize()
	}
	mem := heapBytes(size, border)
	if c.Prefault {
		touch(mem)
	}
	return mem, nil
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
func (p *Pool) Out() int { return p.out(p.head.Load()) }

func (p *Pool) out(head uint64) int { return p.c.Count - int(head>>freeShift&indexMask) }

// Memory says where the pool's octets are, as of now, see [Region.Info].
func (p *Pool) Memory() Info {
	if p.mem == nil {
		return p.heap
	}
	return p.mem.Info()
}

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	return Stats{Count: p.c.Count, Out: p.Out(), Empty: p.empty.Load(), Waits: p.waits.Load()}
}

// Close ends the pool: Get finds nothing from now on and Wait returns ErrClosed. It returns an error that says how
// many buffers are still out, if any; those stay good until released, and Close may be called again to see. The
// memory goes with the last of them.
func (p *Pool) Close() error {
	head := p.head.Or(shut)
	p.closeOnce.Do(func() { close(p.done) })
	if n := p.out(head); n != 0 {
		return fmt.Errorf("mempool: closed with %d of %d buffers still out: release them first", n, p.c.Count)
	}
	return p.free()
}

// free gives the memory back. The pool is closed and no buffer is out, nor can one come out again.
func (p *Pool) free() error {
	p.retire.Do(func() {
		if p.mem != nil {
			p.unmap = p.mem.Close()
		}
	})
	return p.unmap
}

func (p *Pool) pop() *Buf {
	for {
		head := p.head.Load()
		i := head & (indexMask | shut)
		if i-1 >= indexMask { // none left, or closed
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
	var head uint64
	for {
		old := p.head.Load()
		b.next.Store(uint32(old & indexMask))
		head = old&^indexMask + oneFree + oneChange | uint64(b.index+1)
		if p.head.CompareAndSwap(old, head) {
			break
		}
	}
	if head&shut != 0 {
		if p.out(head) == 0 {
			_ = p.free() // Close tells, when asked again
		}
		return // who waited was told by Close
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
