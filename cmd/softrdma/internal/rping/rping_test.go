package rping

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// pair is a server on one device and another device to call it from.
type pair struct {
	dev  *verbs.Device
	addr string

	mu   sync.Mutex
	ends []End
}

func newPair(t *testing.T, s *Server) *pair {
	t.Helper()
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	require.NoError(t, err)
	p := &pair{dev: a, addr: fmt.Sprintf("%v:%d", iwarp.PipeAddrB, Port)}
	if s == nil {
		s = &Server{}
	}
	s.Device = b
	s.OnEnd = func(e End) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ends = append(p.ends, e)
	}
	lc := rdmacm.ListenConfig{Device: b}
	l, err := lc.Listen(t.Context(), p.addr)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, l.Close())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	return p
}

// end waits for the end of the one client.
func (p *pair) end(t *testing.T) End {
	t.Helper()
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.ends) == 1
	}, 5*time.Second, time.Millisecond)
	return p.ends[0]
}

func TestPing(t *testing.T) {
	for _, size := range []int{MinSize, DefaultSize, 100, 1460, 4096, MaxSize} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			var served []string
			p := newPair(t, &Server{OnPing: func(p Ping) { served = append(served, string(p.Text)) }})
			var came []string
			c := Client{Device: p.dev, Size: size, Count: 60, OnPing: func(r Ping) {
				require.Equal(t, len(came), r.Seq)
				require.Positive(t, r.Time)
				came = append(came, string(r.Text))
			}}
			require.NoError(t, c.Run(t.Context(), p.addr))
			e := p.end(t)
			require.NoError(t, e.Err)
			require.Equal(t, 60, e.Pings)
			require.Equal(t, came, served)
			for n, s := range came {
				require.Equal(t, text(size, n), s)
			}
		})
	}
}

func TestManyClients(t *testing.T) {
	p := newPair(t, nil)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			c := Client{Device: p.dev, Count: 20}
			errs[i] = c.Run(t.Context(), p.addr)
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestTooManyClients(t *testing.T) {
	p := newPair(t, &Server{MaxClients: 1})
	first := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		c := Client{Device: p.dev, Interval: time.Millisecond, OnPing: func(r Ping) {
			if r.Seq == 0 {
				close(first)
			}
		}}
		done <- c.Run(ctx, p.addr)
	}()
	<-first
	c := Client{Device: p.dev, Count: 1}
	err := c.Run(t.Context(), p.addr)
	var r *verbs.RejectError
	require.ErrorAs(t, err, &r)
	require.Equal(t, "too many clients", string(r.PrivateData))
	cancel()
	require.NoError(t, <-done, "a client whose context ends has had enough, that is no error")
}

func TestServerGone(t *testing.T) {
	p := newPair(t, nil)
	c := Client{Device: p.dev, Count: 1}
	err := c.Run(t.Context(), fmt.Sprintf("%v:9", iwarp.PipeAddrB))
	require.ErrorContains(t, err, "refused")
	for _, size := range []int{-1, MinSize - 1, MaxSize + 1} {
		c := Client{Device: p.dev, Size: size, Count: 1}
		require.ErrorContains(t, c.Run(t.Context(), p.addr), "out of range")
	}
}

func TestNoAnswer(t *testing.T) {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	require.NoError(t, err)
	defer b.Close()
	defer a.Close()
	addr := fmt.Sprintf("%v:%d", iwarp.PipeAddrB, Port)
	lc := rdmacm.ListenConfig{Device: b}
	l, err := lc.Listen(t.Context(), addr)
	require.NoError(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		req, err := l.Accept(t.Context())
		if err == nil {
			// A server that takes the message and does nothing.
			var conn *rdmacm.Conn
			if conn, err = req.Accept(t.Context(), rdmacm.AcceptConfig{}); err == nil {
				<-conn.Done()
				err = conn.Close()
			}
		}
		done <- err
	}()
	c := Client{Device: a, Count: 1, Timeout: 100 * time.Millisecond}
	err = c.Run(t.Context(), addr)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "ping 0 was not answered in 100ms")
	require.NoError(t, <-done)
}

// rawClient connects to the server of p and sends what it likes.
func rawClient(t *testing.T, p *pair) *rdmacm.Conn {
	t.Helper()
	d := rdmacm.Dialer{Device: p.dev}
	conn, err := d.Dial(t.Context(), p.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestHostileClients(t *testing.T) {
	for name, c := range map[string]struct {
		send []byte
		want string
	}{
		"a short message":           {make([]byte, 15), "sent 15 octets"},
		"an empty message":          {nil, "sent 0 octets"},
		"a long message":            {make([]byte, 17), "too long"},
		"no memory":                 {info{addr: 1, key: 2, size: 0}.append(nil), "names 0 octets"},
		"much memory":               {info{addr: 1, key: 2, size: 1 << 31}.append(nil), "names 2147483648 octets"},
		"memory that is not there":  {info{addr: 1, key: 2, size: 64}.append(nil), "remote access error"},
		"more memory than there is": {info{addr: ^uint64(0), key: 2, size: 64}.append(nil), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nil)
			conn := rawClient(t, p)
			require.NoError(t, conn.Send(t.Context(), c.send))
			e := p.end(t)
			require.Error(t, e.Err)
			require.Zero(t, e.Pings)
			require.Contains(t, strings.ToLower(e.Err.Error()), c.want)

			// The server still serves others.
			good := Client{Device: p.dev, Count: 1}
			require.NoError(t, good.Run(t.Context(), p.addr))
		})
	}
}

// TestMismatch has a server that answers with one octet changed.
func TestMismatch(t *testing.T) {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	require.NoError(t, err)
	defer b.Close()
	defer a.Close()
	lc := rdmacm.ListenConfig{Device: b}
	l, err := lc.Listen(t.Context(), fmt.Sprintf("%v:%d", iwarp.PipeAddrB, Port))
	require.NoError(t, err)
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			req, err := l.Accept(t.Context())
			if err != nil {
				return err
			}
			e, err := newEndpoint(b, MaxSize, verbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			defer e.close()
			if e.conn, err = req.Accept(t.Context(), rdmacm.AcceptConfig{PD: e.pd, QP: e.qpConfig(), Prepare: e.prepare}); err != nil {
				return err
			}
			src, err := e.next(t.Context())
			if err != nil {
				return err
			}
			if err := e.readIn(t.Context(), src.remote()); err != nil {
				return err
			}
			e.data.Bytes()[40] ^= 4
			if err := e.post(e.message(info{})); err != nil {
				return err
			}
			sink, err := e.next(t.Context())
			if err != nil {
				return err
			}
			if err := e.drain(t.Context()); err != nil {
				return err
			}
			err = e.post(
				verbs.SendWR{ID: idWrite, Op: verbs.OpWrite, Remote: sink.remote(), SGL: []verbs.SGE{e.data.SGE(0, 64)}},
				e.message(info{}),
			)
			if err != nil {
				return err
			}
			_, err = e.next(t.Context()) // the client leaves
			return err
		}()
	}()
	c := Client{Device: a, Count: 3}
	err = c.Run(t.Context(), fmt.Sprintf("%v:%d", iwarp.PipeAddrB, Port))
	var m *Mismatch
	require.ErrorAs(t, err, &m)
	require.Equal(t, 0, m.Seq)
	require.Equal(t, 40, m.Offset)
	require.Equal(t, m.Want^4, m.Got)
	require.Error(t, <-done)
}
