package verbs

import (
	"fmt"
	"strings"
)

// EventType says what an [AsyncEvent] is about. The values are those of
// ibv_event_type.
type EventType uint8

const (
	EventCQErr            EventType = 0  // a completion queue overran
	EventQPFatal          EventType = 1  // a queue pair failed
	EventQPReqErr         EventType = 2  // the peer sent a bad request or response
	EventQPAccessErr      EventType = 3  // the peer violated the protection of our memory
	EventCommEst          EventType = 4  // data arrived before the connection was reported
	EventSQDrained        EventType = 5  // the send queue ran dry while disconnecting
	EventPathMig          EventType = 6  // not used on iWARP
	EventPathMigErr       EventType = 7  // not used on iWARP
	EventDeviceFatal      EventType = 8  // the device failed as a whole
	EventPortActive       EventType = 9  // the link came up
	EventPortErr          EventType = 10 // the link went down
	EventLIDChange        EventType = 11 // not used on iWARP
	EventPKeyChange       EventType = 12 // not used on iWARP
	EventSMChange         EventType = 13 // not used on iWARP
	EventSRQErr           EventType = 14 // a shared receive queue failed
	EventSRQLimitReached  EventType = 15 // a shared receive queue fell below its limit
	EventQPLastWQEReached EventType = 16 // a failed queue pair took its last shared receive
	EventClientReregister EventType = 17 // not used on iWARP
	EventGIDChange        EventType = 18 // an address of the device changed, or another host uses it too
	EventWQFatal          EventType = 19 // not used on iWARP
)

var eventNames = [...]string{"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED",
	"PATH_MIG", "PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE",
	"SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL"}

func (t EventType) String() string {
	if int(t) < len(eventNames) {
		return eventNames[t]
	}
	return fmt.Sprintf("EVENT(%d)", uint8(t))
}

// AsyncEvent is something that happened outside any work request. The numbers
// that do not apply to Type are 0.
type AsyncEvent struct {
	Type EventType
	QP   uint32 // QP.Num
	CQ   uint32 // CQ.Num
	SRQ  uint32
	Err  error // the cause where there is one, often a *TerminateError
	Time int64 // nanoseconds since the Unix epoch
}

func (e AsyncEvent) String() string {
	var b strings.Builder
	b.WriteString(e.Type.String())
	for _, o := range [...]struct {
		name string
		num  uint32
	}{{"qp", e.QP}, {"cq", e.CQ}, {"srq", e.SRQ}} {
		if o.num != 0 {
			fmt.Fprintf(&b, " %s %d", o.name, o.num)
		}
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}
