package netstack

import (
	"sync/atomic"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// clock is gVisor's own with another way to read it. TCP reads it some ten times for each segment, and gVisor's adds
// durations by way of calendar time, which takes longer than to ask for the time.
//
// While somebody works on a segment or a write, which takes microseconds, the clock shows the time at which that began:
// to ask ten times would be a tenth of the work.
type clock struct {
	tcpip.Clock
	base time.Time

	at     atomic.Int64 // since base: what the clock shows while it is held, and the latest that it has shown
	holder atomic.Int32 // how many hold it
}

func newClock() *clock { return &clock{Clock: tcpip.NewStdClock(), base: time.Now()} }

// hold sets the clock and keeps it there until release. It does not go back: of two who hold it the later one sets it.
func (c *clock) hold() {
	c.set()
	c.holder.Add(1)
}

// release ends a hold.
func (c *clock) release() { c.holder.Add(-1) }

// set sets the clock and returns the time.
func (c *clock) set() time.Duration {
	now := int64(time.Since(c.base))
	for {
		was := c.at.Load()
		if was >= now {
			return time.Duration(was)
		}
		if c.at.CompareAndSwap(was, now) {
			return time.Duration(now)
		}
	}
}

// now is what the clock shows.
func (c *clock) now() time.Duration {
	if c.holder.Load() > 0 {
		return time.Duration(c.at.Load())
	}
	return c.set() // whoever holds the clock next does not show less
}

// NowMonotonic is part of tcpip.Clock.
func (c *clock) NowMonotonic() tcpip.MonotonicTime {
	d := c.now()
	return *(*tcpip.MonotonicTime)(unsafe.Pointer(&d))
}

// A tcpip.MonotonicTime is a count of nanoseconds, and does not let one be made of it.
var _ [unsafe.Sizeof(time.Duration(0))]byte = [unsafe.Sizeof(tcpip.MonotonicTime{})]byte{}
