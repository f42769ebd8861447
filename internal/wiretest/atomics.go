package wiretest

import "encoding/binary"

// Immediate makes an Immediate Data segment (RFC 7306, Section 6.1). data is eight
// octets in a good one.
func Immediate(solicited bool, msn uint32, data ...byte) []byte {
	if solicited {
		return Untagged(9, true, 0, 0, msn, 0, data)
	}
	return Untagged(8, true, 0, 0, msn, 0, data)
}

// The operations of Atomic.
const (
	AtomicFetchAdd    = 0
	AtomicCompareSwap = 2
)

// Atomic is an Atomic Request (RFC 7306, Section 5.2.1).
type Atomic struct {
	Code                 uint32 // the four octets that end with AOpCode
	Ident                uint32
	STag                 uint32
	TO                   uint64
	Val, ValMask         uint64 // Add or Swap Data and Mask
	Compare, CompareMask uint64
}

// Segment encodes the request as message msn of queue 1.
func (a Atomic) Segment(msn uint32) []byte {
	b := make([]byte, 0, 52)
	for _, v := range [...]uint32{a.Code, a.Ident, a.STag} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, v := range [...]uint64{a.TO, a.Val, a.ValMask, a.Compare, a.CompareMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return Untagged(10, true, 0, 1, msn, 0, b)
}

// AtomicResponse makes the answer to an Atomic Request (RFC 7306, Section 5.2.2), as
// message msn of queue 3: the identifier of the request and the value before.
func AtomicResponse(msn, ident uint32, value uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, ident)
	return Untagged(11, true, 0, 3, msn, 0, binary.BigEndian.AppendUint64(b, value))
}

// AtomicFPDUs returns more golden FPDUs of RFC 7306 than [FPDUs] has, among them the
// Terminates that refuse its messages: with the DDP header and without that of RDMAP.
func AtomicFPDUs() []FPDUVector {
	return []FPDUVector{
		{"IMM-32", 8, Hex(`00 1a 41 48 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 de ad be ef 00 00 00 00 ab cf 9e a0`)},
		{"ATOMIC-FETCHADD-FIELDS", 10, Hex(`00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 00 ff ff ff ff 12 34 56 78
			00 00 7f 12 00 00 10 10 00 00 00 01 ff ff ff ff 80 00 00 00 80 00 00 00 00 00 00 00 00 00 00 00
			ff ff ff ff ff ff ff ff 40 11 44 1e`)},
		{"ATOMIC-SWAP", 10, Hex(`00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 03 00 00 00 00 00 00 00 02 00 00 00 00 12 34 56 78
			00 00 7f 12 00 00 10 08 01 02 03 04 05 06 07 08 ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 00
			00 00 00 00 00 00 00 00 15 da c9 4a`)},
		{"ATOMIC-RESP-2", 11, Hex(`00 1e 41 4b 00 00 00 00 00 00 00 03 00 00 00 02 00 00 00 00 ff ff ff ff 01 02 03 04 05 06 07 08 f9 f3 d3 89`)},
		{"TERM-0102-ATOMIC", 7, Hex(`00 2a 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 01 02 c0 00
			00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 cc df 19 b6`)},
		{"TERM-0207-ATOMIC", 7, Hex(`00 2a 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 02 07 c0 00
			00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 86 a8 55 da`)},
		{"TERM-0207-IMM", 7, Hex(`00 2a 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 02 07 c0 00
			00 19 41 48 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 7e f5 05 19`)},
	}
}
