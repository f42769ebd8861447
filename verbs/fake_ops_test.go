package verbs

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/internal/ring"
)

// atomic runs an atomic, without masks.
func (q *fakeQP) atomic(w ring.WQE, e *ring.Completion) WCStatus {
	far, ok := q.remote(w, AccessRemoteAtomic)
	if !ok || len(far) < 8 {
		return WCRemAccessErr
	}
	old := binary.NativeEndian.Uint64(far)
	switch {
	case w.Op() == ring.WRAtomicFetchAndAdd:
		binary.NativeEndian.PutUint64(far, old+w.Val())
	case old == w.Compare():
		binary.NativeEndian.PutUint64(far, w.Val())
	}
	e.ByteLen = 8
	return q.pieces(w, func(p []byte) bool {
		binary.NativeEndian.PutUint64(p, old)
		return true
	})
}

// immediate takes a receive of the peer and writes nothing to it.
func (q *fakeQP) immediate(w ring.WQE) WCStatus {
	p := q.peer
	rec := p.s.RQ.Next()
	if rec == nil {
		return WCRemOpErr
	}
	id := ring.WQE(rec).ID()
	p.s.RQ.Release(p.s.RQ.Head() + 1)
	p.push(p.s.RecvCQ, &ring.Completion{ID: id, Op: ring.WCRecvRDMAWithImm, QP: p.s.Num, ByteLen: q.length(w),
		Flags: ring.WCFlagWithImm, Imm: w.Imm(), Solicited: w.Flags()&ring.FlagSolicited != 0})
	return WCSuccess
}

func (q *fakeQP) length(w ring.WQE) (n uint32) {
	q.pieces(w, func(p []byte) bool { n += uint32(len(p)); return true })
	return n
}

// move does a Write or a Read.
func (q *fakeQP) move(w ring.WQE, e *ring.Completion) WCStatus {
	need := AccessRemoteWrite
	if w.Op() == ring.WRRDMARead {
		need = AccessRemoteRead
	}
	far, ok := q.remote(w, need)
	denied := false
	st := q.pieces(w, func(p []byte) bool {
		if !ok || len(p) > len(far) {
			denied = len(p) > 0
			return !denied
		}
		if need == AccessRemoteRead {
			copy(p, far)
			e.ByteLen += uint32(len(p))
		} else {
			copy(far, p)
		}
		far = far[len(p):]
		return true
	})
	if denied {
		st = WCRemAccessErr
	}
	return st
}
