package ddp

import "encoding/binary"

// Sizes of the DDP segment headers in octets.
const (
	TaggedLen   = 14
	UntaggedLen = 18
)

// Version is the DDP version spoken, DV: 1 for MPA revisions 1 and 2.
const Version = 1

// Bits of the control octet. The four between L and DV are reserved: sent zero,
// ignored on receipt.
const (
	bitTagged   = 0x80
	bitLast     = 0x40
	maskVersion = 0x03
)

// Header is a view of a DDP segment header, made by [ParseHeader] alone: it is
// as long as its T bit says, so that no accessor of the right model can fail.
//
// Tagged model, RFC 5041, Section 4.2:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	                                +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	                                |T|L| Rsvd  |DV |   RsvdULP     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             STag                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              TO                               |
//	+                                                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// Untagged model, RFC 5041, Section 4.3:
//
//	                                +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	                                |T|L| Rsvd  |DV | RsvdULP 0..7  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                        RsvdULP 8..39                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              QN                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              MSN                              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              MO                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Header []byte

// ParseHeader returns the header at the start of b, which it borrows. ok is
// false if b is too short to hold it. The version is not looked at.
func ParseHeader(b []byte) (h Header, ok bool) {
	switch {
	case len(b) < TaggedLen:
		return nil, false
	case b[0]&bitTagged != 0:
		return Header(b[:TaggedLen]), true
	case len(b) < UntaggedLen:
		return nil, false
	}
	return Header(b[:UntaggedLen]), true
}

// Tagged reports the T bit.
func (h Header) Tagged() bool { return h[0]&bitTagged != 0 }

// Last reports the L bit: the final segment of its message.
func (h Header) Last() bool { return h[0]&bitLast != 0 }

// Version returns DV.
func (h Header) Version() uint8 { return h[0] & maskVersion }

// ULP returns the first octet of RsvdULP, RDMAP's control octet.
func (h Header) ULP() byte { return h[1] }

// STag returns the steering tag of a tagged segment.
func (h Header) STag() STag { return STag(binary.BigEndian.Uint32(h[2:])) }

// TO returns the tagged offset of the first payload octet of a tagged segment.
func (h Header) TO() uint64 { return binary.BigEndian.Uint64(h[6:]) }

// ULPWord returns bits 8 to 39 of RsvdULP of an untagged segment; RDMAP puts
// the STag to invalidate there.
func (h Header) ULPWord() uint32 { return binary.BigEndian.Uint32(h[2:]) }

// QN returns the queue number of an untagged segment.
func (h Header) QN() uint32 { return binary.BigEndian.Uint32(h[6:]) }

// MSN returns the message sequence number of an untagged segment.
func (h Header) MSN() MSN { return MSN(binary.BigEndian.Uint32(h[10:])) }

// MO returns the message offset of an untagged segment: how many octets of the
// message precede its payload.
func (h Header) MO() uint32 { return binary.BigEndian.Uint32(h[14:]) }

// PutTagged writes a tagged header into b, which has room for TaggedLen octets.
func PutTagged(b []byte, last bool, ulp byte, s STag, to uint64) Header {
	h := Header(b[:TaggedLen])
	h[0] = control(bitTagged, last)
	h[1] = ulp
	binary.BigEndian.PutUint32(h[2:], uint32(s))
	binary.BigEndian.PutUint64(h[6:], to)
	return h
}

// PutUntagged writes an untagged header into b, which has room for UntaggedLen
// octets.
func PutUntagged(b []byte, last bool, ulp byte, word, qn uint32, msn MSN, mo uint32) Header {
	h := Header(b[:UntaggedLen])
	h[0] = control(0, last)
	h[1] = ulp
	binary.BigEndian.PutUint32(h[2:], word)
	binary.BigEndian.PutUint32(h[6:], qn)
	binary.BigEndian.PutUint32(h[10:], uint32(msn))
	binary.BigEndian.PutUint32(h[14:], mo)
	return h
}

func control(model byte, last bool) byte {
	if last {
		return model | bitLast | Version
	}
	return model | Version
}

// MSN is a message sequence number. It counts the messages of one queue in one
// direction, from 1, modulo 2^32: compare with == only.
type MSN uint32

// Next returns the number after m: 0 follows 0xffffffff.
func (m MSN) Next() MSN { return m + 1 }
