package iwarp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What is queued while an application polls is left to it, until it parks or does not
// come for it in time.
func TestTxQueueLeft(t *testing.T) {
	const most = 20 * time.Millisecond
	// queue returns one that has a goroutine which waits for queue pairs, and how many
	// it has taken.
	queue := func(most time.Duration) (*txQueue, func() int) {
		var q txQueue
		taken := 0
		q.init(most)
		go func() {
			for q.pop() != nil {
				q.mu.Lock()
				taken++
				q.mu.Unlock()
			}
		}()
		return &q, func() int {
			synctest.Wait()
			q.mu.Lock()
			defer q.mu.Unlock()
			return taken
		}
	}
	run := func(name string, most time.Duration, test func(t *testing.T, q *txQueue, taken func() int)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, taken := queue(most)
				defer q.close()
				require.Zero(t, taken()) // it waits
				q.leave()
				test(t, q, taken)
			})
		})
	}
	run("the application takes it", most, func(t *testing.T, q *txQueue, taken func() int) {
		x := &qp{}
		for range 10 {
			q.push(x)
			time.Sleep(most / 2)
			require.Same(t, x, q.tryPop())
		}
		time.Sleep(2 * most)
		require.Zero(t, taken())
		q.push(x)
		require.Zero(t, taken(), "a timer that finds nothing ends nothing")
		require.Same(t, x, q.tryPop())
	})
	run("nobody comes", most, func(t *testing.T, q *txQueue, taken func() int) {
		q.push(&qp{})
		time.Sleep(most / 2)
		q.push(&qp{})
		time.Sleep(most/2 - 1)
		require.Zero(t, taken())
		time.Sleep(time.Nanosecond)
		require.Equal(t, 2, taken())
		q.push(&qp{})
		require.Equal(t, 3, taken(), "nor is the next one left")
	})
	run("the application parks", most, func(t *testing.T, q *txQueue, taken func() int) {
		q.push(&qp{})
		require.Zero(t, taken())
		q.recall()
		require.Equal(t, 1, taken())
		q.leave()
		q.push(&qp{})
		require.Equal(t, 1, taken())
		q.recall()
		require.Equal(t, 2, taken())
	})
	run("a turn leaves some", most, func(t *testing.T, q *txQueue, taken func() int) {
		q.begin()
		q.push(&qp{})
		time.Sleep(most / 2)
		q.end()
		time.Sleep(most - 1)
		require.Zero(t, taken(), "since the turn")
		time.Sleep(time.Nanosecond)
		require.Equal(t, 1, taken())
	})
	run("a model that leaves nothing", 0, func(t *testing.T, q *txQueue, taken func() int) {
		q.push(&qp{})
		require.Equal(t, 1, taken())
		q.begin()
		q.push(&qp{})
		require.Equal(t, 1, taken(), "but to the turn under way")
		q.end()
		require.Equal(t, 2, taken())
	})
}

// Where the receive goroutine transmits it is woken for the first queue pair, and no
// transmit goroutine is.
func TestTxQueueWakesIO(t *testing.T) {
	var q txQueue
	q.init(0)
	woken := 0
	q.wakeIO = func() { woken++ }
	q.push(&qp{})
	q.push(&qp{})
	require.Equal(t, 1, woken)
	require.NotNil(t, q.tryPop())
	q.push(&qp{})
	require.Equal(t, 1, woken, "there is one that it was woken for")
	require.NotNil(t, q.tryPop())
	require.NotNil(t, q.tryPop())
	q.push(&qp{})
	require.Equal(t, 2, woken)
	require.NotNil(t, q.tryPop())
	q.close()
	q.push(&qp{})
	require.Equal(t, 2, woken, "the stack is closed")
}

// Who polls is noted, and forgotten as soon as it parks or, where nobody may stand in for
// it soon, waits for another call.
func TestPolledAndParked(t *testing.T) {
	for _, c := range []struct {
		model               Threads
		role, left, command bool // after a poll; whether a command ends it
	}{
		{ThreadsAdaptive, true, false, false}, {ThreadsRunToCompletion, true, true, true}, {ThreadsSplit, false, true, false},
	} {
		t.Run(c.model.String(), func(t *testing.T) {
			cfg := Config{Backend: Kernel, Threads: c.model, SpinFor: DefaultSpin}
			var err error
			cfg.Protocol, err = cfg.Protocol.withDefaults()
			require.NoError(t, err)
			d, err := cfg.open()
			require.NoError(t, err)
			require.NoError(t, d.close()) // its goroutines are gone: nobody else sets and clears
			state := func() [2]bool { return [2]bool{d.role.polled.Load(), d.txq.left.Load()} }
			d.progress()
			require.Equal(t, [2]bool{c.role, c.left}, state())
			d.parked()
			require.Equal(t, [2]bool{}, state())
			d.progress()
			d.ended = false
			d.do(func() {})
			require.Equal(t, [2]bool{c.role && !c.command, c.left && !c.command}, state())
		})
	}
}
