package iwarp_test

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// cutLink is a pipe that can be cut.
func cutLink(t *testing.T, p iwarp.Protocol) (link, func(cut bool)) {
	var end *pktio.Faulty
	l := pipe(t, iwarp.PipeConfig{Protocol: p, Faulty: func(a, _ *pktio.Faulty) { end = a }})
	return l, end.Cut
}

// busyPairs makes n connections whose ends post all kinds of work requests at
// random until their queue pairs end.
func busyPairs(t *testing.T, l link, n int) (ws []*worker, wait func()) {
	var posts sync.WaitGroup
	for range n {
		a, b := newWorker(t, l.a), newWorker(t, l.b)
		p := pair{a.end, b.end}
		l.join(t, &p, nil)
		a.end, b.end = p.mine, p.theirs
		a.peer, b.peer = b.remote, a.remote
		ws = append(ws, a, b)
	}
	for i, w := range ws {
		posts.Go(func() { w.postSends(rand.New(rand.NewPCG(3, uint64(i)))) })
		posts.Go(func() { w.postRecvs(rand.New(rand.NewPCG(4, uint64(i)))) })
	}
	return ws, posts.Wait
}

// ended waits until the queue pairs of all workers are in ERR, and checks that
// each work request has its completion.
func ended(t *testing.T, ws []*worker, wait func()) {
	for _, w := range ws {
		select {
		case <-w.Done():
		case <-time.After(30 * time.Second):
			require.Fail(t, "a queue pair did not end", "state %v", w.State())
		}
	}
	wait()
	for i, w := range ws {
		require.NoError(t, w.QP.Close())
		require.NoError(t, w.send.check("send"), "worker %d", i)
		require.NoError(t, w.recv.check("receive"), "worker %d", i)
	}
}

// TestSilentPeer cuts the link for good: both queue pairs end with ETIMEDOUT
// and all work requests are flushed, whether any was in progress or not.
func TestSilentPeer(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		l, cut := cutLink(t, iwarp.Protocol{Keepalive: time.Second})
		p := l.connect(t, 4096, post5)
		cut(true)
		p.over(t)
		for _, e := range []*end{&p.mine, &p.theirs} {
			require.ErrorIs(t, e.Err(), syscall.ETIMEDOUT)
			require.ErrorContains(t, e.Err(), "answers no more")
			require.Equal(t, flushed(5), statuses(e.wait(t, 5)))
			s := e.dev.Stats()
			require.EqualValues(t, 1, s.Counter("tcp.silent_peers"))
		}
		for ev, err := range l.a.Events(within(t, 10*time.Second)) {
			require.NoError(t, err)
			require.Equal(t, verbs.EventQPFatal, ev.Type)
			require.ErrorIs(t, ev.Err, syscall.ETIMEDOUT)
			break
		}
	})
	t.Run("busy", func(t *testing.T) {
		l, cut := cutLink(t, iwarp.Protocol{Keepalive: time.Second})
		ws, wait := busyPairs(t, l, 4)
		time.Sleep(20 * time.Millisecond)
		cut(true)
		ended(t, ws, wait)
	})
}

// TestIdleQueuePairsLive keeps hundreds of idle connections for as long as it
// takes their peers to be asked for a sign of life more than once.
func TestIdleQueuePairsLive(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{Protocol: iwarp.Protocol{Keepalive: 12 * time.Second}})
	var pairs []pair
	mine, theirs := newEnd(t, l.a, 4096), newEnd(t, l.b, 4096)
	for range 300 {
		pairs = append(pairs, l.connectWith(t, mine, theirs))
	}
	before := l.a.Stats()
	time.Sleep(5 * time.Second)
	after := l.a.Stats()
	require.Greater(t, after.Counter("link.frames_out"), before.Counter("link.frames_out")+300, "signs of life")
	require.Zero(t, after.Counter("tcp.silent_peers"))
	for i := range pairs {
		require.Equal(t, verbs.QPSRTS, pairs[i].mine.State())
		pairs[i].mine.send(t, verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{mine.mr.SGE(0, 64)}, Remote: theirs.remote.Slice(0, 64)})
		require.NoError(t, pairs[i].mine.wait(t, 1)[0].Err())
	}
}

// TestCutLink cuts the link for a while: connections go on, whatever is posted
// meanwhile.
func TestCutLink(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 5 * time.Second} {
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			l, cut := cutLink(t, iwarp.Protocol{})
			p := l.connect(t, arena, nil)
			fill(p.mine.mr.Bytes(), 3)
			fill(p.theirs.mr.Bytes(), 4)
			op := func(op verbs.Opcode, part int) verbs.SendWR {
				return verbs.SendWR{Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(part*quarter, quarter)}, Remote: p.theirs.remote.Slice(part*quarter, quarter)}
			}
			p.mine.send(t, op(verbs.OpWrite, 0), op(verbs.OpRead, 1))
			cut(true)
			time.Sleep(d)
			p.mine.send(t, op(verbs.OpWrite, 2), op(verbs.OpRead, 3))
			cut(false)
			start := time.Now()
			for _, wc := range p.mine.wait(t, 4) {
				require.NoError(t, wc.Err())
			}
			t.Logf("all complete after %v", time.Since(start).Round(time.Millisecond))
			// A Write is in place when a Read behind it is answered.
			p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(3*quarter, 8)}, Remote: p.theirs.remote.Slice(3*quarter, 8)})
			require.NoError(t, p.mine.wait(t, 1)[0].Err())
			require.True(t, bytes.Equal(p.mine.mr.Bytes(), p.theirs.mr.Bytes()))
		})
	}
}
