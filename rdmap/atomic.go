package rdmap

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/softrdma/softrdma/ddp"
)

// atomicSize is how many octets an atomic operation works on. Their address is
// a multiple of it.
const atomicSize = 8

// The operations, AOpCode in the last four bits of the first word of a request.
// 1 and 3 to 15 are not assigned. RFC 7306, Section 5.1.
const (
	codeFetchAdd    = 0
	codeCompareSwap = 2
	maskAtomicCode  = 0x0f
)

const (
	atomicLen       = 52 // an Atomic Request header
	atomicAnswerLen = 12 // an Atomic Response header
)

// atomicRequest is a view of the RDMAP header of an Atomic Request, exactly
// atomicLen octets. RFC 7306, Section 5.2.1:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Reserved (Not Used)              |AOpCode|
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                       Request Identifier                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                          Remote STag                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Remote Tagged Offset (64 bits)           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Add or Swap Data (64 bits)               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Add or Swap Mask (64 bits)               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Compare Data (64 bits)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                      Compare Mask (64 bits)                   |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type atomicRequest []byte

func (q atomicRequest) code() uint8         { return q[3] & maskAtomicCode }
func (q atomicRequest) ident() uint32       { return binary.BigEndian.Uint32(q[4:]) }
func (q atomicRequest) stag() ddp.STag      { return ddp.STag(binary.BigEndian.Uint32(q[8:])) }
func (q atomicRequest) to() uint64          { return binary.BigEndian.Uint64(q[12:]) }
func (q atomicRequest) val() uint64         { return binary.BigEndian.Uint64(q[20:]) }
func (q atomicRequest) valMask() uint64     { return binary.BigEndian.Uint64(q[28:]) }
func (q atomicRequest) compare() uint64     { return binary.BigEndian.Uint64(q[36:]) }
func (q atomicRequest) compareMask() uint64 { return binary.BigEndian.Uint64(q[44:]) }

// put fills the view for an operation of ours. A FetchAdd has no use for the
// last two fields, and the RFC says what stands there then.
func (q atomicRequest) put(op *Op, ident uint32) {
	code, compare, compareMask := uint32(codeFetchAdd), uint64(0), ^uint64(0)
	if op.Kind == CompareSwap {
		code, compare, compareMask = codeCompareSwap, op.Compare, op.CompareMask
	}
	binary.BigEndian.PutUint32(q, code)
	binary.BigEndian.PutUint32(q[4:], ident)
	binary.BigEndian.PutUint32(q[8:], uint32(op.RemoteSTag))
	binary.BigEndian.PutUint64(q[12:], op.RemoteTO)
	binary.BigEndian.PutUint64(q[20:], op.Val)
	binary.BigEndian.PutUint64(q[28:], op.ValMask)
	binary.BigEndian.PutUint64(q[36:], compare)
	binary.BigEndian.PutUint64(q[44:], compareMask)
}

// result is the value that takes the place of old.
func (q atomicRequest) result(old uint64) uint64 {
	if q.code() == codeFetchAdd {
		return fetchAdd(old, q.val(), q.valMask())
	}
	if (old^q.compare())&q.compareMask() != 0 {
		return old
	}
	return old&^q.valMask() | q.val()&q.valMask()
}

// fetchAdd adds field by field: a bit of mask is the top bit of a field, out of
// which no carry goes. The top bits are added apart from the rest, so that
// there is nothing to carry.
func fetchAdd(old, val, mask uint64) uint64 {
	return ((old &^ mask) + (val &^ mask)) ^ (old^val)&mask
}

// atomicAnswer is a view of the RDMAP header of an Atomic Response, exactly
// atomicAnswerLen octets. RFC 7306, Section 5.2.2:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Original Request Identifier                  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  Original Remote Data Value (64 bits)         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type atomicAnswer []byte

func (a atomicAnswer) ident() uint32 { return binary.BigEndian.Uint32(a) }
func (a atomicAnswer) value() uint64 { return binary.BigEndian.Uint64(a[4:]) }

func (a atomicAnswer) put(ident uint32, value uint64) {
	binary.BigEndian.PutUint32(a, ident)
	binary.BigEndian.PutUint64(a[4:], value)
}

// prepareAtomic finds where the original value is to go and makes the request.
func (s *Stream) prepareAtomic(op *Op) error {
	t := &s.tx
	if len(op.SGL) != 1 || op.SGL[0].Len != atomicSize || op.Inline != nil {
		return ErrAtomicSink
	}
	e := &op.SGL[0]
	mem, err := s.cfg.Table.Local(e.STag, s.cfg.PD, e.Off, atomicSize, ddp.LocalWrite)
	if err != nil {
		return err
	}
	t.sink = read{id: op.ID, sinkSTag: e.STag, sinkTO: mem.TO(), size: atomicSize, atomic: true, ident: t.ident}
	mem.Release()
	t.ident++
	return nil
}

