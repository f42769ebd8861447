package main

import "encoding/binary"

// packet is a TCP segment over IPv4 in an Ethernet frame, without options in the IP
// header: all that our own stack sends.
type packet struct {
	tcp     []byte // header and payload
	payload []byte
	from    uint16 // ports
	to      uint16
	seq     uint32
	ack     uint32
	flags   byte
}

const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// parse looks at a frame in one piece; false if it is no TCP.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < 14+20+20 || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[14] != 0x45 || b[23] != 6 {
		return p, false
	}
	end := 14 + int(binary.BigEndian.Uint16(b[16:]))
	if end > len(b) {
		return p, false
	}
	p.tcp = b[34:end]
	head := int(p.tcp[12]>>4) * 4
	if head < 20 || head > len(p.tcp) {
		return p, false
	}
	p.payload = p.tcp[head:]
	p.from, p.to = binary.BigEndian.Uint16(p.tcp), binary.BigEndian.Uint16(p.tcp[2:])
	p.seq, p.ack, p.flags = binary.BigEndian.Uint32(p.tcp[4:]), binary.BigEndian.Uint32(p.tcp[8:]), p.tcp[13]
	return p, true
}

// flip changes bits of a payload octet and makes the checksum right again (RFC 1624,
// equation 3).
func (p *packet) flip(at int, bits byte) {
	old := p.payload[at]
	p.payload[at] ^= bits
	was, now := uint32(old), uint32(old^bits)
	if (len(p.tcp)-len(p.payload)+at)%2 == 0 {
		was, now = was<<8, now<<8
	}
	sum := uint32(^binary.BigEndian.Uint16(p.tcp[16:])) + (^was & 0xffff) + now
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(p.tcp[16:], ^uint16(sum))
}
