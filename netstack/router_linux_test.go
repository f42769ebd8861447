package netstack

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/pktio"
)

const routerA, routerB = "sr-router-a", "sr-router-b"

// newLinuxRoutedPair puts a Linux router, a network namespace of its own, between a and b. far is the MTU of its link to
// b, which b does not know of. kernelB makes b the kernel's TCP.
func newLinuxRoutedPair(t *testing.T, fam family, far int, kernelB bool) *pair {
	enter := enterNetns(t)
	home, err := netns.Get()
	require.NoError(t, err)
	r, err := netns.New() // the thread is in it now
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.NoError(t, home.Close())
	})
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/default/disable_ipv6": "0",
		"ipv6/conf/default/accept_dad": "0", "ipv6/conf/all/forwarding": "1",
	} {
		sysctl(t, name, value)
	}
	require.NoError(t, netns.Set(home))

	p := &pair{t: t, fam: fam, addrA: fam.a, addrB: netip.MustParseAddr("10.88.0.2"), enter: enter}
	gateways := [2]netip.Addr{fam.gateway, netip.MustParseAddr("10.88.0.254")}
	if fam == inet6 {
		p.addrB, gateways[1] = netip.MustParseAddr("fd88::2"), netip.MustParseAddr("fd88::fe")
	}
	for i, ends := range [2][2]string{{vethA, routerA}, {vethB, routerB}} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = ends[0], 9000
		mtu := [2]int{9000, far}[i]
		require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: ends[1], PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(r)}))
		near, err := netlink.LinkByName(ends[0])
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(near))
		require.NoError(t, netns.Set(r))
		l, err := netlink.LinkByName(ends[1])
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
		require.Equal(t, mtu, l.Attrs().MTU)
		addAddr(t, ends[1], netip.PrefixFrom(gateways[i], fam.bits))
		if fam == inet6 {
			addAddr(t, ends[1], netip.MustParsePrefix("fe80::fe/64"))
		}
		require.NoError(t, netns.Set(home))
		awaitUp(t, ends[0])
	}
	open := func(name string, addr, gateway netip.Addr) *host {
		port, err := pktio.OpenPacket(pktio.PacketConfig{Interface: name})
		require.NoError(t, err)
		s, err := New(port, Config{Addrs: []netip.Prefix{netip.PrefixFrom(addr, fam.bits)}, Gateways: []netip.Addr{gateway}})
		require.NoError(t, err)
		return newHost(t, s)
	}
	if fam == inet6 {
		gateways[0] = netip.MustParseAddr("fe80::fe%" + vethA)
	}
	p.a = open(vethA, p.addrA, gateways[0])
	if kernelB {
		addAddr(t, vethB, netip.PrefixFrom(p.addrB, fam.bits))
		l, err := netlink.LinkByName(vethB)
		require.NoError(t, err)
		flags := 0
		if fam == inet6 {
			flags = unix.RTNH_F_ONLINK
		}
		require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateways[1].AsSlice(), Flags: flags}))
		s, err := NewKernel(KernelConfig{})
		require.NoError(t, err)
		p.b = newHost(t, s)
	} else {
		p.b = open(vethB, p.addrB, gateways[1])
	}
	t.Cleanup(p.close)
	return p
}

func TestRoutedByLinux(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for _, kernelB := range []bool{false, true} {
			t.Run(fmt.Sprintf("to kernel %v", kernelB), func(t *testing.T) {
				p := newLinuxRoutedPair(t, fam, 9000, kernelB)
				runEcho(t, p, 2, 1<<20)
			})
		}
	})
}

// A narrow link behind a Linux router. (Only a sends much: frames of b too long for the router's end of the veth get
// lost in it.)
func TestPathMTUByLinux(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for _, far := range []int{8000, 1500, 1280, 600} {
			if fam == inet6 && far < minMTU6 {
				continue
			}
			for _, kernelB := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d/to kernel %v", far, kernelB), func(t *testing.T) {
					p := newLinuxRoutedPair(t, fam, far, kernelB)
					ca, cb := p.exchange(4 << 20)
					require.Equal(t, far-fam.headers()-40, ca.MSS())
					require.Equal(t, p.addrA, cb.RemoteAddr().Addr())
					require.Positive(t, p.a.Stats().Retransmits)
				})
			}
		}
	})
}

// Below 552 octets IPv4 routers cut our packets themselves.
func TestPathMTUBelowLeastByLinux(t *testing.T) {
	p := newLinuxRoutedPair(t, inet4, 400, true)
	ca, _ := p.exchange(300_000)
	require.Equal(t, minPathMTU-80, ca.MSS())
}

// A host that is not there, behind a router that says so.
func TestNobodyBehindRouter(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		p := newLinuxRoutedPair(t, fam, 9000, false)
		start := time.Now()
		c, err := p.a.Dial(netip.Addr{}, netip.AddrPortFrom(p.addrB.Next(), 7))
		require.NoError(t, err)
		until(t, "failure", func() bool { _, err = c.Connected(); return err != nil }, p.a)
		if fam == inet4 {
			require.ErrorIs(t, err, unix.EHOSTUNREACH)
		} else {
			require.ErrorIs(t, err, unix.ENETUNREACH)
		}
		require.Less(t, time.Since(start), DefaultConnectTimeout)
		c.Close()
		// And a network that the router does not know.
		c, err = p.a.Dial(netip.Addr{}, netip.AddrPortFrom(fam.far, 7))
		require.NoError(t, err)
		until(t, "failure", func() bool { _, err = c.Connected(); return err != nil }, p.a)
		require.ErrorIs(t, err, unix.ENETUNREACH)
		c.Close()
	})
}
