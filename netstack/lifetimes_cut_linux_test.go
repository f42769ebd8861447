package netstack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/softrdma/softrdma/pktio"
)

// setLink sets an interface up or down.
func setLink(t testing.TB, name string, up bool) {
	l, err := netlink.LinkByName(name)
	require.NoError(t, err)
	if up {
		require.NoError(t, netlink.LinkSetUp(l))
	} else {
		require.NoError(t, netlink.LinkSetDown(l))
	}
}

// An interface that goes down and comes back, ours or the peer's, is a cut link and no more, on the kernel's TCP too.
func TestInterfaceIsDownForAWhile(t *testing.T) {
	for _, c := range []struct {
		name    string
		kernelA bool
		down    string
		d       time.Duration
	}{
		{name: "ours", down: vethA, d: time.Second},
		{name: "the peer's", down: vethB, d: time.Second},
		{name: "of a peer of the kernel's", kernelA: true, down: vethB, d: 4 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			enter := enterNetns(t)
			addVeth(t, vethA, vethB, 1500)
			open := func(name string, addr netip.Addr) *Stack {
				port, err := pktio.OpenPacket(pktio.PacketConfig{Interface: name, DownGrace: time.Minute})
				require.NoError(t, err)
				s, err := New(port, Config{Addrs: []netip.Prefix{netip.PrefixFrom(addr, 24)}})
				require.NoError(t, err)
				return s
			}
			p := &pair{t: t, fam: inet4, addrA: addrA, addrB: addrB, enter: enter, windowMost: 64 << 20}
			if c.kernelA {
				p.a = newHost(t, newVethStack(t, vethA, netip.PrefixFrom(addrA, 24), Config{}, true, false))
			} else {
				p.a = newHost(t, open(vethA, addrA))
			}
			p.b = newHost(t, open(vethB, addrB))
			t.Cleanup(p.close)
			first := p.throughCut(c.d, func(down bool) { setLink(t, c.down, !down) })
			t.Logf("in use again after %v", first.Round(time.Millisecond))
			require.Less(t, first, 10*time.Second)
			require.NoError(t, p.a.Err())
			require.NoError(t, p.b.Err())
		})
	}
}
