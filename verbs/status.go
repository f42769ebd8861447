package verbs

import "fmt"

// WCStatus tells how a work request ended. Every value but [WCSuccess] serves as
// an error. The values are those of ibv_wc_status and the texts those of
// ibv_wc_status_str.
//
// Of the work requests of a queue pair at most one has a status that is neither
// WCSuccess nor [WCWRFlushErr]: the one that caused the error.
type WCStatus uint8

const (
	WCSuccess          WCStatus = iota
	WCLocLenErr                 // a Send was longer than the receive it met
	WCLocQPOpErr                // internal inconsistency of the queue pair
	WCLocEECOpErr               // not used on iWARP
	WCLocProtErr                // local memory: key, range, protection domain or right was wrong
	WCWRFlushErr                // not done, or not known to be done, because the queue pair is in error
	WCMWBindErr                 // a memory window could not be bound
	WCBadRespErr                // the peer answered a read with something else
	WCLocAccessErr              // local right missing on an RDMA Write with Immediate
	WCRemInvReqErr              // the peer found the request invalid
	WCRemAccessErr              // the peer denied access to its memory
	WCRemOpErr                  // the peer could not do it: no receive posted, receive too small, or its own trouble
	WCRetryExcErr               // not used on iWARP: a lost connection flushes
	WCRNRRetryExcErr            // not used on iWARP: there is no waiting for a receive
	WCLocRDDViolErr             // not used on iWARP
	WCRemInvRdReqErr            // not used on iWARP
	WCRemAbortErr               // the peer aborted the operation
	WCInvEECNErr                // not used on iWARP
	WCInvEECStateErr            // not used on iWARP
	WCFatalErr                  // the device failed
	WCRespTimeoutErr            // not used on iWARP
	WCGeneralErr                // none of the others
	WCTMErr                     // tag matching failed
	WCTMRndvIncomplete          // tag matching: software has to finish the rendezvous
)

var statusText = [...]string{
	"success",
	"local length error",
	"local QP operation error",
	"local EE context operation error",
	"local protection error",
	"Work Request Flushed Error",
	"memory management operation error",
	"bad response error",
	"local access error",
	"remote invalid request error",
	"remote access error",
	"remote operation error",
	"transport retry counter exceeded",
	"RNR retry counter exceeded",
	"local RDD violation error",
	"remote invalid RD request",
	"aborted error",
	"invalid EE context number",
	"invalid EE context state",
	"fatal error",
	"response timeout error",
	"general error",
	"TM error",
	"TM software rendezvous",
}

// String returns the text of ibv_wc_status_str.
func (s WCStatus) String() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return fmt.Sprintf("unknown status %d", uint8(s))
}

// Error returns the same text as String.
func (s WCStatus) Error() string { return s.String() }
