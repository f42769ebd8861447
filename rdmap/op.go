package rdmap

import "github.com/softrdma/softrdma/ddp"

// Kind is the kind of an operation.
type Kind uint8

// The operations of a send queue.
const (
	Send      Kind = iota + 1 // to the peer's next receive buffer
	Write                     // to memory of the peer
	Read                      // from memory of the peer
	Immediate                 // Imm to the peer, using up its next receive buffer
	// Atomic operations on eight octets of the peer, which it holds in its own
	// byte order. The value before goes to the SGL in ours.
	FetchAdd    // adds Val; a bit of ValMask is the top of a field, out of which nothing is carried
	CompareSwap // if it equals Compare under CompareMask, the bits of ValMask become those of Val
)

// answered reports whether an operation completes by the peer's response.
func (k Kind) answered() bool { return k == Read || k.atomic() }

func (k Kind) atomic() bool { return k == FetchAdd || k == CompareSwap }

// SGE names local memory: Len octets from Off in region STag.
type SGE = ddp.SGE

// Op is one work request of the send queue. The caller leaves it alone, with
// everything it refers to, from Submit until Pump reports it sent; memory of a
// Read or an atomic operation is in use until its ReadDone event.
type Op struct {
	Kind       Kind
	Fence      bool // start only when all earlier Reads and atomic operations have completed
	Solicited  bool // Send, Immediate: the peer's completion is a solicited event
	WithImm    bool // Write: an Immediate follows at once, with Imm and Solicited
	Invalidate bool // Send: the peer invalidates its region InvSTag
	InvSTag    ddp.STag
	RemoteSTag ddp.STag // Write, Read, atomics
	RemoteTO   uint64   // Write, Read, atomics
	SGL        []SGE    // a Read takes one element, an atomic operation one of 8 octets
	Inline     []byte   // Send, Write: if not nil the data itself, and SGL is not looked at
	ID         uint64   // the caller's cookie
	Imm        uint64   // Immediate, Write with WithImm: sent in big-endian order

	Val, ValMask         uint64 // FetchAdd, CompareSwap
	Compare, CompareMask uint64 // CompareSwap
}

// RecvBuf is a receive buffer, the answer to a NeedRecv event.
type RecvBuf struct {
	ID  uint64 // the caller's cookie
	SGL []SGE
	PD  ddp.PD // of the SGL if it is not the stream's, as with a shared receive queue; 0: the stream's
}

// EventKind says what an Event reports.
type EventKind uint8

// The events.
const (
	// NeedRecv: a Send or Immediate has begun and needs a buffer. Answer with
	// Give or Refuse, then call Receive again.
	NeedRecv EventKind = iota + 1
	// RecvDone: a Send is complete, placed in buffer ID, or an Immediate, which
	// leaves the buffer as it is. Earlier Sends and Writes of the peer are, too.
	RecvDone
	// ReadDone: Read or atomic operation ID of ours is complete.
	ReadDone
	// RequestQueued: the peer wants to read or to run an atomic operation; the
	// send half will answer.
	RequestQueued
	// FirstFPDU: the initiator has sent its first FPDU, so that this responder
	// may send from now on.
	FirstFPDU
	// RTRDone: the Read that opened the connection has been answered. No
	// operation completes by it.
	RTRDone
	// Turn: much was received and nothing of it is to be reported yet. Others
	// may have a turn; then call Receive again.
	Turn
)

// maxTurn is how many octets either half moves before it suggests to let others
// have a turn: a millisecond's work at most.
const maxTurn = 512 << 10

// Event is what Receive reports.
type Event struct {
	Kind        EventKind
	KickTx      bool     // the send half has something to do: Pump, or Submit again
	Solicited   bool     // RecvDone
	Invalidated bool     // RecvDone: region InvSTag has been invalidated by this message
	InvSTag     ddp.STag //
	Immediate   bool     // RecvDone: of an Immediate, with Imm
	Imm         uint64   //
	// Len: octets of the message, for RecvDone and ReadDone. With Immediate those
	// of the peer's Write if that came directly before, else 0.
	Len uint32
	ID  uint64 // RecvDone: of the RecvBuf; ReadDone: of the Op
}

// Progress is what Pump reports.
type Progress struct {
	Sent   bool   // the submitted operation, or its request, has been handed to the transport whole
	SentID uint64 // its ID
	Next
}

// Next is the part of a [Progress] that says what to do next. It is apart because the
// compiler keeps only small structs in registers.
type Next struct {
	Blocked bool // no room: call again when the byte stream is writable
	WantOp  bool // ready for Submit
	More    bool // responses remain to be sent: call again, after Submit if there is an operation
	Turn    bool // much was moved and more is left: let others have a turn, then call again
}