// atomicRequest checks an Atomic Request and queues it for the send half, which
// carries it out when its turn to be answered has come.
func (s *Stream) atomicRequest(g *ddp.Segment) (Event, error) {
	switch {
	case g.QN() != ddp.QNRequest:
		return Event{}, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeQN, nil)
	case s.rx.within(opWrite) || s.ddp.Open(ddp.QNSend):
		return Event{}, s.fail(g, TypeOperation, CodeOpcode, nil)
	}
	if _, err := s.ddp.Arrive(g); err != nil {
		return Event{}, err
	}
	switch {
	case s.inbound.len() >= s.IRD():
		return Event{}, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeMSN, nil)
	case !g.Last() || g.MO() != 0 || g.PayloadLen() != atomicLen:
		return Event{}, s.fail(g, TypeOperation, CodeCatastrophic, nil)
	}
	var in request
	copy(in.head[:], g.Header)
	copy(in.body[:], g.Payload(atomicLen))
	if code := atomicRequest(in.body[:]).code(); code != codeFetchAdd && code != codeCompareSwap {
		return Event{}, s.fail(g, TypeOperation, CodeOpcode, nil)
	}
	mem, err := s.target(&in)
	if err != nil {
		return Event{}, err
	}
	mem.Release()
	s.inbound.push(in)
	s.ddp.Deliver(g)
	s.stats.atomicsIn.Add(1)
	return Event{Kind: RequestQueued, KickTx: true}, nil
}

// target returns the memory an atomic request works on, if the peer may. It is
// the address that has to be aligned, whatever the tagged offset is.
func (s *Stream) target(in *request) (ddp.Region, error) {
	q := atomicRequest(in.body[:])
	mem, err := s.cfg.Table.Check(q.stag(), s.cfg.id(), q.to(), atomicSize, ddp.RemoteAtomic)
	if err != nil {
		return ddp.Region{}, in.refused(err, 0)
	}
	if uintptr(unsafe.Pointer(unsafe.SliceData(mem.Bytes())))%atomicSize != 0 {
		mem.Release()
		return ddp.Region{}, in.fault(TypeOperation, CodeCatastrophic, errMisaligned)
	}
	return mem, nil
}

var errMisaligned = errors.New("address of an atomic operation is not a multiple of 8")

// execute carries an atomic request out and returns the answer to send. It
// happens once, when the answer is certain to go into MPA; the region may have
// gone since the request came.
func (s *Stream) execute(in *request) ([][]byte, error) {
	mem, err := s.target(in)
	if err != nil {
		return nil, err
	}
	q := atomicRequest(in.body[:])
	old := swap((*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(mem.Bytes()))), q)
	mem.Release()
	t := &s.tx
	a := atomicAnswer(t.body[:atomicAnswerLen])
	a.put(q.ident(), old)
	t.parts[0] = a
	return t.parts[:], nil
}

// swap does q to v, in one step as seen by every other atomic access of the
// host, and returns the value before.
func swap(v *atomic.Uint64, q atomicRequest) uint64 {
	for {
		old := v.Load()
		if n := q.result(old); n == old || v.CompareAndSwap(old, n) {
			return old
		}
	}
}

// atomicResponse takes an Atomic Response, which belongs to the oldest
// outstanding operation.
func (s *Stream) atomicResponse(g *ddp.Segment) (Event, error) {
	if g.QN() != ddp.QNAtomic {
		return Event{}, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeQN, nil)
	}
	rd := s.reads.front()
	if rd == nil || !rd.atomic || s.rx.within(opWrite) || s.ddp.Open(ddp.QNSend) {
		return Event{}, s.fail(g, TypeOperation, CodeOpcode, nil)
	}
	if _, err := s.ddp.Arrive(g); err != nil {
		return Event{}, err
	}
	if !g.Last() || g.MO() != 0 || g.PayloadLen() != atomicAnswerLen {
		return Event{}, s.fail(g, TypeOperation, CodeCatastrophic, rd.wrong(nil))
	}
	a := atomicAnswer(g.Payload(atomicAnswerLen))
	if a.ident() != rd.ident {
		return Event{}, s.fail(g, TypeOperation, CodeCatastrophic, rd.wrong(errIdent))
	}
	mem, err := s.cfg.Table.Check(rd.sinkSTag, s.cfg.id(), rd.sinkTO, atomicSize, ddp.LocalWrite)
	if err != nil {
		return Event{}, &LocalError{ID: rd.id, Err: err}
	}
	binary.NativeEndian.PutUint64(mem.Bytes(), a.value())
	mem.Release()
	s.ddp.Deliver(g)
	s.stats.atomicResponsesIn.Add(1)
	e := Event{Kind: ReadDone, ID: rd.id, Len: atomicSize}
	e.KickTx = s.reads.pop()
	return e, nil
}

var errIdent = errors.New("request identifier is not that of the oldest atomic operation")
