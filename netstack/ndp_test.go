package netstack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// solicit is the question who has an address, from a host that has one or, with the unspecified address, from one that
// wants to know whether it may take it.
func (w *wire) solicit(from, target netip.Addr) {
	w.t.Helper()
	b := target.As16()
	group := [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}
	icmp := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	if !from.IsUnspecified() {
		icmp = append(append(icmp, 1, 1), wireMAC[:]...)
	}
	ip := header.IPv6(ipPacket(from, netip.AddrFrom16(group), 58, len(icmp)))
	ip.SetHopLimit(255)
	sumICMPv6(ip, icmp)
	w.send(ethernet([6]byte{0x33, 0x33, 0xff, b[13], b[14], b[15]}, wireMAC, 0x86dd), ip, icmp)
}

func isAdvertisement(of netip.Addr) func(b []byte) bool {
	return func(b []byte) bool {
		return b[20] == 58 && len(b) >= 54+24 && b[54] == 136 && netip.AddrFrom16([16]byte(b[62:])) == of
	}
}

func TestAnswersNeighboursAndPing(t *testing.T) {
	addrs := prefixes("fd77::1/64", "fe80::1/64", "fd78::1:2:3/64")
	w := newWireOf(t, inet6, Config{Addrs: addrs})
	mac := w.h.user.link.info.Addr
	// Routers ask from their link-local address, whatever they ask for.
	for _, from := range []string{"fd77::2", "fe80::2"} {
		for _, p := range addrs {
			w.solicit(netip.MustParseAddr(from), p.Addr())
			reply := w.recv("advertisement of "+p.String(), isAdvertisement(p.Addr()))
			require.Equal(t, wireMAC[:], reply[:6])
			require.EqualValues(t, 255, reply[21], "hop limit")
			require.EqualValues(t, 0x60, reply[58]&0xe0, "solicited, overriding, of no router")
			require.Equal(t, append([]byte{2, 1}, mac[:]...), reply[78:86])
		}
	}
	// Who wants to take an address is told that it is taken.
	w.solicit(netip.IPv6Unspecified(), inet6.a)
	reply := w.recv("advertisement to all", isAdvertisement(inet6.a))
	require.Equal(t, netip.IPv6LinkLocalAllNodes(), netip.AddrFrom16([16]byte(reply[38:])))
	require.Equal(t, []byte{0x33, 0x33, 0, 0, 0, 1}, reply[:6])

	ping := header.ICMPv6(append([]byte{128, 0, 0, 0, 1, 2, 0, 1}, "ping, ping, ping"...))
	ip := ipPacket(inet6.b, inet6.a, 58, len(ping))
	sumICMPv6(ip, ping)
	w.send(w.eth(), ip, ping)
	pong := w.recv("echo reply", func(b []byte) bool { return b[20] == 58 && b[54] == 129 })
	require.Equal(t, []byte(ping[4:]), pong[58:])
	sum := header.ICMPv6(pong[54:]).Checksum()
	sumICMPv6(pong[14:54], pong[54:])
	require.Equal(t, sum, header.ICMPv6(pong[54:]).Checksum())
}

// We report the groups of our addresses, well-formed, and say nothing else by ourselves: no router is asked, no address
// made.
func TestReportsGroups(t *testing.T) {
	for _, addrs := range [][]netip.Prefix{prefixes("fd77::1:2:3/64", "fd78::9/64"), prefixes("fe80::1/64", "fd77::1:2:3/64")} {
		w := newWireOf(t, inet6, Config{Addrs: addrs})
		want := map[string]bool{}
		for _, p := range addrs {
			b := p.Addr().As16()
			want[netip.AddrFrom16([16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]}).String()] = true
		}
		for len(want) > 0 {
			b := w.recv("reports of the rest", func(b []byte) bool {
				require.EqualValues(t, 0x86dd, binary.BigEndian.Uint16(b[12:]))
				return true
			})
			ip := header.IPv6(b[14:])
			require.EqualValues(t, len(ip)-40, ip.PayloadLength())
			require.EqualValues(t, 0, ip.NextHeader(), "hop by hop")
			require.EqualValues(t, 1, ip.HopLimit())
			require.Equal(t, []byte{58, 0, 5, 2, 0, 0, 1, 0}, b[54:62], "router alert of MLD, padded")
			from := netip.AddrFrom16(ip.SourceAddress().As16())
			require.True(t, from.IsUnspecified() || from.IsLinkLocalUnicast(), "RFC 3590: not from %v", from)
			require.Equal(t, "ff02::16", netip.AddrFrom16(ip.DestinationAddress().As16()).String())
			require.Equal(t, []byte{0x33, 0x33, 0, 0, 0, 0x16}, b[:6])
			icmp := b[62:]
			require.EqualValues(t, 143, icmp[0], "MLDv2 report")
			sum := header.ICMPv6(icmp).Checksum()
			sumICMPv6(ip, icmp)
			require.Equal(t, sum, header.ICMPv6(icmp).Checksum())
			records := int(binary.BigEndian.Uint16(icmp[6:]))
			require.Len(t, icmp, 8+20*records)
			for i := range records {
				r := icmp[8+20*i:]
				require.EqualValues(t, 4, r[0], "change to exclude: join")
				require.Zero(t, binary.BigEndian.Uint16(r[2:]), "sources")
				delete(want, netip.AddrFrom16([16]byte(r[4:])).String())
			}
		}
	}
}

