package pktio

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
)

const (
	addrLink6 = "fe80::77:1" // link-local
	addrA6    = "fd77::1"
)

var (
	strangers = [6]byte{2, 0, 0, 0x77, 0, 9}
	broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	// steerAddrs has addresses with the highest bit of a word set and without.
	steerAddrs = []netip.Addr{addrA, netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr(addrA6), netip.MustParseAddr(addrLink6), netip.MustParseAddr("2001:db8:8000::ffff:fffe")}
)

// layersOf makes a frame with gopacket: not with the code under test.
func layersOf(t testing.TB, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	w := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(w, gopacket.SerializeOptions{FixLengths: true}, l...))
	return slices.Clone(w.Bytes())
}

func ethernet(dst [6]byte, typ layers.EthernetType) *layers.Ethernet {
	return &layers.Ethernet{DstMAC: dst[:], SrcMAC: strangers[:], EthernetType: typ}
}

func ipv4To(dst string) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IP{10, 77, 0, 99}, DstIP: net.ParseIP(dst).To4()}
}

func ipv6To(dst string, next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 255, NextHeader: next, SrcIP: net.ParseIP("fd77::99"), DstIP: net.ParseIP(dst)}
}

func arpOf(op uint16, sender, target string) *layers.ARP {
	return &layers.ARP{AddrType: layers.LinkTypeEthernet, Protocol: layers.EthernetTypeIPv4, HwAddressSize: 6, ProtAddressSize: 4, Operation: op,
		SourceHwAddress: strangers[:], SourceProtAddress: net.ParseIP(sender).To4(), DstHwAddress: make([]byte, 6), DstProtAddress: net.ParseIP(target).To4()}
}

// icmpv6 is a message of neighbour discovery, or another.
func icmpv6(typ byte, target string) gopacket.Payload {
	return append([]byte{typ, 0, 0, 0, 0, 0, 0, 0}, net.ParseIP(target).To16()...)
}

type steerCase struct {
	name  string
	ours  bool
	frame []byte
}

