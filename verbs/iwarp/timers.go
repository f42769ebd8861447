package iwarp

import (
	"container/heap"
	"time"
)

// timers holds the connections that wait for something with a limit, nearest
// first. The receive goroutine alone uses it.
type timers struct{ heap connHeap }

type connHeap []*conn

func (h connHeap) Len() int           { return len(h) }
func (h connHeap) Less(i, j int) bool { return h[i].deadline.Before(h[j].deadline) }
func (h connHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i, j
}

func (h *connHeap) Push(x any) {
	c := x.(*conn)
	c.slot = len(*h)
	*h = append(*h, c)
}

func (h *connHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.slot = -1
	return c
}

// set gives c a new deadline.
func (t *timers) set(c *conn, at time.Time) {
	c.deadline = at
	if c.slot < 0 {
		heap.Push(&t.heap, c)
	} else {
		heap.Fix(&t.heap, c.slot)
	}
}

func (t *timers) drop(c *conn) {
	if c.slot >= 0 {
		heap.Remove(&t.heap, c.slot)
	}
}

// next is how long to wait for the nearest deadline; negative for ever.
func (t *timers) next() time.Duration {
	if len(t.heap) == 0 {
		return -1
	}
	return max(0, time.Until(t.heap[0].deadline))
}

// expire calls timeout on every connection whose deadline has passed.
func (t *timers) expire(now time.Time) {
	for len(t.heap) > 0 && !t.heap[0].deadline.After(now) {
		c := t.heap[0]
		t.drop(c)
		c.timeout()
	}
}
