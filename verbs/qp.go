package verbs

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/softrdma/softrdma/internal/ring"
)

// DefaultQPDepth is the number of work requests a queue holds unless said
// otherwise.
const DefaultQPDepth = 64

// DefaultSGEs is how many SGEs a work request may have unless said otherwise.
const DefaultSGEs = 4

// QPType is the type of a queue pair (ibv_qp_type).
type QPType uint8

const (
	QPTRC QPType = 2 // reliable connection: the only one on iWARP
	QPTUC QPType = 3
	QPTUD QPType = 4
)

// QPConfig sizes a queue pair. The zero value is useful. The caps are minimums;
// [QP.Config] returns what they became.
type QPConfig struct {
	// SendCQ and RecvCQ take the completions and may be the same. With SendCQ nil
	// the queue pair gets one of its own, large enough, which is closed with it.
	// With RecvCQ nil it uses the send CQ.
	SendCQ, RecvCQ *CQ
	// SRQ replaces the receive queue; MaxRecvWR and MaxRecvSGE are then ignored,
	// and 0 in what QP.Config returns. It may be of another protection domain.
	SRQ *SRQ
	// Type is the type; 0 means QPTRC. The others give errors.ErrUnsupported.
	Type QPType

	MaxSendWR  int // work requests in the send queue; 0 means DefaultQPDepth
	MaxRecvWR  int // work requests in the receive queue; 0 means DefaultQPDepth
	MaxSendSGE int // SGEs of a send request; 0 means DefaultSGEs
	MaxRecvSGE int // SGEs of a receive; 0 means DefaultSGEs
	MaxInline  int // octets of inline data; 0 means what fits anyway

	// SignalAll makes a completion for every send request, not only for those
	// with SendSignaled (sq_sig_all).
	SignalAll bool
}

// QP is a queue pair: a send queue and a receive queue on one connection. A
// connection manager, package verbs/rdmacm, connects it.
type QP struct {
	q              *qp
	pd             *PD
	sendCQ, recvCQ *CQ
	cfg            QPConfig
	leak           runtime.Cleanup
}

type qp struct {
	pd        *pd
	num       uint32
	ops       QPOps
	signalAll bool
	maxInline int
	sq, rq    workQueue

	sendCQ, recvCQ *cq
	ownCQ          *cq  // closed with the queue pair; nil if none
	srq            *srq // where the receives come from; nil: from rq

	once sync.Once
}

// CreateQP makes a queue pair. Errors match syscall.EINVAL (a cap above the
// device's limit, a completion queue or shared receive queue of another device),
// syscall.ENOMEM (too many queue pairs, or too much memory in queues),
// errors.ErrUnsupported and ErrClosed.
func (p *PD) CreateQP(c QPConfig) (*QP, error) {
	p.p.d.life.RLock()
	defer p.p.d.life.RUnlock()
	h, err := p.createQP(c)
	if err != nil {
		return nil, p.p.d.failed("create qp", p.name(), err)
	}
	return h, nil
}

// createQP runs under d.life.
func (p *PD) createQP(c QPConfig) (_ *QP, err error) {
	d := p.p.d
	if err := p.p.open(); err != nil {
		return nil, err
	}
	if c, err = c.withDefaults(d.attr); err != nil {
		return nil, err
	}
	q := &qp{pd: p.p, signalAll: c.SignalAll}
	if c.SRQ != nil {
		q.srq = c.SRQ.s
	}
	defer func() {
		if err != nil {
			q.dropRings()
		}
	}()
	if err := q.makeRings(&c); err != nil {
		return nil, err
	}
	h := &QP{q: q, pd: p, sendCQ: c.SendCQ, recvCQ: c.RecvCQ}
	if h.sendCQ == nil {
		depth := q.sq.cap() + q.rq.cap()
		if q.srq != nil {
			depth += q.srq.wq.cap()
		}
		if h.sendCQ, err = p.dev.createCQ(CQConfig{Depth: min(depth, d.attr.MaxCQE)}); err != nil {
			return nil, err
		}
		h.sendCQ.leak.Stop() // it lives and dies with the queue pair
		q.ownCQ = h.sendCQ.c
	}
	if h.recvCQ == nil {
		h.recvCQ = h.sendCQ
	}
	q.sendCQ, q.recvCQ = h.sendCQ.c, h.recvCQ.c
	if err := q.attach(); err != nil {
		q.dropOwnCQ()
		return nil, err
	}
	q.ops, err = d.p.CreateQP(QPSetup{
		Num: q.num, PD: p.p.num, Config: c.forProvider(), SQ: q.sq.ring, RQ: q.rq.ring, SRQ: q.srq.number(),
		SendCQ: q.sendCQ.ring, RecvCQ: q.recvCQ.ring, SendCQNum: q.sendCQ.num, RecvCQNum: q.recvCQ.num,
		MayOverrun: q.mayOverrun(),
	})
	if err != nil {
		q.detach()
		q.dropOwnCQ()
		return nil, err
	}
	if o := &q.ops; o.Doorbell == nil || o.State == nil || o.Done == nil || o.Err == nil || o.Close == nil {
		panic("verbs: provider's queue pair lacks Doorbell, State, Done, Err or Close")
	}
	c.SendCQ, c.RecvCQ = h.sendCQ, h.recvCQ
	h.cfg = c
	h.leak = watch(d, h, "qp", q.num)
	return h, nil
}

