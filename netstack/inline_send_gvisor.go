//go:build !softrdma_handoff

package netstack

import (
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Where a sender has the next segment to send and what it knows of losses, an endpoint its receiver, that the segments it
// cannot read yet, and a segment what it is sent with.
var writeNextAt, congestionAt, receiverAt, pendingAt, seqAt, flagsAt, sentAt, timesSentAt, dataAt, windowAt, optionsAt = func() (a, b, c, d, e, f, g, h, i, j, k uintptr) {
	at := func(t reflect.Type, name string) uintptr {
		f, _ := t.FieldByName(name)
		return f.Offset
	}
	elem := func(t reflect.Type, name string) reflect.Type {
		f, _ := t.FieldByName(name)
		return f.Type.Elem()
	}
	ep := reflect.TypeFor[tcp.Endpoint]()
	snd, rcv := elem(ep, "snd"), elem(ep, "rcv")
	segment := elem(snd, "writeNext")
	return at(snd, "writeNext"), at(snd, "state"), at(ep, "rcv"), at(rcv, "pendingRcvdSegments"),
		at(segment, "sequenceNumber"), at(segment, "flags"), at(segment, "xmitTime"), at(segment, "xmitCount"), at(segment, "pkt"), at(segment, "window"), at(segment, "parsedOptions")
}()

func receiverOf(ep *tcp.Endpoint) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), receiverAt))
}

// fluent reports whether all that TCP was given is sent, or would be, no loss is known, and nothing has arrived behind a
// gap. The endpoint is connected and locked.
func fluent(ep *tcp.Endpoint) bool {
	snd := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), senderAt))
	return *(*unsafe.Pointer)(unsafe.Add(snd, writeNextAt)) == nil &&
		*(*tcpip.CongestionControlState)(unsafe.Add(snd, congestionAt)) == tcpip.Open &&
		len(*(*[]unsafe.Pointer)(unsafe.Add(receiverOf(ep), pendingAt))) == 0
}

// markSent makes a segment one that was sent now for the first time.
func markSent(segment unsafe.Pointer, seq seqnum.Value, now tcpip.MonotonicTime) {
	*(*seqnum.Value)(unsafe.Add(segment, seqAt)) = seq
	*(*header.TCPFlags)(unsafe.Add(segment, flagsAt)) = header.TCPFlagAck | header.TCPFlagPsh
	*(*tcpip.MonotonicTime)(unsafe.Add(segment, sentAt)) = now
	*(*uint32)(unsafe.Add(segment, timesSentAt)) = 1
}

// segmentData returns the octets of a segment, which remain the segment's.
func segmentData(segment unsafe.Pointer) *stack.PacketBuffer {
	return *(**stack.PacketBuffer)(unsafe.Add(segment, dataAt))
}

// sendParams returns what the next segment acknowledges, and the window it tells the peer, as it is on the wire. The
// window counts as told.
func sendParams(ep *tcp.Endpoint) (seqnum.Value, seqnum.Size) { return getSendParams(receiverOf(ep)) }

//go:linkname getSendParams gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*receiver).getSendParams
func getSendParams(rcv unsafe.Pointer) (seqnum.Value, seqnum.Size)

// sentData sets the timers as they are after a segment was sent.
func sentData(ep *tcp.Endpoint) {
	postXmit(*(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), senderAt)), true, true)
}

//go:linkname postXmit gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).postXmit
func postXmit(snd unsafe.Pointer, dataSent, probe bool)

// timestamps returns the two values of a timestamp option.
func timestamps(ep *tcp.Endpoint) (mine, theirs uint32) { return tsValNow(ep), recentTimestamp(ep) }

//go:linkname tsValNow gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).tsValNow
func tsValNow(ep *tcp.Endpoint) uint32

//go:linkname recentTimestamp gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).recentTimestamp
func recentTimestamp(ep *tcp.Endpoint) uint32
