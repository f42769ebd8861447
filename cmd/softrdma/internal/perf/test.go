package perf

import (
	"fmt"
	"time"
)

// Op is the operation that is measured.
type Op uint8

const (
	Send Op = 1 + iota
	Write
	Read
	FetchAdd
	CompareSwap
)

// String is the name of the command that measures it.
func (o Op) String() string {
	switch o {
	case Send:
		return "send"
	case Write:
		return "write"
	case Read:
		return "read"
	case FetchAdd, CompareSwap:
		return "atomic"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// AtomicType is perftest's name of an atomic; empty for other operations.
func (o Op) AtomicType() string {
	switch o {
	case FetchAdd:
		return "FETCH_AND_ADD"
	case CompareSwap:
		return "CMP_AND_SWAP"
	}
	return ""
}

// ParseAtomic is the inverse of AtomicType.
func ParseAtomic(s string) (Op, error) {
	for _, o := range []Op{FetchAdd, CompareSwap} {
		if o.AtomicType() == s {
			return o, nil
		}
	}
	return 0, fmt.Errorf("%q is no type of atomic: take %s or %s", s, FetchAdd.AtomicType(), CompareSwap.AtomicType())
}

// Atomic reports whether o is an atomic, which works on 8 octets.
func (o Op) Atomic() bool { return o == FetchAdd || o == CompareSwap }

// Answered reports whether o is complete when the peer's answer is there, so that
// its latency is that of the whole round trip.
func (o Op) Answered() bool { return o == Read || o.Atomic() }

// AtomicSize is what an atomic works on, in octets.
const AtomicSize = 8

// Kind is what is measured about it.
type Kind uint8

const (
	Bandwidth Kind = 1 + iota
	Latency
)

func (k Kind) String() string {
	switch k {
	case Bandwidth:
		return "bw"
	case Latency:
		return "lat"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Limits of a test, for both sides.
const (
	MaxSize  = 1 << 30 // octets of a message
	MaxDepth = 4096    // messages in flight
	MaxQPs   = 64
)

// Test says what to measure. Check fills in the defaults.
type Test struct {
	Op         Op
	Kind       Kind
	Size       int           // octets of a message; 65536 for bandwidth, 8 for latency and always for atomics if 0
	Iterations int           // messages, or rounds; as many as Duration allows if 0
	Duration   time.Duration // of the measurement; 5 s if that and Iterations are 0
	Warmup     time.Duration // before it, not measured
	QPs        int           // connections at once, each with Depth; 1 if 0, and always for latency
	Depth      int           // messages in flight on each; 128 for bandwidth, 1 for latency if 0
	Verify     bool          // fill and check every message; it costs throughput
}

// Check replaces zeros by the defaults and tells what cannot be measured.
func (t *Test) Check() error {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if t.Op.Atomic() {
		def(&t.Size, AtomicSize)
	}
	if t.Kind == Latency {
		def(&t.Size, 8)
		def(&t.Depth, 1)
	}
	def(&t.Size, 65536)
	def(&t.Depth, 128)
	def(&t.QPs, 1)
	if t.Iterations == 0 && t.Duration == 0 {
		t.Duration = 5 * time.Second
	}
	switch {
	case t.Op < Send || t.Op > CompareSwap:
		return fmt.Errorf("there is no operation %v", t.Op)
	case t.Kind < Bandwidth || t.Kind > Latency:
		return fmt.Errorf("there is no measurement %v", t.Kind)
	case t.Size < 1 || t.Size > MaxSize:
		return fmt.Errorf("a size of %d octets is out of range: take 1 to %d", t.Size, MaxSize)
	case t.Op.Atomic() && t.Size != AtomicSize:
		return fmt.Errorf("an atomic works on %d octets, not on %d", AtomicSize, t.Size)
	case t.Depth < 1 || t.Depth > MaxDepth:
		return fmt.Errorf("a depth of %d is out of range: take 1 to %d", t.Depth, MaxDepth)
	case t.QPs < 1 || t.QPs > MaxQPs:
		return fmt.Errorf("%d connections are out of range: take 1 to %d", t.QPs, MaxQPs)
	case t.Kind == Latency && (t.QPs != 1 || t.Depth != 1):
		return fmt.Errorf("latency is measured with one message in flight on one connection")
	case t.Iterations < 0 || t.Duration < 0 || t.Warmup < 0:
		return fmt.Errorf("a measurement cannot have a negative length")
	}
	return nil
}

func (t *Test) String() string {
	s := fmt.Sprintf("%v %v, %d octets", t.Op, t.Kind, t.Size)
	if a := t.Op.AtomicType(); a != "" {
		s += ", " + a
	}
	if t.Kind == Bandwidth {
		s += fmt.Sprintf(", depth %d", t.Depth)
	}
	if t.QPs > 1 {
		s += fmt.Sprintf(", %d connections", t.QPs)
	}
	if t.Verify {
		s += ", verified"
	}
	return s
}

const (
	// pageWindow is how far small messages are spread in memory when their
	// content does not matter, as perftest does it.
	pageWindow = 4096
	// verifyWindow bounds the memory of one connection for messages that are
	// to be told apart until they are checked.
	verifyWindow = 16 << 20
	// maxReceives is how many receives a server posts for a connection.
	maxReceives = 512
)

// slots is the number of places in memory that n messages at once go round.
func (t *Test) slots(n int) int {
	if t.Verify {
		return min(n, max(2, verifyWindow/t.Size))
	}
	return min(n, max(1, pageWindow/t.Size))
}

// layout is how the two sides agree on the memory of one connection.
type layout struct {
	slots    int // places for messages
	stride   int // octets from one place to the next
	receives int // that the server posts
	step     int // receives posted anew between two credit messages
}

// layout of the server's memory, which follows from the test alone.
func (t *Test) layout() layout {
	l := layout{slots: t.slots(t.Depth), stride: t.Size}
	switch {
	case t.Kind == Latency:
		// One place for what comes in and one for what goes out. The last octet
		// of a message ends an aligned word.
		l = layout{slots: 2, stride: align8(t.Size), receives: 1}
		if t.Op == Send {
			l.receives = latReceives
		}
	case t.Op == Send:
		l.receives = maxReceives
		if l.slots = t.slots(maxReceives); t.Verify {
			l.receives = l.slots
		}
		l.step = max(1, l.receives/4)
	}
	return l
}

// latReceives are posted on each side of a Send latency test; one is used at a
// time. Other latency tests post one that nothing ever meets: when it completes
// the connection has ended.
const latReceives = 4

// size is the octets of one connection's memory.
func (l layout) size() int { return align8(l.slots * l.stride) }

func align8(n int) int { return (n + 7) &^ 7 }

// messageSeed names the pattern of message seq on connection qp.
func messageSeed(run uint64, qp int, seq uint64) uint64 { return run ^ uint64(qp)<<56 ^ seq }
