package netstack

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/pktio"
)

// patience is how long a test waits for what must happen.
const patience = 60 * time.Second

var (
	addrA = netip.MustParseAddr("10.77.0.1")
	addrB = netip.MustParseAddr("10.77.0.2")
)

// family is the addresses of a pair, all IPv4 or all IPv6.
type family struct {
	name    string     // behind the name of a carrier
	a, b    netip.Addr // of the two ends
	bits    int        // of their network
	gateway netip.Addr // an address on the link
	far     netip.Addr // an address on no link
	any     netip.Addr // the unspecified one
	lo      netip.Addr // the host's own
}

var (
	inet4 = family{"", addrA, addrB, 24, netip.MustParseAddr("10.77.0.254"), netip.MustParseAddr("192.0.2.1"),
		netip.IPv4Unspecified(), netip.MustParseAddr("127.0.0.1")}
	inet6 = family{"6", netip.MustParseAddr("fd77::1"), netip.MustParseAddr("fd77::2"), 64, netip.MustParseAddr("fd77::fe"),
		netip.MustParseAddr("2001:db8::1"), netip.IPv6Unspecified(), netip.IPv6Loopback()}
)

// headers is the octets of the headers of IP and TCP without options.
func (f family) headers() int {
	if f.a.Is4() {
		return 40
	}
	return 60
}

// bothFamilies runs f on each.
func bothFamilies(t *testing.T, f func(t *testing.T, fam family)) {
	t.Run("IPv4", func(t *testing.T) { f(t, inet4) })
	t.Run("IPv6", func(t *testing.T) { f(t, inet6) })
}

// holdReceiver takes the lock of whoever receives on l, for the test to receive itself; rx.mu.Unlock gives it back. The
// pump sleeps in the port with the lock taken, until a frame comes: poke sends one of no interest.
func holdReceiver(l *link, poke func()) {
	for !l.rx.mu.TryLock() {
		poke()
		time.Sleep(time.Millisecond)
	}
}

// pair is two stacks that reach each other.
type pair struct {
	t          testing.TB
	a, b       *host
	fam        family
	addrA      netip.Addr // of a
	addrB      netip.Addr
	portA      *pktio.Faulty // nil on the kernel
	portB      *pktio.Faulty
	enter      func() // moves a goroutine to where the pair is; may be nil
	windowMost int    // octets that may be under way at most
}

// host is a stack with what its Poll said.
type host struct {
	*Stack
	t    testing.TB
	ev   [16]Event
	seen map[*Conn]int // events
	news map[*Listener]int
}

func newHost(t testing.TB, s *Stack) *host {
	return &host{Stack: s, t: t, seen: make(map[*Conn]int), news: make(map[*Listener]int)}
}

// poll takes the events of one Poll and returns how many.
func (h *host) poll(wait time.Duration) int {
	n := h.Poll(h.ev[:], wait)
	for _, e := range h.ev[:n] {
		switch {
		case e.Conn != nil && e.Listener == nil:
			h.seen[e.Conn]++
		case e.Listener != nil && e.Conn == nil:
			h.news[e.Listener]++
		default:
			h.t.Fatalf("an event is of one conn or one listener, not %+v", e)
		}
	}
	return n
}

// until polls hosts until cond holds.
func until(t testing.TB, what string, cond func() bool, hosts ...*host) {
	t.Helper()
	idle := 0
	for end := time.Now().Add(patience); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("no end of waiting: %s", what)
		}
		n := 0
		for _, h := range hosts {
			n += h.poll(0)
		}
		if n > 0 {
			idle = 0
		} else if idle++; idle > 200 {
			time.Sleep(50 * time.Microsecond)
		} else {
			runtime.Gosched()
		}
	}
}

// until polls both hosts until cond holds.
func (p *pair) until(what string, cond func() bool) {
	p.t.Helper()
	until(p.t, what, cond, p.a, p.b)
}

// connect makes a connection from a to b.
func (p *pair) connect() (ca, cb *Conn, l *Listener) {
	p.t.Helper()
	l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 16)
	require.NoError(p.t, err)
	ca, cb = p.connectTo(l)
	return ca, cb, l
}

func (p *pair) connectTo(l *Listener) (ca, cb *Conn) {
	p.t.Helper()
	ca, err := p.a.Dial(netip.Addr{}, netip.AddrPortFrom(p.addrB, l.Addr().Port()))
	require.NoError(p.t, err)
	p.until("connect", func() bool {
		ok, err := ca.Connected()
		require.NoError(p.t, err)
		return ok && p.a.seen[ca] > 0
	})
	p.until("accept", func() bool {
		c, ok := l.Accept()
		if ok {
			cb = c
		}
		return ok
	})
	return ca, cb
}

// carrier makes pairs.
type carrier struct {
	name string
	make func(t testing.TB, c Config) *pair
}

func userCarrier(fam family, name string, pipe pktio.PipeConfig) carrier {
	return carrier{"user" + fam.name + "/" + name, func(t testing.TB, c Config) *pair { return newUserPairOf(t, fam, pipe, c) }}
}

func newUserPair(t testing.TB, pipe pktio.PipeConfig, c Config) *pair {
	return newUserPairOf(t, inet4, pipe, c)
}

