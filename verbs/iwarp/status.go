package iwarp

import (
	"errors"
	"fmt"
	"time"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// fault says which one work request of a QP carries the telling status when
// its stream ends; every other one completes as flushed (VRB-17).
type fault struct {
	side   faultSide
	seq    uint64 // of a send queue record
	status verbs.WCStatus
	vendor uint32 // layer, type and code of the Terminate
}

type faultSide uint8

const (
	faultNone faultSide = iota
	faultSend           // the send queue record seq
	faultRecv           // the receive in use
)

// faultOf is the one place where the end of a stream becomes a completion
// status.
func (q *qp) faultOf(err error) fault {
	var (
		peer  *rdmap.PeerError
		local *rdmap.LocalError
		resp  *rdmap.ResponseError
	)
	switch {
	case errors.As(err, &peer):
		return q.peerFault(peer.Terminate)
	case errors.As(err, &local) && local.Recv:
		return fault{side: faultRecv, status: verbs.WCLocProtErr}
	case errors.As(err, &local):
		f := fault{side: faultSend, seq: local.ID, status: verbs.WCLocQPOpErr}
		var mem *ddp.Fault
		var bind *bindError
		if errors.As(err, &bind) {
			f.status = verbs.WCMWBindErr
		} else if errors.As(err, &mem) {
			f.status = verbs.WCLocProtErr
		}
		return f
	}
	t, ok := rdmap.TerminateOf(err)
	switch {
	case !ok:
		return fault{}
	case errors.As(err, &resp):
		return fault{side: faultSend, seq: resp.ID, status: verbs.WCBadRespErr, vendor: vendor(t)}
	case vendor(t) == tooLong:
		return fault{side: faultRecv, status: verbs.WCLocLenErr, vendor: tooLong}
	}
	return fault{}
}

// tooLong is the Terminate for a Send longer than its receive.
const tooLong = rdmap.LayerDDP<<12 | ddp.TypeUntagged<<8 | ddp.CodeTooLong

// peerFault maps a received Terminate: layer, type and queue say which kind of
// work request it complains about and with which status that completes, the
// code decides nothing. A Read or an atomic is found by the MSN that is quoted;
// else the oldest one of the kind that is still open is meant.
func (q *qp) peerFault(t rdmap.Terminate) fault {
	f := fault{side: faultSend, vendor: vendor(t)}
	kind := wrAsk
	qn, known := t.QN()
	switch {
	case t.Ambiguous, t.Layer == rdmap.LayerRDMAP && known && qn != ddp.QNRequest:
		return fault{} // nothing that waits for an answer is named
	case t.Layer == rdmap.LayerRDMAP && t.Type == rdmap.TypeProtection:
		f.status = verbs.WCRemAccessErr
	case t.Layer == rdmap.LayerDDP && t.Type == ddp.TypeTagged && !t.ReadResponse():
		f.status, kind = verbs.WCRemAccessErr, wrWrite
	case t.Layer == rdmap.LayerDDP && t.Type == ddp.TypeUntagged && (!known || qn == ddp.QNSend):
		f.status, kind = verbs.WCRemOpErr, wrSend
	case t.Layer == rdmap.LayerRDMAP && t.Type == rdmap.TypeOperation,
		t.Layer == rdmap.LayerDDP && t.Type == ddp.TypeUntagged && qn == ddp.QNRequest:
		f.status = verbs.WCRemOpErr
	default:
		return fault{}
	}
	var ok bool
	if kind == wrAsk && known && !t.Swapped { // the MSN that Linux siw quotes is none
		f.seq, ok = q.sq.request(uint32(ddp.Header(t.DDPHeader).MSN()))
	}
	if !ok {
		f.seq, ok = q.sq.oldest(kind)
	}
	if !ok {
		return fault{}
	}
	return f
}

// vendor is what WC.VendorErr shows of a Terminate.
func vendor(t rdmap.Terminate) uint32 {
	return uint32(t.Layer)<<12 | uint32(t.Type)<<8 | uint32(t.Code)
}

// streamError is what QP.Err reports for the error that ended a stream: the
// Terminate that went over the wire, else the error itself.
func streamError(err error) error {
	var peer *rdmap.PeerError
	if errors.As(err, &peer) {
		t := peer.Terminate
		return &verbs.TerminateError{Remote: true, Layer: t.Layer, Type: t.Type, Code: t.Code}
	}
	if t, ok := rdmap.TerminateOf(err); ok {
		return fmt.Errorf("%w (%w)", &verbs.TerminateError{Layer: t.Layer, Type: t.Type, Code: t.Code}, err)
	}
	return err
}

// eventOf is the asynchronous event for the error that ended a stream.
func eventOf(err error, qp uint32) verbs.AsyncEvent {
	e := verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: qp, Err: streamError(err), Time: time.Now().UnixNano()}
	var peer *rdmap.PeerError
	if t, ok := rdmap.TerminateOf(err); ok && !errors.As(err, &peer) {
		switch {
		case errors.Is(err, errCQOverflow): // of our own making
		case t.Layer == rdmap.LayerRDMAP && t.Type == rdmap.TypeProtection, t.Layer == rdmap.LayerDDP && t.Type == ddp.TypeTagged:
			e.Type = verbs.EventQPAccessErr
		case t.Layer == rdmap.LayerRDMAP && t.Type == rdmap.TypeOperation, t.Layer == rdmap.LayerDDP && t.Type == ddp.TypeUntagged:
			e.Type = verbs.EventQPReqErr
		}
	}
	return e
}
