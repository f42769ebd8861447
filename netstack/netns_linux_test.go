package netstack

import (
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/softrdma/softrdma/pktio"
)

const vethA, vethB = "sr-netstack-a", "sr-netstack-b"

// vethCarriers run over a veth pair in a network namespace of their own: both ends ours, and the kernel's TCP at
// either end. They need root.
func vethCarriers() []carrier {
	return []carrier{
		{"veth/ours", func(t testing.TB, c Config) *pair { return newVethPair(t, 1500, c, false, false) }},
		{"veth/no-offload", func(t testing.TB, c Config) *pair { return newVethPair(t, 0, c, false, false) }},
		{"veth/to-kernel", func(t testing.TB, c Config) *pair { return newVethPair(t, 1500, c, false, true) }},
		{"veth/from-kernel", func(t testing.TB, c Config) *pair { return newVethPair(t, 9000, c, true, false) }},
	}
}

// enterNetns moves the test into a network namespace of its own, which goes away with it, and returns what moves
// another goroutine there, for good.
func enterNetns(t testing.TB) (enter func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("LEFT OUT: network namespaces need root: run as root or under \"unshare -Urn\"")
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	require.NoError(t, err)
	ns, err := netns.New()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, netns.Set(home))
		require.NoError(t, ns.Close())
		require.NoError(t, home.Close())
		runtime.UnlockOSThread()
	})
	for _, which := range []string{"all", "default"} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
	}
	return func() {
		runtime.LockOSThread()
		_ = netns.Set(ns)
	}
}

// newVethPair makes a pair of stacks on a new veth pair. MTU 0 means 1500 without offloads.
func newVethPair(t testing.TB, mtu int, c Config, kernelA, kernelB bool) *pair {
	enter := enterNetns(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = vethA, max(mtu, 1500)
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: vethB}))
	for _, name := range []string{"lo", vethA, vethB} {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByName(vethA)
		require.NoError(t, err)
		if l.Attrs().OperState == netlink.OperUp {
			break
		}
		require.True(t, time.Now().Before(end), "the veth does not come up")
	}
	p := &pair{t: t, addrA: addrA, addrB: addrB, enter: enter, windowMost: 64 << 20}
	p.a = newHost(t, newVethStack(t, vethA, addrA, c, kernelA, mtu == 0))
	p.b = newHost(t, newVethStack(t, vethB, addrB, c, kernelB, mtu == 0))
	t.Cleanup(p.close)
	return p
}

func newVethStack(t testing.TB, name string, addr netip.Addr, c Config, kernel, plain bool) *Stack {
	if kernel {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		at, err := netlink.ParseAddr(netip.PrefixFrom(addr, 24).String())
		require.NoError(t, err)
		require.NoError(t, netlink.AddrAdd(l, at))
		s, err := NewKernel(kernelConfig(c))
		require.NoError(t, err)
		return s
	}
	port, err := pktio.OpenPacket(pktio.PacketConfig{Interface: name, NoOffload: plain})
	require.NoError(t, err)
	c.Addrs = []netip.Prefix{netip.PrefixFrom(addr, 24)}
	s, err := New(port, c)
	require.NoError(t, err)
	return s
}

// The kernel hands us frames whose checksum is not finished, and super-frames; it takes ours the same way.
func TestKernelPeerOffloads(t *testing.T) {
	p := newVethPair(t, 1500, Config{}, false, true)
	ca, cb := p.exchange(2 << 20)
	sent := 0
	k := checker{stream: 3}
	p.until("the way back", func() bool {
		sent += send(t, cb, 3, sent, min(2<<20-sent, 100_000))
		require.NoError(t, k.receive(t, ca))
		return k.at == 2<<20
	})
	st := p.a.Stats()
	require.Zero(t, st.ChecksumErrors)
	require.Zero(t, st.DropsIn)
	require.Less(t, st.FramesOut, st.OctetsOut/3000, "super-frames leave")
	require.Less(t, st.FramesIn, st.OctetsIn/3000, "super-frames arrive")
	require.Equal(t, 1420, ca.MSS())
	require.InDelta(t, 1448, cb.MSS(), 12)
}

func TestClaim(t *testing.T) {
	enterNetns(t)
	addr := netip.MustParseAddr("10.77.0.1")
	c, err := NewClaim("lo", addr)
	require.NoError(t, err)
	_, err = NewClaim("lo", addr)
	require.ErrorIs(t, err, ErrInUse)
	other, err := NewClaim("lo", netip.MustParseAddr("10.77.0.2"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	again, err := NewClaim("lo", addr)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoError(t, other.Close())

	_, err = NewClaim("sr-netstack-no", addr)
	require.Error(t, err)
	_, err = NewClaim("lo", netip.MustParseAddr("127.0.0.1"))
	require.Error(t, err)

	l, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(l))
	at, err := netlink.ParseAddr("10.77.0.1/24")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(l, at))
	_, err = NewClaim("lo", addr)
	require.ErrorIs(t, err, ErrKernelAddr)
}
