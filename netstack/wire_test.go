package netstack

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

func TestAnswersARPAndPing(t *testing.T) {
	w := newWire(t, Config{})
	mac := w.h.user.link.info.Addr
	request := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	request = append(append(request, wireMAC[:]...), addrB.AsSlice()...)
	request = append(append(request, make([]byte, 6)...), addrA.AsSlice()...)
	w.send(ethernet([6]byte{255, 255, 255, 255, 255, 255}, wireMAC, 0x0806), request)
	reply := w.recv("ARP reply", func(b []byte) bool { return binary.BigEndian.Uint16(b[12:]) == 0x0806 && b[21] == 2 })
	require.Equal(t, wireMAC[:], reply[:6])
	require.Equal(t, mac[:], reply[22:28])

	ping := append([]byte{8, 0, 0, 0, 1, 2, 0, 1}, "ping, ping, ping"...)
	binary.BigEndian.PutUint16(ping[2:], ^checksum.Checksum(ping, 0))
	w.send(ethernet(mac, wireMAC, 0x0800), ipPacket(addrB, addrA, 1, len(ping)), ping)
	pong := w.recv("echo reply", func(b []byte) bool { return b[23] == 1 && b[34] == 0 })
	require.Equal(t, ping[4:], pong[38:])
	require.EqualValues(t, 0xffff, checksum.Checksum(pong[34:], 0))
}

func TestDropsWhatIsNotForUs(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		mac := w.h.user.link.info.Addr
		ping := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
		ip := ipPacket(addrB, addrA, 1, len(ping))
		bad := bytes.Clone(ip)
		bad[8]++
		ping6 := []byte{128, 0, 0, 0, 0, 0, 0, 0}
		ip6 := ipPacket(inet6.b, inet6.a, 58, len(ping6))
		sumICMPv6(ip6, ping6)
		frames := [][]byte{
			joined(ethernet([6]byte{2, 9, 9, 9, 9, 9}, wireMAC, 0x0800), ip, ping),   // another host
			joined(ethernet([6]byte{2, 9, 9, 9, 9, 9}, wireMAC, 0x86dd), ip6, ping6), // another host
			joined(ethernet(mac, wireMAC, 0x8100), []byte{0, 1, 8, 0}, ip, ping),     // a VLAN
			joined(ethernet(mac, wireMAC, 0x0800), bad, ping),                        // IP checksum
			joined(ethernet(mac, wireMAC, 0x0800), ip[:10]),                          // cut off
			joined(ethernet(mac, wireMAC, 0x86dd), ip6[:39]),
			joined(ethernet(mac, wireMAC, 0x0800), []byte{0x43}, ip[1:], ping),                         // header length 12
			joined(ethernet(mac, wireMAC, 0x0800), []byte{0x4f}, ip[1:], ping),                         // header length 60
			joined(ethernet(mac, wireMAC, 0x86dd), []byte{0x40}, ip6[1:], ping6),                       // version 4
			joined(ethernet([6]byte{0x33, 0x33, 0xff, 0, 0, 9}, wireMAC, 0x86dd), ip6, ping6),          // the group of another address
			joined(ethernet([6]byte{0x33, 0x33, 0, 0, 0, 2}, wireMAC, 0x86dd), ip6, ping6),             // the group of routers
			joined(ethernet([6]byte{0x33, 0x33, 0, 1, 0, 2}, wireMAC, 0x86dd), ip6, ping6),             // the group of DHCP servers
			joined(ethernet([6]byte{255, 255, 255, 255, 255, 255}, wireMAC, 0x88cc), make([]byte, 46)), // LLDP
		}
		if fam == inet4 {
			frames = append(frames, joined(ethernet(mac, wireMAC, 0x86dd), ip6, ping6)) // nothing of IPv6 is ours
		} else {
			frames = append(frames, joined(ethernet(mac, wireMAC, 0x0800), ip, ping), joined(ethernet(mac, wireMAC, 0x0806), make([]byte, 28)))
		}
		for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
		}
		for i, frame := range frames {
			w.send(frame)
			until(t, fmt.Sprintf("drop %d", i), func() bool { return w.h.Stats().DropsIn == uint64(i+1) }, w.h)
		}
		n, err := w.port.Recv(w.in, 10*time.Millisecond)
		require.NoError(t, err)
		require.Zero(t, n, "none of them has an answer")
		if fam == inet4 {
			require.EqualValues(t, 1, w.h.Stats().ChecksumErrors)
			require.Zero(t, w.h.Stats().FramesOut)
		}
	})
}

