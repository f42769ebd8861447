//go:build !softrdma_handoff

package netstack

import (
	"reflect"
	"runtime/debug"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// inlineVersion is the version of gVisor in which the functions below were read: what they take, which lock they need,
// and that nothing else has to be done with segments of an established connection.
const inlineVersion = "v0.0.0-20260905035102-160fafc42237"

// canInline reports whether the program was built with that gVisor. Tests do not say what they were built with: those of
// this module are taken to be, and no others.
var canInline = sync.OnceValue(func() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok || queueAt == 0 || senderAt == 0 || senderStateAt < 0 || scoreboardAt == 0 {
		return false
	}
	for _, m := range info.Deps {
		if m.Path != "gvisor.dev/gvisor" {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return m.Version == inlineVersion
	}
	return info.Main.Path == "github.com/softrdma/softrdma"
})

// handleConnected processes the segments in the queue of an endpoint that is not locked, acknowledges what is not
// acknowledged, and does what else comes with segments. It is what gVisor's goroutine calls.
//
//go:linkname handleConnected gvisor.dev/gvisor/pkg/tcpip/transport/tcp.handleConnected
func handleConnected(ep *tcp.Endpoint)

// handleSegments is handleConnected's part for an endpoint that is locked. With an empty queue it only acknowledges what
// is not acknowledged, and returns nil.
//
//go:linkname handleSegments gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).handleSegmentsLocked
func handleSegments(ep *tcp.Endpoint) tcpip.Error

// handleSegment processes one segment for an endpoint that is locked, and reports whether the next may follow.
//
//go:linkname handleSegment gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).handleSegmentLocked
func handleSegment(ep *tcp.Endpoint, segment unsafe.Pointer) (bool, tcpip.Error)

// receiveSegment is the half of handleSegment that is about octets, for a segment of an established connection which has
// no flags but ACK and PSH. It reports whether there is more to the segment; acknowledged is the other half.
func receiveSegment(ep *tcp.Endpoint, segment unsafe.Pointer) (bool, tcpip.Error) {
	snd, _ := senderOf(ep)
	*(*seqnum.Size)(unsafe.Add(segment, fieldAt.window)) <<= snd.SndWndScale
	seq := *(*seqnum.Value)(unsafe.Add(segment, fieldAt.seq)) // as yet: what is there already is cut off
	drop, err := receiverTakes(receiverOf(ep), segment)
	if drop || err != nil {
		return false, err // and anyone may have made up its timestamp
	}
	if o := (*header.TCPOptions)(unsafe.Add(segment, fieldAt.options)); o.TS { // the answer echoes it
		updateTimestamp(ep, o.TSVal, snd.MaxSentAck, seq)
	}
	return true, nil
}

// acknowledged is the half of handleSegment that is about what a segment acknowledges.
//
// The segment had octets, which may have been read since: without any it could pass for a duplicate.
func acknowledged(ep *tcp.Endpoint, segment unsafe.Pointer) {
	snd := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), senderAt))
	state := (*tcpip.CongestionControlState)(unsafe.Add(snd, fieldAt.congestion))
	s, _ := senderOf(ep)
	was := *state
	s.DupAckCount = 0
	senderTakes(snd, segment)
	if s.DupAckCount > 0 {
		s.DupAckCount, *state = 0, was
	}
}

// keepWindow makes a segment, which is not the latest that was processed, tell the window that is known.
func keepWindow(ep *tcp.Endpoint, segment unsafe.Pointer) {
	snd, _ := senderOf(ep)
	*(*seqnum.Size)(unsafe.Add(segment, fieldAt.window)) = snd.SndWnd
}

//go:linkname updateTimestamp gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).updateRecentTimestamp
func updateTimestamp(ep *tcp.Endpoint, tsVal uint32, maxSentAck, seq seqnum.Value)

//go:linkname receiverTakes gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*receiver).handleRcvdSegment
func receiverTakes(rcv, segment unsafe.Pointer) (bool, tcpip.Error)

//go:linkname senderTakes gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sender).handleRcvdSegment
func senderTakes(snd, segment unsafe.Pointer)

// dequeue takes the oldest segment out of a queue; nil without.
//
//go:linkname dequeue gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*segmentQueue).dequeue
func dequeue(queue unsafe.Pointer) unsafe.Pointer

// queueEmpty reports whether a queue has no segment in it.
//
//go:linkname queueEmpty gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*segmentQueue).empty
func queueEmpty(queue unsafe.Pointer) bool

// release lets go of a segment.
//
//go:linkname release gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*segment).DecRef
func release(segment unsafe.Pointer)

// queueAt is where an endpoint has its queue; 0 if it has none.
var queueAt = func() uintptr {
	f, _ := reflect.TypeFor[tcp.Endpoint]().FieldByName("segmentQueue")
	return f.Offset
}()

func queueOf(ep *tcp.Endpoint) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(ep), queueAt) }

// senderAt is where an endpoint has the pointer to its sender, scoreboardAt the one to what its peer has selectively
// acknowledged; 0 if it has none. senderStateAt is where a sender has its state, below 0 if nowhere.
var senderAt, senderStateAt, scoreboardAt = func() (at uintptr, state int, board uintptr) {
	ep := reflect.TypeFor[tcp.Endpoint]()
	snd, ok := ep.FieldByName("snd")
	if !ok || snd.Type.Kind() != reflect.Pointer || snd.Type.Elem().Kind() != reflect.Struct {
		return 0, -1, 0
	}
	f, ok := snd.Type.Elem().FieldByName("TCPSenderState")
	if !ok || f.Type != reflect.TypeFor[tcp.TCPSenderState]() {
		return 0, -1, 0
	}
	b, ok := ep.FieldByName("scoreboard")
	if !ok || b.Type != reflect.TypeFor[*tcp.SACKScoreboard]() {
		return 0, -1, 0
	}
	return snd.Offset, int(f.Offset), b.Offset
}()

// senderOf returns what the sender of an endpoint knows and what its peer has selectively acknowledged. They are there
// once the endpoint is connected, and are read and written with the endpoint locked.
func senderOf(ep *tcp.Endpoint) (*tcp.TCPSenderState, *tcp.SACKScoreboard) {
	snd := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), senderAt))
	board := *(**tcp.SACKScoreboard)(unsafe.Add(unsafe.Pointer(ep), scoreboardAt))
	if snd == nil || board == nil {
		return nil, nil
	}
	return (*tcp.TCPSenderState)(unsafe.Add(snd, senderStateAt)), board
}
