package iwarp

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// rawFPDU is an FPDU on its way to the wire: length, ULPDU and padding, and what is
// to be wrong with the rest.
type rawFPDU struct {
	body    []byte
	crcXor  uint32
	markXor uint32 // of the first marker in it
}

func rawOf(u []byte) rawFPDU {
	f := wiretest.Frame(u, false)
	return rawFPDU{body: f[:len(f)-4]}
}

// octets frames f for stream position pos of FPDU mode, with markers (RFC 5044,
// Section 4.3) if marks is set. It reports whether a marker is in it.
func (f rawFPDU) octets(pos int, crc, marks bool) (out []byte, marked bool) {
	head := -1
	mark := func() {
		if !marks || (pos+len(out))%512 != 0 {
			return
		}
		ptr := uint32(0)
		if head >= 0 {
			ptr = uint32(uint16(len(out) - head))
		}
		if !marked {
			ptr ^= f.markXor
		}
		out = binary.BigEndian.AppendUint32(out, ptr)
		marked = true
	}
	mark()
	head = len(out)
	for i := 0; i < len(f.body); i += 4 {
		if i > 0 {
			mark()
		}
		out = append(out, f.body[i:i+4]...)
	}
	mark()
	sum := uint32(0)
	if crc {
		sum = wiretest.CRC32C(out)
	}
	return binary.LittleEndian.AppendUint32(out, sum^f.crcXor), marked
}

// cutFPDU cuts the first FPDU off b, which begins at position pos of FPDU mode: its
// ULPDU and size, 0 if it is not whole yet, and the code of what is wrong with it.
func cutFPDU(b []byte, pos int, crc, marks bool) (u []byte, size int, bad uint16) {
	var plain []byte // without markers
	i, head := 0, -1
	wrong := false
	take := func(n int) bool { // n octets, and the markers before them
		for range n / 4 {
			if marks && (pos+i)%512 == 0 {
				if len(b) < i+4 {
					return false
				}
				want := 0
				if head >= 0 {
					want = i - head
				}
				wrong = wrong || (binary.BigEndian.Uint16(b[i+2:])^uint16(want))&^3 != 0
				i += 4
			}
			if len(b) < i+4 {
				return false
			}
			if head < 0 {
				head = i
			}
			plain = append(plain, b[i:i+4]...)
			i += 4
		}
		return true
	}
	if !take(4) {
		return nil, 0, 0
	}
	n := int(binary.BigEndian.Uint16(plain))
	if !take((2+n+3)&^3 - 4) {
		return nil, 0, 0
	}
	if !take(4) {
		return nil, 0, 0
	}
	switch {
	case crc && wiretest.CRC32C(b[:i-4]) != binary.LittleEndian.Uint32(b[i-4:]):
		bad = 0x2002
	case wrong:
		bad = 0x2003
	}
	return plain[2 : 2+n], i, bad
}
