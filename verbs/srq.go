package verbs

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/softrdma/softrdma/internal/ring"
)

// SRQ is a shared receive queue: receives that the messages of several queue
// pairs take, in posting order, each when its first octet arrives. It serves
// many connections with fewer receives than each of them would need alone.
//
// Any of the connections can take all of it, and then the next message on any
// of them ends its connection, as on an empty receive queue. So watch the limit
// ([SRQ.Modify]), post in time, and let peers that do not trust each other share
// no SRQ. [QP.SharedRecvs] tells who takes how many.
type SRQ struct {
	s    *srq
	pd   *PD
	cfg  SRQConfig
	leak runtime.Cleanup
}

type srq struct {
	pd  *pd
	num uint32
	ops SRQOps
	wq  workQueue

	closing bool             // guarded by d.life
	users   map[*qp]struct{} // guarded by d.mu
	mu      sync.Mutex       // serialises Modify
	once    sync.Once
}

// SRQConfig sizes a shared receive queue. The caps are minimums; [SRQ.Config]
// returns what they became.
type SRQConfig struct {
	MaxWR  int // receives; 0 means DefaultSRQDepth
	MaxSGE int // SGEs of a receive; 0 means DefaultSGEs
	Limit  int // as with SRQ.Modify; 0: no event
}

// DefaultSRQDepth is the number of receives of a shared receive queue unless
// said otherwise: eight queue pairs' worth of DefaultQPDepth.
const DefaultSRQDepth = 512

// CreateSRQ makes a shared receive queue, whose receives name memory regions of
// p. The queue pairs that use it may be of other protection domains of the same
// device. Errors match syscall.EINVAL (more than the device's limits, a limit
// above MaxWR), syscall.ENOMEM (too many, or too much memory in queues),
// errors.ErrUnsupported and ErrClosed.
func (p *PD) CreateSRQ(c SRQConfig) (*SRQ, error) {
	p.p.d.life.RLock()
	defer p.p.d.life.RUnlock()
	h, err := p.createSRQ(c)
	if err != nil {
		return nil, p.p.d.failed("create srq", p.name(), err)
	}
	return h, nil
}

// createSRQ runs under d.life.
func (p *PD) createSRQ(c SRQConfig) (_ *SRQ, err error) {
	d := p.p.d
	if d.p.CreateSRQ == nil {
		return nil, &unsupported{"a shared receive queue"}
	}
	if err := p.p.open(); err != nil {
		return nil, err
	}
	if c, err = c.withDefaults(d.attr); err != nil {
		return nil, err
	}
	s := &srq{pd: p.p, users: make(map[*qp]struct{})}
	if err := s.wq.make(d, c.MaxWR, ring.WQEStride(c.MaxSGE, 0)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.wq.drop(d)
		}
	}()
	s.wq.maxSGE = c.MaxSGE
	c.MaxWR = s.wq.ring.Cap()
	if err := s.attach(); err != nil {
		return nil, err
	}
	s.ops, err = d.p.CreateSRQ(SRQSetup{Num: s.num, PD: p.p.num, Config: c, RQ: s.wq.ring})
	if err != nil {
		s.detach()
		return nil, err
	}
	if s.ops.Modify == nil || s.ops.Close == nil {
		panic("verbs: provider's shared receive queue lacks Modify or Close")
	}
	h := &SRQ{s: s, pd: p, cfg: c}
	h.leak = watch(d, h, "srq", s.num)
	return h, nil
}

// withDefaults fills what is 0 and checks the rest against the device.
func (c SRQConfig) withDefaults(a DeviceAttr) (SRQConfig, error) {
	for _, l := range []struct {
		name       string
		v          *int
		def, limit int
	}{{"MaxWR", &c.MaxWR, DefaultSRQDepth, a.MaxSRQWR}, {"MaxSGE", &c.MaxSGE, DefaultSGEs, a.MaxSRQSGE}} {
		if *l.v < 0 || *l.v > l.limit {
			return c, invalidf("%s is %d: the device allows %d", l.name, *l.v, l.limit)
		}
		if *l.v == 0 {
			*l.v = min(l.def, l.limit)
		}
	}
	if c.Limit < 0 || c.Limit > c.MaxWR {
		return c, invalidf("limit %d of a queue of %d receives", c.Limit, c.MaxWR)
	}
	return c, nil
}

// attach gives s a number and enters it with its parents. It runs under d.life.
func (s *srq) attach() error {
	d := s.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.srqs) >= d.attr.MaxSRQ {
		return noRoom("shared receive queues", d.attr.MaxSRQ)
	}
	d.numSRQ++
	s.num = d.numSRQ
	d.srqs[s] = struct{}{}
	s.pd.srqs[s] = struct{}{}
	return nil
}

func (s *srq) detach() {
	d := s.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.srqs, s)
	delete(s.pd.srqs, s)
	s.count(&d.gone)
}

