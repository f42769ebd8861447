package iwarp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
)

// turnScene is a connection in FPDU mode whose peer reads at once whatever comes.
func turnScene(t *testing.T) (s *scene, q *qp) {
	r := newRig(t)
	s = r.newScene(t, asResponder)
	s.play(s.frame(0, wiretest.Tagged(0, true, 1, 0, nil))) // opens the way for ours
	q, err := r.d.qp(s.qp.Num())
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		s.tcp.wrote = nil
		r.run(func() {
			require.NoError(t, s.qp.Close())
			for _, mr := range s.regions {
				require.NoError(t, mr.Close())
			}
		})
	})
	return s, q
}

// busy makes an application that posts again whenever something was sent, n times
// in all. It returns how often it did.
func (s *scene) busy(n int) *int {
	posted := new(int)
	s.tcp.wrote = func() {
		s.tcp.out = nil
		if *posted == n {
			return
		}
		*posted++
		_, err := s.cq.Poll(make([]verbs.WC, 8))
		require.NoError(s.tb, err)
		_, err = s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("again")}})
		require.NoError(s.tb, err)
	}
	return posted
}

// post posts one Send while another goroutine would be sending, so that it waits.
func (s *scene) post(t *testing.T, q *qp) {
	q.tx.Lock()
	_, err := s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("first")}})
	q.tx.Unlock()
	require.NoError(t, err)
}

// TestReceiverSendsInTurns: an application that goes on posting does not keep the
// receive goroutine sending, and its work is not forgotten.
func TestReceiverSendsInTurns(t *testing.T) {
	const posts = 1000
	s, q := turnScene(t)
	posted := s.busy(posts)
	s.post(t, q)
	s.d.txq.push(q)
	calls := 0
	for s.d.txq.some.Load() {
		before := *posted
		s.d.sendQueued(1, &s.d.txq.own, true)
		require.LessOrEqual(t, *posted-before, 1)
		calls++
		require.LessOrEqual(t, calls, posts+1)
	}
	require.Equal(t, posts, *posted)
	require.GreaterOrEqual(t, calls, posts)
	require.Equal(t, verbs.QPSRTS, s.qp.State())
}

// TestOthersWaitForNoOne: whoever sends for an application that goes on posting
// leaves it when other queue pairs wait.
func TestOthersWaitForNoOne(t *testing.T) {
	s, q := turnScene(t)
	posted := s.busy(1000)
	other := &qp{dev: s.d}
	s.d.txq.push(other)
	s.post(t, q)
	q.doorbell()
	require.Equal(t, 1, *posted)
	require.Same(t, other, s.d.txq.tryPop(), "who waits is next")
	require.Same(t, q, s.d.txq.tryPop())
	q.doorbell()
	require.Equal(t, 1000, *posted, "with nobody waiting it goes on")
	require.Nil(t, s.d.txq.tryPop())
}

// TestReceiverSendsLongMessagesInTurns: the receive goroutine looks at the port
// again in the midst of a long message.
func TestReceiverSendsLongMessagesInTurns(t *testing.T) {
	const size, turn = 16 << 20, 512 << 10
	s, q := turnScene(t)
	s.next = append(s.next[:0], rigRegion{stag: 0x66666601, base: 0x100000, size: size})
	mr, err := s.own.RegMR(make([]byte, size), verbs.AccessLocalWrite)
	require.NoError(t, err)
	s.regions = append(s.regions, mr)
	sent := 0
	s.tcp.wrote = func() {
		sent += len(s.tcp.out)
		s.tcp.out = nil
	}
	q.tx.Lock()
	_, err = s.qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, size)},
		Remote: verbs.RemoteBuf{Addr: wiretest.HostileBase, RKey: wiretest.RegionAll}}})
	require.NoError(t, err)
	q.tx.Unlock()
	s.d.txq.push(q)
	calls := 0
	for s.d.txq.some.Load() {
		before := sent
		s.d.sendQueued(1, &s.d.txq.own, true)
		require.LessOrEqual(t, sent-before, turn+turn/8)
		calls++
	}
	require.Greater(t, sent, size)
	require.GreaterOrEqual(t, calls, size/(turn+turn/8))
	wcs := make([]verbs.WC, 2)
	n, err := s.cq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, wcs[0].Err())
}

// TestTurnsEnd: whoever has done a turn counts as being at it no more, or nobody would
// be woken for what is queued later.
func TestTurnsEnd(t *testing.T) {
	r := newRig(t)
	d := r.d
	d.role.polled.Store(true) // so that nobody waits for frames
	turns := []struct {
		name   string
		do     func()
		serves int
	}{
		{"the device's own", func() { require.False(t, d.receive(true)) }, 1},
		{"an application in its place", d.progress, progressTurns},
	}
	for _, turn := range turns {
		for i := range progressTurns + 2 {
			d.txq.push(&qp{dev: d, num: uint32(i + 1)})
		}
		turn.do()
		require.Zero(t, d.txq.turns.Load(), turn.name)
		left := 0
		for d.txq.tryPop() != nil {
			left++
		}
		require.Equal(t, progressTurns+2-turn.serves, left, turn.name)
	}
}

// TestQueueIsServed: what is queued is served by the transmit goroutine unless
// somebody else is at it, and also if whoever is at it leaves it.
func TestQueueIsServed(t *testing.T) {
	var q txQueue
	q.init(0)
	qps := make([]qp, 16)
	served := make(chan *qp, len(qps))
	var wg sync.WaitGroup
	wg.Go(func() {
		for x := q.pop(); x != nil; x = q.pop() {
			served <- x
		}
	})
	wait := func(n int, who string) {
		t.Helper()
		for range n {
			select {
			case <-served:
			case <-time.After(20 * time.Second):
				require.Fail(t, "a queue pair waits for ever", who)
			}
		}
	}
	asleep := func() { time.Sleep(2 * time.Millisecond) } // the transmit goroutine, most likely: else the test sees less
	asleep()
	q.push(&qps[0])
	wait(1, "with nobody at it")

	asleep()
	q.begin()
	q.push(&qps[0])
	q.push(&qps[1])
	q.push(&qps[0])
	require.Same(t, &qps[0], q.tryPop(), "the transmit goroutine was not woken")
	q.end()
	wait(1, "left behind")
	require.Nil(t, q.tryPop())

	asleep()
	q.begin()
	q.begin()
	q.push(&qps[2])
	q.end()
	wait(1, "left behind by one of two")
	q.end()
	require.Zero(t, q.turns.Load())

	// Many at once, of which nobody serves all.
	var pushers sync.WaitGroup
	var pushed, taken atomic.Int64
	stop := time.Now().Add(50 * time.Millisecond)
	for i := range 4 {
		pushers.Go(func() {
			for n := 0; time.Now().Before(stop); n++ {
				q.begin()
				if n%3 == i%3 {
					pushed.Add(1)
					q.push(&qps[(n+i)%len(qps)])
				}
				if n%2 == 0 && q.tryPop() != nil {
					taken.Add(1)
				}
				q.end()
				runtime.Gosched()
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range served {
			taken.Add(1)
		}
	}()
	pushers.Wait()
	require.Eventually(t, func() bool { return !q.some.Load() }, 20*time.Second, time.Millisecond, "left behind")
	q.close()
	wg.Wait()
	close(served)
	<-done
	require.Positive(t, taken.Load())
	require.LessOrEqual(t, taken.Load(), pushed.Load())
	require.Nil(t, q.first)
}
