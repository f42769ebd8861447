package verbs

import (
	"fmt"
	"math"

	"github.com/softrdma/softrdma/internal/ring"
)

// PostSend puts wrs into the send queue in order and rings the provider once.
// It returns how many are in; with an error wrs[n] is the bad one, of which no
// trace remains, and the later ones are not in either. It never blocks, does not
// allocate, and keeps nothing of wrs. The memory of SGLs that are not inline is
// lent until the completion was polled.
//
// The state must be QPSRTS, or QPSErr, where requests are accepted and flushed.
// A completion says that the data was handed to the transport (Send, RDMA Write)
// or has arrived (RDMA Read, atomics). It says nothing about the peer's
// application. RDMA Write with Immediate has one completion here, and makes one
// receive of the peer complete, behind the data.
//
// Errors match syscall.EINVAL (bad request or state), [ErrQueueFull],
// errors.ErrUnsupported (what the device does not do, such as atomics where
// DeviceAttr.AtomicCap is AtomicNone) and ErrClosed.
func (q *QP) PostSend(wrs []SendWR) (n int, err error) {
	s := q.q
	if len(wrs) == 0 {
		return 0, nil
	}
	s.sq.mu.Lock()
	if s.sq.closed {
		err = ErrClosed
	} else if err = s.ops.State().sendErr(); err == nil {
		for n = range wrs {
			if err = s.putSend(&wrs[n]); err != nil {
				break
			}
		}
		if err == nil {
			n++
		}
	}
	if n > 0 {
		s.sq.ring.Publish()
	}
	s.sq.mu.Unlock()
	if n > 0 {
		s.ops.Doorbell()
	}
	if err != nil {
		err = &OpError{"post send", s.request(n, len(wrs)), err}
	}
	return n, err
}

// request names the bad one of a list of work requests.
func (q *qp) request(n, of int) string {
	if of == 1 {
		return q.name()
	}
	return fmt.Sprintf("%s request %d", q.name(), n)
}

// opRule says what a work request of the send queue may carry.
type opRule struct {
	ok     bool   // implemented
	what   string // for the error where it is not
	inline bool
	remote bool // names memory of the peer
	read   bool // scatters: exactly one SGE, writable
	atomic bool // likewise, of 8 octets
	imm    bool // carries immediate data
	local  bool // concerns keys of this side alone
}

// atomicLen is the size of what an atomic works on, in octets.
const atomicLen = 8

var opRules = [...]opRule{
	OpWrite:        {ok: true, inline: true, remote: true},
	OpWriteWithImm: {ok: true, inline: true, remote: true, imm: true},
	OpSend:         {ok: true, inline: true},
	OpSendWithImm:  {}, // iWARP has no encoding for it
	OpRead:         {ok: true, remote: true, read: true},
	OpCompareSwap:  {ok: true, remote: true, read: true, atomic: true},
	OpFetchAdd:     {ok: true, remote: true, read: true, atomic: true},
	OpLocalInv:     {ok: true, local: true},
	OpBindMW:       {ok: true, local: true},
	OpSendWithInv:  {ok: true, inline: true},
	OpRegMR:        {ok: true, local: true},
}

