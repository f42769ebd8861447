package wiretest

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Hex turns hex digits with any white space between them into octets. It panics on
// anything else: vectors are written by hand.
func Hex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(fmt.Sprintf("wiretest: bad vector %q: %v", s, err))
	}
	return b
}

// StartupVector is one startup frame and what stands in it.
type StartupVector struct {
	Name   string
	Octets []byte
	Frame  Startup
}

// Startups returns the golden startup frames (RFC 5044, Section 7.1; RFC 6581, Section 6).
func Startups() []StartupVector {
	const req, rep = "4d504120494420526571204672616d65", "4d504120494420526570204672616d65"
	block := func(s string) []byte { return Hex(s) }
	return []StartupVector{
		{"MPA-REQ-V2", Hex(req + "50 02 00 08 80 10 c0 08 68 69 00 01"), Startup{Flags: FlagC | FlagS, Rev: 2, Private: block("8010 c008 68690001")}},
		{"MPA-REP-V2", Hex(rep + "50 02 00 04 80 08 40 10"), Startup{Reply: true, Flags: FlagC | FlagS, Rev: 2, Private: block("8008 4010")}},
		{"MPA-REQ-V1", Hex(req + "40 01 00 00"), Startup{Flags: FlagC, Rev: 1}},
		{"MPA-REP-V1", Hex(rep + "40 01 00 00"), Startup{Reply: true, Flags: FlagC, Rev: 1}},
		{"MPA-REP-V1-M", Hex(rep + "c0 01 00 00"), Startup{Reply: true, Flags: FlagM | FlagC, Rev: 1}},
		{"MPA-REP-V2-REJECT", Hex(rep + "70 02 00 06 00 00 00 00 6e 6f"), Startup{Reply: true, Flags: FlagC | FlagR | FlagS, Rev: 2, Private: block("00000000 6e6f")}},
	}
}

// FPDUVector is one FPDU with its CRC, without markers.
type FPDUVector struct {
	Name   string
	Opcode uint8
	Octets []byte
}

// ULPDU returns the DDP segment inside.
func (v FPDUVector) ULPDU() []byte {
	n := int(v.Octets[0])<<8 | int(v.Octets[1])
	return v.Octets[2 : 2+n]
}

// FPDUs returns a golden FPDU of every message that RFC 5040 and RFC 7306 know.
func FPDUs() []FPDUVector {
	return []FPDUVector{
		{"SEND-HELLO", 3, Hex(`00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 68 65 6c 6c 6f 00 00 00 b9 90 b1 0c`)},
		{"SEND-ZERO", 3, Hex(`00 12 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 58 7b e8 c4`)},
		{"SEND-RPING", 3, Hex(`00 22 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 7f 12 00 00 10 00 12 34 56 78
			00 00 00 40 ec c3 e8 d6`)},
		{"WRITE-8", 0, Hex(`00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 c8 81 2b 2c`)},
		{"WRITE-ZERO-RTR", 0, Hex(`00 0e c1 40 00 00 00 01 00 00 00 00 00 00 00 00 eb d3 4c 5f`)},
		{"RREQ", 1, Hex(`00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00
			00 00 00 10 12 34 56 78 00 00 7f 12 00 00 10 00 18 f8 ef 4b`)},
		{"RREQ-ZERO-RTR", 1, Hex(`00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00
			00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 27 db d7 e7`)},
		{"RRESP", 2, Hex(`00 1e c1 42 aa bb cc 01 00 00 00 00 00 00 10 00 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 46 2c 15 28`)},
		{"RRESP-ZERO", 2, Hex(`00 0e c1 42 00 00 00 01 00 00 00 00 00 00 00 00 21 a3 e8 3e`)},
		{"SEND-SE-INV", 6, Hex(`00 16 41 46 0a 0b 0c 0d 00 00 00 00 00 00 00 02 00 00 00 00 64 6f 6e 65 71 48 e4 76`)},
		{"TERM-1100", 7, Hex(`00 26 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 11 00 c0 00
			00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 10 00 31 dd 23 89`)},
		{"TERM-0102", 7, Hex(`00 46 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 01 02 e0 00
			00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00
			aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 12 34 56 78 00 00 7f 12 00 00 10 00 ed 9c 32 20`)},
		{"TERM-2002", 7, Hex(`00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 02 00 00 7f e4 25 85`)},
		{"TERM-2006", 7, Hex(`00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 06 00 00 65 40 fb 1b`)},
		{"TERM-2007", 7, Hex(`00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 07 00 00 1b d2 ba be`)},
		{"TERM-0000", 7, Hex(`00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 00 f9 a2 6f 1d`)},
		{"IMM", 8, Hex(`00 1a 41 48 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 de ad be ef 44 53 32 76`)},
		{"IMM-SE", 9, Hex(`00 1a 41 49 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00 de ad be ef 76 d0 70 09`)},
		{"ATOMIC-FETCHADD", 10, Hex(`00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 07 12 34 56 78
			00 00 7f 12 00 00 10 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
			ff ff ff ff ff ff ff ff 1c 1f bf 41`)},
		{"ATOMIC-CMPSWAP", 10, Hex(`00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 02 00 00 00 08 12 34 56 78
			00 00 7f 12 00 00 10 08 11 22 33 44 55 66 77 88 ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 41
			ff ff ff ff ff ff ff ff 56 4b bb c9`)},
		{"ATOMIC-RESP", 11, Hex(`00 1e 41 4b 00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 29 b9 eb af e8`)},
	}
}

