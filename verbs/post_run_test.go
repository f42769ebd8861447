package verbs

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
)

// VRB-06: eight goroutines post to one queue; each keeps its own order.
func TestPostersInParallel(t *testing.T) {
	const posters, each = 8, 500
	r := newRig(t, QPConfig{MaxSendWR: 16, SignalAll: true})
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				for r.cq.c.ring.Len() > 128 { // the fake frees slots at once: keep its CQ from overrunning
					runtime.Gosched()
				}
				wr := []SendWR{{ID: uint64(p)<<32 | uint64(i), Op: OpWrite, Remote: r.mr.Remote(), Inline: []byte{byte(p)}}}
				if _, err := r.a.PostSend(wr); err != nil {
					panic(err)
				}
			}
		})
	}
	got := make([]uint64, posters)
	for total := 0; total < posters*each; {
		var wcs [32]WC
		n, err := r.cq.Wait(t.Context(), wcs[:])
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			p := wc.ID >> 32
			require.Equal(t, got[p], wc.ID&math.MaxUint32)
			got[p]++
		}
		total += n
	}
	wg.Wait()
	require.Equal(t, uint64(posters*each), r.dev.Stats().SendsPosted)
}

// Closing while others post: nobody touches the rings after Close.
func TestPostWhileClosing(t *testing.T) {
	for range 50 {
		r := newRig(t, QPConfig{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for {
					_, err := r.a.PostSend([]SendWR{{Op: OpWrite}})
					if errors.Is(err, ErrClosed) {
						return
					}
					if _, err := r.a.PostRecv([]RecvWR{{}}); errors.Is(err, ErrClosed) {
						return
					}
				}
			})
		}
		require.NoError(t, r.a.Close())
		sq := r.f.qp(r.a).s.SQ
		tail := sq.Tail()
		wg.Wait()
		require.Equal(t, tail, sq.Tail())
	}
}

func TestAllocs(t *testing.T) {
	r := newRig(t, QPConfig{MaxSendWR: 64, MaxRecvWR: 64})
	var wcs [32]WC
	drain := func() {
		for {
			if n, _ := r.cq.Poll(wcs[:]); n == 0 {
				break
			}
		}
	}
	far := r.mr.Remote()
	zero := func(name string, f func()) {
		t.Helper()
		require.Zero(t, testing.AllocsPerRun(200, f), name)
	}
	ctx := t.Context()
	zero("PostSend, 1", func() {
		if n, err := r.a.PostSend([]SendWR{{ID: 1, Op: OpWrite, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(0, 64)}, Remote: far}}); n != 1 || err != nil {
			panic(err)
		}
		drain()
	})
	zero("PostSend, 16", func() {
		var list [16]SendWR
		var sges [16][2]SGE
		for i := range list {
			sges[i] = [2]SGE{r.mr.SGE(i, 64), r.mr.SGE(64, 8)}
			list[i] = SendWR{ID: uint64(i), Op: OpWrite, SGL: sges[i][:], Remote: far}
		}
		list[15].Flags = SendSignaled
		if n, err := r.a.PostSend(list[:]); n != 16 || err != nil {
			panic(err)
		}
		drain()
	})
	zero("PostSend, inline", func() {
		data := [12]byte{1, 2, 3}
		if _, err := r.a.PostSend([]SendWR{{Op: OpWrite, Inline: data[:], Remote: far}}); err != nil {
			panic(err)
		}
	})
	zero("PostSend, atomics", func() {
		if n, err := r.a.PostSend([]SendWR{
			{ID: 1, Op: OpFetchAdd, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(0, 8)}, Remote: far, Val: 1},
			{ID: 2, Op: OpCompareSwap, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(8, 8)}, Remote: far, Compare: 1, Val: 2},
		}); n != 2 || err != nil {
			panic(err)
		}
		drain()
	})
	zero("PostRecv and RDMA Write with Immediate", func() {
		if _, err := r.b.PostRecv([]RecvWR{{ID: 1}}); err != nil {
			panic(err)
		}
		if _, err := r.a.PostSend([]SendWR{{Op: OpWriteWithImm, SGL: []SGE{r.mr.SGE(0, 64)}, Remote: far, Imm: 7}}); err != nil {
			panic(err)
		}
		if n, err := r.rcq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].Imm != 7 {
			panic(err)
		}
	})
	zero("PostRecv and Send", func() {
		if _, err := r.b.PostRecv([]RecvWR{{ID: 1, SGL: []SGE{r.mr.SGE(100, 64)}}}); err != nil {
			panic(err)
		}
		if _, err := r.a.PostSend([]SendWR{{Op: OpSend, Inline: []byte("x")}}); err != nil {
			panic(err)
		}
		if n, err := r.rcq.Poll(wcs[:]); n != 1 || err != nil {
			panic(err)
		}
	})
	zero("Poll, nothing there", func() { _, _ = r.cq.Poll(wcs[:]) })
	push := func() { r.cq.c.ring.Push(&ring.Completion{ID: 9, Status: uint8(WCWRFlushErr)}) }
	zero("Wait", func() {
		push()
		if n, err := r.cq.Wait(ctx, wcs[:]); n != 1 || err != nil {
			panic(err)
		}
	})
	zero("range All", func() {
		push()
		push()
		i := 0
		for wc, err := range r.cq.All(ctx) {
			if err != nil || wc.ID != 9 {
				panic(err)
			}
			if i++; i == 2 {
				break
			}
		}
	})
	zero("errors.Is(wc.Err())", func() {
		wc := WC{Status: WCWRFlushErr}
		if !errors.Is(wc.Err(), WCWRFlushErr) || errors.Is(wc.Err(), WCRemAccessErr) {
			panic("no match")
		}
	})
	zero("Notify", func() { r.cq.Notify(true) })
}

func BenchmarkPost(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("Write/%d", n), func(b *testing.B) {
			r := newRig(b, QPConfig{})
			r.a.Ops().Doorbell = func() { // the posting side alone
				q := r.f.qps[r.a.Num()].s.SQ
				q.Release(q.Tail())
			}
			far := r.mr.Remote()
			b.ReportAllocs()
			for b.Loop() {
				var list [16]SendWR
				var sges [16]SGE
				for i := range n {
					sges[i] = r.mr.SGE(0, 64)
					list[i] = SendWR{Op: OpWrite, SGL: sges[i : i+1], Remote: far}
				}
				if _, err := r.a.PostSend(list[:n]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