func newUserPairOf(t testing.TB, fam family, pipe pktio.PipeConfig, c Config) *pair {
	pipe.Depth = 1024 // that what is lost was lost by a Fault, also on a machine that is busy
	pa, pb, err := pktio.NewPipe(pipe)
	require.NoError(t, err)
	leakcheck.Pool(t, pa.Pool())
	leakcheck.Pool(t, pb.Pool())
	portA, portB := pktio.NewFaulty(pa, pktio.Faults{}), pktio.NewFaulty(pb, pktio.Faults{})
	p := newPortPairOf(t, fam, portA, portB, c)
	p.portA, p.portB = portA, portB
	buffer := max(c.SendBuffer, 0) + max(c.RecvBuffer, 0)
	if buffer == 0 {
		buffer = 2 * DefaultBuffer
	}
	p.windowMost = buffer + 2*writeMax
	return p
}

// newPortPairOf is a user-space pair on any two ports that make a link.
func newPortPairOf(t testing.TB, fam family, portA, portB pktio.Port, c Config) *pair {
	p := &pair{t: t, fam: fam, addrA: fam.a, addrB: fam.b}
	c.Addrs = []netip.Prefix{netip.PrefixFrom(fam.a, fam.bits)}
	sa, err := New(portA, c)
	require.NoError(t, err)
	c.Addrs = []netip.Prefix{netip.PrefixFrom(fam.b, fam.bits)}
	sb, err := New(portB, c)
	require.NoError(t, err)
	p.a, p.b = newHost(t, sa), newHost(t, sb)
	t.Cleanup(p.close)
	return p
}

func kernelConfig(c Config) KernelConfig {
	return KernelConfig{SendBuffer: c.SendBuffer, RecvBuffer: c.RecvBuffer, SpinFor: c.SpinFor, ConnectTimeout: c.ConnectTimeout, Keepalive: c.Keepalive}
}

func kernelCarrier(fam family) carrier {
	return carrier{"kernel" + fam.name, func(t testing.TB, c Config) *pair { return newKernelPair(t, fam, c) }}
}

func newKernelPair(t testing.TB, fam family, c Config) *pair {
	if l, err := net.Listen("tcp", netip.AddrPortFrom(fam.lo, 0).String()); err != nil {
		t.Skip("LEFT OUT: this host does not have "+fam.lo.String()+":", err)
	} else {
		_ = l.Close()
	}
	kc := kernelConfig(c)
	p := &pair{t: t, fam: fam, addrA: fam.lo, addrB: fam.lo, windowMost: 64 << 20}
	sa, err := NewKernel(kc)
	require.NoError(t, err)
	sb, err := NewKernel(kc)
	require.NoError(t, err)
	p.a, p.b = newHost(t, sa), newHost(t, sb)
	t.Cleanup(p.close)
	return p
}

func (p *pair) close() {
	require.NoError(p.t, p.a.Close())
	require.NoError(p.t, p.b.Close())
}

// carriers are all there is to run a behaviour on.
func carriers() []carrier {
	var all []carrier
	for _, fam := range []family{inet4, inet6} {
		all = append(all,
			userCarrier(fam, "1500", pktio.PipeConfig{}),
			userCarrier(fam, "9000-checksum", pktio.PipeConfig{MTU: 9000, Checksum: true}),
			userCarrier(fam, "GSO", pktio.PipeConfig{GSO: true}),
			kernelCarrier(fam))
		all = append(all, vethCarriers(fam)...)
	}
	return all
}

// onAll runs f on every carrier.
func onAll(t *testing.T, c Config, f func(t *testing.T, p *pair)) {
	for _, car := range carriers() {
		t.Run(car.name, func(t *testing.T) { f(t, car.make(t, c)) })
	}
}

// pattern fills b with octets that depend on their place in the stream and on the stream.
func pattern(b []byte, stream, at int) {
	for i := range b {
		x := uint32(at+i) * 2654435761
		b[i] = byte(x>>24) ^ byte(x>>13) ^ byte(stream)
	}
}

// checker compares a stream with its pattern.
type checker struct {
	stream, at int
	buf        []byte
}

func (k *checker) check(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), 64<<10)
		if len(k.buf) < n {
			k.buf = make([]byte, 64<<10)
		}
		pattern(k.buf[:n], k.stream, k.at)
		if !bytes.Equal(k.buf[:n], p[:n]) {
			for i := range n {
				if k.buf[i] != p[i] {
					return fmt.Errorf("stream %d: octet %d is %#x, not %#x", k.stream, k.at+i, p[i], k.buf[i])
				}
			}
		}
		k.at += n
		p = p[n:]
	}
	return nil
}

// send writes n octets of stream from at on, as far as there is room, and returns how many.
func send(t testing.TB, c *Conn, stream, at, n int) int {
	t.Helper()
	n = min(n, c.Room())
	if n == 0 {
		return 0
	}
	b := make([]byte, n)
	pattern(b, stream, at)
	third := n / 3
	require.NoError(t, c.Writev([][]byte{b[:third], nil, b[third:]}))
	return n
}

// receive takes all there is and returns the error at its end.
func (k *checker) receive(t testing.TB, c *Conn) error {
	t.Helper()
	for {
		pieces, err := c.Peek()
		n := 0
		for _, p := range pieces {
			require.NotEmpty(t, p, "a piece has octets")
			require.NoError(t, k.check(p))
			n += len(p)
		}
		c.Discard(n)
		if n == 0 || err != nil {
			return err
		}
	}
}
