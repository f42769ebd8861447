package ring

import (
	"sync"
	"sync/atomic"
)

// Bits of the arm word. The consumer sets them, the producer clears those it
// served.
const (
	armSolicited uint32 = 1 // one event for the next solicited or failed completion
	armAny       uint32 = 2 // one event for the next completion
	armWait      uint32 = 4 // someone is parked and wants the next completion
)

// CQ is a completion queue: a [Queue] of CQEs with a lock on either side, so
// that any goroutine may push and any may poll, and a way to be woken.
type CQ struct {
	q *Queue

	push    sync.Mutex // guards the producer side, what follows and closing of the channels
	lost    uint64
	closed  bool
	wakes   uint32 // armed bits that what was put since Open serves
	overrun atomic.Bool

	poll sync.Mutex // guards the consumer side

	event chan struct{} // Notify's
	wake  chan struct{} // parked waiters'
}

// NewCQ makes a completion queue for at least depth entries. Errors match
// [ErrGeometry].
func NewCQ(depth int) (*CQ, error) {
	q, err := New(depth, CQESize)
	if err != nil {
		return nil, err
	}
	return &CQ{q: q, event: make(chan struct{}, 1), wake: make(chan struct{}, 1)}, nil
}

// Cap returns how many completions fit.
func (c *CQ) Cap() int { return c.q.Cap() }

// Len returns how many completions wait to be polled.
func (c *CQ) Len() int { return c.q.Len() }

// Pushed returns how many completions were ever stored.
func (c *CQ) Pushed() uint64 { return c.q.Tail() }

// Overrun reports that a completion was lost because the queue was full. It
// never becomes false again.
func (c *CQ) Overrun() bool { return c.overrun.Load() }

// Lost returns how many completions found no room.
func (c *CQ) Lost() uint64 {
	c.push.Lock()
	defer c.push.Unlock()
	return c.lost
}

// Push stores e, which it borrows, and wakes whoever asked for it. False means
// that the queue was full: nothing was overwritten, e is lost, and all waiters
// are woken so that they learn of it. Safe for all goroutines.
func (c *CQ) Push(e *Completion) bool {
	c.Open()
	ok := c.Put(e)
	c.Publish()
	return ok
}

// Open begins a batch of completions: it locks the producer side until Publish.
func (c *CQ) Open() { c.push.Lock() }

// Put is Push within a batch: nobody sees e before Publish.
func (c *CQ) Put(e *Completion) bool {
	rec := c.q.Slot()
	if rec == nil {
		c.lost++
		c.overrun.Store(true)
		c.wakes = armSolicited | armAny | armWait
		return false
	}
	CQE(rec).Put(e)
	c.wakes |= armAny | armWait
	if e.Solicited || e.Status != 0 {
		c.wakes |= armSolicited
	}
	return true
}

// Publish ends a batch.
func (c *CQ) Publish() {
	c.q.Publish()
	// The consumer arms, then looks at the tail; we move the tail, then look at
	// the arm word. Both are sequentially consistent: one of us sees the other.
	if c.q.arm.Load() != 0 {
		c.signal(c.wakes)
	}
	c.wakes = 0
	c.push.Unlock()
}

// signal serves the armed bits among which. It runs under the push lock.
func (c *CQ) signal(which uint32) {
	var hit uint32
	for {
		a := c.q.arm.Load()
		hit = a & which
		if hit == 0 {
			return
		}
		rest := a &^ hit
		if hit&(armAny|armSolicited) != 0 {
			rest &^= armAny | armSolicited // one event serves both
		}
		if c.q.arm.CompareAndSwap(a, rest) {
			break
		}
	}
	if c.closed {
		return
	}
	if hit&(armAny|armSolicited) != 0 {
		select {
		case c.event <- struct{}{}:
		default: // an event is waiting already
		}
	}
	if hit&armWait != 0 {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

// Arm asks for one event on C at the next completion pushed from now on; with
// solicitedOnly, at the next one that is solicited or failed. Of two requests
// the wider wins.
func (c *CQ) Arm(solicitedOnly bool) {
	if solicitedOnly {
		c.q.arm.Or(armSolicited)
	} else {
		c.q.arm.Or(armAny)
	}
}

// C delivers the events that Arm asked for. It is closed by Close.
func (c *CQ) C() <-chan struct{} { return c.event }

// Park asks for one token on W at the next completion. The caller polls again
// before it sleeps. One token serves one waiter, who passes it on with Unpark
// where others sleep and entries are left.
func (c *CQ) Park() { c.q.arm.Or(armWait) }

// W delivers the tokens that Park asked for. It is closed by Close.
func (c *CQ) W() <-chan struct{} { return c.wake }

// Unpark puts a token into W.
func (c *CQ) Unpark() {
	c.push.Lock()
	defer c.push.Unlock()
	if c.closed {
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Begin locks the consumer side and returns the first of n entries, n <= max,
// which CQE then reads and End releases. With n 0 nothing is locked and End must
// not be called.
func (c *CQ) Begin(max int) (first uint64, n int) {
	if max <= 0 || c.q.Len() == 0 {
		return 0, 0
	}
	c.poll.Lock()
	h, t := c.q.span()
	if h == t {
		c.poll.Unlock()
		return 0, 0
	}
	return h, int(min(t-h, uint64(max)))
}

// CQE returns the entry with number seq.
func (c *CQ) CQE(seq uint64) CQE { return c.q.Record(seq) }

// End releases all entries before seq and unlocks the consumer side.
func (c *CQ) End(seq uint64) {
	c.q.Release(seq)
	c.poll.Unlock()
}

// Poll takes up to len(dst) completions out, oldest first. Safe for all
// goroutines.
func (c *CQ) Poll(dst []Completion) int {
	first, n := c.Begin(len(dst))
	if n == 0 {
		return 0
	}
	for i := range n {
		c.CQE(first + uint64(i)).Get(&dst[i])
	}
	c.End(first + uint64(n))
	return n
}

// Close wakes all waiters for good by closing C and W. What is in the queue
// stays; Push still works and signals nobody.
func (c *CQ) Close() {
	c.push.Lock()
	defer c.push.Unlock()
	if !c.closed {
		c.closed = true
		close(c.event)
		close(c.wake)
	}
}
