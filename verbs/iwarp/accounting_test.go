package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// ledger holds one work queue's posts against its completions.
type ledger struct {
	cq     *verbs.CQ
	posted []posted
}

type posted struct{ signaled bool }

// check polls everything and demands what VRB-16, 17, 34, 35 and 37 say: each
// post completes at most once and in posting order; a signaled one always does;
// after the first failure every one does, and at most one failure tells more than
// that it was flushed.
func (l *ledger) check(name string) error {
	wcs := make([]verbs.WC, len(l.posted)+16)
	n, err := l.cq.Poll(wcs)
	if err != nil && n > 0 {
		return err
	}
	next, failed, telling := uint64(0), false, 0
	for _, wc := range wcs[:n] {
		for ; next < wc.ID; next++ {
			if failed || l.posted[next].signaled {
				return fmt.Errorf("%s: request %d has no completion, %d has", name, next, wc.ID)
			}
		}
		if wc.ID != next {
			return fmt.Errorf("%s: completion of %d where %d was due", name, wc.ID, next)
		}
		next++
		switch {
		case wc.Status == verbs.WCSuccess && failed:
			return fmt.Errorf("%s: request %d succeeded behind a failed one", name, wc.ID)
		case wc.Status == verbs.WCSuccess && !l.posted[wc.ID].signaled:
			return fmt.Errorf("%s: unsignaled request %d has a completion", name, wc.ID)
		case wc.Status != verbs.WCSuccess:
			failed = true
			if wc.Status != verbs.WCWRFlushErr {
				telling++
			}
		}
	}
	for ; next < uint64(len(l.posted)); next++ {
		if failed || l.posted[next].signaled {
			return fmt.Errorf("%s: request %d of %d has no completion", name, next, len(l.posted))
		}
	}
	if telling > 1 {
		return fmt.Errorf("%s: %d requests carry an error of their own", name, telling)
	}
	return nil
}

// The quarters of a worker's region. Each has one kind of user, so that memory
// which is sent is never written.
const (
	source  = iota * arena / 4 // of Sends and Writes, and of the peer's Reads
	inbox                      // receives
	sink                       // of Reads
	target                     // of the peer's Writes
	quarter = arena / 4
)

// Behind the quarters: the word that the peer's atomics change, and what ours
// fetch.
const (
	word    = arena
	fetched = arena + 8
)

// largest is the longest message of a worker, in octets.
const largest = 40000

// limit keeps the posts of one queue below the depth of its completion queue.
const limit = 2000

// worker posts at random on one end until its queue pair takes no more.
type worker struct {
	end
	peer       verbs.RemoteBuf
	send, recv ledger
}

func newWorker(t *testing.T, d *verbs.Device) *worker {
	w := &worker{end: newEnd(t, d, arena+64)}
	var err error
	w.recvs, err = d.CreateCQ(verbs.CQConfig{Depth: limit})
	require.NoError(t, err)
	require.NoError(t, w.cq.Close())
	w.cq, err = d.CreateCQ(verbs.CQConfig{Depth: limit + 8})
	require.NoError(t, err)
	w.send.cq, w.recv.cq = w.cq, w.recvs
	return w
}

func (w *worker) postSends(r *rand.Rand) {
	for len(w.send.posted) < limit {
		wrs := make([]verbs.SendWR, 1+r.IntN(8))
		for i := range wrs {
			wrs[i] = w.request(r, uint64(len(w.send.posted)+i))
		}
		n, err := w.PostSend(wrs)
		for i := range n {
			w.send.posted = append(w.send.posted, posted{wrs[i].Flags&verbs.SendSignaled != 0})
		}
		if errors.Is(err, verbs.ErrClosed) {
			return
		}
		if err != nil || r.IntN(4) == 0 {
			time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
		}
	}
}

