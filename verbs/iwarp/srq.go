package iwarp

import (
	"sync"
	"time"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/ring"
	"github.com/softrdma/softrdma/verbs"
)

// sharedQueue hands receives to the messages of several queue pairs, in posting
// order, each when its first octet arrives (RFC 5041, Section 5.1: a buffer is
// bound to an MSN at arrival). A record is copied and its slot released at once,
// so that the next message, of whatever queue pair, takes the next one.
type sharedQueue struct {
	dev    *device
	num    uint32
	pd     ddp.PD // whose keys the receives use
	maxSGE int

	mu    sync.Mutex // the consumer's side of q is for one at a time; guards limit
	q     *ring.Queue
	limit int // raise one event when fewer are left; 0: disarmed
}

func (d *device) createSRQ(s verbs.SRQSetup) (verbs.SRQOps, error) {
	q := &sharedQueue{dev: d, num: s.Num, pd: ddp.PD(s.PD), maxSGE: s.Config.MaxSGE, q: s.RQ, limit: s.Config.Limit}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return verbs.SRQOps{}, verbs.ErrClosed
	}
	d.srqs[q.num] = q
	return verbs.SRQOps{Modify: q.arm, Close: q.close}, nil
}

func (q *sharedQueue) arm(limit int) error {
	q.mu.Lock()
	q.limit = limit
	q.mu.Unlock()
	return nil
}

func (q *sharedQueue) close() error {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	delete(q.dev.srqs, q.num)
	return nil
}

// take copies the oldest receive into rec and takes it out; false when there is
// none.
func (q *sharedQueue) take(rec ring.WQE) bool {
	q.mu.Lock()
	h := q.q.Head()
	ok := h != q.q.Tail()
	if ok {
		q.q.Load(h, rec)
		q.q.Release(h + 1)
	}
	low := q.q.Len() < q.limit
	if low {
		q.limit = 0
	}
	q.mu.Unlock()
	if !ok {
		q.dev.stats.srqEmpty.Add(1)
	}
	if low {
		q.dev.stats.srqLimits.Add(1)
		q.dev.event(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: q.num, Time: time.Now().UnixNano()})
	}
	return ok
}
