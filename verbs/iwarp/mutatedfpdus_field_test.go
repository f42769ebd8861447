package iwarp

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// field is a piece of a segment's header, or of the FPDU around it.
type field struct {
	name       string
	off, width int    // octets in the ULPDU; width 0: not in it
	mask       uint64 // the bits that are the field's
	fits       func(u []byte) bool
}

func isTagged(u []byte) bool   { return u[0]&0x80 != 0 }
func isUntagged(u []byte) bool { return u[0]&0x80 == 0 }

func isOp(op byte) func(u []byte) bool {
	return func(u []byte) bool { return u[1]&0xf == op }
}

func anySegment([]byte) bool { return true }

const whole = ^uint64(0)

var fields = []field{
	{"ULPDU_Length", 0, 0, 0xffff, anySegment},
	{"padding", 0, 0, whole, anySegment},
	{"CRC", 0, 0, 0xffffffff, anySegment},
	{"marker", 0, 0, 0xffffffff, anySegment},
	{"T", 0, 1, 0x80, anySegment},
	{"L", 0, 1, 0x40, anySegment},
	{"DDP reserved", 0, 1, 0x3c, anySegment},
	{"DV", 0, 1, 0x03, anySegment},
	{"RV", 1, 1, 0xc0, anySegment},
	{"RDMAP reserved", 1, 1, 0x30, anySegment},
	{"opcode", 1, 1, 0x0f, anySegment},
	{"STag", 2, 4, whole, isTagged},
	{"TO", 6, 8, whole, isTagged},
	{"Invalidate STag", 2, 4, whole, isUntagged},
	{"QN", 6, 4, whole, isUntagged},
	{"MSN", 10, 4, whole, isUntagged},
	{"MO", 14, 4, whole, isUntagged},
	{"sink STag", 18, 4, whole, isOp(1)},
	{"sink TO", 22, 8, whole, isOp(1)},
	{"Read size", 30, 4, whole, isOp(1)},
	{"source STag", 34, 4, whole, isOp(1)},
	{"source TO", 38, 8, whole, isOp(1)},
	{"atomic reserved", 18, 4, 0xfffffff0, isOp(10)},
	{"AOpCode", 18, 4, 0x0f, isOp(10)},
	{"request identifier", 22, 4, whole, isOp(10)},
	{"remote STag", 26, 4, whole, isOp(10)},
	{"remote TO", 30, 8, whole, isOp(10)},
	{"operands", 38, 8, whole, isOp(10)},
	{"compare", 54, 8, whole, isOp(10)},
	{"original identifier", 18, 4, whole, isOp(11)},
	{"original value", 22, 8, whole, isOp(11)},
	{"Terminate control", 18, 4, whole, isOp(7)},
}

// mutate makes an FPDU of u with change in the bits of the field. It returns the
// field's new value, and false if nothing changed.
func (f *field) mutate(u []byte, change uint64) (fpdu rawFPDU, now uint64, changed bool) {
	u = append([]byte(nil), u...)
	switch {
	case f.name == "ULPDU_Length": // the header and what follows are cut or go on in zeros
		n := len(u) ^ int(change&f.mask)
		now, changed = uint64(n), n != len(u)
		if n <= len(u) {
			u = u[:n]
		} else {
			u = append(u, make([]byte, n-len(u))...)
		}
	case f.width > 0:
		if len(u) < f.off+f.width || !f.fits(u) {
			break
		}
		change &= f.mask
		var v [8]byte
		copy(v[8-f.width:], u[f.off:f.off+f.width])
		if f.width < 8 {
			change &= 1<<(8*f.width) - 1
		}
		old := binary.BigEndian.Uint64(v[:])
		now, changed = (old^change)&f.mask, change != 0
		binary.BigEndian.PutUint64(v[:], old^change)
		copy(u[f.off:], v[8-f.width:])
	}
	fpdu = rawOf(u)
	switch f.name {
	case "CRC":
		fpdu.crcXor = uint32(change)
		changed = fpdu.crcXor != 0
	case "marker":
		fpdu.markXor = uint32(change)
		now, changed = uint64(fpdu.markXor&0xfffc), fpdu.markXor != 0
	case "padding":
		for i := 2 + len(u); i < len(fpdu.body); i++ {
			fpdu.body[i] ^= byte(change >> (8 * (i & 3)))
			changed = changed || byte(change>>(8*(i&3))) != 0
		}
	}
	return fpdu, now, changed
}

const depends = 0xffff // on more than the field: only the model can tell

// due is the Terminate that a change of this field alone earns, whatever the rest
// of the session is: 0 for none. now is the new value, first says that u begins its
// message, marker that the FPDU has a marker, window is the key of the window.
func (f *field) due(u []byte, now uint64, first, crc, marker bool, window uint32) uint16 {
	op, send := u[1]&0xf, u[1]&0xf >= 3 && u[1]&0xf <= 6
	empty := isTagged(u) && len(u) == 14
	known := false // a region of the scene's has this STag
	for _, g := range rigRegions {
		known = known || uint64(g.stag) == now
	}
	known = known || window != 0 && uint64(window) == now
	shown := window != 0 && len(u) >= 38 && binary.BigEndian.Uint32(u[34:]) == window || isTagged(u) && binary.BigEndian.Uint32(u[2:]) == window
	inside := func(n int) uint16 { // of the region all, by TO
		switch n := uint64(n); {
		case now+(n-1) < now:
			return 3
		case now < wiretest.HostileBase || now+n > wiretest.HostileBase+wiretest.HostileSize:
			return 1
		}
		return depends
	}
	switch f.name {
	case "padding", "DDP reserved", "RDMAP reserved", "sink STag", "atomic reserved", "request identifier", "operands", "compare", "original value", "Terminate control":
		return 0
	case "CRC":
		if crc {
			return 0x2002
		}
		return 0
	case "marker":
		if marker && now != 0 {
			return 0x2003
		}
		return 0
	case "DV":
		if isTagged(u) {
			return 0x1104
		}
		return 0x1206
	case "RV":
		return 0x0205
	case "opcode":
		if now >= 12 {
			return 0x0206
		}
	case "original identifier":
		return 0x0207
	case "AOpCode":
		if now != 0 && now != 2 {
			return 0x0206
		}
		return 0
	}
	if op == 7 {
		return depends
	}
	switch f.name {
	case "QN":
		return 0x1201
	case "MSN":
		return 0x1203
	case "MO":
		switch op {
		case 1, 10, 11:
			return 0x0207
		}
		return 0x1204
	case "Invalidate STag":
		switch {
		case !send || op == 3 || op == 5:
			return 0
		case !first:
			return 0x0206
		case known:
			return 0x0109
		}
		return 0x0100
	case "STag":
		switch {
		case empty:
			return 0
		case op == 2 || !known:
			return 0x1100
		}
	case "TO":
		if empty {
			return 0
		}
		if op == 2 {
			return 0x1101
		}
		if shown {
			return depends
		}
		switch inside(len(u) - 14) {
		case 1:
			return 0x1101
		case 3:
			return 0x1103
		}
		return 0
	case "source STag", "remote STag":
		if f.name == "source STag" && binary.BigEndian.Uint32(u[30:]) == 0 {
			return 0
		}
		if !known {
			return 0x0100
		}
	case "source TO":
		n := int(binary.BigEndian.Uint32(u[30:]))
		if n == 0 {
			return 0
		}
		if shown {
			return depends
		}
		switch inside(n) {
		case 1:
			return 0x0101
		case 3:
			return 0x0104
		}
		return 0
	}
	return depends
}
