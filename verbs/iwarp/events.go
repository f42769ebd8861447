package iwarp

import (
	"sync"
	"sync/atomic"

	"github.com/softrdma/softrdma/verbs"
)

// Bounds of the queue of asynchronous events. What peers cause is about a queue
// pair; it cannot fill the last places, which are for what befalls the device, a
// completion queue or a shared receive queue.
const (
	eventBacklog = 1024
	eventReserve = 64
)

// eventQueue holds events until the application takes them. It is bounded, and
// an event that equals one which waits is merged into it: a peer cannot make it
// grow, and one connection has two events at most, its error and
// EventQPLastWQEReached.
type eventQueue struct {
	c chan verbs.AsyncEvent

	dropped, merged atomic.Uint64

	mu      sync.Mutex // guards what follows, and who fills and closes c
	waiting map[eventKey]struct{}
	closed  bool
}

// eventKey is what makes two events equal.
type eventKey struct {
	typ         verbs.EventType
	qp, cq, srq uint32
	err         string // of those about no object: another address, another cause
}

func keyOf(e *verbs.AsyncEvent) eventKey {
	k := eventKey{typ: e.Type, qp: e.QP, cq: e.CQ, srq: e.SRQ}
	if k.qp|k.cq|k.srq == 0 && e.Err != nil {
		k.err = e.Err.Error()
	}
	return k
}

func (q *eventQueue) init() {
	q.c = make(chan verbs.AsyncEvent, eventBacklog)
	q.waiting = make(map[eventKey]struct{})
}

// push queues e, unless its like waits or there is no room.
func (q *eventQueue) push(e verbs.AsyncEvent) {
	k := keyOf(&e)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if _, ok := q.waiting[k]; ok {
		q.merged.Add(1)
		return
	}
	room := cap(q.c) - len(q.c)
	if k.qp != 0 {
		room -= eventReserve
	}
	if room <= 0 {
		q.dropped.Add(1)
		return
	}
	q.waiting[k] = struct{}{}
	q.c <- e // only push fills it: there is room
}

// taken tells that the application has taken e: its like is news again.
func (q *eventQueue) taken(e verbs.AsyncEvent) {
	q.mu.Lock()
	delete(q.waiting, keyOf(&e))
	q.mu.Unlock()
}

func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	close(q.c)
}
