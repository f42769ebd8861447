package netstack

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// claim is what an ARP packet or a neighbour discovery message says about who has an address.
type claim struct {
	addr     netip.Addr
	mac      [6]byte
	question bool // the sender does not use addr yet, and asks whether anybody else does
	announce bool // nobody asked: the sender has begun to use addr
}

var broadcastMAC = [6]byte{255, 255, 255, 255, 255, 255}

// claimOf reads a frame from its Ethernet header on. ok is false if it says nothing about an address.
func claimOf(frame []byte) (c claim, ok bool) {
	if len(frame) < ethernetHeader {
		return c, false
	}
	switch tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(frame[12:])) {
	case header.ARPProtocolNumber:
		return claimOfARP(frame[ethernetHeader:])
	case header.IPv6ProtocolNumber:
		return claimOfND([6]byte(frame[6:]), frame[ethernetHeader:])
	}
	return c, false
}

// claimOfARP takes requests and replies alike: what counts is the sender (RFC 5227, Section 2.4).
//
//	 0      2      4   5   6      8            14         18           24         28
//	+------+------+---+---+------+------------+----------+------------+----------+
//	| type | proto| 6 | 4 |  op  | sender MAC | sender IP| target MAC | target IP|
//	+------+------+---+---+------+------------+----------+------------+----------+
func claimOfARP(b []byte) (c claim, ok bool) {
	h := header.ARP(b)
	if !h.IsValid() || h.Op() != header.ARPRequest && h.Op() != header.ARPReply {
		return c, false
	}
	c.mac = [6]byte(h.HardwareAddressSender())
	c.addr = netip.AddrFrom4([4]byte(h.ProtocolAddressSender()))
	if c.addr.IsUnspecified() {
		c.addr, c.question = netip.AddrFrom4([4]byte(h.ProtocolAddressTarget())), true
		return c, h.Op() == header.ARPRequest
	}
	c.announce = [4]byte(h.ProtocolAddressSender()) == [4]byte(h.ProtocolAddressTarget())
	return c, true
}

// claimOfND takes neighbour advertisements for what they say, and neighbour solicitations for who sends them. A
// solicitation from nobody asks whether somebody has its target (RFC 4862, Section 5.4.3).
func claimOfND(from [6]byte, b []byte) (c claim, ok bool) {
	ip := header.IPv6(b)
	if len(b) < header.IPv6MinimumSize || header.IPVersion(b) != header.IPv6Version ||
		ip.NextHeader() != uint8(header.ICMPv6ProtocolNumber) || ip.HopLimit() != header.NDPHopLimit {
		return c, false
	}
	n := int(ip.PayloadLength())
	if n < header.ICMPv6NeighborSolicitMinimumSize || n > len(b)-header.IPv6MinimumSize {
		return c, false
	}
	icmp := header.ICMPv6(b[header.IPv6MinimumSize:][:n])
	if icmp.Code() != 0 || !ndChecksum(ip, icmp) {
		return c, false
	}
	target := netip.AddrFrom16([16]byte(icmp[8:24]))
	options := icmp[header.ICMPv6NeighborSolicitMinimumSize:] // the same in an advertisement
	source := netip.AddrFrom16(ip.SourceAddress().As16())
	c = claim{addr: target, mac: from}
	switch icmp.Type() {
	case header.ICMPv6NeighborAdvert:
		c.mac = linkLayer(options, optTargetLinkLayer, from)
		const solicited = 1 << 6
		c.announce = icmp[4]&solicited == 0
		return c, true
	case header.ICMPv6NeighborSolicit:
		if source.IsUnspecified() {
			c.question = true
			return c, true
		}
		return claim{addr: source, mac: linkLayer(options, optSourceLinkLayer, from)}, true
	}
	return c, false
}

// Types of neighbour discovery options (RFC 4861, Section 4.6.1).
const (
	optSourceLinkLayer = 1
	optTargetLinkLayer = 2
)

// linkLayer returns the link-layer address in an option of that type, or other if there is none.
func linkLayer(options []byte, kind byte, other [6]byte) [6]byte {
	for len(options) >= 8 {
		size := int(options[1]) * 8
		if size == 0 || size > len(options) {
			break
		}
		if options[0] == kind {
			return [6]byte(options[2:])
		}
		options = options[size:]
	}
	return other
}

func ndChecksum(ip header.IPv6, icmp header.ICMPv6) bool {
	return header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: ip.SourceAddress(), Dst: ip.DestinationAddress()}) == icmp.Checksum()
}

// question returns a frame that asks whether another host has addr: an ARP request from nobody (RFC 5227, Section
// 2.1.1), or a neighbour solicitation from nobody.
func question(addr netip.Addr, mac [6]byte) []byte {
	if addr.Is4() {
		return arpRequest(mac, netip.IPv4Unspecified(), addr)
	}
	target := toAddress(addr)
	group := header.SolicitedNodeAddr(target)
	return ndFrame(mac, header.IPv6Any, group, header.ICMPv6NeighborSolicit, 0, target, nil)
}

// announcement returns a frame that tells all neighbours that we have addr: an ARP request for it from it (RFC 5227,
// Section 2.3), or a neighbour advertisement nobody asked for (RFC 4861, Section 7.2.6).
func announcement(addr netip.Addr, mac [6]byte) []byte {
	if addr.Is4() {
		return arpRequest(mac, addr, addr)
	}
	const override = 1 << 5
	a := toAddress(addr)
	option := append([]byte{optTargetLinkLayer, 1}, mac[:]...)
	return ndFrame(mac, a, header.IPv6AllNodesMulticastAddress, header.ICMPv6NeighborAdvert, override, a, option)
}

func arpRequest(mac [6]byte, sender, target netip.Addr) []byte {
	frame := etherHeader(broadcastMAC, mac, header.ARPProtocolNumber)
	h := header.ARP(append(frame, make([]byte, header.ARPSize)...)[ethernetHeader:])
	h.SetIPv4OverEthernet()
	h.SetOp(header.ARPRequest)
	copy(h.HardwareAddressSender(), mac[:])
	copy(h.ProtocolAddressSender(), sender.AsSlice())
	copy(h.ProtocolAddressTarget(), target.AsSlice())
	return append(frame, h...)
}

// ndFrame makes a neighbour solicitation or advertisement to a group.
func ndFrame(mac [6]byte, src, group tcpip.Address, kind header.ICMPv6Type, flags byte, target tcpip.Address, options []byte) []byte {
	icmp := header.ICMPv6(make([]byte, 8, header.ICMPv6NeighborSolicitMinimumSize+len(options)))
	icmp[4] = flags
	icmp = append(append(icmp, target.AsSlice()...), options...)
	icmp.SetType(kind)
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: src, Dst: group}))
	ip := header.IPv6(make([]byte, header.IPv6MinimumSize))
	ip.Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(icmp)), TransportProtocol: header.ICMPv6ProtocolNumber,
		HopLimit: header.NDPHopLimit, SrcAddr: src, DstAddr: group,
	})
	to := [6]byte([]byte(header.EthernetAddressFromMulticastIPv6Address(group)))
	return append(append(etherHeader(to, mac, header.IPv6ProtocolNumber), ip...), icmp...)
}

func etherHeader(dst, src [6]byte, proto tcpip.NetworkProtocolNumber) []byte {
	b := append(append(make([]byte, 0, maxHeaders), dst[:]...), src[:]...)
	return binary.BigEndian.AppendUint16(b, uint16(proto))
}