// withDefaults fills what is 0 and checks the rest against the device.
func (c QPConfig) withDefaults(a DeviceAttr) (QPConfig, error) {
	if c.Type == 0 {
		c.Type = QPTRC
	}
	if c.Type != QPTRC {
		return c, &unsupported{fmt.Sprintf("queue pair type %d", c.Type)}
	}
	if c.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	for _, l := range []struct {
		name       string
		v          *int
		def, limit int
	}{
		{"MaxSendWR", &c.MaxSendWR, DefaultQPDepth, a.MaxQPWR},
		{"MaxRecvWR", &c.MaxRecvWR, DefaultQPDepth, a.MaxQPWR},
		{"MaxSendSGE", &c.MaxSendSGE, DefaultSGEs, a.MaxSGE},
		{"MaxRecvSGE", &c.MaxRecvSGE, DefaultSGEs, a.MaxSGE},
		{"MaxInline", &c.MaxInline, 0, a.MaxInline},
	} {
		if *l.v < 0 || *l.v > l.limit {
			return c, invalidf("%s is %d: the device allows %d", l.name, *l.v, l.limit)
		}
		if *l.v == 0 {
			*l.v = min(l.def, l.limit)
		}
	}
	return c, nil
}

// makeRings makes the two queues and writes back to c what the caps became.
func (q *qp) makeRings(c *QPConfig) (err error) {
	if err := q.sq.make(q.pd.d, c.MaxSendWR, ring.WQEStride(c.MaxSendSGE, c.MaxInline)); err != nil {
		return err
	}
	if q.srq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	} else if err := q.rq.make(q.pd.d, c.MaxRecvWR, ring.WQEStride(c.MaxRecvSGE, 0)); err != nil {
		return err
	}
	q.sq.maxSGE, q.rq.maxSGE = c.MaxSendSGE, c.MaxRecvSGE
	c.MaxSendWR, c.MaxRecvWR = q.sq.cap(), q.rq.cap()
	c.MaxInline = ring.WQE(q.sq.ring.Record(0)).MaxInline()
	q.maxInline = c.MaxInline
	return nil
}

// dropRings gives the memory of both queues back.
func (q *qp) dropRings() {
	q.sq.drop(q.pd.d)
	q.rq.drop(q.pd.d)
}

// forProvider returns c without the handles.
func (c QPConfig) forProvider() QPConfig {
	c.SendCQ, c.RecvCQ, c.SRQ = nil, nil, nil
	return c
}

