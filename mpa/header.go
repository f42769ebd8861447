package mpa

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// A startup frame, RFC 5044, Section 7.1.1 with the S flag of RFC 6581,
// Section 6:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|          Key: "MPA ID Req Frame" or "MPA ID Rep Frame"        |
//	|                          (16 octets)                          |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S|  Res  |      Rev      |           PD_Length           |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|                Private data (PD_Length octets)                |
//	+---------------------------------------------------------------+
//
// With S set (revision 2) the private data starts with, RFC 6581, Section 9:
//
//	+-+-+---------------------------+-+-+---------------------------+
//	|A|B|            IRD            |C|D|            ORD            |
//	+-+-+---------------------------+-+-+---------------------------+
const (
	keyRequest = "MPA ID Req Frame"
	keyReply   = "MPA ID Rep Frame"

	keyLen      = 16
	startupLen  = 20 // without private data
	enhancedLen = 4

	flagMarkers  byte = 0x80
	flagCRC      byte = 0x40
	flagReject   byte = 0x20
	flagEnhanced byte = 0x10
	maskRes      byte = 0x0f

	bitHigh   uint16 = 0x8000 // A in the first word, C in the second
	bitLow    uint16 = 0x4000 // B in the first word, D in the second
	maskDepth uint16 = 0x3fff
)

const (
	// MaxPrivate is the largest PD_Length in octets.
	MaxPrivate = 512
	// MaxPrivateEnhanced is what the enhanced block leaves for the ULP.
	MaxPrivateEnhanced = MaxPrivate - enhancedLen
	// MaxPrivateInterop is what every known peer can take.
	MaxPrivateInterop = 251

	// MaxDepth is the largest IRD or ORD a frame can state.
	MaxDepth = 0x3ffe
	// DepthUnstated in a frame's IRD or ORD means: do not negotiate this value.
	DepthUnstated = 0x3fff

	// resLargeFPDU is the Res bit that says: FPDUs larger than the EMSS are
	// welcome. Linux siw gives it the same meaning.
	resLargeFPDU = 0x08
)

// Frame is an MPA Request or Reply frame. The flags A, B, C, D and the depths
// are meaningful only with Enhanced.
type Frame struct {
	Reply    bool // a Reply; otherwise a Request
	Markers  bool // M: the sender wants to receive markers
	CRC      bool // C: the sender wants CRCs
	Reject   bool // R
	Enhanced bool // S: the frame carries the enhanced block
	Res      byte // the four reserved bits
	Rev      byte // 1 or 2

	PeerToPeer bool   // A
	RTRSend    bool   // B: RTR by a zero-length Send
	RTRWrite   bool   // C: RTR by a zero-length RDMA Write
	RTRRead    bool   // D: RTR by a zero-length RDMA Read
	IRD, ORD   uint16 // of the frame's sender, 14 bits; [DepthUnstated] to leave them alone

	Private []byte // private data of the ULP, without the enhanced block
}

// ParseFrame decodes the startup frame at the start of b and returns its length
// in octets. With n 0 and no error more octets are needed. Private borrows from
// b. The error wraps [ErrKey], [ErrRevision] or [ErrLength] and is returned as
// soon as the octets that prove it are there.
func ParseFrame(b []byte) (f Frame, n int, err error) {
	key := b[:min(len(b), keyLen)]
	switch {
	case bytes.Equal(key, []byte(keyRequest)[:len(key)]):
	case bytes.Equal(key, []byte(keyReply)[:len(key)]):
		f.Reply = true
	default:
		return Frame{}, 0, ErrKey
	}
	if len(b) < startupLen {
		return Frame{}, 0, nil
	}
	flags, rev := b[16], b[17]
	length := int(binary.BigEndian.Uint16(b[18:]))
	if rev != 1 && rev != 2 {
		return Frame{}, 0, fmt.Errorf("%w %d", ErrRevision, rev)
	}
	f.Rev = rev
	f.Markers = flags&flagMarkers != 0
	f.CRC = flags&flagCRC != 0
	f.Reject = flags&flagReject != 0
	f.Enhanced = flags&flagEnhanced != 0 && rev >= 2 // a reserved bit in revision 1
	f.Res = flags & maskRes
	if length > MaxPrivate || f.Enhanced && length < enhancedLen {
		return Frame{}, 0, fmt.Errorf("%w %d", ErrLength, length)
	}
	n = startupLen + length
	if len(b) < n {
		return Frame{}, 0, nil
	}
	p := b[startupLen:n:n]
	if f.Enhanced {
		w0, w1 := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
		f.PeerToPeer = w0&bitHigh != 0
		f.RTRSend = w0&bitLow != 0
		f.RTRWrite = w1&bitHigh != 0
		f.RTRRead = w1&bitLow != 0
		f.IRD, f.ORD = w0&maskDepth, w1&maskDepth
		p = p[enhancedLen:]
	}
	if len(p) > 0 {
		f.Private = p
	}
	return f, n, nil
}

