package pktio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// openShielded opens a port whose packets the kernel's IP does not get.
func openShielded(t testing.TB, name string, addrs ...netip.Addr) *Packet {
	t.Helper()
	p := openPacket(t, PacketConfig{Interface: name, Addrs: addrs})
	if m := p.Mode(); strings.Contains(m, "takes Linux 6.6") || strings.Contains(m, "outside of a user namespace") {
		t.Skip("LEFT OUT:", m)
	}
	require.Equal(t, "the kernel's IP does not get our packets", p.Mode())
	return p
}

// shields counts the programs at the tcx ingress of an interface.
func shields(t testing.TB, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	r, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENOENT) { // there never was one
		return 0
	}
	require.NoError(t, err)
	return len(r.Programs)
}

// ipTap is a socket that gets the frames of one protocol from where the kernel's IP gets them, after tcx.
type ipTap struct{ fd int }

func newIPTap(t testing.TB, name string, proto uint16) *ipTap {
	t.Helper()
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(proto), Ifindex: l.Attrs().Index}))
	return &ipTap{fd}
}

// until returns the lengths of the frames that come before one of n octets.
func (p *ipTap) until(t testing.TB, n int) (lengths []int) {
	t.Helper()
	b := make([]byte, 1<<17)
	for {
		got, err := unix.Read(p.fd, b)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		require.NoError(t, err)
		if got == n {
			return lengths
		}
		lengths = append(lengths, got)
	}
}

// The port gets what is for it, and the kernel's IP all else.
func TestPacketShield(t *testing.T) {
	enterNetns(t)
	newVeth(t, 9000)
	ours := []netip.Addr{addrA, netip.MustParseAddr(addrA6), netip.MustParseAddr("10.77.0.3"), netip.MustParseAddr("fd77::3")}
	a, b := openShielded(t, vethA, ours...), openPacket(t, PacketConfig{Interface: vethB})
	require.Equal(t, 1, shields(t, vethA))
	mac, group := a.link.Addr, [6]byte{0x33, 0x33, 0, 0, 0, 1}
	stray := mac
	stray[5] ^= 1
	stray2 := mac
	stray2[0] ^= 4
	tagged := func(vid uint16, f []byte) []byte {
		return append(append(append([]byte{}, f[:12]...), 0x81, 0, byte(vid>>8), byte(vid)), f[12:]...)
	}
	for _, c := range []struct {
		name         string
		frame        func(to netip.Addr) []byte
		port, kernel bool
	}{
		{"ours", func(to netip.Addr) []byte { return packetTo(mac, to, 100) }, true, false},
		{"long, with no more than the Ethernet header in the first piece", func(to netip.Addr) []byte { return packetTo(mac, to, 8000) }, true, false},
		{"a neighbour's", func(to netip.Addr) []byte { return packetTo(mac, to.Next(), 101) }, false, true},
		{"from afar", func(to netip.Addr) []byte {
			x := to.AsSlice()
			x[0] ^= 1
			y, _ := netip.AddrFromSlice(x)
			return packetTo(mac, y, 102)
		}, false, true},
		{"to a group", func(to netip.Addr) []byte { return packetTo(group, to, 103) }, true, true},
		{"to everyone", func(to netip.Addr) []byte { return packetTo([6]byte{255, 255, 255, 255, 255, 255}, to, 104) }, true, true},
		{"to another station", func(to netip.Addr) []byte { return packetTo(stray, to, 105) }, false, true},
		{"to yet another", func(to netip.Addr) []byte { return packetTo(stray2, to, 106) }, false, true},
		{"on a VLAN", func(to netip.Addr) []byte { return tagged(5, packetTo(mac, to, 107)) }, false, true},
		{"too short for its kind", func(to netip.Addr) []byte { return packetTo(mac, to, 0)[:EthernetHeader+14] }, false, true},
	} {
		for i, to := range ours {
			proto := uint16(0x0800)
			if to.Is6() {
				proto = 0x86dd
			}
			kernel := newIPTap(t, vethA, proto)
			frame, last := c.frame(to), packetTo(group, to, 999+i) // the last is for both
			for _, f := range [][]byte{frame, last} {
				_, err := b.Send(one(f))
				require.NoError(t, err)
			}
			require.Equal(t, c.kernel, len(kernel.until(t, len(last))) == 1, "the kernel gets what is %s, %v", c.name, to)
			var got [][]byte
			for {
				f := recvProto(t, a, proto)
				if len(f) == len(last) {
					break
				}
				got = append(got, f)
			}
			require.Equal(t, c.port, len(got) == 1 && bytes.Equal(frame, got[0]), "the port gets what is %s, %v", c.name, to)
		}
	}
}