// attach gives q a number and enters it with its parents. It runs under d.life.
func (q *qp) attach() error {
	d := q.pd.d
	for _, c := range []*cq{q.sendCQ, q.recvCQ} {
		if c.d != d {
			return invalidf("%s belongs to another device", c.name())
		}
		if c.closing {
			return &OpError{"use", c.name(), ErrClosed}
		}
	}
	if s := q.srq; s != nil {
		if s.pd.d != d {
			return invalidf("%s belongs to another device", s.name())
		}
		if s.closing {
			return &OpError{"use", s.name(), ErrClosed}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.qps) >= min(d.attr.MaxQP, maxQPNum/2) {
		return noRoom("queue pairs", d.attr.MaxQP)
	}
	for {
		d.numQP = d.numQP%maxQPNum + 1
		if d.numQP > 1 && d.qps[d.numQP] == nil {
			break
		}
	}
	q.num = d.numQP
	d.qps[q.num] = q
	q.pd.qps[q] = struct{}{}
	q.sendCQ.users[q] = struct{}{}
	q.recvCQ.users[q] = struct{}{}
	if q.srq != nil {
		q.srq.users[q] = struct{}{}
	}
	return nil
}

// mayOverrun reports that a completion queue of q is too small for all that
// complete into it.
func (q *qp) mayOverrun() bool {
	d := q.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return q.sendCQ.demand() > q.sendCQ.ring.Cap() || q.recvCQ.demand() > q.recvCQ.ring.Cap()
}

func (q *qp) detach() {
	d := q.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.qps, q.num)
	delete(q.pd.qps, q)
	delete(q.sendCQ.users, q)
	delete(q.recvCQ.users, q)
	if q.srq != nil {
		delete(q.srq.users, q)
	}
	q.count(&d.gone)
}

func (q *qp) dropOwnCQ() {
	if q.ownCQ != nil {
		q.ownCQ.shut()
	}
}

// Num returns the number of q: 24 bits, unique in its device while q is open,
// and not given out again soon.
func (q *QP) Num() uint32 { return q.q.num }

// PD returns the protection domain of q.
func (q *QP) PD() *PD { return q.pd }

// SendCQ returns the completion queue of the send queue.
func (q *QP) SendCQ() *CQ { return q.sendCQ }

// RecvCQ returns the completion queue of the receive queue.
func (q *QP) RecvCQ() *CQ { return q.recvCQ }

// Config returns the configuration that holds: the caps may be larger than what
// was asked for.
func (q *QP) Config() QPConfig { return q.cfg }

// Ops returns the provider's functions for q, for connection managers.
func (q *QP) Ops() *QPOps { return &q.q.ops }

func (q *QP) String() string { return q.q.name() }
func (q *qp) name() string   { return fmt.Sprintf("qp %d", q.num) }

// State returns the state of q now. It is QPSErr before the completions that
// the error flushes can be polled.
func (q *QP) State() QPState { return q.q.ops.State() }

// Done returns a channel that is closed when the connection is over and all
// pending work requests were flushed.
func (q *QP) Done() <-chan struct{} { return q.q.ops.Done }

// Err returns why the connection is over, often a *[TerminateError]; nil while
// it is not and after it was closed in good order, which a reset by the peer behind
// our own disconnect is, too.
func (q *QP) Err() error { return q.q.ops.Err() }

// Modify moves q to another state: QPSSQD disconnects in good order, QPSSQE
// sends a Terminate, QPSErr aborts and flushes. Connection setup belongs to the
// connection manager. In QPSRTS the change to QPSRTS does nothing. Errors match
// syscall.EINVAL (a change the verbs do not allow), errors.ErrUnsupported, and
// ctx's.
func (q *QP) Modify(ctx context.Context, to QPState) error {
	from := q.State()
	if from == QPSRTS && to == QPSRTS {
		return nil
	}
	var err error
	switch {
	case !from.CanBecome(to):
		err = invalidf("%v cannot become %v", from, to)
	case q.q.ops.Modify == nil:
		err = &unsupported{fmt.Sprintf("the change from %v to %v", from, to)}
	default:
		err = q.q.ops.Modify(ctx, to)
	}
	if err != nil {
		return &OpError{"modify", q.q.name(), err}
	}
	return nil
}

// Close ends the connection abruptly, if it is not over, and frees q. Pending
// work requests complete with WCWRFlushErr; completions that are in a completion
// queue can still be polled. When Close returns nothing touches the memory of
// pending requests any more. A second Close waits for the first and returns nil.
func (q *QP) Close() error {
	q.leak.Stop()
	if err := q.q.close(); err != nil {
		return &OpError{"close", q.q.name(), err}
	}
	return nil
}

func (q *qp) close() (err error) {
	q.once.Do(func() {
		q.sq.close()
		q.rq.close()
		err = q.ops.Close()
		q.detach()
		q.dropRings()
		q.dropOwnCQ()
	})
	return err
}

// count adds the counters of q to s. It runs under d.mu.
func (q *qp) count(s *Stats) {
	s.SendsPosted += q.sq.posted()
	s.RecvsPosted += q.rq.posted()
}
