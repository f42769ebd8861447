package netstack

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrdma/softrdma/pktio"
)

// oneView is up to which size a packet is not worth two pieces of memory.
const oneView = 192

// deliver hands an arrived frame to gVisor, as a copy but for what is in a Room: the frame is the port's again when this
// returns.
func (l *link) deliver(f *pktio.Frame) {
	total := f.Len()
	l.count.framesIn.Add(1)
	l.count.octetsIn.Add(uint64(total))
	head := l.front(f)
	if len(head) < ethernetHeader || !l.forUs(head) {
		l.count.dropsIn.Add(1)
		return
	}
	proto := tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(head[12:]))
	switch {
	case proto == header.ARPProtocolNumber && l.ip4:
		if !l.overhear(head) {
			l.pass(proto, f, total, total, false)
		}
	case proto == header.IPv4ProtocolNumber && l.ip4:
		l.deliverIPv4(f, head, total)
	case proto == header.IPv6ProtocolNumber && l.ip6:
		l.deliverIPv6(f, head, total)
	default:
		l.count.dropsIn.Add(1)
	}
}

// front returns the first octets of f, as many as headers can have.
func (l *link) front(f *pktio.Frame) []byte {
	if len(f.Data) == 0 {
		return nil
	}
	if len(f.Data) == 1 || len(f.Data[0]) >= maxHeaders {
		return f.Data[0]
	}
	n := 0
	for _, p := range f.Data {
		n += copy(l.rx.head[n:], p)
	}
	return l.rx.head[:n]
}

// forUs looks at the destination: our address, or many. Of IPv6's groups only those we listen to: a port may see those
// of all hosts.
func (l *link) forUs(eth []byte) bool {
	dst := [6]byte(eth)
	if dst[0] == 0x33 && dst[1] == 0x33 {
		return slices.Contains(l.mcast, dst)
	}
	return dst[0]&1 != 0 || dst == l.info.Addr
}

// groups returns the Ethernet addresses of the IPv6 groups that a host with these addresses listens to: of all nodes,
// and the solicited-node group of each address (RFC 4291, Section 2.8).
func groups(addrs []netip.Prefix) [][6]byte {
	var all [][6]byte
	for _, p := range addrs {
		if a := p.Addr(); a.Is6() {
			b := a.As16()
			all = append(all, [6]byte{0x33, 0x33, 0xff, b[13], b[14], b[15]})
		}
	}
	if all != nil {
		all = append(all, [6]byte{0x33, 0x33, 0, 0, 0, 1})
	}
	return all
}

func (l *link) deliverIPv4(f *pktio.Frame, head []byte, total int) {
	ip := header.IPv4(head[ethernetHeader:])
	if len(ip) < header.IPv4MinimumSize {
		l.count.dropsIn.Add(1)
		return
	}
	hlen := int(ip.HeaderLength())
	if hlen < header.IPv4MinimumSize || hlen > len(ip) {
		l.count.dropsIn.Add(1)
		return
	}
	// Whatever checked the frame looked at TCP's checksum, not at this one.
	if ip[:hlen].CalculateChecksum() != 0xffff {
		l.count.badSums.Add(1)
		l.count.dropsIn.Add(1)
		return
	}
	// Short packets come padded to the least size of a frame.
	if n := ethernetHeader + int(ip.TotalLength()); n < total {
		total = max(n, ethernetHeader+hlen)
	}
	valid := f.CsumValid || f.NeedsCsum
	if l.rx.join && l.joins(header.IPv4ProtocolNumber, f, head, total, valid) {
		return
	}
	l.pass(header.IPv4ProtocolNumber, f, splitAt(head, ethernetHeader+hlen, total, ip.Protocol()), total, valid)
}

func (l *link) deliverIPv6(f *pktio.Frame, head []byte, total int) {
	ip := header.IPv6(head[ethernetHeader:])
	if len(ip) < header.IPv6MinimumSize || header.IPVersion(ip) != header.IPv6Version {
		l.count.dropsIn.Add(1)
		return
	}
	// Short packets come padded to the least size of a frame.
	const at = ethernetHeader + header.IPv6MinimumSize
	total = min(total, at+int(ip.PayloadLength()))
	next := ip.NextHeader()
	if next == uint8(header.ICMPv6ProtocolNumber) {
		l.overhear(head)
	}
	valid := f.CsumValid || f.NeedsCsum
	if l.rx.join && l.joins(header.IPv6ProtocolNumber, f, head, total, valid) {
		return
	}
	l.pass(header.IPv6ProtocolNumber, f, splitAt(head, at, total, next), total, valid)
}

// splitAt returns where to cut a packet of total octets in two: behind its TCP header, which begins at tcp. That goes
// into memory of its own with the IP header: gVisor keeps hold of the headers while they are handled, and would copy all
// that shares memory with them. Small packets stay whole, and so do those of other protocols and those with IPv6
// extension headers, which TCP does without.
func splitAt(head []byte, tcp, total int, proto uint8) int {
	if total > oneView && proto == uint8(header.TCPProtocolNumber) && len(head) >= tcp+header.TCPMinimumSize {
		if n := tcp + int(header.TCP(head[tcp:]).DataOffset()); n <= total {
			return n
		}
	}
	return total
}

// pass copies the octets of f from the end of the Ethernet header up to total, those before split into one piece of
// memory, the others into another, and lets gVisor have them.
func (l *link) pass(proto tcpip.NetworkProtocolNumber, f *pktio.Frame, split, total int, valid bool) {
	first := viewOf(f, ethernetHeader, split)
	if proto == header.IPv6ProtocolNumber {
		plainer(first.AsSlice())
	}
	data := buffer.MakeWithView(first)
	at := split
	if v := l.rx.rooms.take(f, split, total); v != nil {
		_ = data.Append(v)
		at = total
	}
	for at < total {
		n := min(total-at, buffer.MaxChunkSize)
		_ = data.Append(viewOf(f, at, at+n))
		at += n
	}
	l.hand(proto, data, valid)
}

// hand lets gVisor have an IP packet. valid says that its TCP checksum is known to be right.
func (l *link) hand(proto tcpip.NetworkProtocolNumber, data buffer.Buffer, valid bool) {
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: data})
	defer pkt.DecRef()
	pkt.NetworkProtocolNumber = proto
	pkt.RXChecksumValidated = valid
	if l.rx.inline.takes(proto, pkt) {
		return
	}
	// gVisor locks connections itself, for what ICMP says of them for instance: none may be locked here.
	l.rx.inline.process(l.rx.polled.Load())
	l.rx.handed = true
	l.validated(valid)
	l.up.DeliverNetworkPacket(proto, pkt)
}

// viewOf copies the octets from..to of f.
func viewOf(f *pktio.Frame, from, to int) *buffer.View {
	v := viewFor(to - from)
	rest := v.AsSlice()
	pieces(f, from, to, func(b []byte) { rest = rest[copy(rest, b):] })
	return v
}
