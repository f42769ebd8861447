package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// easyPair is a connection on the easy path on the dialing side; its peer has
// queues and memory of its own.
func (l link) easyPair(t testing.TB) (*rdmacm.Conn, end) {
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
	require.NoError(t, err)
	defer lis.Close()
	theirs := newEnd(t, l.b, 4096)
	accepted := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			theirs.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: theirs.pd, QP: theirs.qp()})
		}
		accepted <- err
	}()
	c, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	return c, theirs
}

func TestEasyAtomics(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		t.Run("RDM-72 what was there comes back", func(t *testing.T) {
			c, theirs := l.easyPair(t)
			ctx := within(t, 20*time.Second)
			word, far := theirs.mr.Uint64(8), theirs.remote.Slice(8, 8)
			word.Store(1 << 40)
			old, err := c.FetchAdd(ctx, far, ^uint64(0)) // minus 1
			require.NoError(t, err)
			require.EqualValues(t, 1<<40, old)
			old, err = c.CompareSwap(ctx, far, 1<<40, 7)
			require.NoError(t, err)
			require.EqualValues(t, 1<<40-1, old)
			require.EqualValues(t, 1<<40-1, word.Load(), "not equal, not swapped")
			old, err = c.CompareSwap(ctx, far, 1<<40-1, 7)
			require.NoError(t, err)
			require.EqualValues(t, 1<<40-1, old)
			require.EqualValues(t, 7, word.Load())
			old, err = c.CompareSwap(ctx, far, 7, 0)
			require.NoError(t, err)
			require.EqualValues(t, 7, old)
			require.Zero(t, word.Load(), "0 is a value like any other")
		})
		t.Run("each of many callers gets a number of its own", func(t *testing.T) {
			c, theirs := l.easyPair(t)
			ctx := within(t, time.Minute)
			const callers, each = 8, 50
			got := make([][]uint64, callers)
			errs := make([]error, callers)
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range each {
						n, err := c.FetchAdd(ctx, theirs.remote.Slice(0, 8), 1)
						if err != nil {
							errs[i] = err
							return
						}
						got[i] = append(got[i], n)
					}
				})
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			seen := map[uint64]bool{}
			for _, ns := range got {
				for _, n := range ns {
					require.False(t, seen[n], "%d twice", n)
					require.Less(t, n, uint64(callers*each))
					seen[n] = true
				}
			}
			require.Len(t, seen, callers*each)
		})
		t.Run("VRB-58 a refusal tells why", func(t *testing.T) {
			c, theirs := l.easyPair(t)
			_, err := c.FetchAdd(within(t, 20*time.Second), theirs.remote.Slice(4, 8), 1)
			require.ErrorIs(t, err, verbs.WCRemOpErr)
			var term *verbs.TerminateError
			require.ErrorAs(t, err, &term)
			require.EqualValues(t, 0x0207, term.Value())
			_, err = c.CompareSwap(within(t, 20*time.Second), theirs.remote.Slice(0, 8), 0, 1)
			require.ErrorIs(t, err, verbs.WCWRFlushErr)
		})
		t.Run("immediate data is a message of no octets", func(t *testing.T) {
			c, theirs := l.easyPair(t)
			ctx := within(t, 20*time.Second)
			b := []byte("untouched")
			// The length of the Write is longer than any receive of the easy path.
			mr, err := theirs.pd.AllocMR(256<<10, 0)
			require.NoError(t, err)
			sink, err := c.PD().AllocMR(256<<10, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			require.NoError(t, err)
			theirs.send(t, verbs.SendWR{Op: verbs.OpWriteWithImm, Imm: 5, SGL: []verbs.SGE{mr.SGE(0, 256<<10)}, Remote: sink.Remote()},
				verbs.SendWR{Op: verbs.OpSend, Inline: []byte("after")})
			n, err := c.Recv(ctx, b)
			require.NoError(t, err)
			require.Zero(t, n)
			require.Equal(t, "untouched", string(b))
			n, err = c.Recv(ctx, b)
			require.NoError(t, err)
			require.Equal(t, "after", string(b[:n]))
		})
	})
	t.Run("a context that ends resets the connection", func(t *testing.T) {
		p, e := easyScripted(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := e.FetchAdd(ctx, verbs.RemoteBuf{Addr: 8, RKey: farKey}, 1)
			done <- err
		}()
		b := make([]byte, 1)
		_, err := io.ReadFull(p, b) // it is on its way
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Equal(t, verbs.QPSErr, e.State())
	})
	t.Run("whose queues are the application's has no easy path", func(t *testing.T) {
		l := kernel(t, iwarp.Protocol{})
		p := l.connect(t, 4096, nil)
		_, err := p.mine.FetchAdd(t.Context(), p.theirs.remote, 1)
		require.ErrorContains(t, err, "completion queues are the application's")
		_, err = p.mine.CompareSwap(t.Context(), p.theirs.remote, 1, 2)
		require.Error(t, err)
	})
}

// easyScripted connects the easy path to a TCP server that answers the start-up
// and nothing more.
func easyScripted(t *testing.T) (net.Conn, *rdmacm.Conn) {
	l := kernel(t, iwarp.Protocol{DrainTimeout: time.Second, ClientServer: true, Rev1: true})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	type result struct {
		c   *rdmacm.Conn
		err error
	}
	dialed := make(chan result, 1)
	go func() {
		c, err := (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 10*time.Second), lis.Addr().String())
		dialed <- result{c, err}
	}()
	conn, err := lis.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	b := make([]byte, 20)
	_, err = io.ReadFull(conn, b)
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "MPA ID Rep Frame\x40\x01\x00\x00")
	require.NoError(t, err)
	r := <-dialed
	require.NoError(t, r.err)
	return conn, r.c
}

// BenchmarkAtomic is one fetch and add after the other.
func BenchmarkAtomic(b *testing.B) {
	benchLinks(b, func(b *testing.B, l link) {
		c, theirs := l.easyPair(b)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.FetchAdd(b.Context(), theirs.remote.Slice(0, 8), 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestAtomicsAllocateNothing has the whole way there and back, on both hosts.
func TestAtomicsAllocateNothing(t *testing.T) {
	l := kernel(t, iwarp.Protocol{})
	c, theirs := l.easyPair(t)
	ctx := within(t, time.Minute)
	var wcs [4]verbs.WC
	for _, b := range []struct {
		name string
		run  func() error
	}{
		{"FetchAdd", func() error { _, err := c.FetchAdd(ctx, theirs.remote.Slice(0, 8), 1); return err }},
		{"CompareSwap", func() error { _, err := c.CompareSwap(ctx, theirs.remote.Slice(8, 8), 0, 0); return err }},
		{"RDMA Write with Immediate and its receive", func() error {
			if _, err := theirs.PostRecv([]verbs.RecvWR{{ID: 1}}); err != nil {
				return err
			}
			if _, err := c.PostSend([]verbs.SendWR{{Op: verbs.OpWriteWithImm, Remote: theirs.remote.Slice(16, 1), Inline: []byte{1}, Imm: 2}}); err != nil {
				return err
			}
			n, err := theirs.cq.Wait(ctx, wcs[:])
			if err == nil && (n != 1 || wcs[0].Op != verbs.OpRecvWithImm || wcs[0].Imm != 2) {
				err = fmt.Errorf("%d completions, the first is %+v", n, wcs[0])
			}
			return err
		}},
	} {
		t.Run(b.name, func(t *testing.T) {
			require.Zero(t, testing.AllocsPerRun(200, func() {
				if t.Failed() {
					return
				}
				if err := b.run(); err != nil {
					t.Error(err)
				}
			}))
		})
	}
}