// steerCases are frames to a host whose Ethernet address is mac: the port has steerAddrs, the kernel all others.
func steerCases(t testing.TB, mac [6]byte) []steerCase {
	const (
		ip4, ip6, arp = layers.EthernetTypeIPv4, layers.EthernetTypeIPv6, layers.EthernetTypeARP
		tcp, icmp     = layers.IPProtocolTCP, layers.IPProtocolICMPv6
		ns, na        = layers.ICMPv6TypeNeighborSolicitation, layers.ICMPv6TypeNeighborAdvertisement
		request       = layers.ARPRequest
		reply         = layers.ARPReply
	)
	mcast := func(dst string) [6]byte { return [6]byte(append([]byte{0x33, 0x33}, net.ParseIP(dst).To16()[12:]...)) }
	data := gopacket.Payload(pattern(40))
	frag := func(ip *layers.IPv4, off uint16, more bool) *layers.IPv4 {
		ip.FragOffset = off
		if more {
			ip.Flags = layers.IPv4MoreFragments
		}
		return ip
	}
	options := ipv4To("10.77.0.1")
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
	udp := ipv4To("10.77.0.1")
	udp.Protocol = layers.IPProtocolUDP
	wrongKind := arpOf(request, "10.77.0.9", "10.77.0.1")
	wrongKind.AddrType = 6
	wrongKind6 := arpOf(request, "10.77.0.9", "10.77.0.1")
	wrongKind6.Protocol = ip6
	hopByHop := append([]byte{byte(icmp), 0, 1, 4, 0, 0, 0, 0}, icmpv6(143, "::")...)
	fragment6 := append([]byte{byte(tcp), 0, 0, 0x10, 1, 2, 3, 4}, pattern(40)...)
	cases := []steerCase{
		{"IPv4 to us", true, layersOf(t, ethernet(mac, ip4), ipv4To("10.77.0.1"), data)},
		{"IPv4 to us, high address", true, layersOf(t, ethernet(mac, ip4), ipv4To("192.0.2.200"), data)},
		{"IPv4 to us, UDP", true, layersOf(t, ethernet(mac, ip4), udp, data)},
		{"IPv4 to us, with options", true, layersOf(t, ethernet(mac, ip4), options, data)},
		{"IPv4 to us, first fragment", true, layersOf(t, ethernet(mac, ip4), frag(ipv4To("10.77.0.1"), 0, true), data)},
		{"IPv4 to us, last fragment", true, layersOf(t, ethernet(mac, ip4), frag(ipv4To("10.77.0.1"), 100, false), data)},
		{"IPv4 to us, nothing in it", true, layersOf(t, ethernet(mac, ip4), ipv4To("10.77.0.1"))},
		{"IPv4 to us by broadcast", true, layersOf(t, ethernet(broadcast, ip4), ipv4To("10.77.0.1"), data)},
		{"IPv4 to the kernel", false, layersOf(t, ethernet(mac, ip4), ipv4To("10.77.0.3"), data)},
		{"IPv4 to the kernel, one bit off", false, layersOf(t, ethernet(mac, ip4), ipv4To("192.0.2.201"), data)},
		{"IPv4 broadcast", false, layersOf(t, ethernet(broadcast, ip4), ipv4To("10.77.0.255"), data)},
		{"IPv4 multicast", false, layersOf(t, ethernet([6]byte{1, 0, 0x5e, 0, 0, 1}, ip4), ipv4To("224.0.0.1"), data)},
		{"IPv4 to us, another's Ethernet address", false, layersOf(t, ethernet([6]byte{mac[0], mac[1], mac[2], mac[3], mac[4], mac[5] ^ 1}, ip4), ipv4To("10.77.0.1"), data)},
		{"IPv4 to us, quite another's Ethernet address", false, layersOf(t, ethernet([6]byte{mac[0], mac[1] ^ 1, mac[2], mac[3], mac[4], mac[5]}, ip4), ipv4To("10.77.0.1"), data)},
		{"IPv4 to us, cut short", false, layersOf(t, ethernet(mac, ip4), ipv4To("10.77.0.1"))[:33]},
		{"VLAN", false, layersOf(t, ethernet(mac, layers.EthernetTypeDot1Q), &layers.Dot1Q{VLANIdentifier: 5, Type: ip4}, ipv4To("10.77.0.1"), data)},
		{"EtherType unknown", false, rawFrame(mac, strangers, 100)},
		{"802.3", false, rawFrame(mac, strangers, 60)[:60]},

		{"ARP for us", true, layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.9", "10.77.0.1"))},
		{"ARP for us, padded", true, append(layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.9", "10.77.0.1")), make([]byte, 18)...)},
		{"ARP for us, unicast", true, layersOf(t, ethernet(mac, arp), arpOf(request, "10.77.0.9", "192.0.2.200"))},
		{"ARP answer to us", true, layersOf(t, ethernet(mac, arp), arpOf(reply, "10.77.0.9", "10.77.0.1"))},
		{"ARP probe of our address", true, layersOf(t, ethernet(broadcast, arp), arpOf(request, "0.0.0.0", "10.77.0.1"))},
		{"ARP announcement of our address", true, layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.1", "10.77.0.1"))},
		{"ARP announcement of our address, as an answer", true, layersOf(t, ethernet(broadcast, arp), arpOf(reply, "10.77.0.1", "10.77.0.1"))},
		{"ARP answer to our probe", true, layersOf(t, ethernet(mac, arp), arpOf(reply, "10.77.0.1", "0.0.0.0"))},
		{"ARP for the kernel", false, layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.9", "10.77.0.3"))},
		{"ARP answer to the kernel", false, layersOf(t, ethernet(mac, arp), arpOf(reply, "10.77.0.9", "10.77.0.3"))},
		{"ARP for the kernel from who took our address", false, layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.1", "10.77.0.3"))},
		{"ARP answer to the kernel from who took our address", false, layersOf(t, ethernet(mac, arp), arpOf(reply, "10.77.0.1", "10.77.0.3"))},
		{"ARP announcement of another's address", false, layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.9", "10.77.0.9"))},
		{"ARP answer to the kernel's probe", false, layersOf(t, ethernet(mac, arp), arpOf(reply, "10.77.0.9", "0.0.0.0"))},
		{"ARP of other hardware", false, layersOf(t, ethernet(broadcast, arp), wrongKind)},
		{"ARP for no IPv4", false, layersOf(t, ethernet(broadcast, arp), wrongKind6)},
		{"ARP for us, cut short", false, layersOf(t, ethernet(broadcast, arp), arpOf(request, "10.77.0.9", "10.77.0.1"))[:41]},

		{"IPv6 to us", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, tcp), data)},
		{"IPv6 to us, link-local", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrLink6, tcp), data)},
		{"IPv6 to us, high address", true, layersOf(t, ethernet(mac, ip6), ipv6To("2001:db8:8000::ffff:fffe", tcp), data)},
		{"IPv6 to us, extension header", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, layers.IPProtocolIPv6HopByHop), gopacket.Payload(hopByHop))},
		{"IPv6 to us, fragment", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, layers.IPProtocolIPv6Fragment), gopacket.Payload(fragment6))},
		{"IPv6 to us, nothing in it", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, layers.IPProtocolNoNextHeader))},
		{"IPv6 to the kernel", false, layersOf(t, ethernet(mac, ip6), ipv6To("fd77::3", tcp), data)},
		{"IPv6 to the kernel, same beginning", false, layersOf(t, ethernet(mac, ip6), ipv6To("fd77::8000:0:0:1", tcp), data)},
		{"IPv6 to the kernel, same end", false, layersOf(t, ethernet(mac, ip6), ipv6To("fd78::1", tcp), data)},
		{"IPv6 to us, cut short", false, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, tcp))[:53]},
		{"solicitation for us", true, layersOf(t, ethernet(mcast("ff02::1:ff00:1"), ip6), ipv6To("ff02::1:ff00:1", icmp), icmpv6(ns, addrA6))},
		{"solicitation for us, link-local", true, layersOf(t, ethernet(mcast("ff02::1:ff77:1"), ip6), ipv6To("ff02::1:ff77:1", icmp), icmpv6(ns, addrLink6))},
		{"solicitation for us, unicast", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, icmp), icmpv6(ns, addrA6))},
		{"advertisement to us", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, icmp), icmpv6(na, "fd77::9"))},
		{"advertisement of our address to all", true, layersOf(t, ethernet(mcast("ff02::1"), ip6), ipv6To("ff02::1", icmp), icmpv6(na, addrA6))},
		{"echo to us", true, layersOf(t, ethernet(mac, ip6), ipv6To(addrA6, icmp), icmpv6(128, "::"))},
		{"solicitation for the kernel", false, layersOf(t, ethernet(mcast("ff02::1:ff00:3"), ip6), ipv6To("ff02::1:ff00:3", icmp), icmpv6(ns, "fd77::3"))},
		{"solicitation for the kernel in our group", false, layersOf(t, ethernet(mcast("ff02::1:ff00:1"), ip6), ipv6To("ff02::1:ff00:1", icmp), icmpv6(ns, "fd78::1"))},
		{"advertisement to the kernel", false, layersOf(t, ethernet(mac, ip6), ipv6To("fd77::3", icmp), icmpv6(na, addrA6))},
		{"advertisement of another's address to all", false, layersOf(t, ethernet(mcast("ff02::1"), ip6), ipv6To("ff02::1", icmp), icmpv6(na, "fd77::9"))},
		{"router advertisement", false, layersOf(t, ethernet(mcast("ff02::1"), ip6), ipv6To("ff02::1", icmp), icmpv6(134, addrA6))},
		{"multicast, not ICMP", false, layersOf(t, ethernet(mcast("ff02::1:ff00:1"), ip6), ipv6To("ff02::1:ff00:1", tcp), icmpv6(ns, addrA6))},
		{"solicitation for us, cut short", false, layersOf(t, ethernet(mcast("ff02::1:ff00:1"), ip6), ipv6To("ff02::1:ff00:1", icmp), icmpv6(ns, addrA6)[:23])},
	}
	binary.BigEndian.PutUint16(cases[17].frame[12:], 46) // a length, not a type
	return cases
}

