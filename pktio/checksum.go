package pktio

import (
	"encoding/binary"
	"math/bits"
)

// udpCsumOffset is where UDP keeps its checksum. In UDP, and nowhere else, a sum of 0 is sent as all ones (RFC 768).
const udpCsumOffset = 6

// FinishChecksum completes the checksum of a frame sent with NeedsCsum: it sums frame, which must be whole and in one
// piece, from CsumStart to its end, stores the result and clears NeedsCsum. It returns false and changes nothing if
// NeedsCsum is not set or the checksum would lie outside the frame.
func (o *Offload) FinishChecksum(frame []byte) bool {
	start := int(o.CsumStart)
	at := start + int(o.CsumOffset)
	if !o.NeedsCsum || at+2 > len(frame) {
		return false
	}
	sum := ^sum16(frame[start:])
	if sum == 0 && o.CsumOffset == udpCsumOffset {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(frame[at:], sum)
	o.NeedsCsum = false
	return true
}

// sum16 is the one's complement sum of b taken as big-endian 16-bit words, an odd last octet padded with zero
// (RFC 1071). Byte order does not matter to the sum, so it adds machine words and swaps once at the end.
func sum16(b []byte) uint16 {
	var sum, carry uint64
	for len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[8:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[16:]), carry)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b[24:]), carry)
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(b), carry)
		b = b[8:]
	}
	if len(b) > 0 {
		var tail [8]byte
		copy(tail[:], b)
		sum, carry = bits.Add64(sum, binary.LittleEndian.Uint64(tail[:]), carry)
	}
	sum, carry = bits.Add64(sum, 0, carry)
	sum += carry
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return bits.ReverseBytes16(uint16(sum))
}

// segment says where in a frame its TCP segment lies, in octets from the start of the frame.
type segment struct {
	start   int // of the TCP header
	payload int // of the TCP payload
	end     int // of the TCP payload, which may be before the end of a padded frame
}

// tcpSegment finds the TCP segment in an Ethernet frame of size octets, of which b has the first. It returns false for
// everything else, fragments and IPv6 extension headers included, and where b lacks a part of TCP's header that matters.
func tcpSegment(b []byte, size int) (segment, bool) {
	const (
		ipv4, ipv6 = 0x0800, 0x86dd
		tcp        = 6
		tcpHeader  = 20
	)
	var s segment
	if len(b) < EthernetHeader+20 {
		return s, false
	}
	ip := b[EthernetHeader:]
	switch binary.BigEndian.Uint16(b[12:]) {
	case ipv4:
		const fragment = 0x3fff // more fragments, fragment offset
		s.start = int(ip[0]&15) * 4
		s.end = int(binary.BigEndian.Uint16(ip[2:]))
		if ip[0]>>4 != 4 || s.start < 20 || ip[9] != tcp || binary.BigEndian.Uint16(ip[6:])&fragment != 0 {
			return s, false
		}
	case ipv6:
		s.start = 40
		if len(ip) < s.start || ip[0]>>4 != 6 || ip[6] != tcp {
			return s, false
		}
		s.end = s.start + int(binary.BigEndian.Uint16(ip[4:]))
	default:
		return s, false
	}
	if s.end > size-EthernetHeader || s.end < s.start+tcpHeader || len(ip) < s.start+tcpHeader {
		return s, false
	}
	s.payload = s.start + int(ip[s.start+12]>>4)*4
	if s.payload < s.start+tcpHeader || s.payload > s.end {
		return s, false
	}
	s.start += EthernetHeader
	s.payload += EthernetHeader
	s.end += EthernetHeader
	return s, true
}
