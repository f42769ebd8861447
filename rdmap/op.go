package rdmap

import "github.com/softrdma/softrdma/ddp"

// Kind is the kind of an operation.
type Kind uint8

// The operations of a send queue.
const (
	Send  Kind = iota + 1 // to the peer's next receive buffer
	Write                 // to memory of the peer
	Read                  // from memory of the peer
)

// SGE names local memory: Len octets from Off in region STag.
type SGE = ddp.SGE

// Op is one work request of the send queue. The caller leaves it alone, with
// everything it refers to, from Submit until Pump reports it sent; memory of a
// Read is in use until its ReadDone event.
type Op struct {
	Kind       Kind
	Fence      bool // start only when all earlier Reads have completed
	Solicited  bool // Send: the peer's completion is a solicited event
	Invalidate bool // Send: the peer invalidates its region InvSTag
	InvSTag    ddp.STag
	RemoteSTag ddp.STag // Write, Read
	RemoteTO   uint64   // Write, Read
	SGL        []SGE    // a Read takes one element
	Inline     []byte   // Send, Write: if not nil the data itself, and SGL is not looked at
	ID         uint64   // the caller's cookie
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
	// NeedRecv: a Send has begun and needs a buffer. Answer with Give or
	// Refuse, then call Receive again.
	NeedRecv EventKind = iota + 1
	// RecvDone: a Send is complete, placed in buffer ID. Earlier Sends and
	// Writes of the peer are, too.
	RecvDone
	// ReadDone: Read ID of ours is complete.
	ReadDone
	// RequestQueued: the peer wants to read; the send half will answer.
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
	Len         uint32   // RecvDone, ReadDone: octets of the message
	ID          uint64   // RecvDone: of the RecvBuf; ReadDone: of the Op
}

// Progress is what Pump reports.
type Progress struct {
	Sent    bool   // the submitted operation has been handed to the transport whole (Read: the request)
	SentID  uint64 // its ID
	Blocked bool   // no room: call again when the byte stream is writable
	WantOp  bool   // ready for Submit
	More    bool   // responses remain to be sent: call again, after Submit if there is an operation
	Turn    bool   // much was moved and more is left: let others have a turn, then call again
}
