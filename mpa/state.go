package mpa

import (
	"fmt"
	"sync/atomic"

	"github.com/softrdma/softrdma/mempool"
)

// state is the life of a connection. It is advanced in this file alone.
//
//	idle --Request--> requestSent --Reply R=0--------------> fpdu
//	  |                    |--------Reply R=1--------------> rejected
//	  |                    '--------invalid, stream dead---> failed
//	  |--Request frame--> requestSeen --Accept-------------> fpdu
//	  |                    '--------Reject-----------------> rejected
//	  '----invalid, stream dead----------------------------> failed
//
// Errors in FPDU mode do not change the state: they stick to their half.
type state uint32

const (
	stateIdle        state = iota
	stateRequestSent       // initiator: waits for the Reply
	stateRequestSeen       // responder: the ULP decides
	stateFPDU              // full operation
	stateRejected          // over: a rejecting Reply was sent or received
	stateFailed            // over: the stream is reset or dead
)

func (s state) String() string {
	switch s {
	case stateIdle:
		return "idle"
	case stateRequestSent:
		return "request sent"
	case stateRequestSeen:
		return "request seen"
	case stateFPDU:
		return "FPDU mode"
	case stateRejected:
		return "rejected"
	case stateFailed:
		return "failed"
	}
	return fmt.Sprintf("state(%d)", uint32(s))
}

func (s state) mayBecome(next state) bool {
	switch s {
	case stateIdle:
		return next == stateRequestSent || next == stateRequestSeen || next == stateFailed
	case stateRequestSent:
		return next == stateFPDU || next == stateRejected || next == stateFailed
	case stateRequestSeen:
		return next == stateFPDU || next == stateRejected
	}
	return false
}

// Conn is one MPA connection over a byte stream. See the package comment for
// who may call what.
type Conn struct {
	bs    ByteStream
	state atomic.Uint32 // publishes what enterFPDU set to the other half
	start *startup      // nil before and after the startup phase
	rx    rx            // receive half
	tx    tx            // send half
	stats counters
}

// NewConn returns a connection that has not begun. It uses bs and,
// where that lends none, borrows staging buffers from pool: one from the first
// Write of a batch until Flush. Each has to hold the largest FPDU written; room for several makes batches.
func NewConn(bs ByteStream, pool *mempool.Pool) *Conn {
	c := &Conn{bs: bs}
	c.rx.u.r = &c.rx
	c.tx.pool = pool
	return c
}

// must panics if the connection is not in the state that call needs: a mistake
// of the caller.
func (c *Conn) must(want state, call string) {
	if s := state(c.state.Load()); s != want {
		panic(fmt.Sprintf("mpa: %s in state %q", call, s))
	}
}

func (c *Conn) advance(next state) {
	if s := state(c.state.Load()); !s.mayBecome(next) {
		panic(fmt.Sprintf("mpa: state %q cannot become %q", s, next))
	}
	c.state.Store(uint32(next))
}

// enterFPDU installs the parameters in both halves and opens them.
func (c *Conn) enterFPDU(p Params) {
	c.rx.crc = p.CRC
	if p.MarkersIn {
		c.rx.marked = &markedRx{}
	}
	c.tx.crc, c.tx.marks, c.tx.large = p.CRC, p.MarkersOut, p.LargeFPDUs
	c.advance(stateFPDU)
}

// failStartup ends the startup phase for good. TCP is reset: nothing that MPA
// or its user could send would be understood.
func (c *Conn) failStartup(err *Error) error {
	c.rx.err = err
	c.start = nil
	c.advance(stateFailed)
	c.bs.Abort()
	return err
}

// counters are what Stats reads. Each half adds up on its own and publishes at
// the end of a batch.
type counters struct {
	fpdusIn, octetsIn, fpdusOut, octetsOut, crcErrors atomic.Uint64
}

// Stats counts FPDUs since the start of FPDU mode. Octets are those of whole
// FPDUs, with length field, pad, CRC and markers.
type Stats struct {
	FPDUsIn, OctetsIn   uint64 // handed out by Next
	FPDUsOut, OctetsOut uint64 // handed to the stream
	CRCErrors           uint64
}

// Stats returns the counters. Any goroutine may call it. What is in the batch
// under way is not counted yet.
func (c *Conn) Stats() Stats {
	return Stats{
		FPDUsIn: c.stats.fpdusIn.Load(), OctetsIn: c.stats.octetsIn.Load(),
		FPDUsOut: c.stats.fpdusOut.Load(), OctetsOut: c.stats.octetsOut.Load(),
		CRCErrors: c.stats.crcErrors.Load(),
	}
}
