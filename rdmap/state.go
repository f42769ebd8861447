package rdmap

import (
	"sync/atomic"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// Config is what a Stream has to know of its connection.
type Config struct {
	Table *ddp.Table // regions of the device
	PD    ddp.PD     // the stream's protection domain
	QP    uint32     // number of its queue pair, which memory windows are bound to
	// IRD and ORD are the agreed depths: reads and atomic operations the peer may
	// have outstanding here, and we there.
	IRD, ORD int
	// Initiator tells that this end sent the MPA Request.
	Initiator bool
	// RTR is the message with which an initiator opens the connection.
	RTR mpa.RTRKind
	// PeerToPeer tells that an RTR message was negotiated. Where it was not, a
	// responder takes an empty Read as the first message even with IRD 0, as
	// peers of MPA revision 1 may send one unasked.
	PeerToPeer bool
	// NoAtomics and NoImmediate turn those parts of RFC 7306 off, both ways.
	NoAtomics, NoImmediate bool
}

// id is what the table knows the stream by.
func (c *Config) id() ddp.StreamID { return ddp.StreamID{PD: c.PD, QP: c.QP} }

// Stream is RDMAP on one connection.
//
// Its life, as seen by each half:
//
//	send:    gated --first FPDU--> open --Terminate due--> terminating --> ended
//	receive: open --error, Terminate, FIN, or the send half failed--> ended
type Stream struct {
	cfg  Config
	conn *mpa.Conn
	ddp  *ddp.Stream
	rx   rx // whoever receives
	tx   tx // holder of the send side

	// Shared by the halves.
	inbound ring[request]             // receive to send
	reads   ring[read]                // send to receive
	gate    atomic.Bool               // open; only the receive half opens it
	await   atomic.Bool               // operations wait for the answer to the RTR Read
	nudge   atomic.Bool               // an empty Write is due
	due     atomic.Pointer[Terminate] // set once; &none: none will be sent
	none    Terminate
	sent    atomic.Bool // the Terminate has been handed to TCP

	stats counters
}

// NewStream returns RDMAP over c, which is in FPDU mode.
func NewStream(c *mpa.Conn, cfg Config) *Stream {
	if cfg.IRD < 0 || cfg.ORD < 0 {
		panic("rdmap: negative IRD or ORD")
	}
	s := &Stream{cfg: cfg, conn: c, ddp: ddp.NewStream(c, cfg.Table, cfg.id())}
	s.inbound = newRing[request](cfg.IRD)
	s.reads = newRing[read](cfg.ORD)
	s.tx.ord = cfg.ORD
	if cfg.Initiator {
		s.gate.Store(true)
		s.tx.rtr = cfg.RTR
		s.await.Store(cfg.RTR == mpa.RTRRead)
	}
	return s
}

// Awaiting reports whether an initiator still waits for the answer to the Read
// that opened the connection. Its operations wait as long: a responder that
// installs its receive side only behind its Reply, as Linux siw does, does not
// notice what arrives in between until something follows. Any goroutine may
// ask.
func (s *Stream) Awaiting() bool { return s.await.Load() }

// Nudge sends an empty Write, which reaches no ULP, for a peer that has not
// noticed the RTR Read, and lets operations follow. It does nothing once that
// is answered. Any goroutine may call it; Pump sends the Write.
func (s *Stream) Nudge() {
	if s.await.Load() {
		s.nudge.Store(true)
	}
}

// IRD returns how many reads and atomic operations of the peer are held at most.
func (s *Stream) IRD() int {
	if s.cfg.IRD == 0 {
		return 0
	}
	return len(s.inbound.slots)
}

// OutstandingReads returns how many reads and atomic operations of ours are not answered yet.
func (s *Stream) OutstandingReads() int { return s.reads.len() }

// Terminate ends the stream because of err: it chooses the Terminate message
// that err asks for and makes it due, for Pump to send. The first one wins. No
// message becomes due for a *[PeerError] or a dead connection, and nothing at
// all happens for io.EOF. The halves of the stream do this for errors they
// return; the caller does it for its own. Any error of unknown type, nil too,
// is a local catastrophic one.
func (s *Stream) Terminate(err error) {
	t, ok := chooseTerminate(err)
	if !ok {
		return
	}
	if t == nil {
		t = &s.none
	}
	s.due.CompareAndSwap(nil, t)
}

// TerminateSent reports whether a Terminate has been handed to TCP.
func (s *Stream) TerminateSent() bool { return s.sent.Load() }

// counters are what Stats reads. Each is written by one half only.
type counters struct {
	sendsOut, writesOut, readsOut, responsesOut   atomic.Uint64
	sendsIn, writesIn, requestsIn, responsesIn    atomic.Uint64
	immediatesOut, atomicsOut, atomicResponsesOut atomic.Uint64
	immediatesIn, atomicsIn, atomicResponsesIn    atomic.Uint64
	terminatesOut, terminatesIn                   atomic.Uint64
}

// Stats counts whole messages by kind.
type Stats struct {
	SendsOut, WritesOut, ReadsOut, ResponsesOut   uint64
	SendsIn, WritesIn, RequestsIn, ResponsesIn    uint64
	ImmediatesOut, AtomicsOut, AtomicResponsesOut uint64
	ImmediatesIn, AtomicsIn, AtomicResponsesIn    uint64
	TerminatesOut, TerminatesIn                   uint64
	DDP                                           ddp.Stats
}

// Stats returns the counters. Any goroutine may call it.
func (s *Stream) Stats() Stats {
	c := &s.stats
	return Stats{
		SendsOut: c.sendsOut.Load(), WritesOut: c.writesOut.Load(),
		ReadsOut: c.readsOut.Load(), ResponsesOut: c.responsesOut.Load(),
		SendsIn: c.sendsIn.Load(), WritesIn: c.writesIn.Load(),
		RequestsIn: c.requestsIn.Load(), ResponsesIn: c.responsesIn.Load(),
		ImmediatesOut: c.immediatesOut.Load(), ImmediatesIn: c.immediatesIn.Load(),
		AtomicsOut: c.atomicsOut.Load(), AtomicsIn: c.atomicsIn.Load(),
		AtomicResponsesOut: c.atomicResponsesOut.Load(), AtomicResponsesIn: c.atomicResponsesIn.Load(),
		TerminatesOut: c.terminatesOut.Load(), TerminatesIn: c.terminatesIn.Load(),
		DDP: s.ddp.Stats(),
	}
}