// On a router the kernel would send each of our packets on, or back.
func TestPacketShieldOnARouter(t *testing.T) {
	enterNetns(t)
	newVeth(t, 1500)
	set := func(name, value string) {
		require.NoError(t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
	}
	set("ipv4/ip_forward", "1")
	for _, name := range []string{"all", vethA} {
		set("ipv4/conf/"+name+"/rp_filter", "0")
	}
	// The way on is a third interface, behind which the kernel believes our addresses to be.
	const out, far = "sr-pktio-c", "sr-pktio-d"
	attrs := netlink.NewLinkAttrs()
	attrs.Name = out
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: far}))
	for _, name := range []string{"all", vethA, out} {
		set("ipv6/conf/"+name+"/disable_ipv6", "0")
		set("ipv6/conf/"+name+"/forwarding", "1")
	}
	setUp(t, out, true)
	setUp(t, far, true)
	awaitCarrier(t, out)
	way := func(to netip.Addr) {
		l, err := netlink.LinkByName(out)
		require.NoError(t, err)
		require.NoError(t, netlink.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(to.BitLen(), to.BitLen())},
		}))
		require.NoError(t, netlink.NeighAdd(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: to.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 7},
		}))
	}
	onward := newIPTap(t, far, unix.ETH_P_ALL)
	peer := openPacket(t, PacketConfig{Interface: vethB})
	open := openPacket(t, PacketConfig{Interface: vethA})
	require.Contains(t, open.Mode(), "the kernel's IP gets our packets too")
	send := func(to netip.Addr, n int) {
		frame := ipFrame(open.link.Addr, peer.link.Addr, to, n)
		if to.Is6() {
			tcp := tcpFrame(t, pattern(n-EthernetHeader-60), tcpOpts{v6: true, dst: open.link.Addr, src: peer.link.Addr})
			frame = octets(&tcp)
			frame[ipv6Dst-1] = 99 // from nobody here
			copy(frame[ipv6Dst:], to.AsSlice())
		}
		_, err := peer.Send(one(frame))
		require.NoError(t, err)
	}
	receive := func(p *Packet, proto uint16, n int) {
		for len(recvProto(t, p, proto)) != n {
		}
	}
	for _, c := range []struct {
		proto                  uint16
		first, second, another netip.Addr // the last is not ours
	}{
		{0x0800, addrA, netip.MustParseAddr("10.77.0.3"), netip.MustParseAddr("10.77.0.5")},
		{0x86dd, netip.MustParseAddr(addrA6), netip.MustParseAddr("fd77::3"), netip.MustParseAddr("fd77::5")},
	} {
		for _, to := range []netip.Addr{c.first, c.second, c.another} {
			way(to)
		}
		// forwarded tells how often the kernel sends a packet on. Another, which it always does, follows.
		forwarded := func(to netip.Addr, n int) (times int) {
			send(to, n)
			send(c.another, n+1)
			for _, got := range onward.until(t, n+1) {
				if got == n {
					times++
				}
			}
			return times
		}
		require.Equal(t, 1, forwarded(c.first, 200), "without the program")
		// Two ports, each with its own.
		p, q := openShielded(t, vethA, c.first), openShielded(t, vethA, c.second)
		require.Equal(t, 2, shields(t, vethA))
		require.Zero(t, forwarded(c.first, 202))
		require.Zero(t, forwarded(c.second, 204))
		receive(p, c.proto, 202)
		receive(q, c.proto, 204)
		require.NoError(t, p.Close())
		require.Equal(t, 1, shields(t, vethA))
		require.Equal(t, 1, forwarded(c.first, 206), "nobody's any more")
		require.Zero(t, forwarded(c.second, 208))
		receive(q, c.proto, 208)
		require.NoError(t, q.Close())
		require.Zero(t, shields(t, vethA))
		require.Equal(t, 1, forwarded(c.second, 210))
	}
}

