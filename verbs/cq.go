package verbs

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/internal/ring"
	"github.com/softrdma/softrdma/internal/yield"
)

// DefaultCQDepth is the number of entries of a completion queue unless said
// otherwise: enough for one queue pair of default size.
const DefaultCQDepth = 256

// DefaultSpin is how long CQ.Wait polls before it parks unless said otherwise.
const DefaultSpin = 50 * time.Microsecond

// CQConfig sizes a completion queue. The zero value is useful.
type CQConfig struct {
	// Depth is the least number of entries; 0 means DefaultCQDepth. Make it at
	// least the sum of the depths of all work queues that complete into it: a
	// completion that finds no room is lost, and with it the queue pairs.
	Depth int
	// SpinFor is how long Wait polls before it parks the goroutine: time on the
	// CPU against the delay of a wake-up. 0 means DefaultSpin, less than 0 none.
	SpinFor time.Duration
}

// CQ is a completion queue. Completions of the work requests of one queue come
// out in posting order; those of several queues mix. Any goroutine may poll, and
// each completion goes to one of them.
type CQ struct {
	c    *cq
	dev  *Device
	leak runtime.Cleanup
}

type cq struct {
	d        *device
	num      uint32
	ring     *ring.CQ
	spin     time.Duration
	spins    int          // upper bound on polls while spinning
	sleepers atomic.Int32 // goroutines parked in Wait
	closed   atomic.Bool
	progress func()

	errClosed, errOverrun error // made once: Poll does not allocate

	closing bool             // guarded by d.life
	users   map[*qp]struct{} // guarded by d.mu
	once    sync.Once
}

// CreateCQ makes a completion queue. Errors match syscall.EINVAL (depth above
// the device's limit), syscall.ENOMEM (too many) and ErrClosed.
func (d *Device) CreateCQ(c CQConfig) (*CQ, error) {
	d.d.life.RLock()
	defer d.d.life.RUnlock()
	h, err := d.createCQ(c)
	if err != nil {
		return nil, d.d.failed("create cq", d.d.name(), err)
	}
	return h, nil
}

// createCQ runs under device.life.
func (dev *Device) createCQ(c CQConfig) (*CQ, error) {
	d := dev.d
	if d.closing {
		return nil, ErrClosed
	}
	if c.Depth < 0 || c.Depth > d.attr.MaxCQE {
		return nil, invalidf("completion queue of %d entries: the device allows %d", c.Depth, d.attr.MaxCQE)
	}
	if c.Depth == 0 {
		c.Depth = min(DefaultCQDepth, d.attr.MaxCQE)
	}
	if c.SpinFor == 0 {
		c.SpinFor = DefaultSpin
	}
	if err := d.takeQueue(c.Depth, ring.CQESize); err != nil {
		return nil, err
	}
	r, err := ring.NewCQ(c.Depth)
	if err != nil {
		d.dropQueue(c.Depth, ring.CQESize)
		return nil, invalidf("%v", err)
	}
	q := &cq{d: d, ring: r, spin: c.SpinFor, progress: d.p.Progress, users: make(map[*qp]struct{})}
	// A poll takes no less than this, so real time ends the spin first. Where time
	// stands still while goroutines run, as in testing/synctest, the count does.
	const leastPoll = 20 * time.Nanosecond
	q.spins = int(min(max(c.SpinFor, 0), time.Second) / leastPoll)

	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.cqs) >= d.attr.MaxCQ {
		d.lessQueue(r.Cap(), ring.CQESize)
		return nil, noRoom("completion queues", d.attr.MaxCQ)
	}
	d.numCQ++
	q.num = d.numCQ
	q.errClosed = &OpError{"poll", q.name(), ErrClosed}
	q.errOverrun = &OpError{"poll", q.name(), ErrCQOverrun}
	d.cqs[q] = struct{}{}
	h := &CQ{c: q, dev: dev}
	h.leak = watch(d, h, "cq", q.num)
	return h, nil
}