// SwappedTerminate is a Terminate as Linux siw on a little-endian host writes it: layer
// and error type, and the bits M, D and R, in the other order; the segment length is
// the payload's. It says 0x1101 about a Read Response. The CRC is in use.
func SwappedTerminate() FPDUVector {
	u := Hex(`41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 11 01 03 00 00 64 c1 42 57 4e bc 00
		00 00 55 6b e8 d2 75 50`)
	return FPDUVector{"TERM-1101-SWAPPED", 7, Frame(u, true)}
}

// MarkedVector is a stretch of one direction with markers (RFC 5044, Section 4.3).
// Before is what was sent in front of it, Pos the stream position of its first octet.
type MarkedVector struct {
	Name   string
	Pos    int
	Octets []byte
	ULPDUs [][]byte
}

// Marked returns the golden streams with markers. Each starts at position 0 and is whole.
func Marked() []MarkedVector {
	send := func(msn byte, payload []byte) []byte {
		return append(append(Hex(`41 43 00 00 00 00 00 00 00 00 00 00 00`), msn, 0, 0, 0, 0), payload...)
	}
	hello := []byte("hello")
	count := make([]byte, 500)
	for i := range count {
		count[i] = byte(i)
	}
	// Where a vector begins behind other FPDUs, these bring the stream there.
	lead := func(zeros int) []byte { return markAlone(send(1, make([]byte, zeros))) }
	m1 := Hex(`00 00 00 00 00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 68 65 6c 6c 6f 00 00 00 7a 61 e9 71`)
	c2 := send(2, count)
	m2 := append(append([]byte{2, 6}, c2[:474]...), 0, 0, 1, 0xdc)
	m2 = append(append(m2, c2[474:]...), 0xc5, 0xde, 0xd3, 0x3a)
	m3 := Hex(`00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 68 65 6c 6c 6f 00 00 00 00 00 00 1c 5a 37 5e ac
		00 16 41 43 00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 00 74 61 69 6c 8c ff 79 ea`)
	m4 := Hex(`00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 68 65 6c 6c 6f 00 00 00 16 d8 c7 5d
		00 00 00 00 00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 00 68 65 6c 6c 6f 00 00 00 b0 11 4d 10`)
	return []MarkedVector{
		{"M1 a marker before the first FPDU", 0, m1, [][]byte{send(1, hello)}},
		{"M2 a marker inside the payload", 36, append(m1[:len(m1):len(m1)], m2...), [][]byte{send(1, hello), c2}},
		{"M3 a marker between padding and CRC", 484, append(lead(456), m3...),
			[][]byte{send(1, make([]byte, 456)), send(2, hello), send(3, []byte("tail"))}},
		{"M4 a marker between two FPDUs", 480, append(lead(452), m4...),
			[][]byte{send(1, make([]byte, 452)), send(2, hello), send(3, hello)}},
	}
}

// markAlone frames a ULPDU that starts a marked stream and ends before position 512.
func markAlone(u []byte) []byte {
	b := append([]byte{0, 0, 0, 0, byte(len(u) >> 8), byte(len(u))}, u...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return appendCRC(b, b)
}