// recvProto receives the next frame of a protocol and returns a copy of it.
func recvProto(t testing.TB, p *Packet, proto uint16) []byte {
	t.Helper()
	batch := make([]Frame, 1)
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
		n, err := p.Recv(batch, time.Second)
		require.NoError(t, err)
		if n == 1 {
			if b := octets(&batch[0]); binary.BigEndian.Uint16(b[12:]) == proto {
				return b
			}
		}
	}
	require.Fail(t, "no frame came")
	return nil
}

// Without the rights all else is as it was.
func TestPacketShieldWithoutRights(t *testing.T) {
	ns := enterNetns(t)
	newVeth(t, 1500)
	openShielded(t, vethA, addrA) // or there is nothing to lose
	peer := openPacket(t, PacketConfig{Interface: vethB})
	for _, missing := range []struct {
		bits []uint
		want string
	}{
		{[]uint{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, "the kernel's IP gets our packets too: keeping it from them takes CAP_BPF"},
		{[]uint{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}, "the kernel's IP gets our packets too: keeping it from them takes CAP_NET_ADMIN"},
		{[]uint{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_SYS_ADMIN}, "the kernel's IP gets our packets too: keeping it from them takes CAP_NET_ADMIN and CAP_BPF"},
	} {
		withRights(t, ns, func(has *[2]unix.CapUserData) {
			for _, bit := range missing.bits {
				has[bit/32].Effective &^= 1 << (bit % 32)
			}
		}, func() { unshielded(t, peer, missing.want) })
	}
}

func unshielded(t *testing.T, peer *Packet, want string) {
	p, err := OpenPacket(PacketConfig{Interface: vethA, Addrs: []netip.Addr{addrB}})
	if err != nil {
		t.Error(err)
		return
	}
	defer func() {
		_ = p.Close()
		_, _ = p.Recv(nil, 0) // gives the frame back
	}()
	if m := p.Mode(); m != want {
		t.Errorf("%q, not %q", m, want)
	}
	if _, err := peer.Send(one(ipFrame(p.link.Addr, peer.link.Addr, addrB, 100))); err != nil {
		t.Error(err)
	}
	batch := make([]Frame, 1)
	for until := time.Now().Add(20 * time.Second); ; {
		if n, err := p.Recv(batch, time.Second); err != nil || n == 1 && isIPFrame(&batch[0]) {
			if err != nil {
				t.Error(err)
			}
			return
		}
		if time.Now().After(until) {
			t.Error("no frame came")
			return
		}
	}
}

// Close takes the program off an interface that was moved away, and finds one that is gone in order.
func TestPacketShieldInterfaceGone(t *testing.T) {
	home := enterNetns(t)
	newVeth(t, 1500)
	p, q := openShielded(t, vethA, addrA), openShielded(t, vethB, addrB)
	other, err := netns.New()
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, netns.Set(home))
	l, err := netlink.LinkByName(vethA)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetNsFd(l, int(other)))
	require.NoError(t, p.Close())
	require.NoError(t, netns.Set(other))
	left := shields(t, vethA)
	require.NoError(t, netns.Set(home))
	require.Zero(t, left)

	l, err = netlink.LinkByName(vethB)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(l))
	require.NoError(t, q.Close())
}
