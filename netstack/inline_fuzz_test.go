package netstack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrdma/softrdma/pktio"
)

// FuzzInlineKey compares the key of a packet with what gVisor reads in its headers: the one is found where the other says
// that there is a segment, whole, unfragmented and right behind an IP header of the usual length.
func FuzzInlineKey(f *testing.F) {
	seg := tcpSegmentOf(addrA, addrB, header.TCPFields{SrcPort: 1, DstPort: 2, Flags: flagPSH}, []byte{1, 2, 3})
	f.Add(joined(ipPacket(addrA, addrB, 6, len(seg)), seg), false)
	f.Add(joined(ipPacket(inet6.a, inet6.b, 6, len(seg)), seg), true)
	f.Add(joined(ipWithOptions(addrA, addrB, 6, []byte{1, 1, 1, 0}, len(seg)), seg), false)
	f.Add(joined(ipPacket(addrA, addrB, 6, 19), seg[:19]), false)
	f.Add(joined(ipPacket(addrA, addrB, 17, len(seg)), seg), false)
	for _, at := range []int{0, 6, 7} {
		b := joined(ipPacket(addrA, addrB, 6, len(seg)), seg)
		b[at] ^= 0x21
		f.Add(b, false)
	}
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, b []byte, six bool) {
		proto, at, plain := header.IPv4ProtocolNumber, header.IPv4MinimumSize, false
		var src, dst tcpip.Address
		if six {
			proto, at = header.IPv6ProtocolNumber, header.IPv6MinimumSize
			if ip := header.IPv6(b); len(b) >= at {
				src, dst = ip.SourceAddress(), ip.DestinationAddress()
				plain = ip.NextHeader() == 6 && int(ip.PayloadLength()) == len(b)-at
			}
		} else if ip := header.IPv4(b); len(b) >= at {
			src, dst = ip.SourceAddress(), ip.DestinationAddress()
			plain = header.IPVersion(b) == header.IPv4Version && int(ip.HeaderLength()) == at && int(ip.TotalLength()) == len(b) &&
				ip.Protocol() == 6 && !ip.More() && ip.FragmentOffset() == 0
		}
		k, ok := keyIn(proto, len(b), b[:min(len(b), 60)])
		require.Equal(t, plain && len(b) >= at+header.TCPMinimumSize, ok)
		if ok {
			tcp := header.TCP(b[at:])
			require.Equal(t, keyOf(&stack.TransportEndpointID{
				RemoteAddress: src, RemotePort: tcp.SourcePort(), LocalAddress: dst, LocalPort: tcp.DestinationPort(),
			}), k)
		}
		_, ok = keyIn(header.ARPProtocolNumber, len(b), b)
		require.False(t, ok)
	})
}

// FuzzInline lets arbitrary frames arrive for a connection whose segments are processed where they arrive. Nothing
// breaks, whatever they are; and octets of another connection do not come from frames for this one, nor from any with
// addresses, ports or a protocol that are not its own.
func FuzzInline(f *testing.F) { fuzzInline(f, inet4) }

// FuzzInlineIPv6 is the same with IPv6.
func FuzzInlineIPv6(f *testing.F) { fuzzInline(f, inet6) }

