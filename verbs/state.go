package verbs

import "fmt"

// QPState is the state of a queue pair. The values are those of ibv_qp_state.
//
//	          PostSend              PostRecv              network
//	QPSReset  EINVAL                kept                  none
//	QPSInit   EINVAL                kept                  none
//	QPSRTR    EINVAL                kept                  connecting
//	QPSRTS    accepted              accepted              connected
//	QPSSQD    EINVAL                EINVAL                closing in good order
//	QPSSQE    EINVAL                accepted and flushed  Terminate sent or received
//	QPSErr    accepted and flushed  accepted and flushed  closed
//
//	RESET → INIT → RTR → RTS ─┬→ SQD ─→ ERR      any → ERR
//	                          └→ SQE ─→ ERR      any → RESET, once quiet
type QPState uint8

const (
	QPSReset QPState = iota // not set up
	QPSInit                 // receives may be posted
	QPSRTR                  // the connection is being set up
	QPSRTS                  // connected
	QPSSQD                  // disconnecting in good order (RFC 5040 Closing)
	QPSSQE                  // ending with a Terminate (RFC 5040 Terminate)
	QPSErr                  // over
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("STATE(%d)", uint8(s))
}

// CanBecome reports whether the verbs allow the change from s to to.
func (s QPState) CanBecome(to QPState) bool {
	if s > QPSErr {
		return false
	}
	switch to {
	case QPSReset, QPSErr:
		return true
	case QPSInit:
		return s == QPSReset
	case QPSRTR:
		return s == QPSInit
	case QPSRTS:
		return s == QPSRTR
	case QPSSQD, QPSSQE:
		return s == QPSRTS
	}
	return false
}

// sendErr returns why PostSend is refused in s, nil if it is not.
func (s QPState) sendErr() error {
	switch s {
	case QPSRTS, QPSErr:
		return nil
	case QPSReset, QPSInit, QPSRTR:
		return errNotConnected
	case QPSSQD:
		return errClosing
	}
	return errTerminating
}

// recvErr returns why PostRecv is refused in s, nil if it is not.
func (s QPState) recvErr() error {
	if s == QPSSQD {
		return errClosing
	}
	return nil
}
