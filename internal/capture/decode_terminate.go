package capture

import (
	"encoding/binary"
	"fmt"
)

// Terminate is the payload of a Terminate message (RFC 5040, Section 4.8).
//
// Linux siw writes the two nibbles of the first octet and the three header bits in
// the other order. Such a message is read with Swapped set and its fields put right.
type Terminate struct {
	Layer, EType, Code uint8
	M, D, R            bool   // segment length, DDP header, Read Request header present
	Rsvd               uint16 // the 13 bits after M, D and R
	SegLen             uint16 // octets of the segment at fault, if M
	DDPHeader          []byte // its DDP header, if D
	ReadHeader         []byte // its Read Request header, if R and present
	Swapped            bool
}

// LE returns layer, error type and code as one number, for instance 0x1100.
func (t *Terminate) LE() uint16 { return uint16(t.Layer)<<12 | uint16(t.EType)<<8 | uint16(t.Code) }

const terminateLen = 4

func (r *RDMAP) decodeTerminate(b []byte) error {
	if len(b) < terminateLen {
		return fmt.Errorf("Terminate: %w (%d) for its control field", errShort, len(b))
	}
	t := &Terminate{Swapped: looksSwapped(b[0], b[1], b[2]), Code: b[1]}
	if ctl := b[2]; t.Swapped {
		t.Layer, t.EType = b[0]&0x0f, b[0]>>4
		t.M, t.D, t.R = ctl&1 != 0, ctl&2 != 0, ctl&4 != 0
		t.Rsvd = uint16(ctl&^7)<<8 | uint16(b[3])
	} else {
		t.Layer, t.EType = b[0]>>4, b[0]&0x0f
		t.M, t.D, t.R = ctl&0x80 != 0, ctl&0x40 != 0, ctl&0x20 != 0
		t.Rsvd = uint16(ctl&0x1f)<<8 | uint16(b[3])
	}
	r.Terminate = t
	rest, short := b[terminateLen:], ""
	take := func(n int, what string) (out []byte) {
		if len(rest) < n {
			if short == "" {
				short = what
			}
			return nil
		}
		out, rest = rest[:n], rest[n:]
		return out
	}
	if t.M {
		if l := take(2, "segment length"); l != nil {
			t.SegLen = binary.BigEndian.Uint16(l)
		}
	}
	if t.D && short == "" {
		n := untaggedLen
		if len(rest) > 0 && rest[0]&0x80 != 0 {
			n = taggedLen
		}
		t.DDPHeader = take(n, "DDP header")
	}
	if t.R && short == "" {
		t.ReadHeader = take(readRequestLen, "Read Request header")
	}
	// siw sets R without the header when a Send with Invalidate was at fault.
	if short != "" && !(t.Swapped && short == "Read Request header") {
		return fmt.Errorf("Terminate: its header bits promise a %s that is not there", short)
	}
	r.Contents, r.Payload = b[:len(b)-len(rest)], rest
	if len(rest) > 0 {
		return fmt.Errorf("Terminate: %d octets more than its header bits explain", len(rest))
	}
	return nil
}

// looksSwapped tells siw's bit order from the RFC's. Header bits decide where there
// are any; the rest is told by which combination of layer and type exists.
func looksSwapped(layer, code, bits uint8) bool {
	if bits != 0 {
		return bits&0x07 != 0 && bits&0xe0 == 0
	}
	switch layer {
	case 0x21:
		return true
	case 0x10:
		return code != 0
	case 0x02:
		return code >= 1 && code <= 4
	case 0x20:
		return code == 0x08 || code == 0x09 || code == 0xff
	}
	return false
}

func (t *Terminate) append(b []byte) []byte {
	bits := [3]uint8{0x80, 0x40, 0x20}
	first, rsvd := t.Layer<<4|t.EType, uint8(t.Rsvd>>8)
	if t.Swapped {
		bits, first = [3]uint8{1, 2, 4}, t.EType<<4|t.Layer
	}
	b = append(b, first, t.Code, rsvd|bit(t.M, bits[0])|bit(t.D, bits[1])|bit(t.R, bits[2]), uint8(t.Rsvd))
	if t.M {
		b = binary.BigEndian.AppendUint16(b, t.SegLen)
	}
	return append(append(b, t.DDPHeader...), t.ReadHeader...)
}
