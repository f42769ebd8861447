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
// next belongs to the holder of qp.tx; mu guards the rest, which the transmit
// and the receive side share.
type sendQueue struct {
	q     *ring.Queue
	cq    *ring.CQ
	cqNum uint32
	qp    uint32
	next  uint64 // sequence number of the record to issue next

	mu     sync.Mutex
	head   uint64     // oldest record without a completion
	issued uint64     // one past the newest record that was issued
	wr     []sendSlot // what is remembered of issued records, by sequence number modulo the length
	asked  uint32     // MSN of the newest request to the peer: a Read or an atomic
	lost   bool       // the completion queue overflowed

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
}

// begin tells that a stream was attached, and whether its first request is not
// the application's: the Read that opens the connection.
func (s *sendQueue) begin(opening bool) {
	s.mu.Lock()
	if s.asked = 0; opening {
		s.asked = 1
	}
	s.mu.Unlock()
}

// issue notes the record with sequence number s.next as started and moves on.
func (s *sendQueue) issue(w sendSlot) {
	s.mu.Lock()
	if w.kind&wrAsk != 0 {
		s.asked++
		w.msn = s.asked
	}
	s.wr[s.next%uint64(len(s.wr))] = w
	s.next++
	s.issued = s.next
	s.mu.Unlock()
}

// finish marks record seq as done with n octets moved and completes what that
// lets complete. It reports false when the completion queue overflowed.
func (s *sendQueue) finish(seq uint64, n uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if seq < s.head || seq >= s.issued {
		return true // flushed in the meantime
	}
	w := &s.wr[seq%uint64(len(s.wr))]
	w.done, w.len = true, n
	for s.head < s.issued {
		w := &s.wr[s.head%uint64(len(s.wr))]
		if !w.done {
			break
		}
		s.head++
		s.q.Release(s.head) // before the completion, whose reader may post into the slot
		if w.signaled {
			s.push(w, verbs.WCSuccess, 0)
		}
	}
	return !s.lost
}

// unanswered reports whether a Read or an atomic that was issued has no answer
// yet: any, or one into the region of key. If so, answered tells of the next answer.
func (s *sendQueue) unanswered(key uint32, anyKey bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := s.head; seq < s.issued; seq++ {
		w := &s.wr[seq%uint64(len(s.wr))]
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
	for seq := s.head; seq < s.issued; seq++ {
		if s.wr[seq%uint64(len(s.wr))].kind&k != 0 {
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
	for seq := s.head; seq < s.issued; seq++ {
		if w := &s.wr[seq%uint64(len(s.wr))]; w.kind&wrAsk != 0 && w.msn == msn {
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
		var w sendSlot
		if s.head < s.issued {
			w = s.wr[s.head%uint64(len(s.wr))]
		} else {
			w = slotOf(ring.WQE(s.q.Record(s.head)))
		}
		seq := s.head
		s.head++
		s.q.Release(s.head)
		if f.side == faultSend && f.seq == seq {
			s.push(&w, f.status, f.vendor)
		} else {
			s.push(&w, verbs.WCWRFlushErr, 0)
		}
	}
	if s.next < s.head {
		s.next = s.head
	}
	s.issued = s.next
}

func (s *sendQueue) push(w *sendSlot, st verbs.WCStatus, vendor uint32) {
	ok := s.cq.Push(&ring.Completion{
		ID: w.id, Status: uint8(st), Op: w.op, QP: s.qp, ByteLen: w.len,
		VendorErr: vendor, Time: time.Now().UnixNano(),
	})
	if !ok {
		s.lost = true
	}
}

// kind returns what an issued record is.
func (s *sendQueue) kind(seq uint64) wrKind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wr[seq%uint64(len(s.wr))].kind
}
