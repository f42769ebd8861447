package mpa

import (
	"errors"
	"fmt"
)

// Code is an MPA error code as a Terminate message carries it: layer 2 (LLP),
// error type 0. RFC 5044, Section 8 and RFC 6581, Section 8.
type Code uint8

const (
	// CodeClosed: the TCP connection was closed, lost, reset or timed out, or
	// ended within a frame. No Terminate can be sent.
	CodeClosed Code = 0x01
	// CodeCRC: the received CRC does not match the FPDU.
	CodeCRC Code = 0x02
	// CodeMarker: marker and ULPDU_Length do not agree. DDP uses it as well for
	// a ULPDU too short to hold its header.
	CodeMarker Code = 0x03
	// CodeFrame: invalid Request or Reply frame. The stream has been reset and
	// no Terminate can be sent.
	CodeFrame Code = 0x04
	// CodeLocal: local catastrophic error during enhanced setup.
	CodeLocal Code = 0x05
	// CodeIRD: the initiator cannot provide the IRD the responder needs.
	CodeIRD Code = 0x06
	// CodeRTR: no ready-to-receive message that both sides support.
	CodeRTR Code = 0x07
)

// String returns the meaning of the code.
func (c Code) String() string {
	switch c {
	case CodeClosed:
		return "connection closed or lost"
	case CodeCRC:
		return "CRC mismatch"
	case CodeMarker:
		return "marker and length disagree"
	case CodeFrame:
		return "invalid startup frame"
	case CodeLocal:
		return "local catastrophic error in setup"
	case CodeIRD:
		return "insufficient IRD"
	case CodeRTR:
		return "no matching RTR"
	}
	return fmt.Sprintf("code %#02x", uint8(c))
}

// Error is a failure of the MPA layer. It ends its direction of the connection:
// the call that returned it returns it again.
type Error struct {
	Code Code
	Err  error // the cause; may be nil
}

// Error describes the failure.
func (e *Error) Error() string {
	if e.Err == nil {
		return "mpa: " + e.Code.String()
	}
	return "mpa: " + e.Code.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// What makes a startup frame unacceptable; found in [Error].Err with [CodeFrame].
var (
	// ErrKey: the first 16 octets are neither a Request nor a Reply key.
	ErrKey = errors.New("wrong key")
	// ErrBothInitiate: a Request arrived where a Reply was due: both ends
	// started as initiator.
	ErrBothInitiate = errors.New("the peer sent a Request instead of a Reply; both ends are initiators")
	// ErrBothRespond: a Reply arrived where a Request was due.
	ErrBothRespond = errors.New("the peer sent a Reply instead of a Request")
	// ErrRevision: a revision other than 1 and 2.
	ErrRevision = errors.New("unsupported MPA revision")
	// ErrLength: PD_Length above 512, or too small for the enhanced block.
	ErrLength = errors.New("bad PD_Length")
	// ErrEnhanced: the peer did not answer the enhanced setup in kind, or
	// answered one that was not asked for.
	ErrEnhanced = errors.New("enhanced setup answered by a frame of the other kind")
	// ErrRefused: well formed, but against local policy (CRC or revision
	// required, markers refused). A responder has answered with a rejecting Reply.
	ErrRefused = errors.New("refused by local policy")
)

// ErrPrivateData: the caller's private data does not fit in the startup frame.
var ErrPrivateData = errors.New("mpa: too much private data")
