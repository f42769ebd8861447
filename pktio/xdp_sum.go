package pktio

import "encoding/binary"

// unfinished returns NeedsCsum and where, if the TCP or UDP checksum of a frame of size octets holds the sum over the
// pseudo header, as in a frame that never left the host. head is its first piece. Of a damaged frame one in 65536
// looks the same by chance, so only frames of virtual devices may be asked.
func unfinished(head []byte, size int) (o Offload) {
	const (
		ipv4, ipv6   = 0x0800, 0x86dd
		tcp, udp     = 6, 17
		fragment     = 0x3fff // more fragments, fragment offset
		tcpCsum      = 16
		ipv6Header   = 40
		shortestIPv4 = 20
	)
	if len(head) < EthernetHeader+shortestIPv4 {
		return o
	}
	ip := head[EthernetHeader:]
	var start, end int // of what the checksum covers, from the IP header on
	var proto byte
	var sum uint32
	switch binary.BigEndian.Uint16(head[12:]) {
	case ipv4:
		start = int(ip[0]&15) * 4
		end = int(binary.BigEndian.Uint16(ip[2:]))
		proto = ip[9]
		if ip[0]>>4 != 4 || start < shortestIPv4 || binary.BigEndian.Uint16(ip[6:])&fragment != 0 {
			return o
		}
		sum = uint32(sum16(ip[12:20]))
	case ipv6:
		if len(ip) < ipv6Header || ip[0]>>4 != 6 {
			return o
		}
		start = ipv6Header
		end = start + int(binary.BigEndian.Uint16(ip[4:]))
		proto = ip[6]
		sum = uint32(sum16(ip[8:40]))
	default:
		return o
	}
	offset := tcpCsum
	if proto == udp {
		offset = udpCsumOffset
	} else if proto != tcp {
		return o
	}
	at := start + offset
	if end > size-EthernetHeader || at+2 > min(end, len(ip)) {
		return o
	}
	sum += uint32(proto) + uint32(end-start)
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	if field := uint32(binary.BigEndian.Uint16(ip[at:])); field != sum {
		return o
	}
	return Offload{NeedsCsum: true, CsumStart: uint16(EthernetHeader + start), CsumOffset: uint16(offset)}
}
