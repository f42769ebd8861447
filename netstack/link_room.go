package netstack

import (
	"gvisor.dev/gvisor/pkg/buffer"

	"github.com/softrdma/softrdma/pktio"
)

// rooms is memory of gVisor's that the port receives large payloads into, so that they need no copy on the way to TCP.
// It is for the first frames of a batch: more super-frames than that seldom come at once, and are copied.
type rooms struct {
	free [maxRooms]*buffer.View // each of them the Room of one frame
}

const maxRooms = 16

// init gives frames their Room.
func (r *rooms) init(frames []pktio.Frame) {
	for i := range min(maxRooms, len(frames)) {
		r.free[i] = newRoom()
		frames[i].Room = r.free[i].AsSlice()
	}
}

func newRoom() *buffer.View { return uncleared() }

// take returns the payload of f, its octets from..to, if that is what the port has put into the Room, and gives f
// another one; nil if it has to be copied. So it has where the payload takes less than half of the Room: a connection
// holds as many octets as the window says, and may not hold a multiple of them in memory.
func (r *rooms) take(f *pktio.Frame, from, to int) *buffer.View {
	last := len(f.Data) - 1
	if to-from < buffer.MaxChunkSize/2 || len(f.Room) == 0 || len(f.Data[last]) == 0 || &f.Data[last][0] != &f.Room[0] {
		return nil
	}
	if before := f.Len() - len(f.Data[last]); before != from {
		return nil
	}
	for i, v := range r.free {
		if v != nil && &v.AsSlice()[0] == &f.Room[0] {
			v.CapLength(to - from)
			r.free[i] = newRoom()
			f.Room = r.free[i].AsSlice()
			return v
		}
	}
	return nil
}

// release gives the memory back.
func (r *rooms) release() {
	for i, v := range r.free {
		if v != nil {
			v.Release()
			r.free[i] = nil
		}
	}
}
