package rdmap

import (
	"errors"
	"io"

	"github.com/softrdma/softrdma/ddp"
)

// rx is the receive half of a Stream.
type rx struct {
	err error        // sticks
	seg *ddp.Segment // received and not done with

	// The Send in progress.
	buf    bufState
	id     uint64     // of its buffer
	cursor ddp.Cursor // in its buffer
	ulp    byte       // control octet of its first segment
	word   uint32     // Invalidate STag of its first segment

	// The tagged message in progress, if tagged is set: a Write or a Read
	// Response.
	tagged   bool
	taggedOp opcode

	got uint32 // octets of the response to the oldest read

	writing uint64 // octets of the Write in progress
	wrote   uint64 // octets of the message before, if that was a Write

	turn int // octets received since the last Turn

	writes uint64 // not yet in Stats
}

// bufState is where the question for a receive buffer stands.
type bufState uint8

const (
	bufNone bufState = iota
	bufAsked
	bufGiven
	bufRefused
)

// Receive works on until there is something to report. ok is false if more
// octets are needed. An error ends the receive half and is returned again by
// every further call; the Terminate it calls for is due already.
//
// Errors: io.EOF after the peer's FIN between two messages; *[PeerError];
// *[Error], *[ddp.Error] and *[mpa.Error] for what the peer did wrong or the
// connection died of, with a *[ResponseError] in the chain if an answer to a
// read of ours is at fault; *[LocalError] for a bad receive buffer;
// [ErrStopped] if the send half has ended the stream.
func (s *Stream) Receive() (e Event, ok bool, err error) {
	ok, err = s.receive(&e)
	s.pause()
	return e, ok, err
}

// pause ends the use of the memory that the segments before went to, and brings Stats
// up to date.
func (s *Stream) pause() {
	r := &s.rx
	r.cursor.Release()
	s.ddp.Pause()
	if r.writes > 0 {
		s.stats.writesIn.Add(r.writes)
		r.writes = 0
	}
}

// receive is Receive. From segment to segment it keeps the use of the memory it
// places in.
func (s *Stream) receive(e *Event) (ok bool, err error) {
	r := &s.rx
	for {
		if r.err == nil && s.over() {
			r.err = ErrStopped
		}
		if r.err != nil {
			return false, r.err
		}
		if r.seg == nil {
			if r.turn >= maxTurn {
				r.turn = 0
				e.Kind = Turn
				return true, nil
			}
			if r.seg, ok, err = s.ddp.Next(); err != nil {
				return false, s.stop(err)
			} else if !ok {
				return false, nil
			}
			r.turn += r.seg.Len()
			if !s.gate.Load() {
				s.gate.Store(true)
				e.Kind, e.KickTx = FirstFPDU, true
				return true, nil
			}
		}
		if err := s.handle(r.seg, e); err != nil {
			return false, s.stop(err)
		}
		if e.Kind != NeedRecv {
			r.seg = nil
		}
		if e.Kind != 0 {
			return true, nil
		}
	}
}

// over reports whether the other half, or the user, has ended the stream with
// a Terminate. A send half that met a dead connection is no reason to drop what
// arrived before, and a closed gate still waits for the FPDU that opens it.
func (s *Stream) over() bool {
	due := s.due.Load()
	return due != nil && due != &s.none && s.gate.Load()
}

// stop ends the receive half because of err and makes the Terminate due.
func (s *Stream) stop(err error) error {
	r := &s.rx
	r.seg = nil
	if errors.Is(err, io.EOF) && (r.tagged || s.ddp.Open(ddp.QNSend)) {
		err = &Error{Type: TypeOperation, Code: CodeCatastrophic, Err: io.ErrUnexpectedEOF}
	}
	r.err = err
	s.Terminate(err)
	if s.due.Load() != nil {
		// Whatever came, the peer is in FPDU mode: a Terminate may go out.
		s.gate.Store(true)
	}
	return err
}

// handle does one segment. Checks go from the outside in: version, opcode,
// model, queue, then what ddp knows. A Write's has nothing to report, so e stays as
// it is: empty.
func (s *Stream) handle(g *ddp.Segment, e *Event) (err error) {
	if versionOf(g.ULP()) != version {
		return s.fail(g, TypeOperation, CodeVersion, nil)
	}
	if op := opcodeOf(g.ULP()); op != opWrite || !g.Tagged() {
		*e, err = s.other(g, op)
		return err
	}
	return s.write(g)
}

// other is handle for all but Writes.
func (s *Stream) other(g *ddp.Segment, op opcode) (Event, error) {
	if op != opWrite && !op.immediate() {
		s.rx.wrote = 0
	}
	switch {
	case op == opTerminate:
		return Event{}, s.terminated(g)
	case op == opReadResponse && g.Tagged():
		return s.response(g)
	case op == opReadRequest && !g.Tagged():
		return s.request(g)
	case op >= opSend && op <= opSendSEInv && !g.Tagged():
		return s.send(g, op)
	case op.immediate() && !g.Tagged() && !s.cfg.NoImmediate:
		return s.immediate(g, op)
	case op == opAtomic && !g.Tagged() && !s.cfg.NoAtomics:
		return s.atomicRequest(g)
	case op == opAtomicAnswer && !g.Tagged() && !s.cfg.NoAtomics:
		return s.atomicResponse(g)
	}
	return Event{}, s.fail(g, TypeOperation, CodeOpcode, nil)
}

