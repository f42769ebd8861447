package ddp

import "fmt"

// Error types of the DDP layer (layer 1), RFC 5041, Section 7.2.
const (
	TypeCatastrophic = 0x0 // local catastrophic, code 0
	TypeTagged       = 0x1 // tagged buffer error
	TypeUntagged     = 0x2 // untagged buffer error
)

// Codes of TypeTagged.
const (
	CodeSTag          = 0x00 // invalid STag
	CodeBounds        = 0x01 // base or bounds violation
	CodeStream        = 0x02 // STag not associated with the stream; here also a missing right
	CodeWrap          = 0x03 // TO + length exceeds 2^64
	CodeTaggedVersion = 0x04 // invalid DDP version
)

// Codes of TypeUntagged.
const (
	CodeQN              = 0x01 // invalid QN
	CodeNoBuffer        = 0x02 // no buffer for that MSN
	CodeMSN             = 0x03 // MSN out of range
	CodeMO              = 0x04 // MO out of range, or not where the message continues
	CodeTooLong         = 0x05 // message longer than its buffer
	CodeUntaggedVersion = 0x06 // invalid DDP version
)

// Error is a failure of the DDP layer with the numbers a Terminate carries for
// it. The stream receives nothing more after it.
type Error struct {
	Type, Code uint8
	Header     []byte // copy of the DDP header of the bad segment; nil if no segment caused it
	SegLen     int    // octets of that segment, header included
	Err        error  // the cause, a *Fault for memory; may be nil
}

// Error describes the failure.
func (e *Error) Error() string {
	s := fmt.Sprintf("ddp: %s (1/%x/%02x)", e.Meaning(), e.Type, e.Code)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Meaning returns the name the registry of RFC 6580 gives the error.
func (e *Error) Meaning() string {
	switch e.Type {
	case TypeCatastrophic:
		return "local catastrophic error"
	case TypeTagged:
		switch e.Code {
		case CodeSTag:
			return "invalid STag"
		case CodeBounds:
			return "base or bounds violation"
		case CodeStream:
			return "STag not associated with the stream"
		case CodeWrap:
			return "tagged offset wraps"
		case CodeTaggedVersion:
			return "invalid DDP version in a tagged segment"
		}
	case TypeUntagged:
		switch e.Code {
		case CodeQN:
			return "invalid queue number"
		case CodeNoBuffer:
			return "no buffer for the message"
		case CodeMSN:
			return "message sequence number out of range"
		case CodeMO:
			return "invalid message offset"
		case CodeTooLong:
			return "message too long for its buffer"
		case CodeUntaggedVersion:
			return "invalid DDP version in an untagged segment"
		}
	}
	return "error"
}

// FaultKind says which check of memory failed.
type FaultKind uint8

// The checks, in the order they are made.
const (
	FaultSTag   FaultKind = iota + 1 // no valid region of that index and key
	FaultPD                          // region of another protection domain, window of another queue pair
	FaultWrap                        // the range passes 2^64
	FaultBounds                      // the range is not inside the region
	FaultAccess                      // the region does not grant the right
	FaultKept                        // it may not be invalidated, or not by this side
	FaultBound                       // windows are bound to the region, or the window is bound already
)

// String returns what is wrong.
func (k FaultKind) String() string {
	switch k {
	case FaultSTag:
		return "invalid STag"
	case FaultPD:
		return "STag of another protection domain or queue pair"
	case FaultWrap:
		return "range wraps"
	case FaultBounds:
		return "range outside the region"
	case FaultAccess:
		return "access right missing"
	case FaultKept:
		return "STag cannot be invalidated"
	case FaultBound:
		return "memory window is bound"
	}
	return "unknown fault"
}

// Fault is the neutral result of a failed memory check. It carries no wire
// code: the layer that asked knows which one is due.
type Fault struct {
	Kind FaultKind
	STag STag
}

// Error describes the fault.
func (f *Fault) Error() string { return fmt.Sprintf("%s (STag %08x)", f.Kind, uint32(f.STag)) }

// taggedCode gives the DDP code of a fault met by a tagged segment.
func (k FaultKind) taggedCode() uint8 {
	switch k {
	case FaultPD, FaultAccess:
		return CodeStream
	case FaultWrap:
		return CodeWrap
	case FaultBounds:
		return CodeBounds
	}
	return CodeSTag
}
