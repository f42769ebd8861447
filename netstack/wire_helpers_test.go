package netstack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/pktio"
)

// wire is the far end of a link with a stack on the near end: a test that speaks for the peer, frame by frame.
type wire struct {
	t    *testing.T
	fam  family
	port *pktio.Pipe
	h    *host
	in   []pktio.Frame
}

var wireMAC = [6]byte{2, 0, 0, 0, 0, 0xb}

func newWire(t *testing.T, c Config) *wire { return newWireOf(t, inet4, c) }

// newWireOf makes a wire with a stack that has the a address of fam.
func newWireOf(t *testing.T, fam family, c Config) *wire {
	if c.Addrs == nil {
		c.Addrs = []netip.Prefix{netip.PrefixFrom(fam.a, fam.bits)}
	}
	near, far, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	leakcheck.Pool(t, near.Pool())
	leakcheck.Pool(t, far.Pool())
	s, err := New(near, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, far.Close())
		_, _ = far.Recv(nil, 0)
	})
	return &wire{t: t, fam: fam, port: far, h: newHost(t, s), in: make([]pktio.Frame, 1)}
}

// send puts the pieces, joined, on the wire.
func (w *wire) send(pieces ...[]byte) {
	w.t.Helper()
	n, err := w.port.Send([]pktio.Frame{{Data: pieces}})
	require.NoError(w.t, err)
	require.Equal(w.t, 1, n)
}

// recv returns the next frame that the stack sent and match likes.
func (w *wire) recv(what string, match func(b []byte) bool) []byte {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		w.h.poll(0)
		n, err := w.port.Recv(w.in, time.Millisecond)
		require.NoError(w.t, err)
		if n > 0 {
			b := make([]byte, w.in[0].Len())
			w.in[0].CopyTo(b)
			if match(b) {
				return b
			}
		}
	}
	w.t.Fatal("never sent: " + what)
	return nil
}

// recvTCP returns the next packet with a TCP segment that match, if not nil, likes, and the segment. Until it comes the
// peer tells who asks that it is there.
func (w *wire) recvTCP(what string, match func(header.TCP) bool) (frame []byte, tcp header.TCP) {
	w.t.Helper()
	frame = w.recv(what, func(b []byte) bool {
		if isWho(w.fam.b)(b) {
			w.answer(b)
		}
		seg := segmentOf(b)
		return seg != nil && (match == nil || match(seg))
	})
	return frame, segmentOf(frame)
}

// segmentOf returns the TCP segment in a frame, or nil.
func segmentOf(b []byte) header.TCP {
	switch proto := binary.BigEndian.Uint16(b[12:]); {
	case proto == 0x0800 && b[23] == 6:
		return header.TCP(b[34:])
	case proto == 0x86dd && b[20] == 6:
		return header.TCP(b[54:])
	}
	return nil
}

// sumIsGood checks TCP's checksum in a frame that a stack sent, and IP's.
func sumIsGood(b []byte) bool {
	tcp := segmentOf(b)
	if b[14]>>4 == 6 {
		ip := header.IPv6(b[14:])
		return int(ip.PayloadLength()) == len(tcp) &&
			tcp.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), checksum.Checksum(tcp.Payload(), 0), uint16(len(tcp.Payload())))
	}
	ip := header.IPv4(b[14:])
	return ip.IsChecksumValid() && int(ip.TotalLength()) == len(ip) &&
		tcp.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), checksum.Checksum(tcp.Payload(), 0), uint16(len(tcp.Payload())))
}

// sendTCP sends the stack a segment from the peer's address.
func (w *wire) sendTCP(fields header.TCPFields, payload []byte) {
	w.t.Helper()
	seg := tcpSegmentOf(w.fam.b, w.fam.a, fields, payload)
	w.sendIP(6, seg)
}

// sendIP sends the stack a packet from the peer's address.
func (w *wire) sendIP(proto uint8, payload []byte) {
	w.t.Helper()
	w.send(w.eth(), ipPacket(w.fam.b, w.fam.a, proto, len(payload)), payload)
}

// eth is the header of a frame to the stack.
func (w *wire) eth() []byte {
	proto := uint16(0x86dd)
	if w.fam.a.Is4() {
		proto = 0x0800
	}
	return ethernet(w.h.user.link.info.Addr, wireMAC, proto)
}

func ethernet(dst, src [6]byte, proto uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte(nil), dst[:]...), src[:]...), proto)
}

func isARPRequest(for_ netip.Addr) func(b []byte) bool {
	return func(b []byte) bool {
		return binary.BigEndian.Uint16(b[12:]) == 0x0806 && b[21] == 1 && netip.AddrFrom4([4]byte(b[38:])) == for_
	}
}

