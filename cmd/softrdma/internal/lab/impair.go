package lab

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// Impairment says what the wire does to frames, in each direction.
// Probabilities are from 0 to 1 and drawn for each frame.
type Impairment struct {
	Loss      float64       `json:"loss"`
	Duplicate float64       `json:"duplicate"`
	Reorder   float64       `json:"reorder"`   // held back until one to three later ones, or a millisecond, went by
	Delay     time.Duration `json:"delay_ns"`  // of every frame, so that a round trip takes twice as much longer
	Jitter    time.Duration `json:"jitter_ns"` // at most so much more, drawn evenly: frames overtake each other
	Seed      uint64        `json:"seed"`      // the same seed over the same frames does the same
	Process   bool          `json:"process"`   // done by a process, also what a bridge could do
}

// maxDelay bounds delay and jitter: a connection does not live through more.
const maxDelay = 10 * time.Second

// check returns an error that names the first value out of range.
func (i *Impairment) check() error {
	if i.Delay > maxDelay || i.Jitter > maxDelay {
		return fmt.Errorf("a delay of %v and a jitter of %v are too long: take at most %v each", i.Delay, i.Jitter, maxDelay)
	}
	f := i.faults(i.Seed)
	if err := f.Check(); err != nil {
		return fmt.Errorf("the wire cannot be made: %w", err)
	}
	return nil
}

// process tells whether the wire needs one.
func (i *Impairment) process() bool {
	return i.Process || i.Duplicate > 0 || i.Reorder > 0 || i.Delay > 0 || i.Jitter > 0
}

// faults is the impairment of one direction.
func (i *Impairment) faults(seed uint64) pktio.Faults {
	return pktio.Faults{
		Seed: seed, Loss: i.Loss, Duplicate: i.Duplicate, Reorder: i.Reorder,
		Delay: i.Delay, Jitter: i.Jitter, Queue: wireQueue,
	}
}

// seeds are those of what comes from a and of what comes from b.
func (i *Impairment) seeds() [2]uint64 { return [2]uint64{i.Seed, ^i.Seed} }

// String says in plain words what the wire does.
func (i *Impairment) String() string {
	var does []string
	add := func(v float64, verb string) {
		if v > 0 {
			does = append(does, fmt.Sprintf("%s %s of the frames", verb, percent(v)))
		}
	}
	add(i.Loss, "loses")
	add(i.Duplicate, "doubles")
	add(i.Reorder, "reorders")
	switch {
	case i.Jitter > 0:
		does = append(does, fmt.Sprintf("holds every frame up for %v to %v", i.Delay, i.Delay+i.Jitter))
	case i.Delay > 0:
		does = append(does, fmt.Sprintf("holds every frame up for %v", i.Delay))
	}
	switch n := len(does); n {
	case 0:
		return "the wire passes every frame on"
	case 1:
		return fmt.Sprintf("the wire %s, in each direction (seed %d)", does[0], i.Seed)
	default:
		return fmt.Sprintf("the wire %s and %s, in each direction (seed %d)", strings.Join(does[:n-1], ", "), does[n-1], i.Seed)
	}
}

// frames says what counts as one frame, which is not what most people mean.
func (i *Impairment) frames(wireFrames bool, mtu int) string {
	switch {
	case i.Loss == 0 && i.Duplicate == 0 && i.Reorder == 0:
		return ""
	case wireFrames:
		return fmt.Sprintf("a frame is what a wire would carry, at most %d octets of IP: the offloads of the interfaces are off", mtu)
	}
	example := max(i.Loss, i.Duplicate, i.Reorder)
	return fmt.Sprintf("a frame is what the kernel passes along, for TCP a super-frame of up to 64 KiB that stands for as many as %d frames on a wire: "+
		"%s of these is not %[2]s of wire frames. --wire-frames cuts them up first", superFrame(mtu), percent(example))
}

// superFrame is how many wire frames a super-frame of IPv4 stands for.
func superFrame(mtu int) int {
	const headers = 20 + 32 // IP, and TCP with timestamps
	payload := max(mtu-headers, 1)
	return (math.MaxUint16 - headers + payload - 1) / payload
}

// ParsePercent reads "1%", "0.1%" or, as a plain number below one, "0.01". A
// plain number from one on is refused: it may have been meant either way.
func ParsePercent(s string) (float64, error) {
	number, isPercent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is neither a percentage nor a number", s)
	case !isPercent && v >= 1:
		return 0, fmt.Errorf("%q may be a percentage or all of the frames", s)
	case isPercent:
		v /= 100
	}
	if !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("%q is not from 0%% to 100%%", s)
	}
	return v, nil
}

// percent writes a probability as ParsePercent reads it.
func percent(v float64) string {
	return strconv.FormatFloat(math.Round(v*1e14)/1e12, 'g', -1, 64) + "%"
}
