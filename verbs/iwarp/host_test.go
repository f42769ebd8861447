package iwarp_test

import (
	"context"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// host is a device on the host's TCP sockets with a listener for scripted peers.
type host struct {
	*verbs.Device
	lis *rdmacm.Listener
}

func newHost(t *testing.T, c iwarp.Config) *host {
	c.Backend = iwarp.Kernel
	d, err := iwarp.Open(t.Context(), c)
	require.NoError(t, err)
	return hostOn(t, d)
}

// hostOn is newHost for a device that exists.
func hostOn(t *testing.T, d *verbs.Device) *host {
	closeAfter(t, d)
	lis, err := (&rdmacm.ListenConfig{Device: d}).Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	return &host{d, lis}
}

func (h *host) counter(name string) uint64 {
	s := h.Stats()
	return s.Counter(name)
}

// dial is a TCP connection to the listener.
func (h *host) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", h.lis.Addr().String(), 10*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// accept connects a scripted peer that has sent req to an end with receives of 16
// octets posted.
func (h *host) accept(t testing.TB, req wiretest.Startup, receives int) (*wiretest.Peer, end) {
	t.Helper()
	return h.acceptWith(t, req, receives, nil)
}

// acceptWith is accept with another completion queue for the receives.
func (h *host) acceptWith(t testing.TB, req wiretest.Startup, receives int, recvs *verbs.CQ) (*wiretest.Peer, end) {
	t.Helper()
	e := newEnd(t, h.Device, 4096)
	e.recvs = recvs
	done := make(chan error, 1)
	go func() {
		r, err := h.lis.Accept(within(t, 20*time.Second))
		if err == nil {
			e.Conn, err = r.Accept(within(t, 20*time.Second), rdmacm.AcceptConfig{PD: e.pd, QP: e.qp(), Prepare: func(qp *verbs.QP) error {
				for i := range receives {
					if _, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i + 1), SGL: []verbs.SGE{e.mr.SGE(i*16, 16)}}}); err != nil {
						return err
					}
				}
				return nil
			}})
		}
		done <- err
	}()
	p := wiretest.DialPeer(t, h.lis.Addr().String())
	p.Initiate(req)
	require.NoError(t, <-done)
	return p, e
}

// serveAll accepts whoever comes and closes each connection when it is over.
func (h *host) serveAll(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	all.Go(func() {
		for req := range h.lis.All(ctx) {
			c, err := req.Accept(ctx, rdmacm.AcceptConfig{Easy: small})
			if err != nil {
				continue
			}
			all.Go(func() {
				select {
				case <-c.Done():
				case <-ctx.Done():
				}
				c.Close()
			})
		}
	})
}

// heap is what is in use, after all that can be freed was.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what the first one finalises
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// scratch is a test whose clean-up is over before the test is.
type scratch struct {
	testing.TB
	mu   sync.Mutex
	undo []func() // guarded by mu
}

func (s *scratch) Cleanup(f func()) {
	s.mu.Lock()
	s.undo = append(s.undo, f)
	s.mu.Unlock()
}

// flat runs round twice to warm up and then several times, and checks that memory
// does not grow by more than a tenth.
func flat(t *testing.T, times int, round func(t testing.TB)) {
	t.Helper()
	once := func() {
		s := &scratch{TB: t}
		round(s)
		for i := len(s.undo) - 1; i >= 0; i-- {
			s.undo[i]()
		}
	}
	once()
	once()
	before := heap()
	for range times {
		once()
	}
	var after uint64
	for range 50 { // goroutines and timers of the last round may take a moment
		if after = heap(); float64(after) <= 1.1*float64(before) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.LessOrEqual(t, float64(after), 1.1*float64(before), "octets in use, %d before", before)
}
