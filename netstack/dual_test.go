package netstack

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// dualPair has two hosts with addresses of both families each.
func dualPair(t *testing.T, a, b []netip.Prefix) (ha, hb *host) {
	t.Helper()
	pa, pb, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	sa, err := New(pa, Config{Addrs: a})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sa.Close()) })
	sb, err := New(pb, Config{Addrs: b})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sb.Close()) })
	return newHost(t, sa), newHost(t, sb)
}

func prefixes(list ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(list))
	for i, s := range list {
		ps[i] = netip.MustParsePrefix(s)
	}
	return ps
}

// dial connects a to an address of b and returns both ends. It returns nil and the error if that fails.
func dial(t *testing.T, a, b *host, l *Listener, local, to netip.Addr) (ca, cb *Conn, err error) {
	t.Helper()
	ca, err = a.Dial(local, netip.AddrPortFrom(to, l.Addr().Port()))
	if err != nil {
		return nil, nil, err
	}
	ok := false
	until(t, "connect", func() bool { ok, err = ca.Connected(); return ok || err != nil }, a, b)
	if err != nil {
		ca.Close()
		return nil, nil, err
	}
	until(t, "accept", func() bool { cb, ok = l.Accept(); return ok }, a, b)
	return ca, cb, nil
}

// hello sends octets both ways and ends the connection.
func hello(t *testing.T, a, b *host, ca, cb *Conn) {
	t.Helper()
	require.Equal(t, 5000, send(t, ca, 0, 0, 5000))
	require.Equal(t, 5000, send(t, cb, 1, 0, 5000))
	ka, kb := checker{stream: 1}, checker{}
	until(t, "octets both ways", func() bool {
		require.NoError(t, ka.receive(t, ca))
		require.NoError(t, kb.receive(t, cb))
		return ka.at == 5000 && kb.at == 5000
	}, a, b)
	ca.Abort()
	cb.Abort()
}

func TestListenOnBothFamilies(t *testing.T) {
	check := func(t *testing.T, a, b *host, own4, four, six netip.Addr) {
		for _, at := range []netip.Addr{{}, netip.IPv6Unspecified()} {
			l, err := b.Listen(netip.AddrPortFrom(at, 0), 4)
			require.NoError(t, err)
			require.Equal(t, netip.IPv6Unspecified(), l.Addr().Addr())
			require.NotZero(t, l.Addr().Port())
			for _, to := range []netip.Addr{four, six} {
				ca, cb, err := dial(t, a, b, l, netip.Addr{}, to)
				require.NoError(t, err)
				require.Equal(t, to, cb.LocalAddr().Addr())
				require.Equal(t, ca.LocalAddr(), cb.RemoteAddr())
				require.Equal(t, to.Is4(), cb.RemoteAddr().Addr().Is4(), "no IPv4 address in IPv6 clothing")
				hello(t, a, b, ca, cb)
				_, err = b.Listen(netip.AddrPortFrom(to, l.Addr().Port()), 1)
				require.ErrorIs(t, err, syscall.EADDRINUSE)
			}
			require.NoError(t, l.Close())
		}
		for _, c := range []struct{ at, in, out netip.Addr }{
			{netip.IPv4Unspecified(), four, six},
			{four, four, six},
			{six, six, four},
		} {
			l, err := b.Listen(netip.AddrPortFrom(c.at, 0), 4)
			require.NoError(t, err)
			require.Equal(t, c.at, l.Addr().Addr())
			ca, cb, err := dial(t, a, b, l, netip.Addr{}, c.in)
			require.NoError(t, err)
			hello(t, a, b, ca, cb)
			_, _, err = dial(t, a, b, l, netip.Addr{}, c.out)
			require.ErrorIs(t, err, syscall.ECONNREFUSED, "%v is not listened on", c.out)
			other, err := b.Listen(netip.AddrPortFrom(c.out, l.Addr().Port()), 4)
			require.NoError(t, err, "the port is free for the other family")
			require.NoError(t, other.Close())
			require.NoError(t, l.Close())
		}
		_, err := a.Dial(own4, netip.AddrPortFrom(six, 1))
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		require.ErrorContains(t, err, "which is IPv4")
	}
	t.Run("user", func(t *testing.T) {
		a, b := dualPair(t, prefixes("10.77.0.1/24", "fd77::1/64"), prefixes("fd77::2/64", "10.77.0.2/24", "10.78.0.2/24", "fd78::2/64"))
		check(t, a, b, inet4.a, inet4.b, inet6.b)
	})
	t.Run("kernel", func(t *testing.T) {
		p := newKernelPair(t, inet6, Config{})
		check(t, p.a, p.b, inet4.lo, inet4.lo, inet6.lo)
	})
	t.Run("IPv4 alone", func(t *testing.T) {
		p := newUserPair(t, pipe1500, Config{})
		for _, at := range []netip.Addr{{}, netip.IPv6Unspecified()} {
			l, err := p.b.Listen(netip.AddrPortFrom(at, 0), 4)
			require.NoError(t, err)
			require.Equal(t, netip.IPv4Unspecified(), l.Addr().Addr())
			p.connectTo(l)
			require.NoError(t, l.Close())
		}
	})
	t.Run("IPv6 alone", func(t *testing.T) {
		p := newUserPairOf(t, inet6, pipe1500, Config{})
		l, err := p.b.Listen(netip.AddrPort{}, 4)
		require.NoError(t, err)
		require.Equal(t, netip.IPv6Unspecified(), l.Addr().Addr())
		p.connectTo(l)
	})
}