func (w *worker) request(r *rand.Rand, id uint64) verbs.SendWR {
	n := []int{0, 1, 8, 100, 1413, 4096, largest}[r.IntN(7)]
	off := r.IntN(quarter - n)
	mine := source + off
	wr := verbs.SendWR{ID: id, SGL: []verbs.SGE{w.mr.SGE(mine, n/2), {}, w.mr.SGE(mine+n/2, n-n/2)}}
	if r.IntN(3) > 0 {
		wr.Flags = verbs.SendSignaled
	}
	if r.IntN(8) == 0 {
		wr.Flags |= verbs.SendFence
	}
	switch r.IntN(7) {
	case 0, 1:
		wr.Op = verbs.OpSend
	case 2:
		wr.Op, wr.Remote = verbs.OpWrite, w.peer.Slice(target+off, n)
	case 3:
		wr.Op, wr.Remote = verbs.OpRead, w.peer.Slice(source+off, n)
		wr.SGL = []verbs.SGE{w.mr.SGE(sink+off, n)}
	case 4:
		wr.Op, wr.SGL, wr.Inline = verbs.OpSend, nil, w.mr.Bytes()[:r.IntN(40)]
	case 5:
		wr.Op, wr.Remote, wr.Imm = verbs.OpWriteWithImm, w.peer.Slice(target+off, n), id
	case 6:
		wr.Op, wr.Remote, wr.Val = verbs.OpFetchAdd, w.peer.Slice(word, 8), id
		wr.SGL = []verbs.SGE{w.mr.SGE(fetched, 8)}
		if r.IntN(2) == 0 {
			wr.Op = verbs.OpCompareSwap
		}
	}
	return wr
}

func (w *worker) postRecvs(r *rand.Rand) {
	for len(w.recv.posted) < limit {
		n, err := w.PostRecv([]verbs.RecvWR{{ID: uint64(len(w.recv.posted)), SGL: []verbs.SGE{w.mr.SGE(inbox+r.IntN(quarter-largest), largest)}}})
		if n == 1 {
			w.recv.posted = append(w.recv.posted, posted{true})
		}
		if errors.Is(err, verbs.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond)
		}
	}
}

// endings are the ways a connection may be brought to its end under traffic.
var endings = []func(ctx context.Context, w *worker) error{
	func(_ context.Context, w *worker) error { return w.QP.Close() },
	func(_ context.Context, w *worker) error { return w.Conn.Close() },
	func(ctx context.Context, w *worker) error { _ = w.Disconnect(ctx); return nil }, // the peer may have been first
	func(ctx context.Context, w *worker) error { _ = w.Modify(ctx, verbs.QPSSQE); return nil },
	func(ctx context.Context, w *worker) error { return w.Modify(ctx, verbs.QPSErr) },
	func(_ context.Context, w *worker) error { return w.mr.Close() },
	func(_ context.Context, w *worker) error { return nil }, // a Send will find no receive
}

// TestAccounting lets both ends of a connection post at random and ends it at
// random, on one end or on both at once: every request has its completion.
func TestAccounting(t *testing.T) {
	forBackends(t, iwarp.Protocol{DrainTimeout: time.Second}, func(t *testing.T, l link) {
		for seed := uint64(0); seed < 50; seed++ {
			accounting(t, l, seed)
		}
	})
}

func accounting(t *testing.T, l link, seed uint64) {
	ws := []*worker{newWorker(t, l.a), newWorker(t, l.b)}
	ctx := within(t, 20*time.Second)
	p := pair{ws[0].end, ws[1].end}
	l.join(t, &p, nil)
	ws[0].end, ws[1].end = p.mine, p.theirs
	var posts, ends sync.WaitGroup
	for i, w := range ws {
		w.peer = ws[1-i].remote
		r := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 10*n+uint64(i))) }
		posts.Go(func() { w.postSends(r(1)) })
		posts.Go(func() { w.postRecvs(r(2)) })
		ends.Go(func() {
			r := r(3)
			time.Sleep(time.Duration(r.IntN(4000)) * time.Microsecond)
			if err := endings[r.IntN(len(endings))](ctx, w); err != nil {
				t.Errorf("seed %d: ending: %v", seed, err)
			}
		})
	}
	ends.Wait()
	for _, w := range ws {
		require.NoError(t, w.QP.Close())
		require.Equal(t, verbs.QPSErr, w.State())
	}
	posts.Wait()
	for i, w := range ws {
		for name, q := range map[string]*ledger{"send": &w.send, "receive": &w.recv} {
			require.NoError(t, q.check(name), "seed %d, end %d, %v", seed, i, w.Err())
		}
		require.NoError(t, w.pd.Close())
		require.NoError(t, w.send.cq.Close())
		require.NoError(t, w.recv.cq.Close())
	}
}