// fail returns the error of this layer for a segment.
func (s *Stream) fail(g *ddp.Segment, typ, code uint8, cause error) error {
	return &Error{Type: typ, Code: code, Header: g.CloneHeader(), SegLen: g.Len(), Err: cause}
}

// within reports whether a tagged message of kind op is in progress.
func (r *rx) within(op opcode) bool { return r.tagged && r.taggedOp == op }

// write places one segment of a Write, wherever it says: nothing of it is
// reported. Segments of a Write and of a Read Response do not mix.
func (s *Stream) write(g *ddp.Segment) error {
	r := &s.rx
	if r.within(opReadResponse) {
		return s.fail(g, TypeOperation, CodeOpcode, nil)
	}
	if err := s.ddp.PlaceTagged(g, ddp.RemoteWrite); err != nil {
		return err
	}
	r.tagged, r.taggedOp = !g.Last(), opWrite
	r.writing += uint64(g.PayloadLen())
	if g.Last() {
		r.wrote, r.writing = r.writing, 0
		r.writes++
	}
	return nil
}

// send places one segment of a Send.
func (s *Stream) send(g *ddp.Segment, op opcode) (Event, error) {
	r := &s.rx
	first := !s.ddp.Open(ddp.QNSend)
	if ask, err := s.begin(g, op); ask || err != nil {
		return Event{Kind: NeedRecv}, err
	}
	if !first {
		return s.placeSend(g, op)
	}
	r.ulp, r.word = g.ULP(), g.ULPWord()
	if op.invalidates() {
		if err := s.cfg.Table.CanInvalidate(ddp.STag(r.word), s.cfg.id()); err != nil {
			return Event{}, s.kept(g, err)
		}
	}
	return s.placeSend(g, op)
}

// begin looks at the queue of a Send or Immediate: a segment continues the
// message in progress, or begins the next one and has a buffer then. ask tells
// that the buffer has to be asked for. Neither kind can begin inside a Write: it
// would be delivered before what was sent earlier.
func (s *Stream) begin(g *ddp.Segment, op opcode) (ask bool, err error) {
	r := &s.rx
	if g.QN() != ddp.QNSend {
		return false, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeQN, nil)
	}
	first, err := s.ddp.Arrive(g)
	switch {
	case err != nil:
		return false, err
	case !first && r.changed(g, op), first && r.within(opWrite):
		return false, s.fail(g, TypeOperation, CodeOpcode, nil)
	case first && r.buf == bufRefused:
		return false, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeNoBuffer, nil)
	case first && r.buf != bufGiven:
		r.buf = bufAsked
		return true, nil
	}
	return false, nil
}

// changed reports whether a later segment of a Send differs from its first one
// in what has to stay the same. RFC 5041, Section 5.1.
func (r *rx) changed(g *ddp.Segment, op opcode) bool {
	return op != opcodeOf(r.ulp) || op.invalidates() && g.ULPWord() != r.word
}

// placeSend places a segment in the buffer given, and completes the Send with
// the last one.
func (s *Stream) placeSend(g *ddp.Segment, op opcode) (Event, error) {
	r := &s.rx
	n, done, err := s.ddp.Place(g, &r.cursor)
	if err != nil {
		var f *ddp.Fault
		if errors.As(err, &f) {
			err = &LocalError{Recv: true, ID: r.id, Err: err}
		}
		return Event{}, err
	}
	if !done {
		return Event{}, nil
	}
	e := Event{Kind: RecvDone, ID: r.id, Len: n, Solicited: op.solicited()}
	if op.invalidates() {
		s.pause() // it waits for uses
		if err := s.cfg.Table.Invalidate(ddp.STag(r.word), s.cfg.id()); err != nil {
			return Event{}, s.kept(g, err)
		}
		e.Invalidated, e.InvSTag = true, ddp.STag(r.word)
	}
	r.buf = bufNone
	s.stats.sendsIn.Add(1)
	return e, nil
}

// kept is the error for a region that the peer may not invalidate.
func (s *Stream) kept(g *ddp.Segment, err error) error {
	var f *ddp.Fault
	code := uint8(CodeKept)
	if errors.As(err, &f) && f.Kind == ddp.FaultSTag {
		code = CodeSTag
	}
	return s.fail(g, TypeProtection, code, err)
}

// Give answers NeedRecv with a buffer. Its SGL is checked piece by piece as
// data arrives.
func (s *Stream) Give(b RecvBuf) {
	r := &s.rx
	if r.buf != bufAsked {
		panic("rdmap: Give without NeedRecv")
	}
	pd := b.PD
	if pd == 0 {
		pd = s.cfg.PD
	}
	r.buf, r.id = bufGiven, b.ID
	r.cursor.Reset(s.cfg.Table, pd, b.SGL)
}

// Refuse answers NeedRecv: no receive is posted. The next Receive returns the
// error that ends the stream.
func (s *Stream) Refuse() {
	if s.rx.buf != bufAsked {
		panic("rdmap: Refuse without NeedRecv")
	}
	s.rx.buf = bufRefused
}

// terminated takes a Terminate, in whatever shape it comes.
func (s *Stream) terminated(g *ddp.Segment) error {
	s.stats.terminatesIn.Add(1)
	return &PeerError{Terminate: ParseTerminate(g.Payload(maxTermLen))}
}
