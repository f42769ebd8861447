package iwarp

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/internal/ring"
	"github.com/softrdma/softrdma/verbs"
)

// sendQueue follows a QP's send queue from posting to completion. Records are
// issued in posting order and may finish in another (a Write behind a Read in
// flight is done first), but complete in posting order (RFC 5040, Section
// 5.5): a finished record waits until all before it have finished.
//
// next, asked and sent belong to the holder of qp.tx; mu guards the rest, which the
// transmit and the receive side share.
type sendQueue struct {
	q     *ring.Queue
	cq    *ring.CQ
	cqNum uint32
	qp    uint32
	next  uint64   // sequence number of the record to issue next
	asked uint32   // MSN of the newest request to the peer: a Read or an atomic
	sent  []uint64 // records that are done, for settle

	mu     sync.Mutex
	head   uint64        // oldest record without a completion
	issued atomic.Uint64 // one past the newest record that was issued; the holder of qp.tx moves it without mu
	wr     []sendSlot    // what is remembered of issued records; those that are not belong to the holder of qp.tx
	lost   bool          // the completion queue overflowed

	awaited atomic.Bool // a request waits for an answer to one before it
}

// sendSlot is what completing a work request takes.
type sendSlot struct {
	id       uint64
	op       uint8 // of the completion
	kind     wrKind
	signaled bool
	done     bool
	len      uint32
	msn      uint32 // of a request to the peer
	sink     uint32 // key of where its answer goes
}

// set makes w what completing the work request in rec takes. Its completion shows one
// with immediate data or invalidation as the plain operation.
func (w *sendSlot) set(rec ring.WQE) {
	*w = sendSlot{id: rec.ID(), op: rec.Op(), signaled: verbs.SendFlags(rec.Flags())&verbs.SendSignaled != 0}
	switch verbs.Opcode(w.op) {
	case verbs.OpWrite:
		w.kind = wrWrite
	case verbs.OpWriteWithImm:
		w.op, w.kind = uint8(verbs.OpWrite), wrWrite|wrSend
	case verbs.OpRead, verbs.OpFetchAdd, verbs.OpCompareSwap:
		w.kind = wrAsk
		if rec.NumSGE() > 0 {
			w.sink, _, _ = rec.SGE(0)
		}
	case verbs.OpSendWithInv:
		w.op, w.kind = uint8(verbs.OpSend), wrSend
	case verbs.OpSend:
		w.kind = wrSend
	}
}

// wrKind tells apart what a Terminate of the peer can name. A Write with
// Immediate is two things.
type wrKind uint8

const (
	wrSend  wrKind = 1 << iota // takes a receive of the peer
	wrWrite                    // a tagged message
	wrAsk                      // a request, done when it is answered: a Read or an atomic
)

func (s *sendQueue) init(qp *verbs.QPSetup) {
	s.q, s.cq, s.cqNum, s.qp = qp.SQ, qp.SendCQ, qp.SendCQNum, qp.Num
	s.wr = make([]sendSlot, s.q.Cap())
	s.sent = make([]uint64, 0, sentBatch)
}

// slot is where record seq is remembered. There is a power of two of them.
func (s *sendQueue) slot(seq uint64) *sendSlot { return &s.wr[seq&uint64(len(s.wr)-1)] }

// begin tells that a stream will be attached, and whether its first request is not
// the application's: the Read that opens the connection.
func (s *sendQueue) begin(opening bool) {
	if s.asked = 0; opening {
		s.asked = 1
	}
}

// issue notes rec, the record with sequence number s.next, as started and moves on.
func (s *sendQueue) issue(rec ring.WQE) {
	w := s.slot(s.next)
	w.set(rec)
	if w.kind&wrAsk != 0 {
		s.asked++
		w.msn = s.asked
	}
	s.next++
	s.issued.Store(s.next)
}

// finish marks record seq as done with n octets moved and completes what that
// lets complete. It reports false when the completion queue overflowed.
func (s *sendQueue) finish(seq uint64, n uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark(seq, n)
	return s.complete()
}

// sentBatch is how many records settle completes at once.
const sentBatch = 32

// settle is finish for what is in s.sent: the lock, the time and the completion
// queue's lock are taken once for all of it.
func (s *sendQueue) settle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seq := range s.sent {
		s.mark(seq, 0)
	}
	s.sent = s.sent[:0]
	return s.complete()
}

// mark notes that record seq is done; mu is held.
func (s *sendQueue) mark(seq uint64, n uint32) {
	if seq >= s.head && seq < s.issued.Load() { // else it was flushed in the meantime
		w := s.slot(seq)
		w.done, w.len = true, n
	}
}

