package netstack

import (
	"encoding/binary"
	"reflect"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// What ICMP says about a connection anyone can say who guesses its ports. gVisor believes it all: a packet too big for
// an MTU of 0 leaves a connection that sends single octets. So ICMP errors pass through here on their way from the
// network layer to TCP.

// minPathMTU is the least IPv4 path MTU we believe in, as Linux does. A smaller one is met by letting routers fragment.
const minPathMTU = 552

// guarded makes a network protocol whose ICMP errors pass the guard.
func guarded(protocol stack.NetworkProtocolFactory) stack.NetworkProtocolFactory {
	return func(s *stack.Stack) stack.NetworkProtocol { return guardedProtocol{protocol(s), s} }
}

type guardedProtocol struct {
	stack.NetworkProtocol
	tcp *stack.Stack
}

// NewEndpoint is part of stack.NetworkProtocol.
func (p guardedProtocol) NewEndpoint(nic stack.NetworkInterface, up stack.TransportDispatcher) stack.NetworkEndpoint {
	return p.NetworkProtocol.NewEndpoint(nic, icmpGuard{up, p.tcp})
}

// icmpGuard is the way up from a network protocol.
type icmpGuard struct {
	stack.TransportDispatcher
	tcp *stack.Stack
}

// DeliverTransportError tells a connection what ICMP says about a segment, if it is one that is under way (RFC 5927,
// Section 4.1), and no path MTU that cannot be. pkt begins with the TCP header, of which there may be just eight octets.
func (g icmpGuard) DeliverTransportError(local, remote tcpip.Address, net tcpip.NetworkProtocolNumber, trans tcpip.TransportProtocolNumber, why stack.TransportError, pkt *stack.PacketBuffer) {
	quoted, ok := pkt.Data().PullUp(8)
	if trans != tcp.ProtocolNumber || !ok {
		return
	}
	ep, ok := g.tcp.FindTransportEndpoint(net, trans, stack.TransportEndpointID{
		LocalAddress: local, LocalPort: binary.BigEndian.Uint16(quoted),
		RemoteAddress: remote, RemotePort: binary.BigEndian.Uint16(quoted[2:]),
	}, nicID).(*tcp.Endpoint)
	if !ok {
		return
	}
	una, nxt, ok := underWay(ep)
	if seq := seqnum.Value(binary.BigEndian.Uint32(quoted[4:])); !ok || seq.LessThan(una) || nxt.LessThan(seq) {
		return
	}
	if why.Kind() == stack.PacketTooBigTransportError {
		if why, ok = believable(net, why); !ok {
			return
		}
		if why.Info() == minPathMTU-header.IPv4MinimumSize {
			// The path may be narrower still.
			_ = ep.SetSockOptInt(tcpip.MTUDiscoverOption, int(tcpip.PMTUDiscoveryDont))
		}
	}
	ep.HandleError(why, pkt)
}

// believable returns what a packet too big says, or false if that cannot be. gVisor has taken the IP header off the MTU,
// and made it 0 if it was below what the family allows.
func believable(net tcpip.NetworkProtocolNumber, why stack.TransportError) (stack.TransportError, bool) {
	if net == header.IPv6ProtocolNumber {
		return why, why.Info() > 0 // RFC 8201, Section 4: below 1280 it is to be discarded
	}
	if least := uint32(minPathMTU - header.IPv4MinimumSize); why.Info() < least {
		return tooBig{why, least}, true
	}
	return why, true
}

// tooBig is a packet too big for another MTU than ICMP said.
type tooBig struct {
	stack.TransportError
	mtu uint32 // the IP header taken off
}

// Info is part of stack.TransportError.
func (e tooBig) Info() uint32 { return e.mtu }

// underWay returns the sequence numbers between which ep waits for acknowledgements, the second one included. gVisor does
// not tell them to anyone, so they are read by the names they have in the version of go.mod.
func underWay(ep *tcp.Endpoint) (una, nxt seqnum.Value, ok bool) {
	ep.LockUser()
	defer ep.UnlockUser()
	e := reflect.ValueOf(ep).Elem()
	if snd := e.FieldByName("snd"); snd.IsValid() && !snd.IsNil() {
		una, nxt := snd.Elem().FieldByName("SndUna"), snd.Elem().FieldByName("SndNxt")
		if una.IsValid() && nxt.IsValid() {
			return seqnum.Value(una.Uint()), seqnum.Value(nxt.Uint()), true
		}
	}
	if h := e.FieldByName("h"); h.IsValid() && !h.IsNil() {
		if iss := h.Elem().FieldByName("iss"); iss.IsValid() {
			return seqnum.Value(iss.Uint()), seqnum.Value(iss.Uint()), true
		}
	}
	return 0, 0, false
}

// plainer turns an ICMPv6 "destination unreachable" whose code gVisor does not know into one for want of a route, which
// it does.
func plainer(ip header.IPv6) {
	if len(ip) < header.IPv6MinimumSize+header.ICMPv6MinimumSize || ip.NextHeader() != uint8(header.ICMPv6ProtocolNumber) {
		return
	}
	icmp := header.ICMPv6(ip[header.IPv6MinimumSize:])
	if code := icmp.Code(); icmp.Type() == header.ICMPv6DstUnreachable && code != header.ICMPv6PortUnreachable {
		icmp.SetChecksum(^checksum.Combine(^icmp.Checksum(), ^uint16(code))) // RFC 1624
		icmp.SetCode(header.ICMPv6NetworkUnreachable)
	}
}
