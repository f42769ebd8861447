package iwarp_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// TestCloseUnderTraffic closes devices with more busy queue pairs than there
// are transmit buffers, from several goroutines at once.
func TestCloseUnderTraffic(t *testing.T) {
	for name, shut := range map[string]func(l link, i int) error{
		"one device":     func(l link, _ int) error { return l.b.Close() },
		"both devices":   func(l link, i int) error { return []*verbs.Device{l.a, l.b}[i%2].Close() },
		"neither device": func(link, int) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			forBackends(t, iwarp.Protocol{DrainTimeout: time.Second}, func(t *testing.T, l link) {
				var ws []*worker
				for range 40 {
					a, b := newWorker(t, l.a), newWorker(t, l.b)
					p := pair{a.end, b.end}
					l.join(t, &p, nil)
					a.end, b.end = p.mine, p.theirs
					a.peer, b.peer = b.remote, a.remote
					ws = append(ws, a, b)
				}
				var posts, ends sync.WaitGroup
				for i, w := range ws {
					r := rand.New(rand.NewPCG(1, uint64(i)))
					posts.Go(func() { w.postSends(r) })
					posts.Go(func() { w.postRecvs(rand.New(rand.NewPCG(2, uint64(i)))) })
				}
				time.Sleep(5 * time.Millisecond)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for i := range 4 {
						ends.Go(func() {
							if err := shut(l, i); err != nil {
								t.Errorf("close: %v", err)
							}
						})
					}
					for _, w := range ws {
						ends.Go(func() {
							if err := w.QP.Close(); err != nil {
								t.Errorf("close: %v", err)
							}
						})
					}
					ends.Wait()
					posts.Wait()
				}()
				select {
				case <-done:
				case <-time.After(20 * time.Second):
					require.Fail(t, "something hangs")
				}
				for i, w := range ws {
					require.NoError(t, w.send.check("send"), "worker %d", i)
					require.NoError(t, w.recv.check("receive"), "worker %d", i)
				}
			})
		})
	}
}

// TestCrowd connects in both directions at once.
func TestCrowd(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 20*time.Second)
		addr := map[*verbs.Device]string{l.a: "10.77.0.1:0", l.b: "10.77.0.2:0"}
		if l.addr.IsLoopback() {
			addr = map[*verbs.Device]string{l.a: "127.0.0.1:0", l.b: "127.0.0.1:0"}
		}
		var work sync.WaitGroup
		for _, d := range []struct{ from, to *verbs.Device }{{l.a, l.b}, {l.b, l.a}} {
			lis, err := (&rdmacm.ListenConfig{Device: d.to}).Listen(ctx, addr[d.to])
			require.NoError(t, err)
			defer lis.Close()
			work.Go(func() {
				for range 100 {
					req, err := lis.Accept(ctx)
					if err != nil {
						t.Errorf("accept: %v", err)
						return
					}
					work.Go(func() { echo(t, req) })
				}
			})
			for i := range 100 {
				work.Go(func() {
					c, err := (&rdmacm.Dialer{Device: d.from}).Dial(ctx, lis.Addr().String())
					if err != nil {
						t.Errorf("dial: %v", err)
						return
					}
					defer c.Close()
					want, got := fmt.Sprintf("message %d", i), make([]byte, 100)
					if err := c.Send(ctx, []byte(want)); err != nil {
						t.Errorf("send: %v", err)
						return
					}
					if n, err := c.Recv(ctx, got); err != nil || string(got[:n]) != want {
						t.Errorf("received %q, %v, want %q", got[:n], err, want)
					}
				})
			}
		}
		work.Wait()
	})
}

// echo answers one message of the peer of req.
func echo(t *testing.T, req *rdmacm.Request) {
	ctx := within(t, 20*time.Second)
	c, err := req.Accept(ctx, rdmacm.AcceptConfig{})
	if err != nil {
		t.Errorf("accept: %v", err)
		return
	}
	defer c.Close()
	b := make([]byte, 100)
	n, err := c.Recv(ctx, b)
	if err == nil {
		err = c.Send(ctx, b[:n])
	}
	if err == nil {
		_, _ = c.Recv(ctx, b) // until the initiator disconnects
	}
	if err != nil {
		t.Errorf("echo: %v", err)
	}
}

// TestDeregStorm closes a region while peers write to it and read it.
func TestDeregStorm(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	for range 8 {
		p := l.connect(t, arena, nil)
		q := l.connectWith(t, newEnd(t, l.a, arena), end{dev: l.b, pd: p.theirs.pd, cq: p.theirs.cq, mr: p.theirs.mr, remote: p.theirs.remote})
		fill(p.mine.mr.Bytes(), 1)
		var posts sync.WaitGroup
		for _, w := range []struct {
			*end
			op verbs.Opcode
		}{{&p.mine, verbs.OpWrite}, {&q.mine, verbs.OpRead}} {
			posts.Go(func() {
				for w.State() == verbs.QPSRTS {
					_, _ = w.PostSend([]verbs.SendWR{{Op: w.op, SGL: []verbs.SGE{w.mr.SGE(0, arena)}, Remote: p.theirs.remote}})
				}
			})
		}
		time.Sleep(time.Millisecond)
		require.NoError(t, p.theirs.mr.Close())
		after := bytes.Clone(p.theirs.mr.Bytes())
		p.over(t)
		q.over(t)
		posts.Wait()
		require.True(t, bytes.Equal(after, p.theirs.mr.Bytes()), "SEC-07 the region changed after it was closed")
		var term *verbs.TerminateError
		require.ErrorAs(t, p.mine.Err(), &term)
		require.EqualValues(t, 0x1100, term.Value())
		require.ErrorAs(t, q.mine.Err(), &term)
		require.EqualValues(t, 0x0100, term.Value())
	}
}

