package wiretest

import "encoding/binary"

// CRC32C computes the Castagnoli CRC bit by bit, straight from its definition:
// polynomial 0x1edc6f41 reflected, all ones at the start, inverted at the end. Slow
// and independent of every table.
func CRC32C(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			odd := crc & 1
			crc >>= 1
			if odd != 0 {
				crc ^= 0x82f63b78
			}
		}
	}
	return ^crc
}

// appendCRC appends the CRC of covered to b, least significant octet first.
func appendCRC(b, covered []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, CRC32C(covered))
}

// Frame makes an FPDU of a ULPDU, without markers; crc false leaves the field zero.
func Frame(ulpdu []byte, crc bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu)))
	b = append(b, ulpdu...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if !crc {
		return append(b, 0, 0, 0, 0)
	}
	return appendCRC(b, b)
}

// Tagged makes a tagged DDP segment (RFC 5041, Section 4.2). Opcode 0 is a Write, 2 a
// Read Response.
func Tagged(opcode uint8, last bool, stag uint32, to uint64, payload []byte) []byte {
	b := []byte{0x81, 0x40 | opcode}
	if last {
		b[0] |= 0x40
	}
	b = binary.BigEndian.AppendUint32(b, stag)
	b = binary.BigEndian.AppendUint64(b, to)
	return append(b, payload...)
}

// Untagged makes an untagged DDP segment (RFC 5041, Section 4.3). inv is the
// Invalidate STag, 0 in most messages.
func Untagged(opcode uint8, last bool, inv, qn, msn, mo uint32, payload []byte) []byte {
	b := []byte{0x01, 0x40 | opcode}
	if last {
		b[0] |= 0x40
	}
	for _, v := range [...]uint32{inv, qn, msn, mo} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return append(b, payload...)
}

// ReadRequest makes the segment that asks for n octets (RFC 5040, Section 4.4).
func ReadRequest(msn uint32, sink uint32, sinkTO uint64, n uint32, source uint32, sourceTO uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, sink)
	b = binary.BigEndian.AppendUint64(b, sinkTO)
	b = binary.BigEndian.AppendUint32(b, n)
	b = binary.BigEndian.AppendUint32(b, source)
	b = binary.BigEndian.AppendUint64(b, sourceTO)
	return Untagged(1, true, 0, 1, msn, 0, b)
}

// Terminate makes a Terminate without headers, for instance for code 0x2002.
func Terminate(code uint16) []byte {
	return Untagged(7, true, 0, 2, 1, 0, []byte{byte(code >> 8), byte(code), 0, 0})
}

// The flag bits of a startup frame.
const (
	FlagM = 0x80
	FlagC = 0x40
	FlagR = 0x20
	FlagS = 0x10
)

// Startup is a startup frame. Private holds all private data, the enhanced block of
// RFC 6581 included.
type Startup struct {
	Reply   bool
	Flags   uint8 // M, C, R, S and the reserved bits as they stand on the wire
	Rev     uint8
	Private []byte
}

const startupLen = 20

// Octets encodes the frame; nothing is checked, so that wrong ones can be made.
func (s Startup) Octets() []byte {
	b := []byte("MPA ID Req Frame")
	if s.Reply {
		b = []byte("MPA ID Rep Frame")
	}
	b = append(b, s.Flags, s.Rev)
	b = binary.BigEndian.AppendUint16(b, uint16(len(s.Private)))
	return append(b, s.Private...)
}

// The flag bits of the enhanced block: A peer-to-peer, and the kinds of RTR message B
// Send, C Write, D Read.
const (
	BlockA = 0x8000
	BlockB = 0x4000
	BlockC = 0x8000
	BlockD = 0x4000
)

// Block makes the enhanced block of RFC 6581, Section 9: in holds IRD and the bits A
// and B, out holds ORD and the bits C and D.
func Block(in, out uint16, ulp ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, in)
	return append(binary.BigEndian.AppendUint16(b, out), ulp...)
}

// PeerKind is how one known iWARP implementation opens a connection.
type PeerKind struct {
	Name    string
	Request Startup // as initiator
	Reply   Startup // as responder to an initiator that offers D alone and asks for CRC
}

// PeerKinds returns what the drivers of Linux 6.1 send with their default parameters.
// The siw rows are also in testdata/siw; the hardware rows are read from the drivers.
func PeerKinds() []PeerKind {
	return []PeerKind{
		{"siw", Startup{Flags: FlagS, Rev: 2, Private: Block(1, 1)},
			Startup{Reply: true, Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockD|1)}},
		{"siw-strict", Startup{Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockC|BlockD|1)},
			Startup{Reply: true, Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockD|1)}},
		{"cxgb4", Startup{Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockD|1)},
			Startup{Reply: true, Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockD|1)}},
		{"irdma", Startup{Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockC|BlockD|1)},
			Startup{Reply: true, Flags: FlagC | FlagS, Rev: 2, Private: Block(BlockA|1, BlockD|1)}},
		{"softiwarp", Startup{Rev: 1}, Startup{Reply: true, Flags: FlagR, Rev: 1}},
	}
}
