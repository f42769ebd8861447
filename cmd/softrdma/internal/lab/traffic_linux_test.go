package lab

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// listen opens a UDP socket on the kernel's address of a side.
func listen(t *testing.T, s Side, ipv6 bool) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	require.NoError(t, inNamespace(s.Namespace, func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.kernel(ipv6), 0)))
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	// Room for all that a burst sends.
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
	}))
	require.NoError(t, err)
	return c
}

func (s Side) kernel(ipv6 bool) netip.Addr {
	if ipv6 {
		return s.Kernel[1].Addr()
	}
	return s.Kernel[0].Addr()
}

// connect opens a UDP socket on a side that sends to c.
func connect(t *testing.T, s Side, c *net.UDPConn) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	require.NoError(t, inNamespace(s.Namespace, func() (err error) {
		conn, err = net.DialUDP("udp", nil, c.LocalAddr().(*net.UDPAddr))
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echo is a client in b whose server in a sends everything back.
type echo struct {
	conn *net.UDPConn
	last uint64
}

func newEcho(t *testing.T, h *Host, ipv6 bool) *echo {
	t.Helper()
	server := listen(t, h.Lab.A, ipv6)
	go func() {
		b := make([]byte, 2048)
		for {
			n, from, err := server.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = server.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	return &echo{conn: connect(t, h.Lab.B, server)}
}

// times returns how long each of n round trips took, not counting those that got
// lost.
func (e *echo) times(t *testing.T, n int) []time.Duration {
	t.Helper()
	var all []time.Duration
	answer := make([]byte, 16)
	var err error
	// The kernel may take a second or two to see that an interface came up.
	for end := time.Now().Add(time.Minute); len(all) < n; {
		require.True(t, time.Now().Before(end), "no answers: %v", err)
		e.last++
		start := time.Now()
		_ = e.conn.SetReadDeadline(start.Add(time.Second))
		_, err = e.conn.Write(binary.BigEndian.AppendUint64(nil, e.last))
		for err == nil {
			// Late and doubled answers to earlier ones come, too.
			if _, err = e.conn.Read(answer); err == nil && binary.BigEndian.Uint64(answer) == e.last {
				all = append(all, time.Since(start))
				break
			}
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(10 * time.Millisecond) // the interface came up just now
		}
	}
	return all
}

// burst sends n numbered datagrams from one side to the other and returns the
// numbers as they arrived.
func burst(t *testing.T, from, to Side, ipv6 bool, n int) []int {
	t.Helper()
	rx := listen(t, to, ipv6)
	tx := connect(t, from, rx)
	var got []int
	var arrived atomic.Int64
	var met atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 2048)
		for {
			size, err := rx.Read(b)
			if err != nil {
				return
			}
			if size == 8 {
				got = append(got, int(binary.BigEndian.Uint64(b)))
				arrived.Add(1)
			} else {
				met.Store(true)
			}
		}
	}()
	// What waits for a neighbour to be found may be overtaken by what is sent when it has been.
	// Where all is lost nothing ever comes.
	for until := time.Now().Add(2 * time.Second); !met.Load() && time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		_, err := tx.Write([]byte{0})
		require.NoError(t, err)
	}
	// No queue on the way is to overflow: no more than window are under way, but
	// for those that do not arrive for so long that they are taken for lost.
	const window, patience = 128, 200 * time.Millisecond
	for i, lost := 0, 0; i < n; i++ {
		_, err := tx.Write(binary.BigEndian.AppendUint64(nil, uint64(i)))
		require.NoError(t, err)
		for since := time.Now(); i-lost-int(arrived.Load()) > window; time.Sleep(100 * time.Microsecond) {
			if time.Since(since) > patience {
				lost = i - int(arrived.Load())
			}
		}
	}
	for before := int64(-1); before != arrived.Load(); time.Sleep(time.Second) {
		before = arrived.Load()
	}
	require.NoError(t, rx.Close())
	<-done
	return got
}

// directions returns the wire's counters.
func directions(t *testing.T, h *Host) [2]Direction {
	t.Helper()
	s, err := h.Status(t.Context())
	require.NoError(t, err)
	require.Empty(t, s.Problems)
	return [2]Direction{*s.Wire.FromA, *s.Wire.FromB}
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}

func TestLossLosesWhatItSays(t *testing.T) {
	for name, p := range map[string]Plan{
		"bridge":  {Impair: &Impairment{Loss: 0.05, Seed: 11}},
		"process": {Impair: &Impairment{Loss: 0.05, Seed: 11, Process: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "loss", nil)
			require.NoError(t, h.Up(t.Context(), p))
			newEcho(t, h, false).times(t, 1) // the interfaces are up and know each other
			const n = 20_000
			for way, sides := range [][2]Side{{h.Lab.A, h.Lab.B}, {h.Lab.B, h.Lab.A}} {
				ipv6 := way == 1 && hasIPv6()
				before := directions(t, h)[way]
				got := burst(t, sides[0], sides[1], ipv6, n)
				after := directions(t, h)[way]
				requireShare(t, n-len(got), n, p.Impair.Loss)
				require.IsIncreasing(t, got, "none is doubled or out of order")

				frames, lost := after.Frames-before.Frames, after.Lost-before.Lost
				others := int(frames) - n // neighbours looked for, say
				require.GreaterOrEqual(t, others, 0)
				require.LessOrEqual(t, others, 100)
				require.InDelta(t, n-len(got), int(lost), float64(others), "the counters tell the same")
				require.Zero(t, after.Dropped)
			}
			_, err := h.Down(t.Context())
			require.NoError(t, err)
		})
	}
}

func TestLossOfAllAndOfNothing(t *testing.T) {
	for _, process := range []bool{false, true} {
		for _, loss := range []float64{0, 1} {
			h := newHost(t, "allloss", nil)
			require.NoError(t, h.Up(t.Context(), Plan{Impair: &Impairment{Loss: loss, Process: process}}))
			if loss == 0 {
				newEcho(t, h, false).times(t, 1)
				require.Len(t, burst(t, h.Lab.A, h.Lab.B, false, 1000), 1000)
			} else {
				require.Empty(t, burst(t, h.Lab.A, h.Lab.B, false, 3))
				d := directions(t, h)[0]
				require.NotZero(t, d.Frames)
				require.Equal(t, d.Frames, d.Lost)
			}
			_, err := h.Down(t.Context())
			require.NoError(t, err)
		}
	}
}

func TestDelayDelaysBothWays(t *testing.T) {
	h := newHost(t, "delay", nil)
	const delay = 5 * time.Millisecond
	require.NoError(t, h.Up(t.Context(), Plan{Impair: &Impairment{Delay: delay, Jitter: time.Millisecond}}))
	for _, rtt := range newEcho(t, h, false).times(t, 20) {
		require.GreaterOrEqual(t, rtt, 2*delay)
	}
	if hasIPv6() {
		for _, rtt := range newEcho(t, h, true).times(t, 20) {
			require.GreaterOrEqual(t, rtt, 2*delay)
		}
	}
	for _, d := range directions(t, h) {
		require.NotZero(t, d.Frames)
		require.Equal(t, d.Frames, d.Delayed)
	}
	_, err := h.Down(t.Context())
	require.NoError(t, err)
}

// A delay below a millisecond is not made one: of many round trips some are not
// longer for other reasons.
func TestShortDelayIsShort(t *testing.T) {
	h := newHost(t, "short", nil)
	const delay = 300 * time.Microsecond
	require.NoError(t, h.Up(t.Context(), Plan{Impair: &Impairment{Delay: delay}}))
	e := newEcho(t, h, false)
	best := time.Hour
	for try := 0; best > 1800*time.Microsecond; try++ {
		require.Less(t, try, 2000, "the shortest of them took %v", best)
		best = min(best, e.times(t, 1)[0])
		require.GreaterOrEqual(t, best, 2*delay)
	}
	_, err := h.Down(t.Context())
	require.NoError(t, err)
}

func TestDuplicateDoubles(t *testing.T) {
	h := newHost(t, "double", nil)
	const n, p = 5000, 0.1
	require.NoError(t, h.Up(t.Context(), Plan{Impair: &Impairment{Duplicate: p, Seed: 1}}))
	newEcho(t, h, false).times(t, 1)
	got := burst(t, h.Lab.B, h.Lab.A, false, n)
	seen := make(map[int]int)
	for _, i := range got {
		seen[i]++
		require.LessOrEqual(t, seen[i], 2)
	}
	require.Len(t, seen, n, "none is lost")
	requireShare(t, len(got)-n, n, p)
	_, err := h.Down(t.Context())
	require.NoError(t, err)
}

func TestReorderReorders(t *testing.T) {
	h := newHost(t, "reorder", nil)
	const n, p = 5000, 0.1
	require.NoError(t, h.Up(t.Context(), Plan{Impair: &Impairment{Reorder: p, Seed: 1}}))
	newEcho(t, h, false).times(t, 1)
	before := directions(t, h)[0].Reordered
	got := burst(t, h.Lab.A, h.Lab.B, false, n)
	require.Len(t, got, n, "none is lost or doubled")
	late, newest := 0, -1
	for _, i := range got {
		if i < newest {
			late++
		}
		newest = max(newest, i)
	}
	held := int(directions(t, h)[0].Reordered - before)
	requireShare(t, held, n, p)
	// A frame that nobody overtook within a millisecond has come in order.
	require.LessOrEqual(t, late, held)
	require.Greater(t, late, held/4)
	_, err := h.Down(t.Context())
	require.NoError(t, err)
}