// Device returns the device of c.
func (c *CQ) Device() *Device { return c.dev }

// Num returns the number of c, unique in its device; AsyncEvent.CQ names it.
func (c *CQ) Num() uint32 { return c.c.num }

// Cap returns how many completions fit: what was asked for or more.
func (c *CQ) Cap() int { return c.c.ring.Cap() }

// Demand returns the sum of the depths of the work queues that complete into c,
// each shared receive queue counted once. While it is at most Cap, and nothing is
// posted before what it replaces was polled, c cannot overrun.
func (c *CQ) Demand() int {
	c.c.d.mu.Lock()
	defer c.c.d.mu.Unlock()
	return c.c.demand()
}

// demand runs under d.mu.
func (c *cq) demand() (n int) {
	shared := make(map[*srq]struct{})
	for q := range c.users {
		if q.sendCQ == c {
			n += q.sq.cap()
		}
		if q.recvCQ == c {
			n += q.rq.cap()
			if q.srq != nil {
				shared[q.srq] = struct{}{}
			}
		}
	}
	for s := range shared {
		n += s.wq.cap()
	}
	return n
}

func (c *CQ) String() string { return c.c.name() }
func (c *cq) name() string   { return fmt.Sprintf("cq %d", c.num) }

// Poll takes up to len(wcs) completions and returns how many. It never blocks
// and does not allocate. The error is nil unless nothing is left to take and
// nothing will come: ErrClosed after Close, [ErrCQOverrun] after completions
// were lost. (After an overrun completions may still follow.)
//
// A loop that calls it again and again needs no runtime.Gosched: other goroutines
// and threads get their turn, without a thread waking up at each call.
func (c *CQ) Poll(wcs []WC) (int, error) { return c.c.poll(wcs) }

func (c *cq) poll(wcs []WC) (int, error) {
	n := c.take(wcs)
	if n == 0 && len(wcs) > 0 {
		if c.progress != nil {
			c.progress()
			n = c.take(wcs)
		}
		if n == 0 {
			return 0, c.ended()
		}
	}
	return n, nil
}

func (c *cq) take(wcs []WC) int {
	first, n := c.ring.Begin(len(wcs))
	if n == 0 {
		return 0
	}
	var e ring.Completion
	for i := range n {
		c.ring.CQE(first + uint64(i)).Get(&e)
		wcs[i].set(&e)
	}
	c.ring.End(first + uint64(n))
	return n
}

// ended returns why nothing may come any more.
func (c *cq) ended() error {
	if c.closed.Load() {
		return c.errClosed
	}
	if c.ring.Overrun() {
		return c.errOverrun
	}
	return nil
}

// set fills wc; what does not hold on an error is cleared.
func (wc *WC) set(e *ring.Completion) {
	wc.ID, wc.Status, wc.QP, wc.VendorErr, wc.Time = e.ID, WCStatus(e.Status), e.QP, e.VendorErr, e.Time
	if e.Status != 0 {
		wc.Op, wc.ByteLen, wc.Flags, wc.Inv, wc.Imm = 0, 0, 0, 0, 0
		return
	}
	wc.Op, wc.ByteLen, wc.Flags, wc.Inv, wc.Imm = Opcode(e.Op), e.ByteLen, WCFlags(e.Flags), Key(e.Inv), e.Imm
}

// Wait is Poll that waits for at least one completion: it polls for
// CQConfig.SpinFor, then parks. It returns ctx.Err() when ctx ends first, and
// like Poll ErrClosed or ErrCQOverrun when nothing is left to take.
func (c *CQ) Wait(ctx context.Context, wcs []WC) (int, error) {
	if len(wcs) == 0 {
		return 0, &OpError{"wait", c.c.name(), invalidf("no room for completions")}
	}
	return c.c.wait(ctx, wcs)
}

