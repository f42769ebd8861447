//go:build !netstack_portable

package netstack

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/pktio"
)

func TestKernelKeepaliveOptions(t *testing.T) {
	for _, c := range []struct {
		keep                             Keepalive
		on, idle, interval, count, total int
	}{
		{Keepalive{}, 1, 10, 10, 5, 60_000},
		{KeepaliveWithin(time.Second), 1, 1, 1, 1, 2_000}, // whole seconds
		{KeepaliveWithin(3 * time.Second), 1, 1, 1, 2, 3_000},
		{Keepalive{Idle: 90 * time.Second, Interval: 7 * time.Second, Count: 5}, 1, 90, 7, 5, 125_000},
		{Keepalive{Idle: -1}, 0, -1, -1, -1, 0},
	} {
		p := newKernelPair(t, inet4, Config{Keepalive: c.keep})
		ca, cb, _ := p.connect()
		for _, conn := range []*Conn{ca, cb} {
			for _, o := range []struct{ level, option, want int }{
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE, c.on}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, c.idle},
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, c.interval}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, c.count},
				{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, c.total},
			} {
				if o.want < 0 {
					continue // the system's own
				}
				got, err := unix.GetsockoptInt(conn.kern.fd, o.level, o.option)
				require.NoError(t, err)
				require.Equal(t, o.want, got, "option %d of %v", o.option, c.keep)
			}
		}
	}
}

// A kernel whose peer falls silent says so, idle or not, and our own end too.
func TestKernelSilentPeer(t *testing.T) {
	for name, write := range map[string]int{"idle": 0, "octets under way": 100_000} {
		t.Run(name, func(t *testing.T) {
			enter := enterNetns(t)
			addVeth(t, vethA, vethB, 1500)
			port, err := pktio.OpenPacket(pktio.PacketConfig{Interface: vethB})
			require.NoError(t, err)
			cut := pktio.NewFaulty(port, pktio.Faults{})
			c := soon
			c.Addrs = []netip.Prefix{netip.PrefixFrom(addrB, 24)}
			ours, err := New(cut, c)
			require.NoError(t, err)
			p := &pair{t: t, fam: inet4, addrA: addrA, addrB: addrB, enter: enter, windowMost: 64 << 20}
			p.a = newHost(t, newVethStack(t, vethA, netip.PrefixFrom(addrA, 24), soon, true, false))
			p.b = newHost(t, ours)
			t.Cleanup(p.close)

			ca, cb := p.exchange(1000)
			cut.Cut(true)
			if write > 0 {
				send(t, ca, 0, 1000, write)
				send(t, cb, 1, 0, write)
			}
			p.silent(ca, cb)
			require.EqualValues(t, 1, p.a.Stats().Silent)
			require.EqualValues(t, 1, p.b.Stats().Silent)
		})
	}
}
