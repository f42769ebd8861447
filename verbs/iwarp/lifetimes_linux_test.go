package iwarp_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// otherHost moves sr-v1 to a network namespace of its own, where the kernel has
// addrs.
func otherHost(t *testing.T, addrs ...string) {
	here, err := netns.Get()
	require.NoError(t, err)
	defer here.Close()
	there, err := netns.New() // which moves the thread there
	require.NoError(t, err)
	t.Cleanup(func() { there.Close() })
	require.NoError(t, netns.Set(here))
	l, err := netlink.LinkByName("sr-v1")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetNsFd(l, int(there)))
	h, err := netlink.NewHandleAt(there)
	require.NoError(t, err)
	defer h.Close()
	l, err = h.LinkByName("sr-v1")
	require.NoError(t, err)
	for _, addr := range addrs {
		at, err := netlink.ParseAddr(addr)
		require.NoError(t, err)
		at.Flags = unix.IFA_F_NODAD
		require.NoError(t, h.AddrAdd(l, at))
	}
	require.NoError(t, h.LinkSetUp(l))
}

func macOf(t *testing.T, name string) string {
	ifi, err := net.InterfaceByName(name)
	require.NoError(t, err)
	return ifi.HardwareAddr.String()
}

// TestAddressIsTaken opens a device with an address that another host has: a
// kernel, or another device like it.
func TestAddressIsTaken(t *testing.T) {
	wire(t)
	mac := macOf(t, "sr-v1")
	taken := func(addr string) {
		t.Helper()
		_, err := packet("sr-v0", addr)
		require.ErrorIs(t, err, netstack.ErrConflict, addr)
		require.ErrorContains(t, err, mac)
		require.ErrorContains(t, err, strings.Split(addr, "/")[0])
	}
	for _, addr := range []string{"10.77.0.1/24", "fd77::1/64"} {
		first, err := packet("sr-v1", addr)
		require.NoError(t, err)
		taken(addr)
		require.NoError(t, first.Close())
		second, err := packet("sr-v0", addr)
		require.NoError(t, err, "nobody has it any more")
		require.NoError(t, second.Close())
	}

	otherHost(t, "10.77.0.9/24", "fd77::9/64")
	taken("10.77.0.9/24")
	taken("fd77::9/64")
	d, err := iwarp.Open(context.Background(), iwarp.Config{Backend: iwarp.Packet, Interface: "sr-v0",
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24")}, AddressProbe: -1})
	require.NoError(t, err, "not asked")
	require.NoError(t, d.Close())
	d, err = packet("sr-v0", "10.77.0.1/24")
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// TestAddressConflict has another host use the address of a device that runs:
// that is told of and counted, and connections go on.
func TestAddressConflict(t *testing.T) {
	wire(t)
	var mu sync.Mutex
	var log strings.Builder
	a, err := iwarp.Open(context.Background(), iwarp.Config{Backend: iwarp.Packet, Interface: "sr-v0",
		Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}, AddressProbe: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(writer(func(b []byte) { mu.Lock(); defer mu.Unlock(); log.Write(b) }), nil))})
	require.NoError(t, err)
	b, err := packet("sr-v1", "10.77.0.2/24")
	require.NoError(t, err)
	closeAfter(t, a, b)
	p := link{a, b, netip.MustParseAddr("10.77.0.2")}.connect(t, 4096, nil)

	port, err := pktio.OpenPacket(pktio.PacketConfig{Interface: "sr-v1"})
	require.NoError(t, err)
	defer port.Close()
	claim := []byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x66\x08\x06" + // to all, from the other
		"\x00\x01\x08\x00\x06\x04\x00\x01\x02\x00\x00\x00\x00\x66\x0a\x4d\x00\x01\x00\x00\x00\x00\x00\x00\x0a\x4d\x00\x01")
	for range 10 {
		n, err := port.Send([]pktio.Frame{{Data: [][]byte{claim}}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	for ev, err := range a.Events(within(t, 20*time.Second)) {
		require.NoError(t, err)
		require.Equal(t, verbs.EventGIDChange, ev.Type)
		require.ErrorIs(t, ev.Err, netstack.ErrConflict)
		require.ErrorContains(t, ev.Err, "address 10.77.0.1 is also used by 02:00:00:00:00:66")
		break
	}
	require.Eventually(t, func() bool { s := a.Stats(); return s.Counter("link.address_conflicts") == 10 }, 10*time.Second, time.Millisecond)
	mu.Lock()
	require.Equal(t, 1, strings.Count(log.String(), "is also used by"), log.String())
	mu.Unlock()
	p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, 1024)}, Remote: p.theirs.remote.Slice(0, 1024)})
	require.NoError(t, p.mine.wait(t, 1)[0].Err())
}