// steers asks the kernel what the program makes of a frame.
func steers(t testing.TB, prog *ebpf.Program, frame []byte) (ours bool) {
	t.Helper()
	const redirect = 4
	ret, err := prog.Run(&ebpf.RunOptions{Data: frame})
	require.NoError(t, err)
	require.Contains(t, []uint32{xdpPass, redirect}, ret)
	return ret == redirect
}

// model says the same as the program, in Go.
func model(b []byte, mac [6]byte, addrs []netip.Addr) bool {
	has := func(at, n int) bool {
		a, ok := netip.AddrFromSlice(b[at : at+n])
		return ok && slices.Contains(addrs, a)
	}
	if len(b) < 34 || [6]byte(b) != mac && b[0]&1 == 0 {
		return false
	}
	switch binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		return has(30, 4)
	case 0x0806:
		if len(b) < 42 || string(b[14:20]) != "\x00\x01\x08\x00\x06\x04" {
			return false
		}
		return has(38, 4) || [4]byte(b[38:]) == [4]byte{} && has(28, 4)
	case 0x86dd:
		if len(b) < 54 {
			return false
		}
		return has(38, 16) || len(b) >= 78 && b[20] == 58 && b[38] == 0xff && (b[54] == 135 || b[54] == 136) && has(62, 16)
	}
	return false
}