func TestResetForUnknownPort(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		syn := header.TCPFields{SrcPort: 1000, DstPort: 2000, SeqNum: 99, Flags: header.TCPFlagSyn, WindowSize: 1000}
		w.sendTCP(syn, nil)
		w.resolve(fam.b)
		frame, rst := w.recvTCP("reset", nil)
		require.Equal(t, header.TCPFlags(header.TCPFlagRst|header.TCPFlagAck), rst.Flags())
		require.EqualValues(t, 100, rst.AckNumber())
		require.True(t, sumIsGood(frame))
		require.EqualValues(t, 1, w.h.Stats().ResetsOut)

		// A wrong checksum gets no answer.
		seg := tcpSegmentOf(fam.b, fam.a, syn, nil)
		seg[3]++
		w.sendIP(6, seg)
		time.Sleep(20 * time.Millisecond)
		require.EqualValues(t, 1, w.h.Stats().ResetsOut)
	})
}

func TestUnreachable(t *testing.T) {
	for _, fam := range []family{inet4, inet6} {
		t.Run("no answer to "+familyOf(fam.a), func(t *testing.T) {
			t.Parallel()
			w := newWireOf(t, fam, Config{})
			c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.b, 1))
			require.NoError(t, err)
			until(t, "failure", func() bool { _, err = c.Connected(); return err != nil && w.h.seen[c] > 0 }, w.h)
			require.ErrorIs(t, err, syscall.EHOSTUNREACH)
			c.Close()

			// The next attempt asks again.
			for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
			}
			c, err = w.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.b, 1))
			require.NoError(t, err)
			w.recv("the question", isWho(fam.b))
			c.Abort()
		})
	}
	t.Run("no route", func(t *testing.T) {
		bothFamilies(t, func(t *testing.T, fam family) {
			w := newWireOf(t, fam, Config{})
			_, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.far, 1))
			require.ErrorIs(t, err, syscall.ENETUNREACH)
			require.ErrorContains(t, err, "--gw")
			for _, a := range []string{"0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255"} {
				if a := netip.MustParseAddr(a); a.Is4() == fam.a.Is4() {
					_, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(a, 1))
					require.ErrorIs(t, err, syscall.ENETUNREACH, "%v", a)
				}
			}
			require.Zero(t, w.h.Stats().Conns)
		})
	})
	t.Run("other family", func(t *testing.T) {
		w := newWire(t, Config{})
		_, err := w.h.Dial(netip.Addr{}, netip.MustParseAddrPort("[2001:db8::1]:1"))
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		require.ErrorContains(t, err, "no IPv6 address: add one")
		_, err = w.h.Listen(netip.MustParseAddrPort("[fd77::1]:1"), 1)
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		w = newWireOf(t, inet6, Config{})
		_, err = w.h.Dial(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:1"))
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		require.ErrorContains(t, err, "no IPv4 address: add one")
		_, err = w.h.Dial(netip.Addr{}, netip.MustParseAddrPort("[::ffff:192.0.2.1]:1"))
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		_, err = w.h.Listen(netip.MustParseAddrPort("0.0.0.0:1"), 1)
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
	})
	t.Run("told by ICMP", func(t *testing.T) {
		for _, c := range []struct {
			fam       family
			typ, code byte
			want      error
		}{
			{inet4, 3, 0, syscall.ENETUNREACH},
			{inet4, 3, 1, syscall.EHOSTUNREACH},
			{inet4, 3, 3, syscall.ECONNREFUSED},
			{inet4, 3, 13, syscall.EHOSTUNREACH},
			{inet6, 1, 0, syscall.ENETUNREACH},
			{inet6, 1, 1, syscall.ENETUNREACH},
			{inet6, 1, 3, syscall.ENETUNREACH},
			{inet6, 1, 4, syscall.ECONNREFUSED},
		} {
			w := newWireOf(t, c.fam, Config{})
			conn, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(c.fam.b, 1))
			require.NoError(t, err)
			w.resolve(c.fam.b)
			frame, _ := w.recvTCP("SYN", nil)
			w.icmpError(c.typ, c.code, 0, frame[14:14+c.fam.headers()-12])
			until(t, "failure", func() bool { _, err = conn.Connected(); return err != nil && w.h.seen[conn] > 0 }, w.h)
			require.ErrorIs(t, err, c.want, "%+v", c)
			conn.Close()
		}
	})
}

