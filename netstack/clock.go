package netstack

import (
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// clock is gVisor's own with another way to read it. TCP reads it some ten times for each segment, and gVisor's adds
// durations by way of calendar time, which takes longer than to ask for the time.
type clock struct {
	tcpip.Clock
	base time.Time
}

func newClock() *clock { return &clock{Clock: tcpip.NewStdClock(), base: time.Now()} }

// NowMonotonic is part of tcpip.Clock.
func (c *clock) NowMonotonic() tcpip.MonotonicTime {
	d := time.Since(c.base)
	return *(*tcpip.MonotonicTime)(unsafe.Pointer(&d))
}

// A tcpip.MonotonicTime is a count of nanoseconds, and does not let one be made of it.
var _ [unsafe.Sizeof(time.Duration(0))]byte = [unsafe.Sizeof(tcpip.MonotonicTime{})]byte{}