func fuzzInline(f *testing.F, fam family) {
	p, rec := newFuzzPair(f, fam)
	l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 7), 16)
	require.NoError(f, err)
	victim, victimB := p.connectTo(l)
	other, otherB := p.connectTo(l)
	require.NoError(f, victim.Writev([][]byte{make([]byte, 5000)}))
	p.receive(victimB, 5000)
	for i, frame := range rec.frames() {
		if i < 30 {
			f.Add(frame.Data[0], uint8(0), uint8(i), uint32(i))
			f.Add(frame.Data[0], uint8(1+i%len(wrongs)), uint8(i), uint32(0))
		}
	}
	for i := range wrongs { // what would be taken if it was not wrong
		seg := tcpSegmentOf(fam.a, fam.b, header.TCPFields{SrcPort: 1, DstPort: 7, Flags: flagPSH, WindowSize: 1000}, []byte("forged"))
		for how := range 16 {
			f.Add(joined(ethernet(p.b.user.link.info.Addr, wireMAC, 0x0800), ipPacket(fam.a, fam.b, 6, len(seg)), seg), uint8(1+i), uint8(how|1), uint32(0))
		}
	}
	for flags := range 256 {
		seg := tcpSegmentOf(fam.a, fam.b, header.TCPFields{SrcPort: 1, DstPort: 7, Flags: header.TCPFlags(flags), WindowSize: 1000}, make([]byte, flags%8))
		f.Add(joined(ethernet(p.b.user.link.info.Addr, wireMAC, 0x0800), ipPacket(fam.a, fam.b, 6, len(seg)), seg), uint8(0), uint8(flags), uint32(flags%3))
	}
	for words := range 16 { // how long the header says it is
		seg := tcpSegmentOf(fam.a, fam.b, header.TCPFields{SrcPort: 1, DstPort: 7, Flags: flagACK, WindowSize: 1000}, nil)
		seg[header.TCPDataOffset] = byte(words << 4)
		for _, how := range []uint8{0, 8, 0x40} {
			f.Add(joined(ethernet(p.b.user.link.info.Addr, wireMAC, 0x0800), ipPacket(fam.a, fam.b, 6, len(seg)), seg), uint8(0), how, uint32(0))
		}
	}
	mac := p.b.user.link.info.Addr
	link := p.b.user.link
	k := checker{stream: 9}
	f.Fuzz(func(t *testing.T, frame []byte, wrong, how uint8, ahead uint32) {
		p.t, p.a.t, p.b.t = t, t, t
		defer func() { p.t, p.a.t, p.b.t = f, f, f }()
		frame = append([]byte(nil), frame...)
		to := victim
		if wrong != 0 {
			to = other
		}
		if len(frame) >= ethernetHeader+fam.headers() {
			_, nxt, ok := underWay(to.user.ep)
			una, _, _ := underWay(otherB.user.ep)
			require.True(t, ok)
			aim(frame, p, to, uint32(nxt)+ahead%70_000)
			tcp := segmentOf(frame)
			if how&1 != 0 {
				tcp.SetAckNumber(uint32(una))
			}
			if wrong != 0 {
				wrongs[int(wrong)%len(wrongs)](frame, fam)
				if ip := header.IPv4(frame[ethernetHeader:]); fam == inet4 {
					ip.SetChecksum(0)
					ip.SetChecksum(^ip.CalculateChecksum())
				}
			}
		} else if wrong != 0 {
			return
		}
		fr := pktio.Frame{Offload: pktio.Offload{CsumValid: how&2 == 0}}
		size := max(len(frame)/(int(how>>4)+1), 1)
		for rest := frame; len(rest) > 0; {
			n := min(size, len(rest))
			fr.Data = append(fr.Data, rest[:n])
			rest = rest[n:]
		}
		holdReceiver(link, func() {
			from := p.a.user.link
			from.tx.mu.Lock()
			defer from.tx.mu.Unlock()
			_, _ = from.port.Send([]pktio.Frame{{Data: [][]byte{ethernet(mac, wireMAC, 0x88b5), make([]byte, 46)}}})
		})
		link.rx.polled.Store(how&4 != 0)
		link.rx.join = how&8 != 0
		for range 1 + how>>6 {
			link.deliver(&fr)
		}
		link.endRuns()
		link.take(0, nil)
		link.rx.polled.Store(true) // the pump would sit on the lock
		link.rx.mu.Unlock()
		// The other one carries octets as if nothing had been.
		require.Equal(t, 3, send(t, other, 9, k.at, 3))
		at := k.at + 3
		p.until("octets of the other", func() bool { require.NoError(t, k.receive(t, otherB)); return k.at >= at })
		require.Equal(t, at, k.at)
		for c, ok := l.Accept(); ok; c, ok = l.Accept() {
			c.Abort()
		}
		_, err := victimB.Peek()
		if pieces, _ := victimB.Peek(); len(pieces) > 0 {
			victimB.Discard(length(pieces))
		}
		if _, errA := victim.Peek(); err != nil || errA != nil {
			victim.Abort()
			victimB.Abort()
			victim, victimB = p.connectTo(l)
		}
	})
}

// wrongs make a frame, which aim made one of a connection, one that is not.
var wrongs = []func(frame []byte, fam family){
	func(b []byte, fam family) { b[ethernetHeader+addrAt(fam)]++ },                    // source
	func(b []byte, fam family) { b[ethernetHeader+addrAt(fam)+fam.a.BitLen()/8-1]++ }, // in its last octet
	func(b []byte, fam family) { b[ethernetHeader+addrAt(fam)+fam.a.BitLen()/8]++ },   // destination
	func(b []byte, fam family) { b[ethernetHeader+addrAt(fam)+fam.a.BitLen()/4-1]-- }, // in its last octet
	func(b []byte, _ family) { tcp := segmentOf(b); tcp.SetSourcePort(tcp.SourcePort() ^ 0x8000) },
	func(b []byte, _ family) { tcp := segmentOf(b); tcp.SetDestinationPort(tcp.DestinationPort() + 1) },
	func(b []byte, fam family) { // protocol
		if fam == inet6 {
			b[ethernetHeader+6] = 17
		} else {
			b[ethernetHeader+9] = 17
		}
	},
	func(b []byte, fam family) { // a fragment, or behind a header that is none
		if fam == inet6 {
			b[ethernetHeader+6] = 44
		} else {
			binary.BigEndian.PutUint16(b[ethernetHeader+6:], 0x2001)
		}
	},
	func(b []byte, _ family) { b[0] ^= 2 }, // another host's
}

// addrAt is where an IP header has the source address.
func addrAt(fam family) int {
	if fam == inet6 {
		return 8
	}
	return 12
}