func TestGateway(t *testing.T) {
	for _, c := range []struct {
		fam     family
		gateway string
	}{{inet4, "10.77.0.254"}, {inet6, "fd77::fe"}, {inet6, "fe80::fe"}, {inet6, "fe80::fe%pipe-a"}} {
		t.Run(c.gateway, func(t *testing.T) {
			gateway := netip.MustParseAddr(c.gateway)
			w := newWireOf(t, c.fam, Config{Gateways: []netip.Addr{gateway}})
			conn, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(c.fam.far, 7))
			require.NoError(t, err)
			w.resolve(gateway.WithZone(""))
			syn, _ := w.recvTCP("SYN", nil)
			require.Equal(t, wireMAC[:], syn[:6])
			to := syn[30:34]
			if c.fam == inet6 {
				to = syn[38:54]
			}
			require.Equal(t, c.fam.far.AsSlice(), to)
			conn.Abort()
		})
	}
	t.Run("of each family", func(t *testing.T) {
		w := newWire(t, Config{
			Addrs:    []netip.Prefix{netip.PrefixFrom(inet4.a, 24), netip.PrefixFrom(inet6.a, 64)},
			Gateways: []netip.Addr{inet6.gateway, inet4.gateway},
		})
		for _, fam := range []family{inet4, inet6} {
			w.fam = fam
			conn, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.far, 7))
			require.NoError(t, err)
			w.resolve(fam.gateway)
			w.recvTCP("SYN", nil)
			require.Equal(t, fam.a, conn.LocalAddr().Addr())
			conn.Abort()
		}
	})
}

func TestConnectTimeout(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{ConnectTimeout: 50 * time.Millisecond})
		c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.b, 1))
		require.NoError(t, err)
		w.resolve(fam.b)
		w.recvTCP("SYN", nil)
		until(t, "timeout", func() bool { _, err = c.Connected(); return err != nil && w.h.seen[c] > 0 }, w.h)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
		c.Close()
	})
}

// broken is a port that gives up.
type broken struct {
	pktio.Port
	err chan error
}

func (p *broken) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	select {
	case err := <-p.err:
		return 0, err
	default:
	}
	if wait < 0 {
		wait = time.Millisecond
	}
	for {
		n, err := p.Port.Recv(batch, wait)
		if n > 0 || err != nil || wait == 0 {
			return n, err
		}
		select {
		case err := <-p.err:
			return 0, err
		default:
		}
	}
}

func TestInterfaceGone(t *testing.T) {
	var bad *broken
	p, _ := newRecordedPair(t, pipe1500, Config{}, func(port pktio.Port) pktio.Port {
		bad = &broken{port, make(chan error, 1)}
		return bad
	})
	ca, cb := p.exchange(1000)
	_ = ca
	dialling, err := p.b.Dial(netip.Addr{}, netip.MustParseAddrPort("10.77.0.9:1"))
	require.NoError(t, err)
	require.NoError(t, p.b.Err())
	events := p.b.seen[cb]
	bad.err <- fmt.Errorf("gone: %w", syscall.ENETDOWN)
	p.until("the news", func() bool { return p.b.seen[cb] > events && p.b.seen[dialling] > 0 })
	_, err = cb.Peek()
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.ErrorIs(t, cb.Writev([][]byte{{1}}), syscall.ENETDOWN)
	_, err = dialling.Connected()
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.ErrorIs(t, p.b.Err(), syscall.ENETDOWN)
	cb.Abort()
	dialling.Abort()
}

