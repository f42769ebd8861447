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

// fieldAt is where gVisor's TCP has what this package reads and writes of it. Of a gVisor that lacks it there is 0, and
// nobody asks: see canInline.
var fieldAt = func() (at struct {
	receiver              uintptr // in an endpoint
	writeNext, congestion uintptr // in a sender
	pending               uintptr // in a receiver: segments behind a gap
	// In a segment.
	seq, flags, window, options, sent, timesSent, data uintptr
}) {
	in := func(t reflect.Type, name string) (uintptr, reflect.Type) {
		f, _ := t.FieldByName(name)
		if f.Type != nil && f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Struct {
			return f.Offset, f.Type.Elem()
		}
		return f.Offset, reflect.TypeFor[struct{}]()
	}
	ep := reflect.TypeFor[tcp.Endpoint]()
	_, snd := in(ep, "snd")
	var rcv, segment reflect.Type
	at.receiver, rcv = in(ep, "rcv")
	at.writeNext, segment = in(snd, "writeNext")
	at.congestion, _ = in(snd, "state")
	at.pending, _ = in(rcv, "pendingRcvdSegments")
	at.seq, _ = in(segment, "sequenceNumber")
	at.flags, _ = in(segment, "flags")
	at.window, _ = in(segment, "window")
	at.options, _ = in(segment, "parsedOptions")
	at.sent, _ = in(segment, "xmitTime")
	at.timesSent, _ = in(segment, "xmitCount")
	at.data, _ = in(segment, "pkt")
	return at
}()

func receiverOf(ep *tcp.Endpoint) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), fieldAt.receiver))
}

// fluent reports whether all that TCP was given is sent, or would be, no loss is known, and nothing has arrived behind a
// gap. The endpoint is connected and locked.
func fluent(ep *tcp.Endpoint) bool {
	snd := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), senderAt))
	return *(*unsafe.Pointer)(unsafe.Add(snd, fieldAt.writeNext)) == nil &&
		*(*tcpip.CongestionControlState)(unsafe.Add(snd, fieldAt.congestion)) == tcpip.Open &&
		len(*(*[]unsafe.Pointer)(unsafe.Add(receiverOf(ep), fieldAt.pending))) == 0
}

// markSent makes a segment one that was sent now for the first time.
func markSent(segment unsafe.Pointer, seq seqnum.Value, now tcpip.MonotonicTime) {
	*(*seqnum.Value)(unsafe.Add(segment, fieldAt.seq)) = seq
	*(*header.TCPFlags)(unsafe.Add(segment, fieldAt.flags)) = header.TCPFlagAck | header.TCPFlagPsh
	*(*tcpip.MonotonicTime)(unsafe.Add(segment, fieldAt.sent)) = now
	*(*uint32)(unsafe.Add(segment, fieldAt.timesSent)) = 1
}

// segmentData returns the octets of a segment, which remain the segment's.
func segmentData(segment unsafe.Pointer) *stack.PacketBuffer {
	return *(**stack.PacketBuffer)(unsafe.Add(segment, fieldAt.data))
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
