package netstack

import (
	"runtime"
	"time"

	"github.com/softrdma/softrdma/internal/yield"
)

// yieldEvery is after how much spinning the CPU is offered to other threads. The kernel's own may be among them: once
// it has left packets to ksoftirqd, which runs when the CPU is free, a frame just sent on a veth goes nowhere while its
// sender spins for the answer. An answer that comes in time finds nothing offered.
const yieldEvery = 25 * time.Microsecond

// yieldVain is after how many calls of Poll in vain it is offered to them where Poll does not look at the clock.
const yieldVain = 128

// spinner paces a loop that looks for something again and again.
type spinner struct {
	epoch      time.Time
	next, most time.Duration // since epoch: when to offer the CPU, when to end
	lasts      time.Duration
}

// newSpinner returns a spinner that lasts for d.
func newSpinner(d time.Duration) spinner {
	return spinner{epoch: time.Now(), next: yieldEvery, most: d, lasts: d}
}

// renew lets the spinner last as long again as at first, but no longer than limit in all, unless that is below 0.
func (s *spinner) renew(limit time.Duration) {
	s.most = time.Since(s.epoch) + s.lasts
	if limit >= 0 {
		s.most = min(s.most, limit)
	}
}

// again lets other goroutines run and reports whether to look again.
func (s *spinner) again() bool {
	if s.most <= 0 {
		return false
	}
	now := time.Since(s.epoch)
	if now >= s.most {
		return false
	}
	if now >= s.next {
		yield.Thread()
		s.next = now + yieldEvery
		runtime.Gosched() // other processors' goroutines, too
	} else {
		yield.Now()
	}
	return true
}
