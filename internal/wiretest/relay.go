package wiretest

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Relay stands between two ends of TCP connections as a middlebox does that knows nothing
// of segments: it cuts what comes at random places, joins it again, and pauses now and
// then. Ends, in order or by a reset, are passed on.
type Relay struct {
	Addr string // dial this instead of the target

	lis    net.Listener
	target string
	seed   uint64
	conns  atomic.Uint64
	pieces atomic.Uint64
	work   sync.WaitGroup
	mu     sync.Mutex
	open   []net.Conn // guarded by mu
	closed bool       // guarded by mu
}

// NewRelay relays to target until the end of the test. The same seed cuts the same way.
func NewRelay(t testing.TB, target string, seed uint64) *Relay {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &Relay{Addr: lis.Addr().String(), lis: lis, target: target, seed: seed}
	r.work.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

// Pieces returns in how many pieces octets were passed on so far.
func (r *Relay) Pieces() uint64 { return r.pieces.Load() }

func (r *Relay) close() {
	_ = r.lis.Close()
	r.mu.Lock()
	r.closed = true
	for _, c := range r.open {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.work.Wait()
}

func (r *Relay) accept() {
	for {
		in, err := r.lis.Accept()
		if err != nil {
			return
		}
		out, err := net.DialTimeout("tcp", r.target, 5*time.Second)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		if r.closed {
			_ = in.Close()
			_ = out.Close()
		}
		r.open = append(r.open, in, out)
		r.mu.Unlock()
		n := 2 * r.conns.Add(1)
		r.work.Go(func() { r.pass(in.(*net.TCPConn), out.(*net.TCPConn), n) })
		r.work.Go(func() { r.pass(out.(*net.TCPConn), in.(*net.TCPConn), n+1) })
	}
}

// pass relays one direction.
func (r *Relay) pass(from, to *net.TCPConn, n uint64) {
	rnd := rand.New(rand.NewPCG(r.seed, n))
	b := make([]byte, 64<<10)
	for {
		k, err := from.Read(b)
		for rest := b[:k]; len(rest) > 0; {
			// Small pieces are as likely as large ones.
			limit := []int{1, 3, 20, 200, 2000}[rnd.IntN(5)]
			if rnd.IntN(100) == 0 {
				limit = len(rest)
			}
			cut := min(1+rnd.IntN(limit), len(rest))
			if _, err := to.Write(rest[:cut]); err != nil {
				// The other direction sees why, and tells it on this side. What still
				// comes is not wanted.
				_, _ = io.Copy(io.Discard, from)
				return
			}
			r.pieces.Add(1)
			rest = rest[cut:]
			if rnd.IntN(64) == 0 {
				time.Sleep(time.Duration(rnd.IntN(1000)) * time.Microsecond)
			}
		}
		switch {
		case err == nil:
			if rnd.IntN(8) == 0 { // more comes together meanwhile
				time.Sleep(time.Duration(rnd.IntN(300)) * time.Microsecond)
			}
		case errors.Is(err, syscall.ECONNRESET):
			_ = to.SetLinger(0)
			_ = to.Close()
			return
		default:
			_ = to.CloseWrite()
			return
		}
	}
}
