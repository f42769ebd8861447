package iwarp_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestEventFlood(t *testing.T) {
	bad := func(t testing.TB, h *host, n int) {
		for range n {
			p := wiretest.DialPeer(t, h.lis.Addr().String())
			p.Initiate(request)
			p.Write(wiretest.Frame(wiretest.Tagged(0, true, 0x0badcafe, 1<<40, []byte("nowhere")), true))
			p.ExpectTerminate(0x1100)
			require.NoError(t, p.Conn().Close())
		}
		require.Eventually(t, func() bool { return h.counter("tcp.open") == 0 && h.Stats().QPs == 0 }, 20*time.Second, time.Millisecond)
	}
	t.Run("SEC-31 one event a connection, whatever it sends", func(t *testing.T) {
		h := newHost(t, iwarp.Config{})
		h.serveAll(t)
		for range 20 {
			p := wiretest.DialPeer(t, h.lis.Addr().String())
			p.Initiate(request)
			one := wiretest.Frame(wiretest.Tagged(0, true, 0x0badcafe, 1<<40, []byte("nowhere")), true)
			p.Write(bytes.Repeat(one, 50))
			p.ExpectTerminate(0x1100)
			p.Conn().Close()
		}
		evs := eventsOf(t, h.Device)
		require.Len(t, evs, 20)
		seen := map[uint32]bool{}
		for _, ev := range evs {
			require.Equal(t, verbs.EventQPAccessErr, ev.Type)
			require.False(t, seen[ev.QP])
			seen[ev.QP] = true
		}
		require.EqualValues(t, 20, h.counter("cm.access_errors"))
	})
	t.Run("SEC-31 bad connections without end and nobody who takes the events: memory is flat", func(t *testing.T) {
		n := 1500 // more than the queue has room for
		if raceEnabled {
			n = 1050
		}
		h := newHost(t, iwarp.Config{})
		h.serveAll(t)
		bad(t, h, n)
		require.Positive(t, h.counter("cm.events_dropped"))
		flat(t, 6, func(t testing.TB) { bad(t, h, 100) })
		cq, err := h.CreateCQ(verbs.CQConfig{Depth: 1})
		require.NoError(t, err)
		lis, err := (&rdmacm.ListenConfig{Device: h.Device}).Listen(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		p, e := (&host{Device: h.Device, lis: lis}).acceptWith(t, request, 2, cq)
		p.Send(send(1, "x"), send(2, "one too many"))
		stopped(t, &e)
		evs := eventsOf(t, h.Device)
		require.Len(t, ofType(evs, verbs.EventQPAccessErr), 1024-64, "the last places are not for what peers do to queue pairs")
		require.Len(t, ofType(evs, verbs.EventCQErr), 1)
	})
	t.Run("SEC-31 VRB-26 equal events are one", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		c.post(t, 0, 8)
		p, e := c.member(t)
		for i := range uint32(4) {
			require.NoError(t, c.srq.Modify(16))
			p.Send(send(i+1, "x"))
			e.wait(t, 1)
		}
		s := c.dev.Stats()
		require.EqualValues(t, 4, s.Counter("srq.limit_reached"))
		require.EqualValues(t, 3, s.Counter("cm.events_merged"))
		require.Len(t, eventsOf(t, c.dev), 1)
		require.NoError(t, c.srq.Modify(16))
		p.Send(send(5, "x"))
		e.wait(t, 1)
		require.Len(t, eventsOf(t, c.dev), 1, "what was taken is news again")
	})
}

func TestReaped(t *testing.T) {
	t.Run("SEC-32 a peer that disappears in closing is given up after three seconds", func(t *testing.T) {
		h := newHost(t, iwarp.Config{})
		p, e := h.accept(t, request, 1)
		p.Send(wiretest.Terminate(0x0000)) // and no FIN
		stopped(t, &e)
		start := time.Now()
		require.EqualValues(t, 1, h.counter("tcp.open"))
		require.Eventually(t, func() bool { return h.counter("tcp.open") == 0 }, 20*time.Second, 10*time.Millisecond)
		require.Greater(t, time.Since(start), 2*time.Second)
	})
	t.Run("SEC-32 one that takes nothing and is owed a Terminate likewise", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: 500 * time.Millisecond}})
		p, e := h.accept(t, request, 1)
		mr, err := e.pd.AllocMR(32<<20, verbs.AccessRemoteRead)
		require.NoError(t, err)
		p.Send(wiretest.ReadRequest(1, 1, 0, 32<<20, uint32(mr.Key()), mr.Remote().Addr), send(1, "go"))
		e.wait(t, 1)
		p.Send(send(2, "one too many"))
		stopped(t, &e)
		require.Eventually(t, func() bool { return h.counter("tcp.open") == 0 }, 20*time.Second, 10*time.Millisecond)
	})
	t.Run("SEC-32 keepalive is settable", func(t *testing.T) {
		for _, d := range []time.Duration{0, -1, 2 * time.Second} {
			h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{Keepalive: d}})
			_, _ = h.accept(t, request, 0)
		}
		require.Equal(t, time.Minute, iwarp.DefaultKeepalive)
	})
}

