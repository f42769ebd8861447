package iwarp_test

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// wire makes a veth pair, sr-v0 and sr-v1, in a network namespace of its own
// and leaves the test's thread in it.
func wire(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("LEFT OUT: a network namespace takes root")
	}
	runtime.LockOSThread()
	host, err := netns.Get()
	require.NoError(t, err)
	ns, err := netns.New()
	if err != nil {
		t.Skip("LEFT OUT: no network namespace can be made here: " + err.Error())
	}
	t.Cleanup(func() {
		require.NoError(t, netns.Set(host))
		ns.Close()
		host.Close()
		runtime.UnlockOSThread()
	})
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "sr-v0"
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "sr-v1"}))
	for _, name := range []string{"sr-v0", "sr-v1"} {
		l, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetUp(l))
	}
}

func packet(iface, addr string) (*verbs.Device, error) {
	return iwarp.Open(context.Background(), iwarp.Config{
		Backend: iwarp.Packet, Interface: iface, Addrs: []netip.Prefix{netip.MustParsePrefix(addr)},
	})
}

func TestPacket(t *testing.T) {
	wire(t)
	a, err := packet("sr-v0", "10.77.0.1/24")
	require.NoError(t, err)
	b, err := packet("sr-v1", "10.77.0.2/24")
	require.NoError(t, err)
	closeAfter(t, a, b)
	require.Contains(t, iwarp.Explain(a), "; the kernel's IP ", "whether it gets our packets too")

	_, err = packet("sr-v0", "10.77.0.1/24")
	require.ErrorIs(t, err, netstack.ErrInUse, "a second stack with the same address")

	l := link{a, b, netip.MustParseAddr("10.77.0.2")}
	p := l.connect(t, arena, nil)
	fill(p.theirs.mr.Bytes(), 5)
	p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote})
	require.NoError(t, p.mine.wait(t, 1)[0].Err())
	require.Equal(t, string(p.theirs.mr.Bytes()), string(p.mine.mr.Bytes()))

	// The interface goes for good: everything ends, and says why.
	veth, err := netlink.LinkByName("sr-v0")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkDel(veth))
	for ev, err := range a.Events(within(t, 20*time.Second)) {
		require.NoError(t, err)
		if ev.Type == verbs.EventDeviceFatal {
			require.ErrorIs(t, ev.Err, syscall.ENETDOWN)
			break
		}
	}
	p.over(t)
	require.ErrorIs(t, p.mine.Err(), syscall.ENETDOWN)
}

func TestOpenPacketErrors(t *testing.T) {
	wire(t)
	l, err := netlink.LinkByName("sr-v1")
	require.NoError(t, err)
	addr, err := netlink.ParseAddr("10.78.0.9/24")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(l, addr))
	for _, c := range []struct {
		name string
		cfg  iwarp.Config
		want string
	}{
		{"no interface", iwarp.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}}, "needs a network interface"},
		{"no address", iwarp.Config{Interface: "sr-v1"}, "needs an address of its own"},
		{"an interface that is not there", iwarp.Config{Interface: "sr-v9", Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}}, "sr-v9"},
		{"an address of the host", iwarp.Config{Interface: "sr-v1", Addrs: []netip.Prefix{netip.MustParsePrefix("10.78.0.9/24")}}, "10.78.0.9"},
		{"too large an MTU", iwarp.Config{Interface: "sr-v1", MTU: 9000, Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}}, "9000"},
	} {
		c.cfg.Backend = iwarp.Packet
		_, err := iwarp.Open(context.Background(), c.cfg) // no t.Run: that would leave the namespace
		require.ErrorContains(t, err, c.want, c.name)
	}
	// Nothing was left behind by the attempts.
	d, err := packet("sr-v1", "10.77.0.1/24")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// Our own stack with addresses of both families: by IPv6, and by link-local addresses with their interface.
func TestPacketIPv6(t *testing.T) {
	wire(t)
	open := func(iface string, addrs ...string) *verbs.Device {
		c := iwarp.Config{Backend: iwarp.Packet, Interface: iface}
		for _, a := range addrs {
			c.Addrs = append(c.Addrs, netip.MustParsePrefix(a))
		}
		d, err := iwarp.Open(context.Background(), c)
		require.NoError(t, err)
		return d
	}
	a := open("sr-v0", "10.77.0.1/24", "fd77::1/64", "fe80::77/64")
	b := open("sr-v1", "10.77.0.2/24", "fd77::2/64", "fe80::78/64")
	closeAfter(t, a, b)
	for _, addr := range []string{"fd77::2", "fe80::78%sr-v1"} {
		l := link{a, b, netip.MustParseAddr(addr)}
		p := pair{newEnd(t, a, arena), newEnd(t, b, arena)}
		if addr == "fd77::2" {
			l.join(t, &p, nil)
			p.read(t)
			continue
		}
		lis, err := (&rdmacm.ListenConfig{Device: b}).Listen(within(t, 20*time.Second), "["+addr+"]:0")
		require.NoError(t, err)
		require.Equal(t, "fe80::77%sr-v1", l.meet(t, lis, "fe80::78%sr-v0").String())
		require.Equal(t, "fe80::77%sr-v1", l.meet(t, lis, "fe80::78").String())
		require.NoError(t, lis.Close())
	}
	lis, err := (&rdmacm.ListenConfig{Device: b}).Listen(within(t, 20*time.Second), ":0")
	require.NoError(t, err)
	defer lis.Close()
	l := link{a: a, b: b}
	require.Equal(t, "10.77.0.1", l.meet(t, lis, "10.77.0.2").String())
	require.Equal(t, "fd77::1", l.meet(t, lis, "fd77::2").String())
	_, err = (&rdmacm.Dialer{Device: a}).Dial(within(t, 20*time.Second), "[2001:db8::1]:7174")
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorContains(t, err, "--gw")
}
