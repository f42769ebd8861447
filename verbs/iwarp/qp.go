package iwarp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/ring"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// qp joins a queue pair's rings to the stream attached to it.
//
//	INIT --attach--> RTS --FIN--------> SQD --+
//	  |               +---Terminate---> SQE --+
//	  |               +---reset---------------+--> ERR
//	  +--close--------------------------------+
//
// The receive goroutine alone attaches a stream and begins the end; finish,
// under tx, moves to ERR at the latest, flushes both queues and closes done.
type qp struct {
	dev *device
	num uint32
	pd  ddp.PD

	state atomic.Uint32 // verbs.QPState
	conn  *conn         // the stream attached; receive goroutine, and under tx
	dial  *dial         // waits for the stream; receive goroutine
	err   atomic.Pointer[error]
	done  chan struct{} // closed in ERR, when nothing is flushed any more

	sq sendQueue
	rq recvQueue

	// tx lets one goroutine at a time send. The fields below it are its
	// holder's.
	tx      sync.Mutex
	kicks   atomic.Uint64 // doorbells rung; one that rings while tx is held is served by its holder
	rec     ring.WQE      // copy of the record being issued: checked and used from here, never from the ring
	op      rdmap.Op
	sgl     []rdmap.SGE
	octets  uint64 // of sgl
	waiting bool   // op is built but could not start yet: fence or read depth
	failed  bool   // a request met an error on this side: no other one begins
	over    bool   // both queues were flushed once, done is closed
	closing bool   // by the application
	orphan  bool   // it is closed, and conn still ends
	ending  bool   // the stream is over: send the Terminate or FIN, flush, go to ERR
	end     endState

	queued bool // in the transmit goroutine's queue; guarded by device.txq
	behind *qp  // the next one there; likewise
}

// endState is what the receive goroutine leaves for finish.
type endState struct {
	fault fault
	dead  bool // the byte stream is gone: neither Terminate nor FIN can be sent
}

func (d *device) createQP(s verbs.QPSetup) (verbs.QPOps, error) {
	q := &qp{dev: d, num: s.Num, pd: ddp.PD(s.PD), done: make(chan struct{})}
	q.state.Store(uint32(verbs.QPSInit))
	if s.SRQ != 0 {
		d.mu.Lock()
		q.rq.shared = d.srqs[s.SRQ]
		d.mu.Unlock()
		if q.rq.shared == nil {
			return verbs.QPOps{}, fmt.Errorf("srq %d: %w", s.SRQ, verbs.ErrClosed)
		}
	}
	q.sq.init(&s)
	q.rq.init(&s)
	q.rec = make(ring.WQE, s.SQ.Stride())
	q.sgl = make([]rdmap.SGE, 0, s.Config.MaxSendSGE)

	if s.MayOverrun {
		d.log.log(slog.LevelWarn, "a completion queue is smaller than all the work queues that complete into it: if it overruns, its queue pairs end",
			"qp", s.Num, "send_cq", s.SendCQNum, "recv_cq", s.RecvCQNum)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return verbs.QPOps{}, verbs.ErrClosed
	}
	if len(d.qps)+d.orphans >= d.limits.QPs {
		return verbs.QPOps{}, fmt.Errorf("no more queue pairs: the device allows %d, and connections of %d that are closed still end: %w",
			d.limits.QPs, d.orphans, syscall.ENOMEM)
	}
	d.qps[q.num] = q
	return verbs.QPOps{
		Doorbell:    q.doorbell,
		Posted:      q.posted,
		State:       q.State,
		Done:        q.done,
		SharedRecvs: q.rq.use,
		Err:         q.Err,
		Close:       q.close,
		Modify:      q.modify,
	}, nil
}

func (d *device) qp(num uint32) (*qp, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.qps[num]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("queue pair %d: %w", num, verbs.ErrClosed)
}

// State is what verbs.QP.State reports.
func (q *qp) State() verbs.QPState { return verbs.QPState(q.state.Load()) }

// Err is why the stream ended; nil while it runs and after an end in order. That is
// also one by a reset of the peer, if this side had begun to disconnect before.
func (q *qp) Err() error {
	if p := q.err.Load(); p != nil {
		return *p
	}
	return nil
}

// posted flushes a receive that was posted in ERR, when nobody else will.
func (q *qp) posted() {
	if q.State() == verbs.QPSErr {
		q.doorbell()
	}
}

// modify is the application's way to end the connection: QPSSQD in order,
// QPSSQE with a Terminate, QPSErr by a reset. Work that is in progress makes
// QPSSQD a reset too, as with libibverbs on iWARP.
func (q *qp) modify(ctx context.Context, to verbs.QPState) error {
	if to != verbs.QPSSQD && to != verbs.QPSSQE && to != verbs.QPSErr {
		return fmt.Errorf("a change to %v is the connection manager's: %w", to, errors.ErrUnsupported)
	}
	q.dev.do(func() {
		c := q.conn
		switch {
		case c == nil:
			if to == verbs.QPSErr {
				q.stopIdle()
			}
		case c.state == draining:
		case to == verbs.QPSSQD && q.sq.empty():
			c.end(errDisconnect)
		case to == verbs.QPSSQE:
			c.end(errTerminate)
		default:
			c.reset(nil)
		}
	})
	select {
	case <-q.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attach puts c's stream under the queue pair; receive goroutine.
func (q *qp) attach(c *conn) {
	q.tx.Lock()
	q.conn = c
	q.tx.Unlock()
	q.state.Store(uint32(verbs.QPSRTS))
}

// close is verbs.QP.Close: it resets a connection that still runs and returns
// when both queues are flushed and nothing touches them any more.
func (q *qp) close() error {
	q.dev.doWait(func() {
		q.tx.Lock()
		q.closing = true
		q.tx.Unlock()
		switch c := q.conn; {
		case c == nil:
			q.stopIdle()
		case c.state != draining:
			c.reset(nil)
		}
		// A connection that drains ends in order on its own.
	})
	<-q.done
	q.tx.Lock()
	defer q.tx.Unlock()
	q.finish() // what was posted in ERR and nobody has flushed yet
	q.dev.table.Unbind(q.num)
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	delete(q.dev.qps, q.num)
	if q.conn != nil {
		q.orphan = true
		q.dev.orphans++
	}
	return nil
}

// Causes of an end that this side wants.
var (
	errDisconnect = errors.New("disconnected by this side")
	errTerminate  = errors.New("terminated by this side") // becomes 0x0000, local catastrophic
)

// stopIdle ends a queue pair without a stream, and the wait for one; receive
// goroutine.
func (q *qp) stopIdle() {
	if q.dial != nil {
		q.dial.conn.failDial(verbs.ErrClosed)
	}
	q.stop(nil, verbs.QPSErr, endState{dead: true})
}

// stop begins the end of the queue pair; receive goroutine. cause is what Err
// will report, s the state until the transmit goroutine is through with it.
func (q *qp) stop(cause error, s verbs.QPState, e endState) {
	if cause != nil {
		q.err.CompareAndSwap(nil, &cause)
	}
	q.tx.Lock()
	if !q.ending {
		q.ending, q.end = true, e
		q.state.Store(uint32(s))
	}
	q.tx.Unlock()
	q.dev.txq.push(q)
}
