package pktio

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	defaultFaultQueue = 256
	// reorderSpan is how many frames, at most, overtake one that is held back.
	reorderSpan = 3
	// reorderLimit is how long a frame is held back when nothing overtakes it.
	reorderLimit = time.Millisecond
)

// Faults says what a [Faulty] does to the frames sent through it. The zero value does nothing. Probabilities are
// from 0 to 1 and are drawn for each frame, independently of each other.
//
// A super-frame is one frame here. Losing, say, a hundredth of all 64 KiB super-frames takes one TCP segment in
// several hundred out and 64 KiB of the stream at a time: it is not a wire that loses a hundredth of its frames. For
// that, take a link without GSO.
type Faults struct {
	// Seed starts the random numbers anew. The same seed over the same frames makes the same faults.
	Seed uint64
	// Loss is the probability that a frame is dropped.
	Loss float64
	// Duplicate is the probability that a frame is sent twice.
	Duplicate float64
	// Reorder is the probability that a frame is held back until one to three later ones have been sent, or for a
	// millisecond if none comes.
	Reorder float64
	// Corrupt is the probability that one bit of a frame is flipped. A frame without an octet that may be hit
	// passes whole. The octets borrowed from the sender are not touched.
	Corrupt float64
	// FixChecksum makes the TCP checksum right again after a flip, so that TCP takes the damaged payload for good:
	// for tests of the CRC above TCP. Without it the checksum is finished, if it was not, before the flip, so that
	// TCP must notice.
	FixChecksum bool
	// CorruptAnywhere lets a flip hit any octet of the frame. Otherwise only TCP payload is hit. With FixChecksum, a
	// flip outside the TCP segment or in the checksum itself is not made good.
	CorruptAnywhere bool
	// CorruptOffsetMin leaves the first octets alone: of the TCP payload, or of the frame with CorruptAnywhere.
	CorruptOffsetMin int
	// Delay is how long each frame takes longer. Jitter adds a time drawn evenly from 0 to Jitter; frames due
	// earlier leave earlier, so that jitter reorders frames closer together than itself.
	Delay, Jitter time.Duration
	// Queue is how many frames may be held at once for delay, reordering or damage; a frame for which there is no
	// room is dropped. Each slot is a buffer as long as the link's longest frame. 0 means 256.
	Queue int
}

// Check returns an error that names the first value out of range.
func (f *Faults) Check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", f.Loss}, {"duplicate", f.Duplicate}, {"reorder", f.Reorder}, {"corrupt", f.Corrupt}} {
		if !(p.v >= 0 && p.v <= 1) {
			return fmt.Errorf("pktio: the probability of %s is from 0 to 1, not %v", p.name, p.v)
		}
	}
	if f.Delay < 0 || f.Jitter < 0 {
		return fmt.Errorf("pktio: delay %v and jitter %v cannot be below 0", f.Delay, f.Jitter)
	}
	if f.CorruptOffsetMin < 0 || f.Queue < 0 {
		return fmt.Errorf("pktio: offset %d and queue %d cannot be below 0", f.CorruptOffsetMin, f.Queue)
	}
	return nil
}

// holds tells whether frames have to be copied.
func (f *Faults) holds() bool {
	return f.Reorder > 0 || f.Corrupt > 0 || f.Delay > 0 || f.Jitter > 0
}

// active tells whether anything is done to frames at all.
func (f *Faults) active() bool { return f.Loss > 0 || f.Duplicate > 0 || f.holds() }

// flip flips one bit of frame and treats its checksum as FixChecksum demands. It returns false, with nothing
// changed but a checksum finished, if no octet may be hit.
func (f *Faults) flip(frame []byte, o *Offload, r *rand.Rand) bool {
	seg, tcp := tcpSegment(frame, len(frame))
	from, to := 0, len(frame)
	if !f.CorruptAnywhere {
		if !tcp {
			return false
		}
		from, to = seg.payload, seg.end
	}
	if f.CorruptOffsetMin >= to-from {
		return false
	}
	from += f.CorruptOffsetMin
	at := from + r.IntN(to-from)
	bit := byte(1) << r.IntN(8)

	if !f.FixChecksum {
		// A checksum left to the link would be computed over the damage and hide it. Finish it over what was meant.
		if o.NeedsCsum && !o.FinishChecksum(frame) {
			return false
		}
		// One finished sum in 65536 is by chance that of the pseudo header: a receiver that has to guess would
		// still take it for one left to the link.
		if unfinished(frame, len(frame)).NeedsCsum {
			return false
		}
		o.CsumValid = false
		frame[at] ^= bit
		return true
	}
	frame[at] ^= bit
	if o.NeedsCsum || !tcp || at < seg.start || at >= seg.end {
		return true
	}
	const checksum = 16
	field := frame[seg.start+checksum : seg.start+checksum+2]
	if at := at - seg.start; at == checksum || at == checksum+1 {
		return true
	}
	// RFC 1624, equation 3, for the one word that changed.
	now, was := uint32(bit), uint32(0)
	if frame[at]&bit == 0 {
		now, was = was, now
	}
	if (at-seg.start)%2 == 0 {
		now, was = now<<8, was<<8
	}
	sum := uint32(^binary.BigEndian.Uint16(field)) + (^was & 0xffff) + now
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(field, ^uint16(sum))
	return true
}
