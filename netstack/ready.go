package netstack

import (
	"sync"
	"sync/atomic"
)

// Event says that a connection or a listener, whichever is not nil, is worth a look. A connection is: it was
// established or failed, octets or the end arrived, or there is room to send again. A listener is: a connection waits.
type Event struct {
	Conn     *Conn
	Listener *Listener
}

// mark is what the ready queue keeps in a Conn or Listener. Guarded by ready.mu.
type mark struct {
	queued bool // it is in the queue
	gone   bool // it must not come out of the queue: not yet, or not any more
}

func (e Event) mark() *mark {
	if e.Conn != nil {
		return &e.Conn.mark
	}
	return &e.Listener.mark
}

// ready is the queue between whoever notices that something happened (TCP's goroutines, timers, the kernel's epoll)
// and Poll. Each Conn and Listener is in it at most once.
type ready struct {
	some   atomic.Bool   // take would find something: worth the lock
	events atomic.Uint64 // handed out so far

	// kick ends the sleep of Poll. Set once, before the first push.
	kick func()

	mu     sync.Mutex
	ring   []Event // its length is a power of two
	head   int
	n      int
	woken  bool // Wake was called since the last Poll returned
	asleep bool // Poll sleeps or is about to
	closed bool
}

// push puts e into the queue unless it is there, and ends a sleep of Poll. Any goroutine, also with TCP's locks held.
func (q *ready) push(e Event) {
	q.mu.Lock()
	m := e.mark()
	if m.queued || m.gone || q.closed {
		q.mu.Unlock()
		return
	}
	m.queued = true
	if q.n == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = e
	q.n++
	q.some.Store(true)
	q.rouse()
}

// rouse unlocks mu and ends a sleep of Poll.
func (q *ready) rouse() {
	sleeping := q.asleep
	q.asleep = false
	q.mu.Unlock()
	if sleeping {
		q.kick()
	}
}

func (q *ready) grow() {
	bigger := make([]Event, max(64, 2*len(q.ring)))
	for i := range q.n {
		bigger[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
	}
	q.ring, q.head = bigger, 0
}

// wake makes the Poll that runs, or the next one, return.
func (q *ready) wake() {
	q.mu.Lock()
	q.woken = true
	q.some.Store(true)
	q.rouse()
}

// take moves events from the queue into ev. stop is true when Poll has to return even without any.
func (q *ready) take(ev []Event) (n int, stop bool) {
	if !q.some.Load() {
		return 0, false
	}
	q.mu.Lock()
	for q.n > 0 && n < len(ev) {
		e := q.ring[q.head]
		q.ring[q.head] = Event{}
		q.head = (q.head + 1) & (len(q.ring) - 1)
		q.n--
		m := e.mark()
		m.queued = false
		if !m.gone {
			ev[n] = e
			n++
		}
	}
	stop = q.woken || q.closed
	q.woken = false
	q.some.Store(q.n > 0 || q.closed)
	q.mu.Unlock()
	q.events.Add(uint64(n))
	return n, stop
}

// admit lets e come out of take from now on. It is for what started out as gone.
func (q *ready) admit(e Event) {
	q.mu.Lock()
	e.mark().gone = false
	q.mu.Unlock()
}

// drop makes sure that e does not come out of take again.
func (q *ready) drop(e Event) {
	q.mu.Lock()
	e.mark().gone = true
	q.mu.Unlock()
}

// settle announces that Poll goes to sleep. It returns false if there is something to look at instead.
func (q *ready) settle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asleep = q.n == 0 && !q.woken && !q.closed
	return q.asleep
}

// up announces that Poll sleeps no longer.
func (q *ready) up() {
	q.mu.Lock()
	q.asleep = false
	q.mu.Unlock()
}

// close empties the queue and makes every Poll return at once.
func (q *ready) close() {
	q.mu.Lock()
	q.closed = true
	clear(q.ring)
	q.n = 0
	q.some.Store(true)
	q.rouse()
}
