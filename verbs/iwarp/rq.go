package iwarp

import (
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/ring"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// recvQueue hands posted receives to arriving messages in posting order. The
// receive goroutine has it while the stream runs, the holder of qp.tx once the
// stream has ended and the rest is to be flushed.
type recvQueue struct {
	q      *ring.Queue // nil with shared
	shared *sharedQueue
	cq     *ring.CQ
	cqNum  uint32
	qp     uint32
	rec    ring.WQE    // copy of the receive in use: checked and used from here, never from the ring
	sgl    []rdmap.SGE // its buffers
	busy   bool        // rec is being filled
	lost   bool        // the completion queue overflowed

	taken, done atomic.Uint64 // receives taken, and completed, for who asks
}

func (r *recvQueue) init(qp *verbs.QPSetup) {
	r.q, r.cq, r.cqNum, r.qp = qp.RQ, qp.RecvCQ, qp.RecvCQNum, qp.Num
	q, sges := r.q, qp.Config.MaxRecvSGE
	if r.shared != nil {
		q, sges = r.shared.q, r.shared.maxSGE
	}
	r.rec = make(ring.WQE, q.Stride())
	r.sgl = make([]rdmap.SGE, 0, sges)
}

// take returns the buffer of the oldest posted receive; false when none is
// posted.
func (r *recvQueue) take() (rdmap.RecvBuf, bool) {
	b := rdmap.RecvBuf{}
	if s := r.shared; s != nil {
		if !s.take(r.rec) {
			return b, false
		}
		b.PD = s.pd
	} else {
		if r.q.Head() == r.q.Tail() {
			return b, false
		}
		copy(r.rec, r.q.Record(r.q.Head()))
	}
	r.busy = true
	r.taken.Add(1)
	r.sgl = appendSGL(r.sgl[:0], r.rec)
	b.ID, b.SGL = r.rec.ID(), r.sgl
	return b, true
}

// use is what verbs.QP.SharedRecvs reports.
func (r *recvQueue) use() (held int, taken uint64) {
	done := r.done.Load() // first: it never passes taken
	taken = r.taken.Load()
	return int(taken - done), taken
}

// finish completes the receive in use.
func (r *recvQueue) finish(ev *rdmap.Event) bool {
	c := ring.Completion{
		ID: r.rec.ID(), Status: uint8(verbs.WCSuccess), Op: ring.WCRecv, QP: r.qp, ByteLen: ev.Len,
		Time: time.Now().UnixNano(),
	}
	if ev.Invalidated {
		c.Flags |= uint8(verbs.WCWithInv)
		c.Inv = uint32(ev.InvSTag)
	}
	if ev.Immediate {
		c.Op, c.Imm = ring.WCRecvRDMAWithImm, ev.Imm
		c.Flags |= uint8(verbs.WCWithImm)
	}
	c.Solicited = ev.Solicited
	r.complete(&c)
	return !r.lost
}

// flush completes every posted receive in posting order: the one at the head
// with f.status if the fault is a receive's, all others as flushed. Of a shared
// queue that is the one which was taken, if any; the others stay (VRB-19).
func (r *recvQueue) flush(f fault) {
	for {
		var id uint64
		switch {
		case r.busy:
			id = r.rec.ID()
		case r.shared == nil && r.q.Head() != r.q.Tail():
			id = ring.WQE(r.q.Record(r.q.Head())).ID()
		default:
			return
		}
		c := ring.Completion{
			ID: id, Status: uint8(verbs.WCWRFlushErr),
			Op: ring.WCRecv, QP: r.qp, Time: time.Now().UnixNano(),
		}
		if r.busy && f.side == faultRecv {
			c.Status, c.VendorErr = uint8(f.status), f.vendor
		}
		r.complete(&c)
	}
}

func (r *recvQueue) complete(c *ring.Completion) {
	if r.busy {
		r.busy = false
		r.done.Add(1)
	}
	if r.shared == nil {
		r.q.Release(r.q.Head() + 1) // before the completion, whose reader may post into the slot
	}
	if !r.cq.Push(c) {
		r.lost = true
	}
}

// appendSGL appends the scatter/gather list of w as far as dst has room, which
// is what the QP was created with: the count in the record is only a claim.
func appendSGL(dst []rdmap.SGE, w ring.WQE) []rdmap.SGE {
	for i := range min(w.NumSGE(), cap(dst)) {
		key, length, off := w.SGE(i)
		if length > 0 { // an empty entry's key is not looked at (VRB-31)
			dst = append(dst, rdmap.SGE{STag: ddp.STag(key), Off: off, Len: length})
		}
	}
	return dst
}
