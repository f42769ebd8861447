package iwarp

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// txLoop is the transmit goroutine. It sends for applications that are away:
// read responses, what a full window held back, Terminates and ends.
func (d *device) txLoop() {
	for q := d.txq.pop(); q != nil; q = d.txq.pop() {
		d.txq.own.Add(1)
		q.kicks.Add(1)
		q.tx.Lock()
		q.serve(false)
	}
}

// doorbell is the one step from PostSend into this provider. The caller's
// goroutine transmits, but for a device whose I/O goroutine does.
func (q *qp) doorbell() {
	if q.dev.model == ThreadsIO {
		q.dev.txq.push(q)
		return
	}
	q.send(&q.dev.txq.apps, false)
}

// send transmits, unless another goroutine is just doing so, which then serves
// this caller's records too. turns counts what is done here.
func (q *qp) send(turns *atomic.Uint64, brief bool) {
	q.kicks.Add(1)
	if q.tx.TryLock() {
		turns.Add(1)
		q.serve(brief)
	}
}

// serve transmits until no doorbell rang meanwhile, and unlocks tx. With brief
// set it does one turn: an application that posts all the time must not keep the
// receive goroutine here, nor those that wait in the queue out.
func (q *qp) serve(brief bool) {
	for {
		seen := q.kicks.Load()
		again := q.transmit(brief)
		q.tx.Unlock()
		if again || (brief || q.dev.txq.some.Load()) && q.kicks.Load() != seen {
			q.dev.txq.push(q)
			return
		}
		if q.kicks.Load() == seen || !q.tx.TryLock() {
			return
		}
	}
}

// txBurst bounds the work requests one turn issues, so that one busy queue
// pair neither keeps its poster inside PostSend nor starves the others.
const txBurst = 256

// transmit issues work requests and moves them, read responses and Terminates
// towards TCP, until nothing is left or there is no room. It reports whether
// the turn ended early with more to do, as it does in the midst of a long message
// if others wait or it is to be brief. The caller holds tx.
func (q *qp) transmit(brief bool) (again bool) {
	c := q.conn
	if q.ending || c == nil {
		q.finish()
		return false
	}
	s := c.stream
	for n := 0; ; {
		p, err := s.Pump()
		if p.Sent {
			q.sent(p.SentID)
		}
		if err != nil || p.Blocked || p.Turn {
			q.settle()
		}
		if err != nil {
			q.broken(c, err)
			return false
		}
		if p.Blocked {
			// A peer that does not take its answers must not keep what it has.
			for more := p.WantOp; more; n++ {
				if n > txBurst {
					return q.flushed(c)
				}
				if more, err = q.issue(s, true); err != nil {
					q.broken(c, err)
					return false
				}
			}
			if q.flushed(c) && c.blocked.CompareAndSwap(false, true) {
				continue // the window may have opened before the flag was up
			}
			return false
		}
		if p.Turn {
			runtime.Gosched() // where processors are few, who waits for one is kept waiting too
			if !brief && !q.dev.txq.some.Load() {
				continue
			}
			again = true
			break
		}
		if !p.WantOp {
			if p.Sent {
				continue
			}
			break
		}
		if n++; n > txBurst {
			again = true
			break
		}
		more, err := q.issue(s, false)
		if err != nil {
			q.settle()
			q.broken(c, err)
			return false
		}
		if !more && !p.More {
			break
		}
	}
	q.settle()
	q.flushed(c)
	return again
}

// issue starts the next work request; false when there is none or it has to
// wait: for a read or an atomic to finish or, if blocked, for room to send.
func (q *qp) issue(s *rdmap.Stream, blocked bool) (bool, error) {
	if !q.waiting {
		if q.failed || q.sq.next >= q.sq.q.Tail() { // a client may let its tail step back
			return false, nil
		}
		q.sq.q.Load(q.sq.next, q.rec)
		if err := q.build(); err != nil {
			return false, err
		}
	}
	if isLocal(verbs.Opcode(q.rec.Op())) {
		q.settle() // it may wait for uses of memory
		ok, err := q.local()
		q.failed = err != nil
		return ok, err
	}
	if q.waiting = blocked; blocked {
		return false, nil
	}
	ok, err := s.Submit(&q.op)
	q.waiting = err == nil && !ok
	if q.waiting {
		return false, nil
	}
	q.sq.issue(q.rec)
	return true, err
}

// errOpcode is what a record with an opcode that PostSend refuses amounts to.
var errOpcode = errors.New("unknown opcode in the send queue")