// Which of several addresses a connection has: the one of the peer's network.
func TestChoosesAddress(t *testing.T) {
	a, b := dualPair(t,
		prefixes("10.77.0.1/24", "10.78.0.1/24", "fd77::1/64", "fd78::1/64", "fe80::1/64"),
		prefixes("10.77.0.2/24", "10.78.0.2/24", "fd77::2/64", "fd78::2/64", "fe80::2/64"))
	l, err := b.Listen(netip.AddrPort{}, 8)
	require.NoError(t, err)
	for to, from := range map[string]string{
		"10.77.0.2": "10.77.0.1", "10.78.0.2": "10.78.0.1", "fd77::2": "fd77::1", "fd78::2": "fd78::1", "fe80::2": "fe80::1%pipe-a",
	} {
		ca, cb, err := dial(t, a, b, l, netip.Addr{}, netip.MustParseAddr(to))
		require.NoError(t, err)
		require.Equal(t, from, ca.LocalAddr().Addr().String())
		hello(t, a, b, ca, cb)
	}
	ca, cb, err := dial(t, a, b, l, netip.MustParseAddr("fd78::1"), netip.MustParseAddr("fd78::2"))
	require.NoError(t, err)
	hello(t, a, b, ca, cb)

	// The smaller network, and the gateway's.
	w := newWire(t, Config{
		Addrs:    prefixes("10.1.2.3/8", "10.78.0.1/24", "10.77.0.1/24", "10.77.0.9/16"),
		Gateways: []netip.Addr{netip.MustParseAddr("10.78.0.254")},
	})
	for to, from := range map[string]string{
		"10.77.0.2": "10.77.0.1", "10.77.5.2": "10.77.0.9", "10.9.9.9": "10.1.2.3", "192.0.2.1": "10.78.0.1",
	} {
		c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(netip.MustParseAddr(to), 1))
		require.NoError(t, err)
		require.Equal(t, from, c.LocalAddr().Addr().String(), "to %s", to)
		c.Abort()
	}
}

func TestLinkLocal(t *testing.T) {
	a, b := dualPair(t, prefixes("fe80::1/64", "fd77::1/64"), prefixes("fe80::2/64", "fd77::2/64"))
	addr := netip.MustParseAddr
	l, err := b.Listen(netip.AddrPortFrom(addr("fe80::2"), 0), 4)
	require.NoError(t, err)
	require.Equal(t, addr("fe80::2%pipe-b"), l.Addr().Addr())
	for _, to := range []string{"fe80::2", "fe80::2%pipe-a"} {
		for _, from := range []netip.Addr{{}, addr("fe80::1"), addr("fe80::1%pipe-a")} {
			ca, cb, err := dial(t, a, b, l, from, addr(to))
			require.NoError(t, err)
			require.Equal(t, addr("fe80::2%pipe-a"), ca.RemoteAddr().Addr())
			require.Equal(t, addr("fe80::1%pipe-a"), ca.LocalAddr().Addr())
			require.Equal(t, addr("fe80::1%pipe-b"), cb.RemoteAddr().Addr(), "seen from the other side")
			require.Equal(t, addr("fe80::2%pipe-b"), cb.LocalAddr().Addr())
			hello(t, a, b, ca, cb)
		}
	}
	_, _, err = dial(t, a, b, l, netip.Addr{}, addr("fd77::2"))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, l.Close())
	l, err = b.Listen(netip.AddrPortFrom(addr("fe80::2%pipe-b"), 0), 4)
	require.NoError(t, err)
	require.NoError(t, l.Close())

	_, err = a.Dial(netip.Addr{}, netip.AddrPortFrom(addr("fe80::2%eth7"), 1))
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorContains(t, err, "fe80::2%pipe-a")
	_, err = a.Dial(addr("fe80::1%eth7"), netip.AddrPortFrom(addr("fe80::2"), 1))
	require.ErrorContains(t, err, "eth7")
	_, err = b.Listen(netip.AddrPortFrom(addr("fe80::2%eth7"), 1), 1)
	require.ErrorContains(t, err, "eth7")
	_, err = b.Listen(netip.AddrPortFrom(addr("fe80::3"), 1), 1)
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
	// A zone means nothing elsewhere.
	c, err := a.Dial(netip.Addr{}, netip.AddrPortFrom(addr("fd77::2%eth7"), 1))
	require.NoError(t, err)
	require.Equal(t, addr("fd77::2"), c.RemoteAddr().Addr())
	c.Abort()

	p := newUserPairOf(t, inet6, pipe1500, Config{})
	_, err = p.a.Dial(netip.Addr{}, netip.AddrPortFrom(addr("fe80::2"), 1))
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorContains(t, err, "no link-local address")
	w := newWire(t, Config{Addrs: prefixes("fe80::1/64"), Gateways: []netip.Addr{addr("fe80::fe")}})
	_, err = w.h.Dial(netip.Addr{}, netip.AddrPortFrom(inet6.far, 1))
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorContains(t, err, "but link-local ones")
}
