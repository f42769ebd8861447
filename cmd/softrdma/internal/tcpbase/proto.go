package tcpbase

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/perf"
)

// Port is where a Server listens unless told otherwise.
const Port = 7176

type test uint8

const (
	sink test = 1 + iota
	source
	echo
	respond
)

const (
	magic      = "SRTB"
	version    = 1
	headLen    = 16
	requestLen = 16
	countLen   = 8
	// maxSize bounds what a client can make the server allocate.
	maxSize = 64 << 20
	// chunk is what short messages are gathered to for one call, and
	// maxGathered how many of them.
	chunk       = 64 << 10
	maxGathered = 32
)

// head begins a connection.
type head struct {
	test test
	spin bool
	size uint32
	call uint32
}

func (h head) append(b []byte) []byte {
	b = append(b, magic...)
	spin := byte(0)
	if h.spin {
		spin = 1
	}
	b = append(b, version, byte(h.test), spin, 0)
	b = binary.BigEndian.AppendUint32(b, h.size)
	return binary.BigEndian.AppendUint32(b, h.call)
}

func parseHead(b []byte) (h head, err error) {
	if len(b) != headLen || string(b[:4]) != magic || b[4] != version {
		return h, errors.New("not a TCP test of softrdma perf")
	}
	h = head{test: test(b[5]), spin: b[6] == 1, size: binary.BigEndian.Uint32(b[8:]), call: binary.BigEndian.Uint32(b[12:])}
	switch {
	case h.test < sink || h.test > respond, b[6] > 1, b[7] != 0:
		return h, errors.New("not a TCP test of softrdma perf")
	case h.size < 1 || h.size > maxSize || h.call < 1 || h.call > maxSize:
		return h, fmt.Errorf("messages of %d octets, %d a call: more than %d or none", h.size, h.call, maxSize)
	}
	return h, nil
}

// headFor is the test over TCP that stands beside t.
func headFor(t *perf.Test, spin bool) (head, error) {
	h := head{spin: spin, size: uint32(t.Size), call: uint32(callSize(t))}
	switch {
	case t.Size > maxSize:
		return h, fmt.Errorf("the TCP baseline takes messages of up to %d octets", maxSize)
	case t.Kind == perf.Bandwidth && t.Op.Atomic():
		return h, errors.New("nothing of TCP is like many atomics in flight; it has a baseline for their latency")
	case t.Kind == perf.Latency && t.Op.Answered():
		h.test = respond
	case t.Kind == perf.Latency:
		h.test = echo
	case t.Op == perf.Read:
		h.test = source
	default:
		h.test = sink
	}
	return h, nil
}

// callSize is how many octets go with one system call: short messages are
// gathered, as far as the test's depth allows, so that TCP's rate is not the
// rate of system calls.
func callSize(t *perf.Test) int {
	n := min(t.Depth, maxGathered, max(1, chunk/t.Size))
	return max(1, n) * t.Size
}