func (c *cq) wait(ctx context.Context, wcs []WC) (int, error) {
	if n, err := c.poll(wcs); n > 0 || err != nil {
		return n, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if n, err := c.spinFor(wcs); n > 0 || err != nil {
		return n, err
	}
	return c.park(ctx, wcs)
}

func (c *cq) spinFor(wcs []WC) (int, error) {
	if c.spins == 0 {
		return 0, nil
	}
	start := time.Now()
	for i := range c.spins {
		if n, err := c.poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if i&7 == 7 {
			if time.Since(start) >= c.spin {
				break
			}
			yield.Now()
		}
	}
	return 0, nil
}

// park sleeps until a completion comes. One token of the ring wakes one sleeper;
// who leaves asks again on behalf of the others and passes the token on if there
// is something left for them.
func (c *cq) park(ctx context.Context, wcs []WC) (int, error) {
	c.sleepers.Add(1)
	defer func() {
		if c.sleepers.Add(-1) > 0 {
			c.ring.Park()
			if c.ring.Len() > 0 || c.ended() != nil {
				c.ring.Unpark()
			}
		}
	}()
	for {
		c.ring.Park() // then look again: a push in between is either seen or leaves a token
		if n, err := c.poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if c.d.p.Parked != nil {
			c.d.p.Parked()
		}
		select {
		case <-c.ring.W():
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Notify asks for one event at the next completion that is added from now on,
// and returns the channel that delivers it. With solicitedOnly it is the next
// completion that is solicited by the peer or has failed. Of two calls before an
// event the wider wins. The channel is the same every time; an event that nobody
// took stands for later ones too, so one may come early, never late. It is
// closed when c is.
//
// To miss nothing: Notify, then Poll until empty, then wait for the channel.
func (c *CQ) Notify(solicitedOnly bool) <-chan struct{} {
	c.c.ring.Arm(solicitedOnly)
	return c.c.ring.C()
}

// All returns the completions one by one as they come, waiting as Wait does. The
// last step carries the error that ended it: ctx.Err(), ErrClosed or
// ErrCQOverrun. A completion that was not yet yielded stays in the queue.
func (c *CQ) All(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) { c.c.all(ctx, yield) }
}

func (c *cq) all(ctx context.Context, yield func(WC, error) bool) {
	var wcs [1]WC
	for {
		_, err := c.wait(ctx, wcs[:])
		if err != nil {
			yield(WC{}, err)
			return
		}
		if !yield(wcs[0], nil) {
			return
		}
	}
}

// Close closes c and wakes who waits for it. What is in it can still be polled.
// If queue pairs use it, Close changes nothing and returns a *[BusyError] that
// names them. A second Close returns nil.
func (c *CQ) Close() error {
	if err := c.c.close(); err != nil {
		return err
	}
	c.leak.Stop()
	return nil
}

func (c *cq) close() error {
	d := c.d
	d.life.Lock()
	if !c.closing {
		if err := c.busy(); err != nil {
			d.life.Unlock()
			return err
		}
		c.closing = true
	}
	d.life.Unlock()
	c.shut()
	return nil
}

// shut closes c, which nobody uses any more.
func (c *cq) shut() {
	c.once.Do(func() {
		c.closed.Store(true)
		c.ring.Close()
		c.d.mu.Lock()
		delete(c.d.cqs, c)
		c.d.lessQueue(c.ring.Cap(), ring.CQESize)
		c.count(&c.d.gone)
		c.d.mu.Unlock()
	})
}

// busy returns a *BusyError if queue pairs use c.
func (c *cq) busy() error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if len(c.users) == 0 {
		return nil
	}
	nums := make([]uint32, 0, len(c.users))
	for q := range c.users {
		nums = append(nums, q.num)
	}
	slices.Sort(nums)
	e := &BusyError{Object: c.name()}
	for _, n := range nums {
		e.Users = append(e.Users, fmt.Sprintf("qp %d", n))
	}
	return e
}

// count adds the counters of c to s. It runs under d.mu.
func (c *cq) count(s *Stats) {
	s.Completions += c.ring.Pushed()
	s.CompletionsLost += c.ring.Lost()
}
