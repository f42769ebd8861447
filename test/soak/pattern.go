package main

import (
	"encoding/binary"
	"fmt"
)

// mark says what octets are: whose they are and of which operation. Together
// with a position it determines each octet, and 8 octets determine both.
type mark struct {
	kind markKind
	side int    // of the end that made them
	lane int    // below maxLanes
	gen  uint32 // the lowest ten bits count
	seq  uint32 // of the operation, below maxSeq
}

type markKind uint8

const (
	markData   markKind = 1 + iota // payload of a Send or Write
	markExport                     // memory that is there to be read from afar
	markRest                       // memory that no operation may touch
	markTaken                      // memory that was given as inline data and is free again
)

const (
	maxLanes = 1 << 8
	maxSeq   = 1 << 25
	maxPlace = 8 << 17 // positions repeat after so many octets
)

// pattern makes octets of marks.
type pattern struct{ seed uint64 }

// word is octets 8*i to 8*i+7 of what m marks.
func (p pattern) word(m mark, i uint64) uint64 {
	return mix(p.seed ^ (m.packed() | i&(1<<17-1)))
}

func (m mark) packed() uint64 {
	return uint64(m.kind)<<61 | uint64(m.side)<<60 | uint64(m.lane)<<52 | uint64(m.gen&0x3ff)<<42 | uint64(m.seq)<<17
}

// mix is the finalizer of splitmix64: a bijection, so that it can be undone.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// unmix undoes mix.
func unmix(x uint64) uint64 {
	x ^= x>>31 ^ x>>62
	x *= 0x319642b2d24d8ec3
	x ^= x>>27 ^ x>>54
	x *= 0x96de1b173f119089
	return x ^ x>>30 ^ x>>60
}

// fill writes to b what m marks from octet at on.
func (p pattern) fill(b []byte, m mark, at int) {
	var w [8]byte
	i, head := uint64(at/8), at%8
	if head != 0 && len(b) > 0 {
		binary.LittleEndian.PutUint64(w[:], p.word(m, i))
		b = b[copy(b, w[head:]):]
		i++
	}
	for ; len(b) >= 8; i++ {
		binary.LittleEndian.PutUint64(b, p.word(m, i))
		b = b[8:]
	}
	if len(b) > 0 {
		binary.LittleEndian.PutUint64(w[:], p.word(m, i))
		copy(b, w[:])
	}
}

// check returns how many octets of b, from its start, are what m marks from octet
// at on: len(b) if all are.
func (p pattern) check(b []byte, m mark, at int) int {
	n := 0
	for n < len(b) && (at+n)%8 != 0 {
		if b[n] != p.octet(m, at+n) {
			return n
		}
		n++
	}
	for i := uint64(at+n) / 8; n+8 <= len(b); i++ {
		if binary.LittleEndian.Uint64(b[n:]) != p.word(m, i) {
			break
		}
		n += 8
	}
	for n < len(b) && b[n] == p.octet(m, at+n) {
		n++
	}
	return n
}

func (p pattern) octet(m mark, at int) byte {
	return byte(p.word(m, uint64(at/8)) >> (8 * (at % 8)))
}

// name says what the octets at b[at] are, should they be of ours. Any 8 octets
// in a row that name an operation which can exist do, as chance hardly makes any.
func (p pattern) name(b []byte, at, lanes int) string {
	for from := at; from < at+8 && from+8 <= len(b); from++ {
		if m, i, ok := p.decode(binary.LittleEndian.Uint64(b[from:]), lanes); ok {
			return fmt.Sprintf("octet %d of %v", 8*int(i)-(from-at), m)
		}
	}
	rest := b[at:min(len(b), at+16)]
	for _, v := range rest {
		if v != 0 {
			return fmt.Sprintf("nothing known: % x", rest)
		}
	}
	return "zeros"
}

// decode undoes word; ok is false if w is no word of the pattern.
func (p pattern) decode(w uint64, lanes int) (m mark, i uint64, ok bool) {
	v := unmix(w) ^ p.seed
	m = mark{
		kind: markKind(v >> 61), side: int(v >> 60 & 1), lane: int(v >> 52 & 0xff),
		gen: uint32(v >> 42 & 0x3ff), seq: uint32(v >> 17 & (maxSeq - 1)),
	}
	// Of 2^64 words few name so early an operation of a lane that there is.
	const early = 1 << 18
	ok = m.kind >= markData && m.kind <= markTaken && m.lane < lanes && m.seq < early
	return m, v & (1<<17 - 1), ok
}

func (m mark) String() string {
	who := fmt.Sprintf("end %s, lane %d, generation %d", sideName(m.side), m.lane, m.gen)
	switch m.kind {
	case markData:
		return fmt.Sprintf("the payload of round %d, operation %d of %s", m.seq/maxOps, m.seq%maxOps, who)
	case markExport:
		return "the memory for reads of " + who
	case markRest:
		return fmt.Sprintf("untouched memory of the %s of %s", areaNames[m.seq%uint32(len(areaNames))], who)
	case markTaken:
		return "the source of inline data of " + who
	}
	return fmt.Sprintf("kind %d of %s", m.kind, who)
}

func sideName(side int) string { return string(rune('a' + side)) }
