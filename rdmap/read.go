package rdmap

import (
	"errors"
	"fmt"

	"github.com/softrdma/softrdma/ddp"
)

// request is an inbound Read Request or Atomic Request that waits for its
// response: its DDP header, for a Terminate that may have to quote it, and its
// RDMAP header.
type request struct {
	head [ddp.UntaggedLen]byte
	body [atomicLen]byte // a Read Request fills less of it
}

// atomic tells an Atomic Request from a Read Request.
func (in *request) atomic() bool { return opcodeOf(ddp.Header(in.head[:]).ULP()) == opAtomic }

// bodyLen returns how much of the body is in use.
func (in *request) bodyLen() int {
	if in.atomic() {
		return atomicLen
	}
	return requestLen
}

// read is a Read or an atomic operation of ours that waits for its response.
type read struct {
	id       uint64
	sinkTO   uint64
	sinkSTag ddp.STag
	size     uint32
	hidden   bool // the RTR message: no operation completes by it
	atomic   bool
	ident    uint32 // atomic: the Request Identifier
}

// ResponseError is found in the error chain when the answer to a read or an
// atomic operation of ours is at fault.
type ResponseError struct {
	ID  uint64 // of the Op
	Err error  // the cause; may be nil
}

// Error describes the failure.
func (e *ResponseError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("wrong response to operation %d", e.ID)
	}
	return fmt.Sprintf("response to operation %d: %v", e.ID, e.Err)
}

// Unwrap returns the cause.
func (e *ResponseError) Unwrap() error { return e.Err }

// request checks a Read Request and queues it for the send half.
func (s *Stream) request(g *ddp.Segment) (Event, error) {
	switch {
	case g.PayloadLen() < requestLen:
		return Event{}, s.ddp.Short()
	case g.QN() != ddp.QNRequest:
		return Event{}, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeQN, nil)
	case s.rx.within(opWrite) || s.ddp.Open(ddp.QNSend):
		return Event{}, s.fail(g, TypeOperation, CodeOpcode, nil)
	}
	if _, err := s.ddp.Arrive(g); err != nil {
		return Event{}, err
	}
	q := readRequest(g.Payload(requestLen))
	switch {
	case !s.slotFor(q):
		return Event{}, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeMSN, nil)
	case !g.Last() || g.MO() != 0 || g.PayloadLen() != requestLen:
		return Event{}, s.fail(g, TypeOperation, CodeCatastrophic, nil)
	}
	var in request
	copy(in.head[:], g.Header)
	copy(in.body[:], q)
	if err := s.checkSource(&in); err != nil {
		return Event{}, err
	}
	s.inbound.push(in)
	s.ddp.Deliver(g)
	s.stats.requestsIn.Add(1)
	return Event{Kind: RequestQueued, KickTx: true}, nil
}

// slotFor reports whether a Read Request may be held. With IRD 0 the one
// exception is an empty read that opens the connection unasked.
func (s *Stream) slotFor(q readRequest) bool {
	if s.cfg.IRD > 0 {
		return s.inbound.len() < len(s.inbound.slots)
	}
	return q.size() == 0 && !s.cfg.Initiator && !s.cfg.PeerToPeer && s.ddp.Received() == 1
}

// response takes one segment of a Read Response, which belongs to the oldest
// outstanding read and continues it.
func (s *Stream) response(g *ddp.Segment) (Event, error) {
	r := &s.rx
	rd := s.reads.front()
	if rd == nil || rd.atomic || r.within(opWrite) {
		return Event{}, s.fail(g, TypeOperation, CodeOpcode, nil)
	}
	n := uint64(g.PayloadLen())
	end := uint64(r.got) + n
	switch {
	case n > 0 && g.STag() != rd.sinkSTag:
		return Event{}, s.ddp.Fail(g, ddp.TypeTagged, ddp.CodeSTag, rd.wrong(nil))
	case n > 0 && g.TO() != rd.sinkTO+uint64(r.got), end > uint64(rd.size):
		return Event{}, s.ddp.Fail(g, ddp.TypeTagged, ddp.CodeBounds, rd.wrong(nil))
	case g.Last() && end < uint64(rd.size):
		return Event{}, s.fail(g, TypeOperation, CodeCatastrophic, rd.wrong(nil))
	}
	if err := s.ddp.PlaceTagged(g, ddp.LocalWrite); err != nil {
		var low *ddp.Error
		if errors.As(err, &low) {
			low.Err = rd.wrong(low.Err)
		}
		return Event{}, err
	}
	r.got, r.tagged, r.taggedOp = uint32(end), !g.Last(), opReadResponse
	if !g.Last() {
		return Event{}, nil
	}
	r.got = 0
	s.stats.responsesIn.Add(1)
	if rd.hidden {
		s.await.Store(false)
		s.reads.pop()
		return Event{Kind: RTRDone, KickTx: true}, nil
	}
	e := Event{Kind: ReadDone, ID: rd.id, Len: rd.size}
	e.KickTx = s.reads.pop()
	return e, nil
}

// wrong says in an error chain that the response to this read is at fault.
func (rd *read) wrong(cause error) error {
	if rd.hidden {
		return cause
	}
	return &ResponseError{ID: rd.id, Err: cause}
}

// checkSource looks whether what the peer asks for may be read, and whether the
// answer can be addressed. RFC 5040, Section 5.2. An empty read asks for nothing.
func (s *Stream) checkSource(in *request) error {
	q := readRequest(in.body[:])
	n := uint64(q.size())
	if n == 0 {
		return nil
	}
	mem, err := s.cfg.Table.Check(q.sourceSTag(), s.cfg.id(), q.sourceTO(), n, ddp.RemoteRead)
	if err != nil {
		return in.refused(err, 0)
	}
	mem.Release()
	if ddp.Wraps(q.sinkTO(), n) {
		return in.refused(&ddp.Fault{Kind: ddp.FaultWrap, STag: q.sinkSTag()}, 0)
	}
	return nil
}

// source returns the next n octets of a response, checked afresh: the region
// may have gone while the response was on its way. s.tx.source keeps them in use.
func (s *Stream) source(in *request, n int) ([][]byte, error) {
	t := &s.tx
	if n == 0 {
		return nil, nil
	}
	q := readRequest(in.body[:])
	sent := s.ddp.Sent()
	mem, err := t.source.Check(s.cfg.Table, q.sourceSTag(), s.cfg.id(), q.sourceTO()+uint64(sent), uint64(n), ddp.RemoteRead)
	if err != nil {
		return nil, in.refused(err, sent)
	}
	t.parts[0] = mem
	return t.parts[:], nil
}

// refused is the error for memory that the request may not reach, after sent
// octets of a read.
func (in *request) refused(err error, sent uint32) error {
	var f *ddp.Fault
	code := uint8(CodeSTag)
	if errors.As(err, &f) {
		code = readCode(f.Kind)
	}
	e := in.fault(TypeProtection, code, err)
	if !in.atomic() {
		e.ReadHeader = append([]byte(nil), in.body[:requestLen]...)
		readRequest(e.ReadHeader).advance(sent)
	}
	return e
}

// fault is the error of this layer for a request.
func (in *request) fault(typ, code uint8, cause error) *Error {
	return &Error{
		Type: typ, Code: code, Err: cause,
		Header: append([]byte(nil), in.head[:]...), SegLen: len(in.head) + in.bodyLen(),
	}
}
