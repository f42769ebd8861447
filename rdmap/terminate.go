package rdmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// Terminate is the message that ends a stream in error. RFC 5040, Section 4.8:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	| Layer | EType |  Error Code   |M|D|R|      Reserved           |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  DDP Segment Length (if M)    |  Terminated DDP Header (if D) |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  Terminated RDMA Header (if R)                                |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Terminate struct {
	Layer, Type, Code uint8
	HasSegLen         bool   // M
	SegLen            uint16 // ULPDU_Length of the bad segment
	DDPHeader         []byte // 14 or 18 octets, nil if absent (D)
	ReadHeader        []byte // 28 octets, nil if absent (R)
	// Swapped: received in the form of Linux siw, with nibbles and bits of the
	// first octets the other way round. The fields above are put right.
	Swapped bool
	// Ambiguous: it cannot be told whether the sender swapped. The fields above
	// are the reading of the RFC.
	Ambiguous bool
}

const (
	termLen    = 4  // fixed part
	maxTermLen = 52 // all parts
)

// Bits of the third octet.
const (
	bitM = 0x80
	bitD = 0x40
	bitR = 0x20
)

// String prints numbers and meaning.
func (t *Terminate) String() string {
	s := fmt.Sprintf("%s (%x/%x/%02x)", codeText(t.Layer, t.Type, t.Code), t.Layer, t.Type, t.Code)
	if t.Ambiguous {
		o := swapNibbles(t.Layer<<4 | t.Type)
		s += fmt.Sprintf(" or %s (%x/%x/%02x)", codeText(o>>4, o&0xf, t.Code), o>>4, o&0xf, t.Code)
	}
	return s
}

// append encodes the payload of the message. DDPHeader implies SegLen, and
// ReadHeader both.
func (t *Terminate) append(b []byte) []byte {
	bits := byte(0)
	if t.HasSegLen {
		bits |= bitM
	}
	if t.DDPHeader != nil {
		bits |= bitD
	}
	if t.ReadHeader != nil {
		bits |= bitR
	}
	b = append(b, t.Layer<<4|t.Type, t.Code, bits, 0)
	if t.HasSegLen {
		b = binary.BigEndian.AppendUint16(b, t.SegLen)
	}
	b = append(b, t.DDPHeader...)
	return append(b, t.ReadHeader...)
}

// ParseTerminate decodes the payload of a received Terminate. It always
// succeeds: what is missing or contradicts itself is left out, since a
// Terminate in any shape ends the stream and its content is for diagnosis
// only. It copies what it keeps.
func ParseTerminate(b []byte) Terminate {
	var t Terminate
	var f [termLen]byte
	copy(f[:], b)
	kind, bits := f[0], f[2]
	switch how := siwForm(f[0], f[1], f[2]); {
	case how == swapped:
		t.Swapped = true
		kind = swapNibbles(kind)
		bits = bits&0x01<<7 | bits&0x02<<5 | bits&0x04<<3
	case how == unclear:
		t.Ambiguous = true
	}
	t.Layer, t.Type, t.Code = kind>>4, kind&0xf, f[1]
	b = b[min(termLen, len(b)):]
	if bits&bitM == 0 || len(b) < 2 {
		return t
	}
	t.HasSegLen, t.SegLen = true, binary.BigEndian.Uint16(b)
	h, ok := ddp.ParseHeader(b[2:])
	if bits&bitD == 0 || !ok {
		return t
	}
	t.DDPHeader = append([]byte(nil), h...)
	b = b[2+len(h):]
	if bits&bitR != 0 && len(b) >= requestLen {
		t.ReadHeader = append([]byte(nil), b[:requestLen]...)
	}
	return t
}

type form uint8

const (
	plain form = iota
	swapped
	unclear
)

// siwForm tells the form of the RFC from that of Linux siw, whose bit fields
// come out reversed on little-endian hosts. Where M, D and R are all zero only
// the pairs of layer, type and code that exist in one reading decide.
func siwForm(kind, code, bits byte) form {
	const swappedMDR, plainMDR = 0x07, 0xe0
	if bits != 0 {
		if bits&swappedMDR != 0 && bits&plainMDR == 0 {
			return swapped
		}
		return plain
	}
	switch {
	case kind == 0x21, kind == 0x10 && code != 0:
		return swapped
	case kind == 0x02 && code >= 0x01 && code <= 0x04:
		return swapped
	case kind == 0x20 && (code == 0x08 || code == 0x09 || code == 0xff):
		return swapped
	case (kind == 0x02 || kind == 0x20) && code >= 0x05 && code <= 0x07:
		return unclear
	}
	return plain
}

func swapNibbles(b byte) byte { return b<<4 | b>>4 }

// chooseTerminate is the one place that turns an error into a Terminate. ok is
// false if err does not end the stream. t is nil if it ends without a message.
func chooseTerminate(err error) (t *Terminate, ok bool) {
	var (
		peer  *PeerError
		local *LocalError
		own   *Error
		low   *ddp.Error
		link  *mpa.Error
	)
	switch {
	case errors.As(err, &peer):
		return nil, true
	case errors.As(err, &local):
		return &Terminate{Layer: LayerRDMAP, Type: TypeCatastrophic}, true
	case errors.As(err, &own):
		t = &Terminate{Layer: LayerRDMAP, Type: own.Type, Code: own.Code, ReadHeader: own.ReadHeader}
		return t.about(own.Header, own.SegLen), true
	case errors.As(err, &low):
		t = &Terminate{Layer: LayerDDP, Type: low.Type, Code: low.Code}
		return t.about(low.Header, low.SegLen), true
	case errors.As(err, &link) && (link.Code == mpa.CodeClosed || link.Code == mpa.CodeFrame):
		return nil, true
	case link != nil:
		return &Terminate{Layer: LayerLLP, Code: uint8(link.Code)}, true
	case errors.Is(err, io.EOF):
		return nil, false
	}
	return &Terminate{Layer: LayerRDMAP, Type: TypeCatastrophic}, true
}

// about adds the header of the bad segment, where one caused the error.
func (t *Terminate) about(header []byte, segLen int) *Terminate {
	if header != nil {
		t.HasSegLen, t.SegLen, t.DDPHeader = true, uint16(segLen), header
	}
	return t
}

// TerminateOf returns the Terminate message that err stands for: the one that
// the peer sent, or the one that [Stream.Terminate] makes due for it. False if
// err ends a stream without a message.
func TerminateOf(err error) (Terminate, bool) {
	var peer *PeerError
	if errors.As(err, &peer) {
		return peer.Terminate, true
	}
	if t, ok := chooseTerminate(err); ok && t != nil {
		return *t, true
	}
	return Terminate{}, false
}

// QN returns the DDP queue of the message that the Terminate is about; false
// if it carries no header of an untagged one.
func (t *Terminate) QN() (uint32, bool) {
	if len(t.DDPHeader) < ddp.UntaggedLen {
		return 0, false
	}
	return ddp.Header(t.DDPHeader).QN(), true
}

// ReadResponse reports whether the Terminate is about a Read Response.
func (t *Terminate) ReadResponse() bool {
	return t.DDPHeader != nil && opcodeOf(ddp.Header(t.DDPHeader).ULP()) == opReadResponse
}
