package rdmap

import (
	"errors"
	"fmt"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// Error types of the RDMAP layer (layer 0), RFC 5040, Section 4.8.
const (
	TypeCatastrophic = 0x0 // local catastrophic
	TypeProtection   = 0x1 // remote protection error
	TypeOperation    = 0x2 // remote operation error
)

// Codes of TypeProtection.
const (
	CodeSTag   = 0x00 // invalid STag
	CodeBounds = 0x01 // base or bounds violation
	CodeAccess = 0x02 // access rights violation
	CodeStream = 0x03 // STag not associated with the stream
	CodeWrap   = 0x04 // tagged offset wraps
	CodeKept   = 0x09 // STag cannot be invalidated
)

// Codes of TypeOperation.
const (
	CodeVersion      = 0x05 // invalid RDMAP version
	CodeOpcode       = 0x06 // unexpected opcode
	CodeCatastrophic = 0x07 // catastrophic error, this stream
	CodeGlobal       = 0x08 // catastrophic error, all streams
	CodeInvalidate   = 0x09 // STag cannot be invalidated
	CodeUnspecified  = 0xff
)

// Layers of a Terminate.
const (
	LayerRDMAP = 0x0
	LayerDDP   = 0x1
	LayerLLP   = 0x2 // MPA, with type 0
)

// ErrStopped is returned for calls on a stream that has ended, where the call
// itself found nothing wrong: the other half failed, or a Terminate was sent.
var ErrStopped = errors.New("rdmap: stream has ended")

// Causes of a [LocalError].
var (
	ErrTooLong  = errors.New("message longer than 2^32-1 octets")
	ErrNoReads  = errors.New("the connection allows no outgoing reads and atomic operations")
	ErrReadSink = errors.New("a read takes one scatter/gather element")
	ErrKind     = errors.New("unknown kind of operation")
	// ErrAtomicSink: the original value needs a place.
	ErrAtomicSink = errors.New("an atomic operation takes one scatter/gather element of 8 octets")
	// ErrOff: see [Config].
	ErrOff = errors.New("this kind of operation is turned off on the connection")
)

// Error is a failure of the RDMAP layer with the numbers a Terminate carries
// for it. The peer caused it, or the end of the connection did.
type Error struct {
	Type, Code uint8
	Header     []byte // copy of the DDP header of the bad segment; nil if no segment caused it
	ReadHeader []byte // Read Request header (28 octets), advanced to where the response stood; else nil
	SegLen     int    // octets of the bad segment, DDP header included
	Err        error  // the cause; may be nil
}

// Error describes the failure.
func (e *Error) Error() string {
	s := fmt.Sprintf("rdmap: %s (0/%x/%02x)", codeText(LayerRDMAP, e.Type, e.Code), e.Type, e.Code)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// LocalError is a failure of a work request of ours: memory that is not
// registered, bounds, a right, a limit. The stream ends with Terminate 0x0000.
type LocalError struct {
	Recv bool   // a receive buffer, not an operation of the send queue
	ID   uint64 // its cookie
	Err  error  // the cause, a *ddp.Fault for memory
}

// Error describes the failure.
func (e *LocalError) Error() string {
	what := "operation"
	if e.Recv {
		what = "receive buffer"
	}
	return fmt.Sprintf("rdmap: local %s %d: %v", what, e.ID, e.Err)
}

// Unwrap returns the cause.
func (e *LocalError) Unwrap() error { return e.Err }

// PeerError reports a Terminate received from the peer. The stream has ended
// and is not answered.
type PeerError struct {
	Terminate Terminate
}

// Error describes what the peer complains about.
func (e *PeerError) Error() string { return "rdmap: terminated by the peer: " + e.Terminate.String() }

// readCode gives the RDMAP code for a fault met at the source of a read.
func readCode(k ddp.FaultKind) uint8 {
	switch k {
	case ddp.FaultPD:
		return CodeStream
	case ddp.FaultWrap:
		return CodeWrap
	case ddp.FaultBounds:
		return CodeBounds
	case ddp.FaultAccess:
		return CodeAccess
	}
	return CodeSTag
}

// codeText names a code of the registry of RFC 6580.
func codeText(layer, typ, code uint8) string {
	switch layer {
	case LayerRDMAP:
		switch typ {
		case TypeCatastrophic:
			return "local catastrophic error"
		case TypeProtection:
			switch code {
			case CodeSTag:
				return "invalid STag"
			case CodeBounds:
				return "base or bounds violation"
			case CodeAccess:
				return "access rights violation"
			case CodeStream:
				return "STag not associated with the stream"
			case CodeWrap:
				return "tagged offset wraps"
			case CodeKept:
				return "STag cannot be invalidated"
			}
			return "remote protection error"
		case TypeOperation:
			switch code {
			case CodeVersion:
				return "invalid RDMAP version"
			case CodeOpcode:
				return "unexpected opcode"
			case CodeCatastrophic:
				return "catastrophic error on this stream"
			case CodeGlobal:
				return "catastrophic error on all streams"
			case CodeInvalidate:
				return "STag cannot be invalidated"
			}
			return "remote operation error"
		}
	case LayerDDP:
		return (&ddp.Error{Type: typ, Code: code}).Meaning()
	case LayerLLP:
		return mpa.Code(code).String()
	}
	return "unknown error"
}
