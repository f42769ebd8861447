package iwarp

import (
	"fmt"
	"time"
)

// Threads says which goroutines do a device's work: those of the application,
// inside PostSend, Poll and Wait, or the device's own. The wire, the order of
// completions and the copies of an octet are the same with each; processor time and
// latency are not. What a peer sees of it is how soon it gets an answer. The counters
// rx.turns_* and tx.turns_* tell who has done how much.
//
// The last three are the threading models that the SoftRDMA paper compares, named
// as this package can tell them apart: gVisor runs TCP on the goroutine that takes a
// segment off the port or writes one, so TCP goes with the packets. They are there
// to compare, and for programs that know better than ThreadsAdaptive.
type Threads uint8

const (
	// ThreadsAdaptive is run to completion while the application polls. Where it has not
	// for half a millisecond, or parks, the device's receive goroutine does the same, and
	// a transmit goroutine what is left then. PostSend transmits.
	ThreadsAdaptive Threads = iota

	// ThreadsIO is c1: one goroutine of the device does all packet I/O and the
	// protocols, in both directions, and the application has its own. PostSend queues
	// and wakes it, Poll and Wait look at the completion queue and do nothing else.
	// It costs a hand-over each way, and a processor of its own while there is traffic.
	ThreadsIO

	// ThreadsRunToCompletion is c2: the application's goroutine does all. PostSend
	// transmits; Poll, and Wait until it parks, receive, place, complete, and send what
	// that has made ready. Nothing arrives while the application computes: the device's
	// goroutines stand in only for an application that has parked, waits for another
	// call (Dial, Accept, Disconnect, Close) or has not polled for 20 ms. So a program
	// that is only the target of Writes and Reads had better not poll at all.
	ThreadsRunToCompletion

	// ThreadsSplit is c3, the paper's own: the device's receive goroutine receives, runs
	// TCP, places and completes, always; the application's goroutine transmits, in
	// PostSend and, what a shut window or a read response had to wait for, in Poll and
	// Wait. A transmit goroutine sends for an application that does not poll. It
	// costs a hand-over for what arrives, and wants two processors.
	ThreadsSplit
)

var threadsNames = [...]string{ThreadsAdaptive: "adaptive", ThreadsIO: "c1", ThreadsRunToCompletion: "c2", ThreadsSplit: "c3"}

func (m Threads) String() string {
	if int(m) < len(threadsNames) {
		return threadsNames[m]
	}
	return fmt.Sprintf("Threads(%d)", uint8(m))
}

// ParseThreads returns what a name means: adaptive, c1, c2 or c3.
func ParseThreads(s string) (Threads, error) {
	for m, name := range threadsNames {
		if name == s {
			return Threads(m), nil
		}
	}
	return ThreadsAdaptive, fmt.Errorf("unknown threading model %q: take adaptive, c1, c2 or c3", s)
}

func (m Threads) check() error {
	if int(m) >= len(threadsNames) {
		return fmt.Errorf("%v: take ThreadsAdaptive, ThreadsIO, ThreadsRunToCompletion or ThreadsSplit", m)
	}
	return nil
}

// pollsReceive: who polls takes the role of the receive goroutine.
func (m Threads) pollsReceive() bool { return m == ThreadsAdaptive || m == ThreadsRunToCompletion }

// standInAfter is how many naps without a poll it takes for the device's receive
// goroutine to stand in for the application. Under run to completion that is 20 ms:
// more than a program computes between two polls, and less than a peer minds.
func (m Threads) standInAfter() int {
	if m == ThreadsRunToCompletion {
		return int(20 * time.Millisecond / nap)
	}
	return 1
}

// leaves is how long what is queued to send is left to an application that polls,
// before the transmit goroutine takes it; 0: not at all.
func (m Threads) leaves() time.Duration {
	switch m {
	case ThreadsRunToCompletion, ThreadsSplit:
		return time.Duration(m.standInAfter()) * nap
	}
	return 0
}
