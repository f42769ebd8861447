package tcpbase

import (
	"bytes"
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/perf"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serveOne starts a server on the loopback and returns its address.
func serveOne(t *testing.T) string {
	t.Helper()
	return serveWith(t, &Server{})
}

func serveWith(t *testing.T, s *Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return l.Addr().String()
}

// Begin is called for each client, and what it returned when that one has gone.
func TestServerBegins(t *testing.T) {
	var begun, ended atomic.Int32
	addr := serveWith(t, &Server{Begin: func() func() {
		begun.Add(1)
		return func() { ended.Add(1) }
	}})
	first, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	second, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	became := func(n *atomic.Int32, want int32) {
		t.Helper()
		require.Eventually(t, func() bool { return n.Load() == want }, 10*time.Second, time.Millisecond)
	}
	became(&begun, 2)
	require.Zero(t, ended.Load(), "both are there")
	require.NoError(t, first.Close())
	became(&ended, 1)
	require.NoError(t, second.Close())
	became(&ended, 2)
	require.EqualValues(t, 2, begun.Load())
}

func TestBaselines(t *testing.T) {
	addr := serveOne(t)
	for _, spin := range []bool{false, true} {
		if spin && !CanSpin {
			continue
		}
		c := Client{Addr: addr, Spin: spin}
		name := map[bool]string{false: "blocking", true: "spinning"}[spin]
		for _, op := range []perf.Op{perf.Send, perf.Write, perf.Read} {
			t.Run(name+" "+op.String()+" lat", func(t *testing.T) {
				r, err := c.Run(t.Context(), perf.Test{Op: op, Kind: perf.Latency, Size: 64, Iterations: 200})
				require.NoError(t, err)
				require.EqualValues(t, 200, r.Messages)
				require.Positive(t, r.Latency(50))
				require.LessOrEqual(t, r.Latency(0), r.Latency(50))
				require.LessOrEqual(t, r.Latency(50), r.Latency(100))
			})
			t.Run(name+" "+op.String()+" bw", func(t *testing.T) {
				r, err := c.Run(t.Context(), perf.Test{Op: op, Kind: perf.Bandwidth, Size: 4096, Duration: 100 * time.Millisecond, Warmup: 10 * time.Millisecond})
				require.NoError(t, err)
				require.Positive(t, r.Messages)
				require.GreaterOrEqual(t, r.Elapsed, 100*time.Millisecond)
				require.Less(t, r.Elapsed, 10*time.Second, "the time was over long ago, on any machine")
				require.InEpsilon(t, float64(r.Messages)*4096/r.Elapsed.Seconds(), r.OctetsPerSecond(), 1e-6)
			})
		}
	}
}

func TestBandwidthCountsMessages(t *testing.T) {
	c := Client{Addr: serveOne(t)}
	r, err := c.Run(t.Context(), perf.Test{Op: perf.Write, Kind: perf.Bandwidth, Size: 1000, Iterations: 640})
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.Messages, uint64(640))
	require.Less(t, r.Messages, uint64(640+maxGathered))
}

func TestInterrupted(t *testing.T) {
	addr := serveOne(t)
	for _, kind := range []perf.Kind{perf.Bandwidth, perf.Latency} {
		var r *perf.Result
		var err error
		// On a busy machine it may be interrupted before it has begun.
		for limit := 50 * time.Millisecond; limit < 10*time.Second; limit *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			c := Client{Addr: addr}
			r, err = c.Run(ctx, perf.Test{Op: perf.Send, Kind: kind, Duration: time.Minute})
			cancel()
			if err == nil && r.Messages > 0 {
				break
			}
		}
		require.NoError(t, err)
		require.True(t, r.Interrupted)
		require.Positive(t, r.Messages)
		require.Less(t, r.Elapsed, 30*time.Second)
	}
}

func TestHead(t *testing.T) {
	h := head{test: echo, spin: true, size: 64, call: 2048}
	b := h.append(nil)
	require.Equal(t, append([]byte("SRTB\x01\x03\x01\x00\x00\x00\x00\x40"), 0, 0, 8, 0), b)
	got, err := parseHead(b)
	require.NoError(t, err)
	require.Equal(t, h, got)

	for name, change := range map[string]func(b []byte) []byte{
		"cut":           func(b []byte) []byte { return b[:15] },
		"magic":         func(b []byte) []byte { b[0] = 'x'; return b },
		"version":       func(b []byte) []byte { b[4] = 2; return b },
		"test 0":        func(b []byte) []byte { b[5] = 0; return b },
		"test 5":        func(b []byte) []byte { b[5] = 5; return b },
		"spin 2":        func(b []byte) []byte { b[6] = 2; return b },
		"reserved":      func(b []byte) []byte { b[7] = 1; return b },
		"no size":       func(b []byte) []byte { b[11] = 0; return b },
		"size too big":  func(b []byte) []byte { b[8] = 0xff; return b },
		"calls too big": func(b []byte) []byte { b[12] = 0xff; return b },
	} {
		_, err := parseHead(change(bytes.Clone(b)))
		require.Error(t, err, name)
	}
}

func TestCallSize(t *testing.T) {
	for _, test := range []struct{ size, depth, want int }{
		{64, 128, 32 * 64}, {64, 1, 64}, {4096, 128, 65536}, {65536, 128, 65536}, {1 << 20, 128, 1 << 20}, {50000, 128, 50000},
	} {
		require.Equal(t, test.want, callSize(&perf.Test{Size: test.size, Depth: test.depth}), "%+v", test)
	}
}

func FuzzHead(f *testing.F) {
	f.Add(head{test: sink, size: 1, call: 1}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHead(b); err == nil {
			require.Equal(t, b, h.append(nil))
		}
	})
}

func TestGarbageIsClosed(t *testing.T) {
	addr := serveOne(t)
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(make([]byte, headLen))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
}