// putSend checks wr and writes it into the next slot. On an error it has taken
// no slot. It runs under the send queue's lock.
func (q *qp) putSend(wr *SendWR) error {
	if int(wr.Op) >= len(opRules) {
		return invalidf("opcode %v is no send request", wr.Op)
	}
	rule := &opRules[wr.Op]
	if !rule.ok {
		if rule.what == "" {
			return invalidf("opcode %v does not exist on this transport", wr.Op)
		}
		return &unsupported{rule.what}
	}
	switch a := &q.pd.d.attr; {
	case rule.atomic && a.AtomicCap == AtomicNone:
		return &unsupported{"an atomic"}
	case rule.imm && !a.Immediate:
		return &unsupported{"RDMA Write with Immediate"}
	}
	if wr.Flags&^sendFlags != 0 {
		return invalidf("flags %v", wr.Flags)
	}
	flags := wr.Flags
	if len(wr.Inline) > 0 {
		flags |= SendInline
	}
	if q.signalAll {
		flags |= SendSignaled
	}
	if rule.local {
		return q.putLocal(wr, flags)
	}
	total, err := q.checkSend(wr, rule, flags)
	if err != nil {
		return err
	}
	if rule.remote && total > 0 && wr.Remote.RKey == 0 {
		return invalidf("remote key 0 names no memory")
	}
	rec := q.sq.ring.Slot()
	if rec == nil {
		return ErrQueueFull
	}
	w := ring.WQE(rec)
	w.SetHead(wr.ID, uint8(wr.Op), uint8(flags))
	if rule.remote {
		w.SetRemote(wr.Remote.Addr, uint32(wr.Remote.RKey))
	}
	w.SetInv(uint32(wr.Inv))
	w.SetImm(wr.Imm)
	if rule.atomic {
		putAtomic(w, wr)
	}
	switch {
	case flags&SendInline == 0:
		putSGL(w, wr.SGL, rule.read)
	case len(wr.Inline) > 0:
		w.AppendInline(wr.Inline)
	default:
		for i := range wr.SGL {
			if s := &wr.SGL[i]; s.Len > 0 {
				w.AppendInline(s.MR.m.mem[s.Off : s.Off+s.Len])
			}
		}
	}
	return nil
}

// putAtomic writes the operands as the transport takes them: literally. Only a
// compare and swap without any mask means other than it says.
func putAtomic(w ring.WQE, wr *SendWR) {
	cm, vm := wr.CompareMask, wr.ValMask
	if wr.Op == OpCompareSwap && cm == 0 && vm == 0 {
		cm, vm = math.MaxUint64, math.MaxUint64
	}
	w.SetAtomic(wr.Compare, cm, wr.Val, vm)
}

// checkSend checks the local memory of wr and returns how many octets it moves.
func (q *qp) checkSend(wr *SendWR, rule *opRule, flags SendFlags) (total uint64, err error) {
	if len(wr.SGL) > q.sq.maxSGE {
		return 0, invalidf("%d SGEs: the queue allows %d", len(wr.SGL), q.sq.maxSGE)
	}
	if rule.read && len(wr.SGL) != 1 {
		return 0, invalidf("%v needs exactly 1 SGE, has %d", wr.Op, len(wr.SGL))
	}
	if rule.atomic && wr.SGL[0].Len != atomicLen {
		return 0, invalidf("%v needs an SGE of %d octets, has %d", wr.Op, atomicLen, wr.SGL[0].Len)
	}
	if flags&SendInline == 0 {
		var need Access
		if rule.read {
			need = AccessLocalWrite
		}
		return q.pd.checkSGL(wr.SGL, need)
	}
	if !rule.inline {
		return 0, invalidf("%v cannot be inline", wr.Op)
	}
	total = uint64(len(wr.Inline))
	if total > 0 && len(wr.SGL) > 0 {
		return 0, invalidf("both inline data and SGEs")
	}
	for i := range wr.SGL { // memory that is copied: key, domain and access do not matter
		if err := wr.SGL[i].bounds(i); err != nil {
			return 0, err
		}
		total += uint64(wr.SGL[i].Len)
	}
	if total > uint64(q.maxInline) {
		return 0, invalidf("%d octets inline: the queue allows %d", total, q.maxInline)
	}
	return total, nil
}

// checkSGL checks SGEs of p's regions that the provider will use by key.
func (p *pd) checkSGL(sgl []SGE, need Access) (total uint64, err error) {
	for i := range sgl {
		s := &sgl[i]
		if err := s.bounds(i); err != nil {
			return 0, err
		}
		if s.Len == 0 {
			continue
		}
		m := s.MR.m
		if m.pd != p {
			return 0, invalidf("SGE %d: region of another protection domain", i)
		}
		if lacks := need &^ m.getAccess(); lacks != 0 {
			return 0, invalidf("SGE %d: region lacks access %v", i, lacks)
		}
		if m.gone.Load() {
			return 0, invalidf("SGE %d: region is closed", i)
		}
		total += uint64(s.Len)
	}
	if total > math.MaxUint32 {
		return 0, invalidf("%d octets in one request: more than 2^32-1", total)
	}
	return total, nil
}

