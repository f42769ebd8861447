package iwarp

import (
	"errors"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// keys fills in what package verbs reaches of the table of STags.
func (d *device) keys(p *verbs.Provider) {
	p.RegMR = func(pd uint32, mem []byte, a verbs.Access) (verbs.Key, uint64, error) {
		s, base, err := d.table.Register(mem, ddp.PD(pd), ddp.Access(a))
		return verbs.Key(s), base, err
	}
	p.AllocFastMR = func(pd uint32, mem []byte, _ verbs.Access) (verbs.Key, uint64, error) {
		s, base, err := d.table.AllocFast(mem, ddp.PD(pd))
		return verbs.Key(s), base, err
	}
	p.AllocMW = func(pd uint32, t verbs.MWType) (verbs.Key, error) {
		s, err := d.table.AllocWindow(ddp.PD(pd), int(t))
		return verbs.Key(s), err
	}
	p.DeregMR = d.deregister
	p.DeallocMW = d.deregister
	p.KeyValid = func(k verbs.Key) bool { return d.table.Valid(ddp.STag(k)) }
}

func (d *device) deregister(k verbs.Key) error {
	err := d.table.Deregister(ddp.STag(k))
	if errors.Is(err, ddp.ErrBound) {
		err = &verbs.BusyError{}
	}
	return err
}

// bindError is why a window could not be bound, or a region not be registered.
type bindError struct{ err error }

func (e *bindError) Error() string { return "bind: " + e.err.Error() }
func (e *bindError) Unwrap() error { return e.err }

// isLocal reports whether op sends nothing.
func isLocal(op verbs.Opcode) bool {
	return op == verbs.OpLocalInv || op == verbs.OpBindMW || op == verbs.OpRegMR
}

// local does the request in q.rec, which concerns keys of this side alone; false
// if it has to wait for a read or an atomic to finish. All Sends and Writes before
// it are with TCP, as one begins when the one before has been sent whole; a read
// into memory whose key is to be invalidated has to be answered first (VRB-38).
// The caller holds tx.
func (q *qp) local() (bool, error) {
	w := q.rec
	op, key := verbs.Opcode(w.Op()), uint32(0)
	fence := verbs.SendFlags(w.Flags())&verbs.SendFence != 0
	if op == verbs.OpLocalInv {
		key = w.Inv()
	}
	if q.waiting = (fence || key != 0) && q.sq.unanswered(key, fence); q.waiting {
		return false, nil
	}
	seq := q.sq.next
	q.sq.issue(w)
	by := ddp.StreamID{PD: q.pd, QP: q.num}
	var err error
	switch b := w.Bind(); op {
	case verbs.OpLocalInv:
		err = q.dev.table.InvalidateLocal(ddp.STag(key), by)
		var f *ddp.Fault
		if errors.As(err, &f) && f.Kind == ddp.FaultBound {
			err = &bindError{err}
		}
	case verbs.OpBindMW:
		err = q.dev.table.Bind(ddp.Binding{
			Window: ddp.STag(b.Key), Region: ddp.STag(b.Region), Off: b.Off, Len: b.Len, Access: ddp.Access(b.Access),
		}, by)
	case verbs.OpRegMR:
		err = q.dev.table.Renew(ddp.STag(b.Key), by, ddp.Access(b.Access))
	}
	if err != nil {
		if op != verbs.OpLocalInv {
			err = &bindError{err}
		}
		return false, &rdmap.LocalError{ID: seq, Err: err}
	}
	if !q.sq.finish(seq, 0) {
		q.dev.do(q.dev.overran)
	}
	return true, nil
}