// answerARP answers the request of a stack.
func (w *wire) answerARP(request []byte) {
	reply := append([]byte(nil), request[14:]...)
	reply[7] = 2
	copy(reply[8:], wireMAC[:])
	copy(reply[14:], request[38:42])
	copy(reply[18:], request[22:32])
	w.send(ethernet([6]byte(request[6:]), wireMAC, 0x0806), reply)
}

// isWho recognizes the question which Ethernet address an IP address has.
func isWho(for_ netip.Addr) func(b []byte) bool {
	if for_.Is4() {
		return isARPRequest(for_)
	}
	return func(b []byte) bool {
		return binary.BigEndian.Uint16(b[12:]) == 0x86dd && b[20] == 58 && b[54] == 135 && netip.AddrFrom16([16]byte(b[62:])) == for_
	}
}

// resolve waits for the question for an address and answers it.
func (w *wire) resolve(a netip.Addr) {
	w.t.Helper()
	w.answer(w.recv("who is "+a.String(), isWho(a)))
}

// answer answers a question that isWho recognized.
func (w *wire) answer(request []byte) {
	w.t.Helper()
	if w.fam.a.Is4() {
		w.answerARP(request)
		return
	}
	w.sayNeighbour(netip.AddrFrom16([16]byte(request[62:])), netip.AddrFrom16([16]byte(request[22:])))
}

// sayNeighbour tells to, in a solicited advertisement, that a is here.
func (w *wire) sayNeighbour(a, to netip.Addr) {
	w.t.Helper()
	icmp := append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, a.AsSlice()...)
	icmp = append(append(icmp, 2, 1), wireMAC[:]...)
	ip := header.IPv6(ipPacket(a, to, 58, len(icmp)))
	ip.SetHopLimit(255)
	sumICMPv6(ip, icmp)
	w.send(w.eth(), ip, icmp)
}

// sumICMPv6 sets the checksum of an ICMPv6 message behind ip.
func sumICMPv6(ip header.IPv6, icmp header.ICMPv6) {
	icmp.SetChecksum(0)
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{Header: icmp, Src: ip.SourceAddress(), Dst: ip.DestinationAddress()}))
}

// icmpError is an ICMP error, of type and code, about a packet from a stack. rest is what comes between the checksum
// and the packet.
func (w *wire) icmpError(typ, code byte, rest uint32, packet []byte) {
	w.t.Helper()
	w.icmpErrorFrom(w.fam.b, typ, code, rest, packet)
}

func (w *wire) icmpErrorFrom(from netip.Addr, typ, code byte, rest uint32, packet []byte) {
	w.t.Helper()
	icmp := append(binary.BigEndian.AppendUint32([]byte{typ, code, 0, 0}, rest), packet...)
	if w.fam.a.Is4() {
		binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
		w.send(w.eth(), ipPacket(from, w.fam.a, 1, len(icmp)), icmp)
		return
	}
	ip := ipPacket(from, w.fam.a, 58, len(icmp))
	sumICMPv6(ip, icmp)
	w.send(w.eth(), ip, icmp)
}

// ipPacket returns an IP header.
func ipPacket(from, to netip.Addr, proto uint8, payload int) []byte {
	if from.Is6() {
		h := header.IPv6(make([]byte, header.IPv6MinimumSize))
		h.Encode(&header.IPv6Fields{
			PayloadLength: uint16(payload), HopLimit: 64, TransportProtocol: tcpip.TransportProtocolNumber(proto),
			SrcAddr: toAddress(from), DstAddr: toAddress(to),
		})
		return h
	}
	h := header.IPv4(make([]byte, header.IPv4MinimumSize))
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(header.IPv4MinimumSize + payload), TTL: 64, Protocol: proto,
		SrcAddr: toAddress(from), DstAddr: toAddress(to),
	})
	h.SetChecksum(^h.CalculateChecksum())
	return h
}

// tcpSegmentOf makes a TCP segment.
func tcpSegmentOf(from, to netip.Addr, fields header.TCPFields, payload []byte) []byte {
	return tcpSegmentWith(from, to, fields, nil, payload)
}

// tcpSegmentWith has options, whose length is a multiple of four.
func tcpSegmentWith(from, to netip.Addr, fields header.TCPFields, options, payload []byte) []byte {
	b := make([]byte, header.TCPMinimumSize+len(options), header.TCPMinimumSize+len(options)+len(payload))
	h := header.TCP(b)
	fields.DataOffset = uint8(len(b))
	h.Encode(&fields)
	copy(b[header.TCPMinimumSize:], options)
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, toAddress(from), toAddress(to), uint16(len(b)+len(payload)))
	h.SetChecksum(^h.CalculateChecksum(checksum.Checksum(payload, sum)))
	return append(b, payload...)
}

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