// writer is an io.Writer.
type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// TestInterfaceGoesWhileBusy takes the interface away from under thousands of
// work requests: deleted, or down for longer than the device waits. Each has its
// completion, and all say why.
func TestInterfaceGoesWhileBusy(t *testing.T) {
	for name, take := range map[string]func(netlink.Link) error{"deleted": netlink.LinkDel, "down": netlink.LinkSetDown} {
		func() { // no t.Run: that would leave the namespace
			wire(t)
			open := func(iface, addr string) *verbs.Device {
				d, err := iwarp.Open(context.Background(), iwarp.Config{Backend: iwarp.Packet, Interface: iface,
					Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}, AddressProbe: -1, DownGrace: 300 * time.Millisecond,
					Protocol: iwarp.Protocol{Keepalive: 5 * time.Second}})
				require.NoError(t, err)
				return d
			}
			l := link{open("sr-v0", "10.77.0.1/24"), open("sr-v1", "10.77.0.2/24"), netip.MustParseAddr("10.77.0.2")}
			defer l.b.Close()
			defer l.a.Close()
			const conns, posts = 4, 1500
			var pairs []pair
			for range conns {
				pairs = append(pairs, deepPair(t, l, posts))
			}
			for i := range posts {
				for _, p := range pairs {
					p.mine.recv(t, verbs.RecvWR{ID: uint64(i)})
					p.mine.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote})
				}
			}
			ifi, err := netlink.LinkByName("sr-v0")
			require.NoError(t, err)
			require.NoError(t, take(ifi))
			for ev, err := range l.a.Events(within(t, 20*time.Second)) {
				require.NoError(t, err)
				if ev.Type == verbs.EventDeviceFatal {
					require.ErrorIs(t, ev.Err, syscall.ENETDOWN, name)
					break
				}
			}
			for _, p := range pairs {
				p.over(t)
				require.ErrorIs(t, p.mine.Err(), syscall.ENETDOWN, name)
				last := verbs.WCSuccess
				for _, wc := range p.mine.wait(t, 2*posts) {
					last = wc.Status
				}
				require.Equal(t, verbs.WCWRFlushErr, last, name)
				p.mine.quiet(t)
			}
		}()
	}
}

// deepPair is a connection on which the initiator may post n sends and n
// receives at a time.
func deepPair(t *testing.T, l link, n int) pair {
	ctx := within(t, 20*time.Second)
	p := pair{newEnd(t, l.a, arena), newEnd(t, l.b, arena)}
	var err error
	p.mine.cq, err = l.a.CreateCQ(verbs.CQConfig{Depth: 2 * n})
	require.NoError(t, err)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
	require.NoError(t, err)
	defer lis.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			p.theirs.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: p.theirs.pd, QP: p.theirs.qp()})
		}
		accepted <- err
	}()
	cfg := p.mine.qp()
	cfg.MaxSendWR, cfg.MaxRecvWR = n, n
	p.mine.Conn, err = (&rdmacm.Dialer{Device: l.a, PD: p.mine.pd, QP: cfg}).Dial(ctx, lis.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	return p
}

// TestInterfaceIsDownForAWhile is shorter than the device waits: nothing ends.
func TestInterfaceIsDownForAWhile(t *testing.T) {
	wire(t)
	a, err := packet("sr-v0", "10.77.0.1/24")
	require.NoError(t, err)
	b, err := packet("sr-v1", "10.77.0.2/24")
	require.NoError(t, err)
	closeAfter(t, a, b)
	p := link{a, b, netip.MustParseAddr("10.77.0.2")}.connect(t, arena, nil)
	for _, name := range []string{"sr-v0", "sr-v1"} {
		fill(p.mine.mr.Bytes(), 9)
		ifi, err := netlink.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetDown(ifi))
		p.mine.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote})
		time.Sleep(time.Second)
		require.NoError(t, netlink.LinkSetUp(ifi))
		p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, 64)}, Remote: p.theirs.remote.Slice(64, 64)})
		for _, wc := range p.mine.wait(t, 2) {
			require.NoError(t, wc.Err(), name)
		}
	}
	require.NoError(t, p.mine.Err())
}