// A router's advertisement gives us no address, no route and no MTU.
func TestTakesNoAdvertisement(t *testing.T) {
	w := newWireOf(t, inet6, Config{})
	icmp := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	prefix := make([]byte, 32)
	prefix[0], prefix[1], prefix[2], prefix[3] = 3, 4, 64, 0xc0 // on the link, for addresses
	binary.BigEndian.PutUint32(prefix[4:], 3600)
	binary.BigEndian.PutUint32(prefix[8:], 3600)
	copy(prefix[16:], netip.MustParseAddr("2001:db8::").AsSlice())
	icmp = slices.Concat(icmp, prefix, []byte{5, 1, 0, 0, 0, 0, 5, 0}, []byte{1, 1}, wireMAC[:])
	ip := header.IPv6(ipPacket(netip.MustParseAddr("fe80::2"), netip.IPv6LinkLocalAllNodes(), 58, len(icmp)))
	ip.SetHopLimit(255)
	sumICMPv6(ip, icmp)
	w.send(ethernet([6]byte{0x33, 0x33, 0, 0, 0, 1}, wireMAC, 0x86dd), ip, icmp)
	// What comes after it shows that it has come.
	w.solicit(inet6.b, inet6.a)
	w.recv("advertisement", isAdvertisement(inet6.a))
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		w.h.poll(time.Millisecond)
	}
	require.Len(t, w.h.user.tcp.AllAddresses()[nicID], 1)
	require.Len(t, w.h.user.tcp.GetRouteTable(), 1)
	require.Equal(t, 1500, w.h.MTU())
	_, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(inet6.far, 1))
	require.Error(t, err)
}

// Segments behind extension headers, in fragments and in padded frames arrive like any others.
func TestExtensionHeaders(t *testing.T) {
	w := newWireOf(t, inet6, Config{})
	c, una := w.acceptOne(1000)
	k := checker{}
	seq := uint32(100)
	next := func(n int) []byte {
		b := make([]byte, n)
		pattern(b, 0, int(seq)-100)
		seg := tcpSegmentOf(inet6.b, inet6.a, header.TCPFields{
			SrcPort: 1000, DstPort: 2000, SeqNum: seq, AckNum: una, Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: 1000}, b)
		seq += uint32(n)
		return seg
	}
	arrives := func(what string) {
		t.Helper()
		until(t, what, func() bool { require.NoError(t, k.receive(t, c)); return k.at == int(seq)-100 }, w.h)
	}
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 6, 20+1), next(1), make([]byte, 30))
	arrives("a padded frame")
	for _, n := range []int{3, 1000} {
		for _, hdr := range []byte{0, 60} {
			seg := next(n)
			w.send(w.eth(), ipPacket(inet6.b, inet6.a, hdr, 8+len(seg)), []byte{6, 0, 1, 4, 0, 0, 0, 0}, seg)
			arrives("options")
		}
		seg := next(n)
		w.send(w.eth(), ipPacket(inet6.b, inet6.a, 0, 16+len(seg)), []byte{60, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0}, seg)
		arrives("two headers")
	}
	seg := next(1000)
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 44, 8+len(seg)-512), []byte{6, 0, 512 >> 8, 0, 0, 0, 0, 7}, seg[512:])
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 44, 8+512), []byte{6, 0, 0, 1, 0, 0, 0, 7}, seg[:512])
	arrives("two fragments")
	seg = next(10)
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 43, 24+len(seg)), []byte{6, 2, 0, 1, 0, 0, 0, 0}, inet6.b.AsSlice(), seg)
	w.sendTCP(header.TCPFields{SrcPort: 1000, DstPort: 2000, SeqNum: seq - 10, AckNum: una, Flags: header.TCPFlagAck, WindowSize: 1000}, seg[20:])
	arrives("what came again without a route of its own")
}
