package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// sentinel is a fixed error that also matches an error of the standard library.
type sentinel struct {
	msg string
	is  error
}

func (s *sentinel) Error() string        { return s.msg }
func (s *sentinel) Is(target error) bool { return s.is != nil && target == s.is }

var (
	// ErrClosed reports an object that was closed. It also matches net.ErrClosed.
	ErrClosed error = &sentinel{"use of closed RDMA object", net.ErrClosed}
	// ErrQueueFull reports that a queue has no room for another work request. It
	// also matches syscall.ENOMEM. Room appears when completions are polled.
	ErrQueueFull error = &sentinel{"work queue is full: poll completions first", syscall.ENOMEM}
	// ErrCQOverrun reports that a completion was lost because the completion
	// queue was full. Its queue pairs are in error. Make the queue at least as
	// large as all work queues that complete into it together.
	ErrCQOverrun error = &sentinel{"completion queue overrun: completions were lost", nil}
	// ErrNotShareable reports memory that the device's provider cannot reach:
	// through a daemon only memory from AllocMR works.
	ErrNotShareable error = &sentinel{"memory is not shareable with the provider: use AllocMR", syscall.EINVAL}
)

var (
	errNotConnected error = &sentinel{"queue pair is not connected", syscall.EINVAL}
	errClosing      error = &sentinel{"queue pair is disconnecting", syscall.EINVAL}
	errTerminating  error = &sentinel{"queue pair is terminating", syscall.EINVAL}
)

// argError is a caller's mistake. It matches syscall.EINVAL.
type argError struct{ msg string }

func (e *argError) Error() string        { return e.msg }
func (e *argError) Is(target error) bool { return target == syscall.EINVAL }

func invalidf(format string, args ...any) error {
	return &argError{fmt.Sprintf(format, args...)}
}

// roomError is a used-up resource. It matches syscall.ENOMEM.
type roomError struct{ msg string }

func roomf(format string, args ...any) error {
	return &roomError{fmt.Sprintf(format, args...)}
}

func (e *roomError) Error() string        { return e.msg }
func (e *roomError) Is(target error) bool { return target == syscall.ENOMEM }

// unsupported names a capability that is not there. It matches
// errors.ErrUnsupported.
type unsupported struct{ what string }

func (e *unsupported) Error() string        { return e.what + " is not supported" }
func (e *unsupported) Is(target error) bool { return target == errors.ErrUnsupported }

// OpError tells which operation on which object failed. All errors of this
// package and of the connection manager are OpErrors unless said otherwise.
type OpError struct {
	Op     string // "post send", "create qp", "dial"
	Object string // "qp 17", "10.0.0.1:7174"; may be empty
	Err    error  // why
}

func (e *OpError) Error() string {
	if e.Object == "" {
		return e.Op + ": " + e.Err.Error()
	}
	return e.Op + " " + e.Object + ": " + e.Err.Error()
}

func (e *OpError) Unwrap() error { return e.Err }

// Is lets an expired context also match os.ErrDeadlineExceeded.
func (e *OpError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded && errors.Is(e.Err, context.DeadlineExceeded)
}

// Timeout reports whether the operation ran out of time.
func (e *OpError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(e.Err, &t) && t.Timeout()
}

// BusyError refuses to close an object that others use. It matches
// syscall.EBUSY. Nothing has changed.
type BusyError struct {
	Object string   // "cq 3"
	Users  []string // "qp 17", ...
}

func (e *BusyError) Error() string {
	return e.Object + " is in use by " + strings.Join(e.Users, ", ")
}

func (e *BusyError) Is(target error) bool { return target == syscall.EBUSY }

// RejectError reports that the peer refused the connection. It matches
// syscall.ECONNREFUSED.
type RejectError struct {
	PrivateData []byte // what the peer gave as its reason; may be empty
}

func (e *RejectError) Error() string {
	if len(e.PrivateData) == 0 {
		return "connection rejected by the peer"
	}
	return fmt.Sprintf("connection rejected by the peer (%d octets of private data)", len(e.PrivateData))
}

func (e *RejectError) Is(target error) bool { return target == syscall.ECONNREFUSED }