// bounds checks that s, the i-th of its list, is inside its region.
func (s *SGE) bounds(i int) error {
	if s.Len == 0 {
		return nil
	}
	if s.MR == nil {
		return invalidf("SGE %d: no region", i)
	}
	if n := len(s.MR.m.mem); s.Len < 0 || s.Off < 0 || s.Off > n || s.Len > n-s.Off {
		return invalidf("SGE %d: octets %d+%d of a region of %d", i, s.Off, s.Len, n)
	}
	return nil
}

// putSGL writes the elements that stand for something; a read keeps its one.
func putSGL(w ring.WQE, sgl []SGE, keepEmpty bool) {
	n := 0
	for i := range sgl {
		s := &sgl[i]
		switch {
		case s.Len > 0:
			w.SetSGE(n, s.MR.m.key.Load(), uint32(s.Len), uint64(s.Off))
		case keepEmpty:
			w.SetSGE(n, 0, 0, 0)
		default:
			continue
		}
		n++
	}
	w.SetNumSGE(n)
}

// PostRecv puts wrs into the receive queue in order: each takes one Send of the
// peer and always makes a completion. What it returns and borrows is as for
// PostSend.
//
// Post receives before the peer may send, at the latest in the connection
// manager's Prepare step: iWARP does not retry, and a Send that meets no receive
// ends the stream (RFC 5041, Section 7.1; Terminate 0x1202). So does a Send that
// is longer than its receive.
//
// Receives are accepted in every state but QPSSQD; in QPSErr they are flushed. A
// queue pair with an SRQ takes none.
func (q *QP) PostRecv(wrs []RecvWR) (n int, err error) {
	s := q.q
	if len(wrs) == 0 {
		return 0, nil
	}
	if s.srq != nil {
		err = s.sharedErr()
	} else if n, err = s.rq.postRecv(s.pd, &s.ops, wrs); n > 0 {
		s.posted()
	}
	if err != nil {
		err = &OpError{"post recv", s.request(n, len(wrs)), err}
	}
	return n, err
}

// postRecv puts wrs, whose memory is of p, into the queue; ops is the queue
// pair's whose state has to allow it, nil for a queue that is shared.
func (w *workQueue) postRecv(p *pd, ops *QPOps, wrs []RecvWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	w.mu.Lock()
	if w.closed {
		err = ErrClosed
	} else if ops != nil {
		err = ops.State().recvErr()
	}
	if err == nil {
		for n = range wrs {
			if err = w.putRecv(p, &wrs[n]); err != nil {
				break
			}
		}
		if err == nil {
			n++
		}
	}
	if n > 0 {
		w.ring.Publish()
	}
	w.mu.Unlock()
	return n, err
}

// posted tells the provider of new receives. The state is read after they were
// published, and a provider that fails sets the state before it flushes: so one
// of the two sees the other.
func (q *qp) posted() {
	if q.ops.Posted != nil {
		q.ops.Posted()
		return
	}
	if s := q.ops.State(); s == QPSErr || s == QPSSQE {
		q.ops.Doorbell()
	}
}

// putRecv checks wr and writes it into the next slot. On an error it has taken
// no slot. It runs under the queue's lock.
func (w *workQueue) putRecv(p *pd, wr *RecvWR) error {
	if len(wr.SGL) > w.maxSGE {
		return invalidf("%d SGEs: the queue allows %d", len(wr.SGL), w.maxSGE)
	}
	if _, err := p.checkSGL(wr.SGL, AccessLocalWrite); err != nil {
		return err
	}
	rec := w.ring.Slot()
	if rec == nil {
		return ErrQueueFull
	}
	e := ring.WQE(rec)
	e.SetHead(wr.ID, 0, 0)
	putSGL(e, wr.SGL, false)
	return nil
}
