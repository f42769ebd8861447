//go:build !softrdma_handoff

package netstack

import (
	"reflect"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// gVisor clears memory before it copies octets into it, and copies all that is written. For bulk data both cost as much
// as TCP does. Here its memory is had as it is, filled by others, and handed to TCP.

// uncleared returns a view of all of a new chunk of the largest size, with whatever is in there.
func uncleared() *buffer.View {
	if !canInline() {
		return buffer.NewViewSize(buffer.MaxChunkSize)
	}
	pooled := chunkPools[len(chunkPools)-1].Get()
	chunk := (*[2]unsafe.Pointer)(unsafe.Pointer(&pooled))[1] // *buffer.chunk
	initRefs(chunk)
	v := viewPool.Get().(*buffer.View)
	*(*viewFields)(unsafe.Pointer(v)) = viewFields{write: buffer.MaxChunkSize, chunk: chunk}
	return v
}

// viewFields is a buffer.View.
type viewFields struct {
	entry       buffer.ViewEntry
	read, write int
	chunk       unsafe.Pointer
}

// chunkPools are gVisor's memory for octets, one for each size.
//
//go:linkname chunkPools gvisor.dev/gvisor/pkg/buffer.chunkPools
var chunkPools [11]sync.Pool

// viewPool has views without a chunk.
//
//go:linkname viewPool gvisor.dev/gvisor/pkg/buffer.viewPool
var viewPool sync.Pool

// initRefs gives a chunk its first reference. References are what a chunk begins with.
//
//go:linkname initRefs gvisor.dev/gvisor/pkg/buffer.(*chunkRefs).InitRefs
func initRefs(chunk unsafe.Pointer)

// queueChunk sends the octets of v behind all others, and has v then. It reports false if the send buffer is full, or
// the error says why nothing can be sent. It is tcp.Endpoint.Write without the copy, and lets the buffer become fuller
// than full by one chunk.
func queueChunk(uc *userConn, clock tcpip.Clock, v *buffer.View) (bool, tcpip.Error) {
	ep := uc.ep
	ep.LockUser()
	defer ep.UnlockUser()
	queue := unsafe.Add(unsafe.Pointer(ep), sndQueueAt)
	lockSndQueue(queue)
	_, terr := isWritable(ep)
	if terr != nil {
		unlockSndQueue(queue)
		return false, terr
	}
	b := v.AsSlice()
	segment := newSegment(ep.TransportEndpointInfo.ID, clock, buffer.MakeWithView(v), 0)
	*(*int)(unsafe.Add(queue, sndUsedAt)) += len(b)
	snd := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(ep), sndAt))
	pushSegment(unsafe.Add(snd, writeListAt), segment)
	unlockSndQueue(queue)
	if !uc.quick(segment, b) {
		sendData(ep, segment)
	}
	return true, nil
}

// Where things are in an endpoint, and in what it refers to.
var sndQueueAt, sndUsedAt, sndAt, writeListAt = func() (uintptr, uintptr, uintptr, uintptr) {
	ep := reflect.TypeFor[tcp.Endpoint]()
	queue, _ := ep.FieldByName("sndQueueInfo")
	state, _ := queue.Type.FieldByName("TCPSndBufState")
	used, _ := state.Type.FieldByName("SndBufUsed")
	snd, _ := ep.FieldByName("snd")
	list, _ := snd.Type.Elem().FieldByName("writeList")
	return queue.Offset, state.Offset + used.Offset, snd.Offset, list.Offset
}()

//go:linkname lockSndQueue gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sndQueueMutex).Lock
func lockSndQueue(queue unsafe.Pointer)

//go:linkname unlockSndQueue gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*sndQueueMutex).Unlock
func unlockSndQueue(queue unsafe.Pointer)

// isWritable returns how many octets there is room for. Both locks are held.
//
//go:linkname isWritable gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).isEndpointWritableLocked
func isWritable(ep *tcp.Endpoint) (int, tcpip.Error)

// newSegment makes a segment of the octets of data, which is the segment's then.
//
//go:linkname newSegment gvisor.dev/gvisor/pkg/tcpip/transport/tcp.newOutgoingSegment
func newSegment(id stack.TransportEndpointID, clock tcpip.Clock, data buffer.Buffer, mark uint32) unsafe.Pointer

// pushSegment puts a segment behind all that have not been acknowledged. Both locks are held.
//
//go:linkname pushSegment gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*protectedWriteList).PushBack
func pushSegment(list, segment unsafe.Pointer)

// sendData sends what may be sent, from segment on if all before it was sent. The endpoint is locked.
//
//go:linkname sendData gvisor.dev/gvisor/pkg/tcpip/transport/tcp.(*Endpoint).sendData
func sendData(ep *tcp.Endpoint, segment unsafe.Pointer)
