package capture

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"
)

// Opcode is the RDMAP opcode (RFC 5040, Section 4.3; RFC 7306, Section 4.4).
type Opcode uint8

// The opcodes of the IANA registry "RDMAP Message Operation Codes".
const (
	OpWrite Opcode = iota
	OpReadRequest
	OpReadResponse
	OpSend
	OpSendInvalidate
	OpSendSE
	OpSendSEInvalidate
	OpTerminate
	OpImmediate
	OpImmediateSE
	OpAtomicRequest
	OpAtomicResponse
)

// opcodes says what belongs to an opcode: the queue it travels on (-1: tagged) and
// the size its RDMAP part must have (-1: any).
var opcodes = [...]struct {
	name  string
	queue int
	size  int
}{
	OpWrite:            {"Write", -1, -1},
	OpReadRequest:      {"Read Request", 1, readRequestLen},
	OpReadResponse:     {"Read Response", -1, -1},
	OpSend:             {"Send", 0, -1},
	OpSendInvalidate:   {"Send Inv", 0, -1},
	OpSendSE:           {"Send SE", 0, -1},
	OpSendSEInvalidate: {"Send SE Inv", 0, -1},
	OpTerminate:        {"Terminate", 2, -1},
	OpImmediate:        {"Immediate", 0, immediateLen},
	OpImmediateSE:      {"Immediate SE", 0, immediateLen},
	OpAtomicRequest:    {"Atomic Request", 1, atomicRequestLen},
	OpAtomicResponse:   {"Atomic Response", 3, atomicResponseLen},
}

// String names the opcode as the RFCs do.
func (o Opcode) String() string {
	if int(o) < len(opcodes) {
		return opcodes[o].name
	}
	return fmt.Sprintf("opcode %#x", uint8(o))
}

const (
	readRequestLen    = 28
	immediateLen      = 8
	atomicRequestLen  = 52
	atomicResponseLen = 12
)

// RDMAP is the RDMAP part of a segment: the control octet that DDP carries, and the
// header some opcodes add after the DDP header. At most one of the pointers is set.
type RDMAP struct {
	Contents []byte // the header after the DDP header; empty for Write, Read Response and Sends
	Payload  []byte // the ULP's octets

	Version uint8 // RV
	Rsvd    uint8 // the two reserved bits
	Opcode  Opcode

	ReadRequest    *ReadRequest
	Terminate      *Terminate
	AtomicRequest  *AtomicRequest
	AtomicResponse *AtomicResponse
	Immediate      uint64 // of an Immediate message
}

// ReadRequest is the header of RFC 5040, Section 4.4.
type ReadRequest struct {
	SinkSTag   uint32
	SinkTO     uint64
	Size       uint32
	SourceSTag uint32
	SourceTO   uint64
}

// AtomicRequest is the header of RFC 7306, Section 5.2.1.
type AtomicRequest struct {
	Op                  uint32 // low four bits: 0 FetchAdd, 2 CmpSwap; the rest is reserved
	ID                  uint32
	STag                uint32
	TO                  uint64
	Data, Mask          uint64 // to add or to swap in
	Compare, ComparMask uint64
}

// AtomicResponse is the header of RFC 7306, Section 5.2.2.
type AtomicResponse struct {
	ID       uint32
	Original uint64
}

// Control returns the control octet that stands in the DDP header.
func (r *RDMAP) Control() uint8 { return r.Version&3<<6 | r.Rsvd&3<<4 | uint8(r.Opcode)&0x0f }

func (r *RDMAP) decode(d *DDP) error {
	c, b := d.Control, d.Payload
	*r = RDMAP{Version: c >> 6, Rsvd: c >> 4 & 3, Opcode: Opcode(c & 0x0f), Payload: b}
	if r.Version != 1 {
		return fmt.Errorf("RDMAP version is %d", r.Version)
	}
	if int(r.Opcode) >= len(opcodes) {
		return fmt.Errorf("%v is not assigned", r.Opcode)
	}
	want := opcodes[r.Opcode]
	if d.Tagged != (want.queue < 0) {
		return fmt.Errorf("%v with T=%d", r.Opcode, bit(d.Tagged, 1))
	}
	if !d.Tagged && d.QN != uint32(want.queue) {
		return fmt.Errorf("%v on queue %d", r.Opcode, d.QN)
	}
	if r.Opcode == OpTerminate {
		return r.decodeTerminate(b)
	}
	if want.size < 0 {
		return nil
	}
	if len(b) != want.size {
		return fmt.Errorf("%v with %d octets after the DDP header instead of %d", r.Opcode, len(b), want.size)
	}
	if !d.Last || d.MO != 0 {
		return fmt.Errorf("%v in more than one segment", r.Opcode)
	}
	r.Contents, r.Payload = b, nil
	be := binary.BigEndian
	switch r.Opcode {
	case OpReadRequest:
		r.ReadRequest = &ReadRequest{be.Uint32(b), be.Uint64(b[4:]), be.Uint32(b[12:]), be.Uint32(b[16:]), be.Uint64(b[20:])}
	case OpAtomicRequest:
		r.AtomicRequest = &AtomicRequest{be.Uint32(b), be.Uint32(b[4:]), be.Uint32(b[8:]), be.Uint64(b[12:]),
			be.Uint64(b[20:]), be.Uint64(b[28:]), be.Uint64(b[36:]), be.Uint64(b[44:])}
	case OpAtomicResponse:
		r.AtomicResponse = &AtomicResponse{be.Uint32(b), be.Uint64(b[4:])}
	default:
		r.Immediate = be.Uint64(b)
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer: the header after the DDP
// header. The control octet is DDP's to write.
func (r *RDMAP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	be := binary.BigEndian
	var h []byte
	switch {
	case r.ReadRequest != nil:
		q := r.ReadRequest
		h = be.AppendUint64(be.AppendUint32(h, q.SinkSTag), q.SinkTO)
		h = be.AppendUint32(h, q.Size)
		h = be.AppendUint64(be.AppendUint32(h, q.SourceSTag), q.SourceTO)
	case r.AtomicRequest != nil:
		q := r.AtomicRequest
		for _, v := range [...]uint32{q.Op, q.ID, q.STag} {
			h = be.AppendUint32(h, v)
		}
		for _, v := range [...]uint64{q.TO, q.Data, q.Mask, q.Compare, q.ComparMask} {
			h = be.AppendUint64(h, v)
		}
	case r.AtomicResponse != nil:
		h = be.AppendUint64(be.AppendUint32(h, r.AtomicResponse.ID), r.AtomicResponse.Original)
	case r.Terminate != nil && len(r.Contents) > 0:
		h = r.Terminate.append(h)
	case len(r.Contents) == immediateLen && (r.Opcode == OpImmediate || r.Opcode == OpImmediateSE):
		h = be.AppendUint64(h, r.Immediate)
	}
	out, err := b.PrependBytes(len(h))
	if err != nil {
		return err
	}
	copy(out, h)
	return nil
}
