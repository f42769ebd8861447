package ddp

import (
	"sync/atomic"

	"github.com/softrdma/softrdma/mpa"
)

// Queues of the untagged model that RDMAP uses.
const (
	QNSend      = 0
	QNRequest   = 1 // Read Requests and Atomic Requests
	QNTerminate = 2
	QNAtomic    = 3 // Atomic Responses
	queues      = 4
)

// Stream is DDP on one connection. The halves rx and tx may be used by two
// goroutines at once, each half by one at a time.
type Stream struct {
	conn  *mpa.Conn
	table *Table
	id    StreamID
	rx    rx // whoever receives
	tx    tx // holder of the send side
	stats counters
}

// NewStream returns DDP over c, which has agreed on its parameters. Tagged
// segments may reach what t grants to the stream id.
func NewStream(c *mpa.Conn, t *Table, id StreamID) *Stream {
	s := &Stream{conn: c, table: t, id: id}
	for i := range s.rx.queue {
		s.rx.queue[i].msn = 1
		s.tx.msn[i] = 1
	}
	return s
}

// counters are what Stats reads. Each is written by one half only, which adds up on
// its own and publishes at the end of a batch.
type counters struct {
	segmentsIn, placedIn   atomic.Uint64
	segmentsOut, octetsOut atomic.Uint64
	errors                 atomic.Uint64
}

// Stats counts segments and their payload octets.
type Stats struct {
	SegmentsIn, OctetsIn   uint64 // segments received; octets placed
	SegmentsOut, OctetsOut uint64
	Errors                 uint64 // segments refused
}

// Stats returns the counters. Any goroutine may call it. What is in the batch under way,
// which ends with Flush or Pause, is not counted yet.
func (s *Stream) Stats() Stats {
	return Stats{
		SegmentsIn: s.stats.segmentsIn.Load(), OctetsIn: s.stats.placedIn.Load(),
		SegmentsOut: s.stats.segmentsOut.Load(), OctetsOut: s.stats.octetsOut.Load(),
		Errors: s.stats.errors.Load(),
	}
}
