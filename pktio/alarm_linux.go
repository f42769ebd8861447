package pktio

import (
	"os"
	"sync/atomic"
	"time"
)

// alarm ends the wait of a receiver for a file in Go's poller: at a time, or when somebody wants it to look at what it
// may have missed. It is the file's read deadline.
type alarm struct {
	roused atomic.Bool // the deadline has passed to end a wait
	set    bool        // one may be set on the file; the receiver's
}

// arm sets the end of the wait that is to begin, zero for none. The receiver calls it, and looks for itself before it
// waits.
func (a *alarm) arm(file *os.File, end time.Time) {
	if a.roused.Swap(false) || a.set || !end.IsZero() {
		_ = file.SetReadDeadline(end) // an error means that the port is being closed, and the wait tells
		a.set = !end.IsZero()
	}
}

// rang is for a wait that a deadline has ended: if it was not arm's then that of rouse, which may have come after arm
// looked.
func (a *alarm) rang() { a.set = true }

// rouse ends the wait that goes on, or the next one. Any goroutine.
func (a *alarm) rouse(file *os.File) {
	a.roused.Store(true)
	_ = file.SetReadDeadline(time.Unix(1, 0)) // fails only when the port is being closed
}