// TestTinySegments is SEC-33: a peer that cuts its messages as small as it can.
func TestTinySegments(t *testing.T) {
	h := newHost(t, iwarp.Config{})
	p, e := h.accept(t, request, 1)
	const writes = 1_000_000
	round := 10_000
	one := wiretest.Frame(wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr+100, []byte{7}), true)
	burst := bytes.Repeat(one, round)
	in := func() uint64 { return h.counter("mpa.fpdus_in") }
	total := writes
	if raceEnabled {
		total = 50_000
	}
	p.Write(burst) // warm
	require.Eventually(t, func() bool { return in() == uint64(round) }, 20*time.Second, time.Millisecond)
	t.Run("SEC-33 a million Writes of one octet do not allocate", func(t *testing.T) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for n := 0; n < total; n += round {
			p.Patience = 30 * time.Second
			p.Write(burst)
		}
		for end := time.Now().Add(60 * time.Second); in() < uint64(total+round); time.Sleep(5 * time.Millisecond) {
			require.True(t, time.Now().Before(end), "%d of %d", in(), total+round)
		}
		runtime.ReadMemStats(&after)
		p.Send(send(1, "done"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		require.EqualValues(t, 7, e.mr.Bytes()[100])
		per := float64(after.Mallocs-before.Mallocs) / float64(total)
		t.Logf("%.4f allocations a Write", per)
		if !raceEnabled { // it allocates on its own
			require.Less(t, per, 0.05)
		}
	})
	t.Run("SEC-33 nor do TCP segments of one octet", func(t *testing.T) {
		require.NoError(t, p.Conn().(*net.TCPConn).SetNoDelay(true))
		var before, after runtime.MemStats
		start := in()
		const n = 500
		drip := bytes.Repeat(wiretest.Frame(wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr+200, []byte{7}), true), n)
		runtime.ReadMemStats(&before)
		for i := range drip {
			_, err := p.Conn().Write(drip[i : i+1])
			if err != nil {
				require.NoError(t, err)
			}
		}
		require.Eventually(t, func() bool { return in() == start+n }, 20*time.Second, 10*time.Millisecond)
		runtime.ReadMemStats(&after)
		per := float64(after.Mallocs-before.Mallocs) / float64(len(drip))
		t.Logf("%.4f allocations an octet", per)
		if !raceEnabled {
			require.Less(t, per, 0.2)
		}
	})
}

// TestLogFlood is SEC-34.
func TestLogFlood(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	handler := slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(b)
	}), nil)
	h := newHost(t, iwarp.Config{Logger: slog.New(handler)})
	h.serveAll(t)
	start := time.Now()
	const evil = "EVIL\x1b[31m\n"
	flood := 0
	for time.Since(start) < 2*time.Second || flood < 300 {
		p := wiretest.DialPeer(t, h.lis.Addr().String())
		switch flood % 3 {
		case 0:
			p.Write([]byte(strings.Repeat(evil, 4)))
		case 1:
			p.Write(wiretest.Startup{Flags: wiretest.FlagC, Rev: 9, Private: []byte(evil)}.Octets())
		case 2:
			p.Initiate(wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: []byte(evil)})
			p.Send(wiretest.Untagged(3, true, 0, 9, 1, 0, []byte(evil)))
		}
		_, _ = io.Copy(io.Discard, p.Conn()) // until it is closed
		p.Conn().Close()
		flood++
	}
	seconds := int(time.Since(start)/time.Second) + 2
	mu.Lock()
	text := log.String()
	mu.Unlock()
	lines := strings.Count(text, "\n")
	t.Logf("%d connections in %d s: %d lines, %d left out", flood, seconds-1, lines, h.counter("cm.logs_left_out"))
	t.Run("SEC-34 logs of what peers cause are rate limited", func(t *testing.T) {
		require.Positive(t, lines)
		require.LessOrEqual(t, lines, 50*seconds)
		require.Positive(t, h.counter("cm.logs_left_out"))
		require.Contains(t, text, "left_out=", "and say so")
		require.Less(t, len(text), 500*lines, "each of bounded length")
	})
	t.Run("SEC-34 no octet of the peer is in them", func(t *testing.T) {
		require.NotContains(t, text, "EVIL")
		require.NotContains(t, text, "\x1b")
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
