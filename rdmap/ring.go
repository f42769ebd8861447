package rdmap

import (
	"math/bits"
	"sync/atomic"
)

// ring is a bounded queue between two goroutines: one pushes, one looks at the
// front and pops. It never allocates after newRing.
type ring[T any] struct {
	slots   []T // a power of two of them
	head    atomic.Uint32
	tail    atomic.Uint32
	waiting atomic.Bool // the pushing side wants to hear of the next pop
}

// newRing makes a ring of depth slots, rounded up to a power of two.
func newRing[T any](depth int) ring[T] {
	return ring[T]{slots: make([]T, roundUp(depth))}
}

// roundUp returns the power of two that is at least n and at least 1.
func roundUp(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// len returns how many elements are in the ring. Each side sees its own moves
// at once.
func (r *ring[T]) len() int { return int(r.tail.Load() - r.head.Load()) }

// push adds v, for which the caller knows that there is a slot.
func (r *ring[T]) push(v T) {
	t := r.tail.Load()
	r.slots[int(t)&(len(r.slots)-1)] = v
	r.tail.Store(t + 1)
}

// front returns the oldest element, valid until pop, or nil.
func (r *ring[T]) front() *T {
	h := r.head.Load()
	if h == r.tail.Load() {
		return nil
	}
	return &r.slots[int(h)&(len(r.slots)-1)]
}

// pop drops the oldest element and reports whether the other side waits for
// that.
func (r *ring[T]) pop() (wake bool) {
	r.head.Store(r.head.Load() + 1)
	return r.waiting.Load() && r.waiting.Swap(false)
}

// longer reports whether more than n elements are in the ring, and if so asks
// for the next pop to wake.
func (r *ring[T]) longer(n int) bool {
	if r.len() <= n {
		return false
	}
	r.waiting.Store(true)
	if r.len() > n {
		return true
	}
	r.waiting.Store(false)
	return false
}
