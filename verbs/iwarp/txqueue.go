package iwarp

import (
	"sync"
	"sync/atomic"
	"time"
)

// txQueue holds the queue pairs that the transmit goroutine shall serve, each
// at most once. Under ThreadsIO there is none, and the receive goroutine serves them;
// under ThreadsRunToCompletion and ThreadsSplit an application that polls does, and
// the transmit goroutine gets what it leaves.
type txQueue struct {
	mu     sync.Mutex
	wake   sync.Cond
	first  *qp          // linked by qp.behind, so that queueing allocates nothing
	last   *qp          // of the same; nil with first
	some   atomic.Bool  // there is a first: worth the lock
	turns  atomic.Int32 // applications that are at it: no need to wake the transmit goroutine
	closed bool

	// Set where the threading model asks for it, and then for good.
	wakeIO func()        // wakes who transmits instead of the transmit goroutine
	late   *time.Timer   // ends left when nobody has come
	most   time.Duration // that a queue pair waits for an application that polls
	left   atomic.Bool   // applications poll, and send what is queued

	own, apps atomic.Uint64 // turns of the device's goroutines and of applications
}

// init makes the queue; most is Threads.leaves.
func (t *txQueue) init(most time.Duration) {
	t.wake.L = &t.mu
	if t.most = most; most > 0 {
		t.late = time.AfterFunc(most, t.tooLate)
		t.late.Stop()
	}
}

func (t *txQueue) push(q *qp) {
	t.mu.Lock()
	if !q.queued {
		q.queued = true
		first := t.first == nil
		if first {
			t.first = q
		} else {
			t.last.behind = q
		}
		t.last = q
		t.some.Store(true)
		t.tell(first)
	}
	t.mu.Unlock()
}

// tell lets somebody know that a queue pair waits; first: none did before. The
// caller holds mu.
func (t *txQueue) tell(first bool) {
	switch {
	case t.wakeIO != nil:
		if first && !t.closed {
			t.wakeIO()
		}
	case t.left.Load():
		if first {
			t.late.Reset(t.most)
		}
	case t.turns.Load() == 0:
		t.wake.Signal()
	}
}

// leave leaves what is queued from now on to the application that polls, where
// the threading model says so.
func (t *txQueue) leave() {
	if t.most > 0 && !t.left.Load() {
		t.left.Store(true)
	}
}

// recall ends that: what an application has left, the transmit goroutine sends.
func (t *txQueue) recall() {
	if t.left.Swap(false) && t.some.Load() {
		t.mu.Lock()
		t.wake.Signal()
		t.mu.Unlock()
	}
}

// tooLate is recall if nobody has come for what was left.
func (t *txQueue) tooLate() {
	if t.some.Load() {
		t.recall()
	}
}

// pop waits for a queue pair; nil once closed and empty.
func (t *txQueue) pop() *qp {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.first == nil {
		if t.closed {
			return nil
		}
		t.wake.Wait()
	}
	return t.take()
}

// begin announces an application that will serve what is queued meanwhile.
func (t *txQueue) begin() { t.turns.Add(1) }

// end leaves what is still queued to the transmit goroutine.
func (t *txQueue) end() {
	t.turns.Add(-1)
	if t.some.Load() {
		t.mu.Lock()
		if t.left.Load() {
			t.late.Reset(t.most)
		} else {
			t.wake.Signal()
		}
		t.mu.Unlock()
	}
}

// pause is end for who comes back at once for what is still queued, or calls resume.
func (t *txQueue) pause() { t.turns.Add(-1) }

// resume leaves what is queued to the transmit goroutine after all.
func (t *txQueue) resume() {
	t.begin()
	t.end()
}

// tryPop is pop that does not wait.
func (t *txQueue) tryPop() *qp {
	if !t.some.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == nil {
		return nil
	}
	return t.take()
}

// take returns the first; the caller holds mu.
func (t *txQueue) take() *qp {
	q := t.first
	t.first, q.behind = q.behind, nil
	if t.first == nil {
		t.last = nil
	}
	t.some.Store(t.first != nil)
	q.queued = false
	return q
}

func (t *txQueue) close() {
	t.mu.Lock()
	t.closed = true
	if t.late != nil {
		t.late.Stop()
	}
	t.wake.Broadcast()
	t.mu.Unlock()
}
