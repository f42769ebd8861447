package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unsafe"
)

// Layout of a region. The three words that change are 128 octets apart: some
// CPUs fetch cache lines in pairs, and some have lines of 128 octets.
//
//	  0  magic "SRDMRING"
//	  8  version, 4 octets
//	 12  stride: octets in a record, 4 octets
//	 16  depth: number of records, a power of two, 4 octets
//	128  tail: records published so far, 8 octets, written by the producer
//	256  head: records released so far, 8 octets, written by the consumer
//	384  arm word, 4 octets, written by both
//	512  records
const (
	Version    = 1   // of the layout; a region with another one is refused
	HeaderSize = 512 // octets before the first record

	offMagic   = 0
	offVersion = 8
	offStride  = 12
	offDepth   = 16
	offTail    = 128
	offHead    = 256
	offArm     = 384

	magic = "SRDMRING"
)

// Limits of a queue. They keep every size computation far from overflow.
const (
	MinStride = 16      // octets
	MaxStride = 1 << 16 // octets
	MaxDepth  = 1 << 22 // records
)

const align = 128 // of a region that this package allocates, in octets

var (
	// ErrGeometry reports a depth or stride outside the limits.
	ErrGeometry = errors.New("ring: depth or stride out of range")
	// ErrLayout reports a region whose header is not one of ours.
	ErrLayout = errors.New("ring: not a queue of this layout")
)

// Size returns the octets that a region for depth records of stride octets
// needs. Depth is rounded up to a power of two.
func Size(depth, stride int) (int, error) {
	d, err := geometry(depth, stride)
	if err != nil {
		return 0, err
	}
	return HeaderSize + d*stride, nil
}

func geometry(depth, stride int) (int, error) {
	if depth < 1 || depth > MaxDepth || stride < MinStride || stride > MaxStride || stride%8 != 0 {
		return 0, fmt.Errorf("%w: depth %d, stride %d", ErrGeometry, depth, stride)
	}
	return 1 << bits.Len(uint(depth-1)), nil
}

// format writes the header of an empty queue into region.
func format(region []byte, depth, stride int) {
	clear(region[:HeaderSize])
	copy(region[offMagic:], magic)
	binary.LittleEndian.PutUint32(region[offVersion:], Version)
	binary.LittleEndian.PutUint32(region[offStride:], uint32(stride))
	binary.LittleEndian.PutUint32(region[offDepth:], uint32(depth))
}

// parse reads the geometry once and checks it against the region's size.
func parse(region []byte) (depth, stride int, err error) {
	if len(region) < HeaderSize {
		return 0, 0, fmt.Errorf("%w: %d octets", ErrLayout, len(region))
	}
	if !aligned(region, 8) {
		return 0, 0, fmt.Errorf("%w: region not aligned to 8 octets", ErrLayout)
	}
	if string(region[offMagic:offMagic+len(magic)]) != magic {
		return 0, 0, fmt.Errorf("%w: bad magic", ErrLayout)
	}
	if v := binary.LittleEndian.Uint32(region[offVersion:]); v != Version {
		return 0, 0, fmt.Errorf("%w: version %d, want %d", ErrLayout, v, Version)
	}
	s := binary.LittleEndian.Uint32(region[offStride:])
	d := binary.LittleEndian.Uint32(region[offDepth:])
	if s < MinStride || s > MaxStride || s%8 != 0 || d < 1 || d > MaxDepth || d&(d-1) != 0 {
		return 0, 0, fmt.Errorf("%w: depth %d, stride %d", ErrLayout, d, s)
	}
	if need := HeaderSize + int(d)*int(s); len(region) < need {
		return 0, 0, fmt.Errorf("%w: %d octets, need %d", ErrLayout, len(region), need)
	}
	return int(d), int(s), nil
}

// allocate returns n octets aligned for the layout. Go's heap does not move.
func allocate(n int) []byte {
	b := make([]byte, n+align)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (align - 1))
	return b[skip : skip+n : skip+n]
}

func aligned(b []byte, to uintptr) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%to == 0
}
