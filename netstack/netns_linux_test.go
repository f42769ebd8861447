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
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/pktio"
)

const vethA, vethB = "sr-netstack-a", "sr-netstack-b"

// vethCarriers run over a veth pair in a network namespace of their own: both ends ours, and the kernel's TCP at
// either end. They need root.
func vethCarriers(fam family) []carrier {
	over := func(name string, mtu int, kernelA, kernelB bool) carrier {
		return carrier{"veth" + fam.name + "/" + name, func(t testing.TB, c Config) *pair {
			return newVethPair(t, fam, mtu, c, kernelA, kernelB)
		}}
	}
	return []carrier{
		over("ours", 1500, false, false),
		over("no-offload", 0, false, false),
		over("to-kernel", 1500, false, true),
		over("from-kernel", 9000, true, false),
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
func newVethPair(t testing.TB, fam family, mtu int, c Config, kernelA, kernelB bool) *pair {
	if kernelA && portable {
		t.Skip("LEFT OUT: the portable carrier dials on any thread, and so outside of the test's namespace")
	}
	enter := enterNetns(t)
	addVeth(t, vethA, vethB, max(mtu, 1500))
	p := &pair{t: t, fam: fam, addrA: fam.a, addrB: fam.b, enter: enter, windowMost: 64 << 20}
	p.a = newHost(t, newVethStack(t, vethA, netip.PrefixFrom(fam.a, fam.bits), c, kernelA, mtu == 0))
	p.b = newHost(t, newVethStack(t, vethB, netip.PrefixFrom(fam.b, fam.bits), c, kernelB, mtu == 0))
	t.Cleanup(p.close)
	return p
}

// addVeth makes a veth pair and waits until it is up.
func addVeth(t testing.TB, a, b string, mtu int) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a, mtu
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: b, PeerMTU: uint32(mtu)}))
	for _, name := range []string{"lo", a, b} {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
	}
	awaitUp(t, a)
}

func upLoopback(t testing.TB) {
	l, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(l))
}

func awaitUp(t testing.TB, name string) {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		require.True(t, time.Now().Before(end), "the veth does not come up")
	}
}

// addAddr gives the kernel an address on an interface, at once.
func addAddr(t testing.TB, name string, addr netip.Prefix) {
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	at, err := netlink.ParseAddr(addr.String())
	require.NoError(t, err)
	if addr.Addr().Is6() {
		sysctl(t, "ipv6/conf/"+name+"/disable_ipv6", "0")
		at.Flags = unix.IFA_F_NODAD
	}
	require.NoError(t, netlink.AddrReplace(l, at))
}

// sysctl sets a variable of the test's network namespace.
func sysctl(t testing.TB, name, value string) {
	require.NoError(t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0))
}

func newVethStack(t testing.TB, name string, addr netip.Prefix, c Config, kernel, plain bool) *Stack {
	if kernel {
		addAddr(t, name, addr)
		s, err := NewKernel(kernelConfig(c))
		require.NoError(t, err)
		return s
	}
	port, err := pktio.OpenPacket(pktio.PacketConfig{Interface: name, NoOffload: plain})
	require.NoError(t, err)
	c.Addrs = []netip.Prefix{addr}
	s, err := New(port, c)
	require.NoError(t, err)
	return s
}

// The kernel hands us frames whose checksum is not finished, and super-frames; it takes ours the same way.
func TestKernelPeerOffloads(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		p := newVethPair(t, fam, 1500, Config{}, false, true)
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
		require.Less(t, st.FramesOut, st.OctetsOut/3000, "super-frames leave")
		require.Less(t, st.FramesIn, st.OctetsIn/3000, "super-frames arrive")
		require.Equal(t, 1500-fam.headers()-40, ca.MSS())
		require.InDelta(t, 1500-fam.headers()-12, cb.MSS(), 12)
		if fam == inet4 {
			require.Zero(t, st.DropsIn) // with IPv6 the kernel has groups of its own to tell of
		}
	})
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

	upLoopback(t)
	addAddr(t, "lo", netip.MustParsePrefix("10.77.0.1/24"))
	_, err = NewClaim("lo", addr)
	require.ErrorIs(t, err, ErrKernelAddr)
}
