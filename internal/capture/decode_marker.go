package capture

import (
	"encoding/binary"
	"fmt"
)

// Marker is one of the markers that stand in the octets of an FPDU (RFC 5044,
// Section 4.3): every 512 octets of a direction, counted from its first octet in FPDU
// mode and with markers counted too.
//
//	+-------------------------------+-------------------------------+
//	|           Reserved            |            FPDUPTR            |
//	+-------------------------------+-------------------------------+
type Marker struct {
	At   int // of its first octet, counted from the first octet of the FPDU
	Rsvd uint16
	Ptr  uint16 // FPDUPTR, the low two bits included
}

// decodeMarked is decode for a direction with markers; b begins at stream position pos.
// It takes the octets one by one. The error wraps ErrMarkers where a marker points
// elsewhere than to the length field; the FPDU is decoded all the same.
func (m *MPA) decodeMarked(b []byte, pos int) (n int, err error) {
	var plain []byte // length, ULPDU, padding
	var wrong error
	header := -1
	take := func() bool { // one octet, and the marker before it
		if (pos+n)%512 == 0 {
			if len(b) < n+4 {
				return false
			}
			k := Marker{At: n, Rsvd: binary.BigEndian.Uint16(b[n:]), Ptr: binary.BigEndian.Uint16(b[n+2:])}
			m.Markers = append(m.Markers, k)
			want := 0 // between two FPDUs
			if header >= 0 {
				want = n - header
			}
			if k.Ptr/4 != uint16(want)/4 && wrong == nil {
				wrong = fmt.Errorf("%w: FPDUPTR is %d at stream position %d, the length field stands %d octets before", ErrMarkers, k.Ptr, pos+n, want)
			}
			n += 4
		}
		if n >= len(b) {
			return false
		}
		if header < 0 {
			header = n
		}
		n++
		return true
	}
	for need := 2; len(plain) < need; {
		if !take() {
			return 0, errShort
		}
		if plain = append(plain, b[n-1]); len(plain) == 2 {
			need = (2 + int(binary.BigEndian.Uint16(plain)) + 3) &^ 3
		}
	}
	end := 2 + int(binary.BigEndian.Uint16(plain))
	m.Contents, m.Payload, m.Pad = plain[:2], plain[2:end], plain[end:]
	if !take() { // a marker before the CRC is covered by it
		return 0, errShort
	}
	n--
	if len(b) < n+crcLen {
		return 0, errShort
	}
	m.CRC = binary.LittleEndian.Uint32(b[n:])
	m.Sum = castagnoli(b[:n])
	return n + crcLen, wrong
}

// weave puts the markers back into an FPDU that was built without them.
func (m *MPA) weave(plain []byte) []byte {
	if len(m.Markers) == 0 {
		return plain
	}
	var out []byte
	for _, k := range m.Markers {
		n := k.At - len(out)
		out = append(out, plain[:n]...)
		plain = plain[n:]
		out = binary.BigEndian.AppendUint16(out, k.Rsvd)
		out = binary.BigEndian.AppendUint16(out, k.Ptr)
	}
	out = append(out, plain...)
	body := len(out) - crcLen
	crc := m.CRC
	if m.InUse && m.CRCOK() {
		crc = castagnoli(out[:body])
	}
	binary.LittleEndian.PutUint32(out[body:], crc)
	return out
}