// Append appends the encoded frame to b. It fails on a frame that cannot be
// encoded: too much private data ([ErrPrivateData]), a revision other than 1
// and 2, the enhanced block with revision 1, or a value wider than its field.
func (f *Frame) Append(b []byte) ([]byte, error) {
	length := len(f.Private)
	if f.Enhanced {
		length += enhancedLen
	}
	switch {
	case length > MaxPrivate:
		return b, fmt.Errorf("%w: %d octets of %d", ErrPrivateData, len(f.Private), MaxPrivate-(length-len(f.Private)))
	case f.Rev != 1 && f.Rev != 2:
		return b, fmt.Errorf("mpa: %w %d", ErrRevision, f.Rev)
	case f.Enhanced && f.Rev < 2:
		return b, fmt.Errorf("mpa: enhanced setup needs revision 2")
	case f.Res&^maskRes != 0 || f.Enhanced && (f.IRD|f.ORD)&^maskDepth != 0:
		return b, fmt.Errorf("mpa: startup frame field out of range: Res %#x, IRD %d, ORD %d", f.Res, f.IRD, f.ORD)
	}
	key := keyRequest
	if f.Reply {
		key = keyReply
	}
	b = append(b, key...)
	b = append(b, bit(f.Markers, flagMarkers)|bit(f.CRC, flagCRC)|bit(f.Reject, flagReject)|bit(f.Enhanced, flagEnhanced)|f.Res, f.Rev)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	if f.Enhanced {
		b = binary.BigEndian.AppendUint16(b, bit(f.PeerToPeer, bitHigh)|bit(f.RTRSend, bitLow)|f.IRD)
		b = binary.BigEndian.AppendUint16(b, bit(f.RTRWrite, bitHigh)|bit(f.RTRRead, bitLow)|f.ORD)
	}
	return append(b, f.Private...), nil
}

func bit[T byte | uint16](set bool, mask T) T {
	if set {
		return mask
	}
	return 0
}

// An FPDU without markers, RFC 5044, Section 4:
//
//	+-------------------------------+-------------------------------+
//	|         ULPDU_Length          |                               |
//	+-------------------------------+                               +
//	|                       ULPDU (ULPDU_Length octets)             |
//	+                                               +---------------+
//	|                                               |  PAD (0 to 3) |
//	+-----------------------------------------------+---------------+
//	|                             CRC                               |
//	+---------------------------------------------------------------+
const (
	lengthLen = 2 // ULPDU_Length
	crcLen    = 4

	// MaxULPDU is the largest ULPDU that is sent, in octets. A receiver copes
	// with any length of 16 bits.
	MaxULPDU = 64768
	// MinMULPDU is the smallest MULPDU ever reported, whatever the EMSS.
	MinMULPDU = 128
)

// FPDUSize returns the octets an FPDU with n ULPDU octets takes in the stream:
// length field, ULPDU, pad and CRC.
func FPDUSize(n int) int { return (lengthLen+n+3)&^3 + crcLen }

// mulpduFor returns the largest ULPDU whose FPDU fits a segment of mss octets,
// RFC 5044, Section 4.1 without markers.
func mulpduFor(mss int) int {
	return max(MinMULPDU, min(MaxULPDU, mss-(lengthLen+crcLen+mss%4)))
}