// build makes q.op of q.rec.
func (q *qp) build() error {
	w := q.rec
	flags := verbs.SendFlags(w.Flags())
	q.op = rdmap.Op{
		Fence:     flags&verbs.SendFence != 0,
		Solicited: flags&verbs.SendSolicited != 0,
		ID:        q.sq.next,
	}
	switch verbs.Opcode(w.Op()) {
	case verbs.OpSend:
		q.op.Kind = rdmap.Send
	case verbs.OpSendWithInv:
		q.op.Kind, q.op.Invalidate, q.op.InvSTag = rdmap.Send, true, ddp.STag(w.Inv())
	case verbs.OpWrite:
		q.op.Kind = rdmap.Write
	case verbs.OpWriteWithImm:
		q.op.Kind, q.op.WithImm, q.op.Imm = rdmap.Write, true, w.Imm()
	case verbs.OpRead:
		q.op.Kind = rdmap.Read
	case verbs.OpFetchAdd, verbs.OpCompareSwap:
		q.op.Kind = rdmap.FetchAdd
		if verbs.Opcode(w.Op()) == verbs.OpCompareSwap {
			q.op.Kind = rdmap.CompareSwap
		}
		q.op.Compare, q.op.CompareMask, q.op.Val, q.op.ValMask = w.Compare(), w.CompareMask(), w.Val(), w.ValMask()
	case verbs.OpLocalInv, verbs.OpBindMW, verbs.OpRegMR:
		return nil // nothing to send
	default:
		q.failed = true
		q.sq.issue(w)
		return &rdmap.LocalError{ID: q.op.ID, Err: errOpcode}
	}
	q.op.RemoteSTag, q.op.RemoteTO = ddp.STag(w.RKey()), w.RemoteAddr()
	q.octets = 0
	if flags&verbs.SendInline != 0 {
		q.op.Inline = w.Inline()
		return nil
	}
	q.sgl = appendSGL(q.sgl[:0], w)
	q.op.SGL = q.sgl
	for i := range q.sgl {
		q.octets += uint64(q.sgl[i].Len)
	}
	return nil
}

// flushed hands staged FPDUs to TCP; false when the stream is broken.
func (q *qp) flushed(c *conn) bool {
	if err := c.stream.Flush(); err != nil {
		q.broken(c, err)
		return false
	}
	return true
}

// broken tells the receive goroutine that the sending side met an error. What
// was staged before goes out: it keeps a buffer from all others.
func (q *qp) broken(c *conn, err error) {
	_ = c.stream.Flush() // the first error is the one to tell
	q.dev.do(func() {
		if lostTCP(err) {
			c.lost = err
			c.dev.turnAgain(c)
			return
		}
		c.end(err)
	})
}

// finish makes the end of the stream known to the peer and flushes both
// queues; the caller holds tx. It runs again as long as a Terminate or FIN
// waits for room, and for each post that comes in ERR.
func (q *qp) finish() {
	c := q.conn
	if !q.ending {
		return // in INIT: records wait
	}
	if c != nil && !c.said.Load() && (q.end.dead || q.lastWords(c)) {
		c.said.Store(true)
		q.dev.do(c.ended)
	}
	q.state.Store(uint32(verbs.QPSErr))
	if !q.over {
		q.over = true
		defer close(q.done)
		if s := q.rq.shared; s != nil && !q.closing {
			// Behind the completion of the receive in use, if there was one (VRB-70).
			defer q.dev.event(verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QP: q.num, SRQ: s.num, Time: time.Now().UnixNano()})
		}
	}
	q.waiting = false
	q.sq.flush(q.end.fault)
	q.rq.flush(q.end.fault)
	if q.sq.lost || q.rq.lost {
		q.sq.lost, q.rq.lost = false, false
		q.dev.do(q.dev.overran)
	}
	q.end.fault = fault{}
}

// lastWords sends what is left for the peer: responses to its Reads where the
// end is one in order, else a Terminate, and the FIN. It reports false if it has
// to be called again.
func (q *qp) lastWords(c *conn) bool {
	for {
		p, err := c.stream.Pump()
		if err == nil || errors.Is(err, rdmap.ErrStopped) { // stopped: no Terminate, or it has left already
			err = c.stream.Flush()
		}
		var source *rdmap.Error
		switch {
		case errors.As(err, &source): // a response lost its source: the Terminate that says so is next
		case err != nil:
			return true
		case p.Blocked:
			if !c.blocked.CompareAndSwap(false, true) {
				return false
			}
			// The window may have opened before the flag was up.
		case p.More || p.Turn:
			q.dev.txq.push(q)
			return false
		default:
			_ = c.mpa.CloseWrite() // fails on a dead stream, which the receive side sees
			return true
		}
	}
}