// complete takes the records off the head that are done; mu is held.
func (s *sendQueue) complete() bool {
	first, signaled := s.head, false
	for issued := s.issued.Load(); s.head < issued; s.head++ {
		w := s.slot(s.head)
		if !w.done {
			break
		}
		signaled = signaled || w.signaled
	}
	if !signaled {
		if s.head > first {
			s.q.Release(s.head)
		}
		return !s.lost
	}
	now := time.Now().UnixNano()
	s.cq.Open()
	for seq := first; seq < s.head; seq++ {
		if w := s.slot(seq); w.signaled {
			s.put(w, verbs.WCSuccess, 0, now)
		}
	}
	s.q.Release(s.head) // before the completions are seen, whose reader may post into the slots
	s.cq.Publish()
	return !s.lost
}

// unanswered reports whether a Read or an atomic that was issued has no answer
// yet: any, or one into the region of key. If so, answered tells of the next answer.
func (s *sendQueue) unanswered(key uint32, anyKey bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := s.head; seq < s.issued.Load(); seq++ {
		w := s.slot(seq)
		if w.kind&wrAsk != 0 && !w.done && (anyKey || w.sink == key) {
			s.awaited.Store(true)
			return true
		}
	}
	return false
}

// answered reports whether a request waited for the answer that finish was just
// told of.
func (s *sendQueue) answered() bool { return s.awaited.Load() && s.awaited.Swap(false) }

// empty reports whether every posted record has its completion.
func (s *sendQueue) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head == s.q.Tail()
}

// oldest returns the sequence number of the oldest record of that kind which
// was issued and has no completion yet.
func (s *sendQueue) oldest(k wrKind) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := s.head; seq < s.issued.Load(); seq++ {
		if s.slot(seq).kind&k != 0 {
			return seq, true
		}
	}
	return 0, false
}

// request returns the sequence number of the Read or atomic that went out with
// that MSN, unless it has its completion.
func (s *sendQueue) request(msn uint32) (uint64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := s.head; seq < s.issued.Load(); seq++ {
		if w := s.slot(seq); w.kind&wrAsk != 0 && w.msn == msn {
			return seq, true
		}
	}
	return 0, false
}

// flush completes everything posted and not completed, the unsignaled ones
// too, in posting order: record f.seq with f.status, all others as flushed.
// The caller holds qp.tx, so that nothing is issued meanwhile.
func (s *sendQueue) flush(f fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for tail := s.q.Tail(); s.head < tail; {
		seq := s.head
		w := s.slot(seq)
		if seq >= s.issued.Load() {
			w.set(s.q.Record(seq))
		}
		st, vendor := verbs.WCWRFlushErr, uint32(0)
		if f.side == faultSend && f.seq == seq {
			st, vendor = f.status, f.vendor
		}
		s.head++
		s.q.Release(s.head)
		s.cq.Open()
		s.put(w, st, vendor, time.Now().UnixNano())
		s.cq.Publish()
	}
	if s.next < s.head {
		s.next = s.head
	}
	s.issued.Store(s.next)
}

// put adds the completion of w to those of the open completion queue.
func (s *sendQueue) put(w *sendSlot, st verbs.WCStatus, vendor uint32, now int64) {
	ok := s.cq.Put(&ring.Completion{
		ID: w.id, Status: uint8(st), Op: w.op, QP: s.qp, ByteLen: w.len,
		VendorErr: vendor, Time: now,
	})
	if !ok {
		s.lost = true
	}
}

// kind returns what a record is that was issued; for the holder of qp.tx, who wrote it.
func (s *sendQueue) kind(seq uint64) wrKind { return s.slot(seq).kind }

// sent completes a Send or Write that was handed to TCP whole, soon; a Read or an
// atomic waits for its response.
func (q *qp) sent(seq uint64) {
	if q.sq.kind(seq)&wrAsk != 0 {
		return
	}
	q.sq.sent = append(q.sq.sent, seq)
	if len(q.sq.sent) == sentBatch || q.octets >= sentAtOnce {
		q.settle()
	}
}

// sentAtOnce is the size of a message, in octets, that takes much longer to send than
// to complete: what waits for one would only wait longer.
const sentAtOnce = 4 << 10

// settle completes what sent has gathered.
func (q *qp) settle() {
	if len(q.sq.sent) > 0 && !q.sq.settle() {
		q.dev.do(q.dev.overran)
	}
}