func TestConfigErrors(t *testing.T) {
	addrs := func(list ...string) []netip.Prefix {
		var ps []netip.Prefix
		for _, s := range list {
			ps = append(ps, netip.MustParsePrefix(s))
		}
		return ps
	}
	gateways := func(list ...string) []netip.Addr {
		var as []netip.Addr
		for _, s := range list {
			as = append(as, netip.MustParseAddr(s))
		}
		return as
	}
	v4, v6 := addrs("10.0.0.1/24"), addrs("fd77::1/64")
	for name, c := range map[string]Config{
		"no address":             {},
		"invalid address":        {Addrs: []netip.Prefix{{}}},
		"multicast":              {Addrs: addrs("224.0.0.1/24")},
		"multicast 6":            {Addrs: addrs("ff02::1/64")},
		"loopback":               {Addrs: addrs("127.0.0.1/8")},
		"loopback 6":             {Addrs: addrs("::1/128")},
		"unspecified 6":          {Addrs: addrs("::/64")},
		"mapped":                 {Addrs: addrs("::ffff:10.0.0.1/120")},
		"twice":                  {Addrs: addrs("fd77::1/64", "fd77::1/64")},
		"far gateway":            {Addrs: v4, Gateways: gateways("10.0.1.1")},
		"far gateway 6":          {Addrs: v6, Gateways: gateways("fd78::1")},
		"two gateways":           {Addrs: v4, Gateways: gateways("10.0.0.2", "10.0.0.3")},
		"two gateways 6":         {Addrs: v6, Gateways: gateways("fe80::1", "fd77::3")},
		"gateway of none":        {Addrs: v4, Gateways: gateways("fe80::1")},
		"gateway of none 6":      {Addrs: v6, Gateways: gateways("10.0.0.2")},
		"gateway is us":          {Addrs: v6, Gateways: gateways("fd77::1")},
		"gateway is many":        {Addrs: v6, Gateways: gateways("ff02::2")},
		"gateway is nobody":      {Addrs: v6, Gateways: []netip.Addr{{}}},
		"gateway on other link":  {Addrs: v6, Gateways: gateways("fe80::1%eth7")},
		"far link-local gateway": {Addrs: v4, Gateways: gateways("169.254.0.1")},
		"small buffer":           {Addrs: v4, RecvBuffer: 1000},
		"large buffer":           {Addrs: v4, SendBuffer: MaxBuffer + 1},
		"recovery":               {Addrs: v4, Recovery: 9},
		"large MTU":              {Addrs: v4, MTU: 9000},
		"small MTU":              {Addrs: v4, MTU: 60},
		"small MTU 6":            {Addrs: v6, MTU: 1279},
		"small MTU for one":      {Addrs: append(addrs("10.0.0.1/24"), v6...), MTU: 1279},
	} {
		t.Run(name, func(t *testing.T) {
			near, far, err := pktio.NewPipe(pktio.PipeConfig{})
			require.NoError(t, err)
			defer far.Close()
			_, err = New(near, c)
			require.Error(t, err)
			_, err = near.Recv(nil, 0)
			require.ErrorIs(t, err, pktio.ErrClosed, "New takes the port, also when it fails")
		})
	}
	_, err := NewKernel(KernelConfig{RecvBuffer: -1})
	require.Error(t, err)
}

func TestStackKnowsItself(t *testing.T) {
	w := newWire(t, Config{})
	require.Equal(t, 1500, w.h.MTU())
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}, w.h.Addrs())
	both := []netip.Prefix{netip.MustParsePrefix("fd77::1/64"), netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("fe80::1/64")}
	require.Equal(t, both, newWire(t, Config{Addrs: both, MTU: 1280}).h.Addrs())
	k, err := NewKernel(KernelConfig{})
	require.NoError(t, err)
	defer k.Close()
	require.Zero(t, k.MTU())
	require.Contains(t, k.Addrs(), netip.MustParsePrefix("127.0.0.1/8"))
}
