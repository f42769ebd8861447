package iwarp_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// enhanced is what our own initiator sends: peer-to-peer, opened by a Read.
var enhanced = wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(wiretest.BlockA|1, wiretest.BlockD|1)}

// asked returns a scripted peer that has sent its Request, and the Request as
// the application sees it.
func asked(t *testing.T, proto iwarp.Protocol, request wiretest.Startup) (*wiretest.Peer, *rdmacm.Request) {
	l := kernel(t, proto)
	ctx := within(t, 10*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	p := wiretest.DialPeer(t, lis.Addr().String())
	p.Write(request.Octets())
	req, err := lis.Accept(ctx)
	require.NoError(t, err)
	return p, req
}

// TestAfterClose calls a device that is closed already.
func TestAfterClose(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 10*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
		require.NoError(t, err)
		require.NoError(t, l.b.Close())
		_, err = lis.Accept(ctx)
		require.ErrorIs(t, err, verbs.ErrClosed)
		require.NoError(t, lis.Close())
		_, err = (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
		require.ErrorIs(t, err, verbs.ErrClosed)
		_, err = (&rdmacm.Dialer{Device: l.b}).Dial(ctx, lis.Addr().String())
		require.ErrorIs(t, err, verbs.ErrClosed)
		_, err = l.b.Provider().Dial(ctx, 2, verbs.ConnParams{Remote: lis.Addr()})
		require.ErrorIs(t, err, verbs.ErrClosed)
	})
}

// TestCloseDuringSetup ends what a connection is being made of.
func TestCloseDuringSetup(t *testing.T) {
	silent := func(t *testing.T) net.Listener {
		s, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	closing := map[string]func(d *verbs.Device, qp *verbs.QP) error{
		"the queue pair":         func(_ *verbs.Device, qp *verbs.QP) error { return qp.Close() },
		"the protection domain":  func(_ *verbs.Device, qp *verbs.QP) error { return qp.PD().Close() },
		"the device":             func(d *verbs.Device, _ *verbs.QP) error { return d.Close() },
		"the state, by a change": func(_ *verbs.Device, qp *verbs.QP) error { return qp.Modify(context.Background(), verbs.QPSErr) },
	}
	for name, shut := range closing {
		t.Run("dialing: "+name, func(t *testing.T) {
			l := kernel(t, iwarp.Protocol{})
			s := silent(t)
			began := make(chan *verbs.QP, 1)
			failed := make(chan error, 1)
			go func() {
				_, err := (&rdmacm.Dialer{Device: l.a, Prepare: func(qp *verbs.QP) error { began <- qp; return nil }}).
					Dial(within(t, 30*time.Second), s.Addr().String())
				failed <- err
			}()
			c, err := s.Accept()
			require.NoError(t, err)
			defer c.Close()
			_, err = io.ReadFull(c, make([]byte, 20)) // the Request: the dial waits for the Reply now
			require.NoError(t, err)
			require.NoError(t, shut(l.a, <-began))
			select {
			case err := <-failed:
				require.ErrorIs(t, err, verbs.ErrClosed)
			case <-time.After(3 * time.Second):
				require.Fail(t, "the dial goes on without its queue pair")
			}
		})
		t.Run("accepting: "+name, func(t *testing.T) {
			p, req := asked(t, iwarp.Protocol{}, enhanced)
			began := make(chan *verbs.QP, 1)
			failed := make(chan error, 1)
			go func() {
				_, err := req.Accept(within(t, 30*time.Second), rdmacm.AcceptConfig{Prepare: func(qp *verbs.QP) error { began <- qp; return nil }})
				failed <- err
			}()
			qp := <-began
			p.Startup() // the Reply: the accept waits for the ready-to-receive message now
			require.NoError(t, shut(qp.PD().Device(), qp))
			select {
			case err := <-failed:
				require.Error(t, err)
			case <-time.After(3 * time.Second):
				require.Fail(t, "the accept goes on without its queue pair")
			}
			p.ExpectReset()
		})
	}
}

// TestCancelAccept gives up while the ready-to-receive message is awaited.
func TestCancelAccept(t *testing.T) {
	p, req := asked(t, iwarp.Protocol{}, enhanced)
	ctx, cancel := context.WithCancel(within(t, 10*time.Second))
	failed := make(chan error, 1)
	go func() {
		_, err := req.Accept(ctx, rdmacm.AcceptConfig{})
		failed <- err
	}()
	p.Startup()
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	p.ExpectReset()
	require.Error(t, req.Reject(within(t, time.Second), nil))
}

// TestCloseListener closes a listener with requests waiting: those that nobody
// has taken are reset, the one taken can still be answered.
func TestCloseListener(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 10*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
		require.NoError(t, err)
		dialed := make(chan error, 8)
		for range cap(dialed) {
			go func() {
				_, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
				dialed <- err
			}()
		}
		taken, err := lis.Accept(ctx)
		require.NoError(t, err)
		require.NoError(t, lis.Close())
		for range cap(dialed) - 1 {
			require.Error(t, <-dialed)
		}
		require.NoError(t, ctx.Err(), "the initiators were left waiting")
		_, err = taken.Accept(ctx, rdmacm.AcceptConfig{})
		require.NoError(t, err)
		require.NoError(t, <-dialed)
	})
}

