package netstack

import (
	"runtime"
	"time"

	"github.com/softrdma/softrdma/internal/yield"
)

// Poll fills ev with connections and listeners worth a look and returns how many. It also passes on what earlier
// writes left behind, for all connections, those the caller has closed included.
//
// With nothing to report it looks again and again for Config.SpinFor, letting other goroutines run in between, and
// then sleeps: not at all with wait 0, until something happens or Wake is called with wait below 0, at most that long
// otherwise. It may return 0 events: at the end of the wait, after Wake, and always once the Stack is closed.
//
// Only the receive goroutine calls Poll. It panics if ev is empty.
func (s *Stack) Poll(ev []Event, wait time.Duration) int {
	if len(ev) == 0 {
		panic("netstack: Poll needs room for at least one event")
	}
	n, _, stop := s.gather(ev)
	if stop || wait == 0 {
		s.pace(n > 0)
		return n
	}
	start := time.Now()
	spin := s.spin
	if wait > 0 {
		spin = min(spin, wait)
	}
	rested := false
	for sp := newSpinner(spin); sp.again(); {
		var came bool
		if n, came, stop = s.gather(ev); stop {
			return n
		}
		switch {
		case came:
			sp.renew(wait) // what keeps coming may be of no interest
			rested = false
		case !rested && s.user != nil && s.user.link.streams():
			osRest()
			sp.renew(wait) // or a rest would be the end of it
			rested = true
		}
	}
	for {
		left := time.Duration(-1)
		if wait > 0 {
			if left = wait - time.Since(start); left <= 0 {
				return 0
			}
		}
		if s.ready.settle() {
			s.sleep(left)
			s.ready.up()
		}
		if n, _, stop = s.gather(ev); stop {
			return n
		}
	}
}

// pace offers the CPU to other threads when Poll, which is called again and again and does not wait, has found nothing
// for some time: see yieldEvery. An answer that comes in time finds nothing offered.
func (s *Stack) pace(found bool) {
	if s.vain++; found {
		s.vain = 0
	} else if s.vain == yieldVain {
		s.vain = 0
		yield.Thread()
	}
}

// Linger polls until peers have acknowledged what connections that are closed had sent, FIN included, or d is over, and
// drops the events. Close, which resets what is left, would take from a peer what it has not received yet. The system's
// TCP needs none of this: it goes on when the program is gone. Only the receive goroutine calls Linger.
func (s *Stack) Linger(d time.Duration) {
	if s.user == nil {
		return
	}
	var ev [16]Event
	for end := time.Now().Add(d); s.Err() == nil && (s.passing() || s.user.unacknowledged()); {
		if !time.Now().Before(end) {
			return
		}
		s.Poll(ev[:], lingerLook)
	}
}

// lingerLook is how often Linger looks at TCP: no event tells that an acknowledgement came.
const lingerLook = time.Millisecond

// passing reports whether a closed connection has octets that TCP has not taken yet.
func (s *Stack) passing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.out.leaving() {
			return true
		}
	}
	return false
}

// Wake makes a Poll that sleeps return, or else the next Poll not sleep. Any goroutine may call it.
func (s *Stack) Wake() { s.ready.wake() }

// gather takes events off the queue and does the background work they stand for. came tells that frames arrived, stop
// that Poll has to return.
func (s *Stack) gather(ev []Event) (n int, came, stop bool) {
	if s.kern != nil {
		s.kern.look()
	} else if n, handed := s.user.link.look(); n > 0 {
		if came = true; handed && !s.ready.some.Load() {
			runtime.Gosched()
		}
	} else if len(s.user.due) > 0 {
		s.user.settle()
	}
	taken, stop := s.ready.take(ev)
	for _, e := range ev[:taken] {
		if e.Conn != nil && !e.Conn.serve() {
			continue
		}
		ev[n] = e
		n++
	}
	return n, came, stop || n > 0
}

// sleep blocks until the ready queue kicks, or for d unless d is below 0.
func (s *Stack) sleep(d time.Duration) {
	if s.kern != nil {
		s.kern.sleep(d)
		return
	}
	s.user.sleep(d)
}