// PD returns the protection domain whose keys the receives of s use.
func (s *SRQ) PD() *PD { return s.pd }

// Num returns the number of s, unique in its device; AsyncEvent.SRQ names it.
func (s *SRQ) Num() uint32 { return s.s.num }

// Config returns the configuration that holds: the caps may be larger than what
// was asked for. Limit is that of the beginning.
func (s *SRQ) Config() SRQConfig { return s.cfg }

// Len returns how many receives wait for a message now.
func (s *SRQ) Len() int { return s.s.wq.ring.Len() }

func (s *SRQ) String() string { return s.s.name() }
func (s *srq) name() string   { return fmt.Sprintf("srq %d", s.num) }

// number is 0 for no queue.
func (s *srq) number() uint32 {
	if s == nil {
		return 0
	}
	return s.num
}

// PostRecv puts wrs into the queue in order. The completion of a receive comes
// in the completion queue of the queue pair that took it, and WC.QP names that;
// its place in the queue is free from the moment it is taken. All else is as
// for [QP.PostRecv], except that there is no connection whose state matters.
//
// Receives that no message has taken are never flushed: they complete when one
// comes, or not at all once s is closed.
func (s *SRQ) PostRecv(wrs []RecvWR) (n int, err error) {
	n, err = s.s.wq.postRecv(s.s.pd, nil, wrs)
	if err != nil {
		what := s.s.name()
		if len(wrs) > 1 {
			what = fmt.Sprintf("%s request %d", what, n)
		}
		err = &OpError{"post srq recv", what, err}
	}
	return n, err
}

// Modify arms the limit: the next time that a message takes a receive and fewer
// than limit are left, or finds none, the device raises one
// [EventSRQLimitReached] and disarms it, until Modify is called again. 0 disarms
// it. Errors match syscall.EINVAL (a limit below 0 or above the queue's size) and
// ErrClosed. (The size cannot be changed; Linux siw refuses that too.)
func (s *SRQ) Modify(limit int) error {
	if err := s.s.modify(limit); err != nil {
		return &OpError{"modify", s.s.name(), err}
	}
	return nil
}

func (s *srq) modify(limit int) error {
	if n := s.wq.ring.Cap(); limit < 0 || limit > n {
		return invalidf("limit %d of a queue of %d receives", limit, n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wq.mu.Lock()
	closed := s.wq.closed
	s.wq.mu.Unlock()
	if closed {
		return ErrClosed
	}
	return s.ops.Modify(limit)
}

// Close frees s. Receives that no message has taken are dropped, and their
// memory is the caller's again. If queue pairs use s, Close changes nothing and
// returns a *[BusyError] that names them. A second Close returns nil.
func (s *SRQ) Close() error {
	d := s.s.pd.d
	d.life.Lock()
	if !s.s.closing {
		if err := s.s.busy(nil); err != nil {
			d.life.Unlock()
			return err
		}
		s.s.closing = true
	}
	d.life.Unlock()
	s.leak.Stop()
	if err := s.s.shut(); err != nil {
		return &OpError{"close", s.s.name(), err}
	}
	return nil
}

// busy returns a *BusyError if queue pairs of other protection domains than
// except use s.
func (s *srq) busy(except *pd) error {
	s.pd.d.mu.Lock()
	defer s.pd.d.mu.Unlock()
	var nums []uint32
	for q := range s.users {
		if q.pd != except {
			nums = append(nums, q.num)
		}
	}
	if len(nums) == 0 {
		return nil
	}
	slices.Sort(nums)
	e := &BusyError{Object: s.name()}
	for _, n := range nums {
		e.Users = append(e.Users, fmt.Sprintf("qp %d", n))
	}
	return e
}

// shut closes s, which no queue pair uses any more.
func (s *srq) shut() (err error) {
	s.once.Do(func() {
		s.mu.Lock() // a Modify in progress ends first
		s.wq.close()
		s.mu.Unlock()
		err = s.ops.Close()
		s.detach()
		s.wq.drop(s.pd.d)
	})
	return err
}

// count adds the counters of s to st. It runs under d.mu.
func (s *srq) count(st *Stats) { st.RecvsPosted += s.wq.ring.Tail() }

// SharedRecvs tells how q uses its shared receive queue: how many receives it
// holds at this moment, which are taken and have no completion yet, and how many
// it has taken so far. The messages of a connection come one after the other, so
// it never holds more than one; a connection that has taken many more than its
// completions account for is ahead of who polls them. Both are 0 without an SRQ.
func (q *QP) SharedRecvs() (held int, taken uint64) {
	if q.q.srq == nil || q.q.ops.SharedRecvs == nil {
		return 0, 0
	}
	return q.q.ops.SharedRecvs()
}

// sharedErr refuses to post a receive to a queue pair that has none of its own.
func (q *qp) sharedErr() error {
	return invalidf("%s takes its receives from %s: post them with SRQ.PostRecv", q.name(), q.srq.name())
}
