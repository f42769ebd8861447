package rdmap

import (
	"encoding/binary"
	"math"

	"github.com/softrdma/softrdma/ddp"
)

// immediateLen is the payload of an Immediate Data message: nothing but the
// eight octets themselves. RFC 7306, Section 6.1.
const immediateLen = 8

// startImmediate begins an Immediate Data message.
func (s *Stream) startImmediate(op *Op) {
	t := &s.tx
	t.size = immediateLen
	binary.BigEndian.PutUint64(t.body[:], op.Imm)
	s.ddp.StartUntagged(ddp.QNSend, immediateOpcode(op.Solicited).octet(), 0, immediateLen)
}

// immediate takes an Immediate Data message. It uses up a receive buffer as a
// Send does, and writes nothing to it.
func (s *Stream) immediate(g *ddp.Segment, op opcode) (Event, error) {
	r := &s.rx
	if ask, err := s.begin(g, op); ask || err != nil {
		return Event{Kind: NeedRecv}, err
	}
	switch {
	case g.MO() != 0:
		return Event{}, s.ddp.Fail(g, ddp.TypeUntagged, ddp.CodeMO, nil)
	case !g.Last() || g.PayloadLen() != immediateLen:
		return Event{}, s.fail(g, TypeOperation, CodeCatastrophic, nil)
	}
	e := Event{
		Kind: RecvDone, ID: r.id, Len: uint32(min(r.wrote, math.MaxUint32)), Solicited: op.solicited(),
		Immediate: true, Imm: binary.BigEndian.Uint64(g.Payload(immediateLen)),
	}
	s.ddp.Deliver(g)
	r.buf, r.wrote = bufNone, 0
	s.stats.immediatesIn.Add(1)
	return e, nil
}