func TestXDPProgramSteers(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	p := openXDP(t, XDPConfig{Interface: vethA, Addrs: steerAddrs})
	for _, c := range steerCases(t, p.link.Addr) {
		require.Equal(t, c.ours, steers(t, p.prog, c.frame), c.name)
		require.Equal(t, c.ours, model(c.frame, p.link.Addr, steerAddrs), "the model: %s", c.name)
	}
}

// The program and the model agree on frames that are damaged and cut in all ways.
func TestXDPProgramSteersDamagedFrames(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	many := slices.Clone(steerAddrs)
	for i := byte(0); len(many) < maxXDPAddrs; i++ {
		many = append(many, netip.AddrFrom4([4]byte{10, i, 255, 128}))
	}
	r := rand.New(rand.NewPCG(5, 6))
	for _, addrs := range [][]netip.Addr{steerAddrs, {addrA}, {netip.MustParseAddr(addrA6)}, many} {
		p, err := OpenXDP(XDPConfig{Interface: vethA, Addrs: addrs, RxFrames: 64, TxFrames: 64})
		leaveOut(t, err)
		require.NoError(t, err)
		cases := steerCases(t, p.link.Addr)
		var yes, no int
		for range 4000 {
			b := slices.Clone(cases[r.IntN(len(cases))].frame)
			for range r.IntN(3) {
				b[r.IntN(len(b))] ^= 1 << r.IntN(8)
			}
			if r.IntN(4) == 0 {
				b = b[:EthernetHeader+r.IntN(len(b)-EthernetHeader+1)]
			}
			want := model(b, p.link.Addr, addrs)
			require.Equal(t, want, steers(t, p.prog, b), "%x", b)
			if want {
				yes++
			} else {
				no++
			}
		}
		require.Greater(t, min(yes, no), 100)
		require.NoError(t, p.Close())
	}
}

// Every frame reaches the port or the kernel, never both and never neither.
func TestXDPSteersTraffic(t *testing.T) {
	xdpModes(t, func(t *testing.T, mode XDPMode) {
		enterNetns(t)
		newVeth(t, 1500)
		p := openXDP(t, XDPConfig{Interface: vethA, Addrs: steerAddrs, Mode: mode})
		kernel := openPacket(t, PacketConfig{Interface: vethA, Promiscuous: true}) // sees what the program lets pass
		peer := openPacket(t, PacketConfig{Interface: vethB})
		marks := map[bool]end{true: {p, addrA}, false: {kernel, addrB}}
		for _, c := range steerCases(t, p.link.Addr) {
			_, err := peer.Send(one(c.frame))
			require.NoError(t, err)
			// What comes next tells that there is nothing else.
			for ours, e := range marks {
				_, err := peer.Send(one(ipFrame(p.link.Addr, peer.link.Addr, e.addr, 60)))
				require.NoError(t, err)
				got := untilMark(t, e)
				switch {
				case c.name == "VLAN" && !ours:
					require.EqualValues(t, 1, kernel.Stats().RxTagged, "seen, and counted in place of passed on")
				case ours == c.ours:
					require.Contains(t, got, string(c.frame), c.name)
				default:
					require.NotContains(t, got, string(c.frame), c.name)
				}
			}
		}
	})
}

// untilMark receives frames up to one of ipFrame's.
func untilMark(t *testing.T, p Port) (got []string) {
	t.Helper()
	batch := make([]Frame, 1)
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); {
		n, err := p.Recv(batch, time.Until(until))
		require.NoError(t, err)
		if n == 1 {
			if isIPFrame(&batch[0]) {
				return got
			}
			got = append(got, string(octets(&batch[0])))
		}
	}
	require.Fail(t, "no mark came")
	return nil
}
