package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// flowKey is a connection as its incoming packets say: addresses and ports, as they lie in an IP packet without options.
type flowKey [2*header.IPv6AddressSize + portsSize]byte

// portsSize is how many octets of a TCP header its ports are.
const portsSize = 4

// keyOf returns the key of the packets that arrive for id.
func keyOf(id *stack.TransportEndpointID) (k flowKey) {
	b := append(k[:0], id.RemoteAddress.AsSlice()...)
	b = append(b, id.LocalAddress.AsSlice()...)
	b = binary.BigEndian.AppendUint16(b, id.RemotePort)
	binary.BigEndian.AppendUint16(b, id.LocalPort)
	return k
}

// keyIn returns the key of a packet of size octets that begins with b, if it is as long as it says and has a whole TCP
// header behind an IP header without options.
func keyIn(proto tcpip.NetworkProtocolNumber, size int, b []byte) (k flowKey, ok bool) {
	switch proto {
	case header.IPv4ProtocolNumber:
		const addrs = header.IPv4MinimumSize - 2*header.IPv4AddressSize
		ip := header.IPv4(b)
		if len(b) < header.IPv4MinimumSize+header.TCPMinimumSize || header.IPVersion(b) != header.IPv4Version ||
			ip.HeaderLength() != header.IPv4MinimumSize || int(ip.TotalLength()) != size ||
			ip.Protocol() != uint8(header.TCPProtocolNumber) || ip.More() || ip.FragmentOffset() != 0 {
			return k, false
		}
		copy(k[:], b[addrs:header.IPv4MinimumSize+portsSize])
	case header.IPv6ProtocolNumber:
		const addrs = header.IPv6MinimumSize - 2*header.IPv6AddressSize
		if len(b) < header.IPv6MinimumSize+header.TCPMinimumSize || header.IPv6(b).NextHeader() != uint8(header.TCPProtocolNumber) ||
			int(header.IPv6(b).PayloadLength()) != size-header.IPv6MinimumSize {
			return k, false
		}
		copy(k[:], b[addrs:header.IPv6MinimumSize+portsSize])
	default:
		return k, false
	}
	return k, true
}
