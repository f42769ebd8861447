package rdmap

import (
	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// tx is the send half of a Stream.
type tx struct {
	err error // sticks: the connection no longer takes anything
	ord int   // reads and atomic operations that may be outstanding

	now     message     // what the DDP message in progress is
	rtr     mpa.RTRKind // due before anything else
	burst   int         // responses sent since the last message of the send queue
	nudged  bool        // operations no longer wait for the answer to the RTR message
	offered bool        // after a burst the send queue was offered a turn
	turn    int         // octets sent since the last Turn
	answer  *request    // being answered: the front of the inbound ring
	source  ddp.Lease   // of what a Read is answered with; Pump ends it

	op     *Op        // submitted, until sent
	size   uint32     // octets of its message
	cursor ddp.Cursor // in its SGL; Pump releases it
	sink   read       // of its Read or atomic operation
	ident  uint32     // of the next atomic operation

	writes, sends uint64 // not yet in Stats

	body  [maxTermLen]byte // payload of our own making
	parts [1][]byte        // for a payload in one piece
}

// message is the kind of the DDP message in progress.
type message uint8

const (
	nothing message = iota
	msgOp
	msgTail // the Immediate behind a Write
	msgRTR
	msgNudge
	msgResponse
	msgTerminate
)

// maxBurst is how many responses go out before the send queue has a turn.
const maxBurst = 4

// The STag and TO of an empty RTR message are not looked at. 1 rather than 0
// for the STag, as some hardware dislikes that.
const rtrSTag = ddp.STag(1)

// ORD returns how many reads and atomic operations may be outstanding.
func (s *Stream) ORD() int { return s.tx.ord }

// LowerORD sets ORD to n if that is less. It cannot be raised again.
func (s *Stream) LowerORD(n int) { s.tx.ord = max(0, min(n, s.tx.ord)) }

// Submit takes op as the next operation. ok is false if it cannot start now:
// an operation is in progress, or op has to wait for reads to complete; then an
// event with KickTx says when to try again. An error is a *[LocalError] if op
// cannot be done, with Terminate 0x0000 due, or tells that the stream has ended.
func (s *Stream) Submit(op *Op) (ok bool, err error) {
	t := &s.tx
	switch {
	case t.err != nil:
		return false, t.err
	case s.due.Load() != nil:
		return false, ErrStopped
	case t.op != nil:
		return false, nil
	case op.Kind.answered() && t.ord == 0:
		err = ErrNoReads
	case op.Fence && s.reads.longer(0), op.Kind.answered() && s.reads.longer(t.spareReads()):
		return false, nil
	default:
		err = s.prepare(op)
	}
	if err != nil {
		err = &LocalError{ID: op.ID, Err: err}
		s.Terminate(err)
		return false, err
	}
	t.op = op
	return true, nil
}

// spareReads is how many outstanding reads leave room for one more. An RTR
// Read that is still to be sent counts.
func (t *tx) spareReads() int {
	if t.rtr == mpa.RTRRead {
		return t.ord - 2
	}
	return t.ord - 1
}

// prepare checks what an operation says of its own memory.
func (s *Stream) prepare(op *Op) error {
	t := &s.tx
	switch {
	case op.Kind.atomic() && s.cfg.NoAtomics, (op.Kind == Immediate || op.WithImm) && s.cfg.NoImmediate:
		return ErrOff
	case op.Kind == Read:
		return s.prepareRead(op)
	case op.Kind.atomic():
		return s.prepareAtomic(op)
	case op.Kind == Immediate:
		return nil
	case op.Kind != Send && op.Kind != Write:
		return ErrKind
	}
	size := uint64(len(op.Inline))
	if op.Inline == nil {
		t.cursor.Reset(s.cfg.Table, s.cfg.PD, op.SGL)
		if err := t.cursor.Check(0); err != nil {
			return err
		}
		size = t.cursor.Size()
	}
	switch {
	case size > 1<<32-1:
		return ErrTooLong
	case op.Kind == Write && ddp.Wraps(op.RemoteTO, size):
		return &ddp.Fault{Kind: ddp.FaultWrap, STag: op.RemoteSTag}
	}
	t.size = uint32(size)
	return nil
}

// prepareRead finds where the response is to go. An empty read has no sink.
func (s *Stream) prepareRead(op *Op) error {
	t := &s.tx
	if len(op.SGL) > 1 || op.Inline != nil {
		return ErrReadSink
	}
	t.sink = read{id: op.ID, sinkSTag: rtrSTag}
	if len(op.SGL) == 0 || op.SGL[0].Len == 0 {
		return nil
	}
	e := &op.SGL[0]
	mem, err := s.cfg.Table.Local(e.STag, s.cfg.PD, e.Off, uint64(e.Len), ddp.LocalWrite)
	if err != nil {
		return err
	}
	t.sink.sinkSTag, t.sink.sinkTO, t.sink.size = e.STag, mem.TO(), e.Len
	mem.Release()
	return nil
}