// TestMixedOverBadLink runs operations of all kinds over a link that loses,
// doubles, reorders and damages frames, and compares every octet.
func TestMixedOverBadLink(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{Faults: pktio.Faults{Seed: 5, Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Corrupt: 0.01}})
	p := l.connect(t, 4*arena, nil)
	r := rand.New(rand.NewPCG(6, 6))
	fill(p.mine.mr.Bytes(), 6)
	fill(p.theirs.mr.Bytes(), 7)
	for round := range 10 {
		n, off := 1+r.IntN(100000), r.IntN(quarter)
		sge := func(at int) []verbs.SGE { return []verbs.SGE{p.mine.mr.SGE(at+off, n)} }
		p.theirs.recv(t, verbs.RecvWR{SGL: []verbs.SGE{p.theirs.mr.SGE(2*arena+off, n)}})
		p.mine.send(t,
			verbs.SendWR{Op: verbs.OpRead, SGL: sge(arena), Remote: p.theirs.remote.Slice(off, n)},
			verbs.SendWR{Op: verbs.OpWrite, SGL: sge(0), Remote: p.theirs.remote.Slice(arena+off, n)},
			verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendFence | verbs.SendSignaled, SGL: sge(0)})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		require.NoError(t, p.theirs.wait(t, 1)[0].Err())
		for what, same := range map[string]bool{
			"Read":  bytes.Equal(p.mine.mr.Bytes()[arena+off:][:n], p.theirs.mr.Bytes()[off:][:n]),
			"Write": bytes.Equal(p.mine.mr.Bytes()[off:][:n], p.theirs.mr.Bytes()[arena+off:][:n]),
			"Send":  bytes.Equal(p.mine.mr.Bytes()[off:][:n], p.theirs.mr.Bytes()[2*arena+off:][:n]),
		} {
			require.True(t, same, "%s of %d octets in round %d differs", what, n, round)
		}
	}
}

// TestTerminateBeforeReset is a peer that sends a Terminate and a reset behind
// it. Even if the sending side meets the reset first, the Terminate counts.
func TestTerminateBeforeReset(t *testing.T) {
	hold := holdLog{make(chan struct{}), make(chan struct{})}
	d, err := iwarp.Open(within(t, time.Minute), iwarp.Config{Backend: iwarp.Kernel, Logger: slog.New(hold)})
	require.NoError(t, err)
	closeAfter(t, d)
	lis, err := (&rdmacm.ListenConfig{Device: d}).Listen(within(t, time.Minute), "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	connect := func() (*wiretest.Peer, end) {
		ctx, e := within(t, 10*time.Second), newEnd(t, d, 4096)
		p := wiretest.DialPeer(t, lis.Addr().String())
		p.Write(request.Octets())
		req, err := lis.Accept(ctx)
		require.NoError(t, err)
		e.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: e.pd, QP: e.qp()})
		require.NoError(t, err)
		p.Startup()
		e.recv(t, verbs.RecvWR{SGL: []verbs.SGE{e.mr.SGE(0, 16)}})
		p.Send(send(1, "hello")) // so that we may send
		require.NoError(t, e.wait(t, 1)[0].Err())
		return p, e
	}
	other, _ := connect()
	p, e := connect()
	other.Reset()
	<-hold.held // the receive goroutine stands still

	post := func() error {
		_, err := e.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, 16)}}})
		return err
	}
	require.NoError(t, post())
	p.Send(wiretest.Terminate(0x1202))
	require.NoError(t, p.Conn().Close()) // with octets unread: a reset
	var wcs [64]verbs.WC
	require.Eventually(t, func() bool { // until a Send makes no completion: the sending side has met the reset
		before := len(e.poll(t, wcs[:]))
		return post() == nil && len(e.poll(t, wcs[:])) == 0 && before == 0
	}, 5*time.Second, time.Millisecond)
	close(hold.release)
	<-e.Done()
	var term *verbs.TerminateError
	require.ErrorAs(t, e.Err(), &term)
	require.EqualValues(t, 0x1202, term.Value())
	require.True(t, term.Remote)
}

// poll returns the completions that are there.
func (e *end) poll(t testing.TB, wcs []verbs.WC) []verbs.WC {
	n, err := e.cq.Poll(wcs)
	require.NoError(t, err)
	return wcs[:n]
}
