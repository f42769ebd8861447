package rdmap

import (
	"errors"

	"github.com/softrdma/softrdma/ddp"
)

// TerminateOf returns the Terminate message that err stands for: the one that
// the peer sent, or the one that [Stream.Terminate] makes due for it. False if
// err ends a stream without a message.
func TerminateOf(err error) (Terminate, bool) {
	var peer *PeerError
	if errors.As(err, &peer) {
		return peer.Terminate, true
	}
	if t, ok := chooseTerminate(err); ok && t != nil {
		return *t, true
	}
	return Terminate{}, false
}

// QN returns the DDP queue of the message that the Terminate is about; false
// if it carries no header of an untagged one.
func (t *Terminate) QN() (uint32, bool) {
	if len(t.DDPHeader) < ddp.UntaggedLen {
		return 0, false
	}
	return ddp.Header(t.DDPHeader).QN(), true
}

// ReadResponse reports whether the Terminate is about a Read Response.
func (t *Terminate) ReadResponse() bool {
	return t.DDPHeader != nil && opcodeOf(ddp.Header(t.DDPHeader).ULP()) == opReadResponse
}