// TestLatePosts closes a queue pair that has ended while others still post:
// when Close has returned every post that was taken has its completion.
func TestLatePosts(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	for range 50 {
		p := l.connect(t, 4096, nil)
		require.NoError(t, p.mine.Modify(within(t, 5*time.Second), verbs.QPSErr))
		var posts sync.WaitGroup
		sent, received := 0, 0
		count := func(n *int, post func() (int, error)) {
			for range 400 {
				k, err := post()
				if *n += k; errors.Is(err, verbs.ErrClosed) {
					return
				}
			}
		}
		posts.Go(func() {
			count(&sent, func() (int, error) { return p.mine.PostSend([]verbs.SendWR{{Op: verbs.OpSend}}) })
		})
		posts.Go(func() {
			count(&received, func() (int, error) { return p.mine.PostRecv([]verbs.RecvWR{{}}) })
		})
		time.Sleep(50 * time.Microsecond)
		require.NoError(t, p.mine.QP.Close())
		wcs := make([]verbs.WC, 1024)
		n, err := p.mine.cq.Poll(wcs)
		require.NoError(t, err)
		posts.Wait()
		require.Equal(t, sent+received, n, "completions")
		require.NoError(t, p.theirs.QP.Close())
	}
}

// holdLog is a slog handler that stops the receive goroutine at the end of the
// first connection until it is let go.
type holdLog struct{ held, release chan struct{} }

func (h holdLog) Enabled(context.Context, slog.Level) bool { return true }
func (h holdLog) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h holdLog) WithGroup(string) slog.Handler            { return h }
func (h holdLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "connection ended" {
		select {
		case h.held <- struct{}{}:
			<-h.release
		case <-h.release:
		}
	}
	return nil
}

// TestBrokenKeepsNoBuffer shows that a queue pair in error gives its transmit
// buffer back at once. There are fewer of them than queue pairs: a broken one
// that kept its buffer until others have worked could wait for them for ever.
func TestBrokenKeepsNoBuffer(t *testing.T) {
	hold := holdLog{make(chan struct{}), make(chan struct{})}
	l := pipe(t, iwarp.PipeConfig{Logger: slog.New(hold)})
	var ps []pair
	for range 40 {
		ps = append(ps, l.connect(t, 4096, nil))
	}
	defer close(hold.release)
	for i, p := range ps {
		good := verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(0, 8)}
		wraps := good
		wraps.Remote.Addr = math.MaxUint64 - 3
		posted := make(chan error, 1)
		go func() {
			_, err := p.mine.PostSend([]verbs.SendWR{good, wraps})
			posted <- err
		}()
		select {
		case err := <-posted:
			require.NoError(t, err)
		case <-time.After(5 * time.Second):
			require.Fail(t, "PostSend waits for a buffer", "queue pair %d", i)
		}
		if i == 0 {
			<-hold.held
		}
	}
	s := l.a.Stats()
	require.Zero(t, s.Counter("mempool.tx_out"))
}

// TestAnswerAgain gives an answer that cannot be sent, and then one that can.
func TestAnswerAgain(t *testing.T) {
	ctx := within(t, 10*time.Second)
	p, req := asked(t, iwarp.Protocol{}, request)
	_, err := req.Accept(ctx, rdmacm.AcceptConfig{PrivateData: make([]byte, 513)})
	require.ErrorContains(t, err, "512")
	require.ErrorContains(t, req.Reject(ctx, make([]byte, 513)), "512")
	_, err = req.Accept(ctx, rdmacm.AcceptConfig{IRD: iwarp.MaxReadDepth + 1})
	require.ErrorIs(t, err, syscall.EINVAL, "VRB-79 a read depth above the device's")
	c, err := req.Accept(ctx, rdmacm.AcceptConfig{PrivateData: []byte("yes")})
	require.NoError(t, err)
	require.Equal(t, "yes", string(p.Startup().Private))
	_, err = req.Accept(ctx, rdmacm.AcceptConfig{})
	require.ErrorContains(t, err, "answered")
	require.Equal(t, verbs.QPSRTS, c.State())
}

func TestForeign(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	ctx := within(t, 10*time.Second)
	pd, err := l.b.AllocPD()
	require.NoError(t, err)
	_, err = (&rdmacm.Dialer{Device: l.a, PD: pd}).Dial(ctx, "10.77.0.2:1")
	require.ErrorIs(t, err, syscall.EINVAL, "SEC-54 a protection domain of another device")
	_, err = (&rdmacm.Dialer{Device: l.a, ORD: 129}).Dial(ctx, "10.77.0.2:1")
	require.ErrorIs(t, err, syscall.EINVAL, "VRB-79 a read depth above the device's")
}

// TestEasyEnd receives on after the end: it stays the end.
func TestEasyEnd(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	p := easyPair(t, l)
	require.NoError(t, p[0].Close())
	for range 20 {
		_, err := p[1].Recv(within(t, 5*time.Second), nil)
		require.ErrorIs(t, err, io.EOF)
	}
}

// easyPair connects both devices on the easy path.
func easyPair(t *testing.T, l link) [2]*rdmacm.Conn {
	ctx := within(t, 10*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
	require.NoError(t, err)
	defer lis.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		if req, err := lis.Accept(ctx); err == nil {
			if c, err := req.Accept(ctx, rdmacm.AcceptConfig{}); err == nil {
				accepted <- c
			}
		}
	}()
	c, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
	require.NoError(t, err)
	s := <-accepted
	require.NotNil(t, s)
	return [2]*rdmacm.Conn{c, s}
}
