package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// flow is one direction of a connection: the clean octets as the sender sent them,
// followed from the first startup octet on, and what was flipped in them.
type flow struct {
	open  bool    // the SYN was seen
	isn   uint32  // its number
	next  uint64  // octets of the stream seen so far
	ahead []piece // octets behind those, which passed before them; first one first
	acked uint64  // octets that the receiver has acknowledged
	fin   bool    // the FIN was seen

	startup int    // octets of the startup frame, once known
	at      uint64 // first octet of the FPDU in progress
	head    [24]byte
	have    int // octets of head

	pending []flip // flips in the FPDU in progress and behind it
	flips   []flip
	terms   int // Terminates for a wrong CRC in this direction
	others  int // other Terminates
	fpdus   uint64
	repeats int // flips repeated in further copies
}

// String says how far it has come.
func (f *flow) String() string {
	return fmt.Sprintf("%d octets and %d pieces behind them, %d acknowledged, an FPDU begins at %d, %d Terminates for a wrong CRC, FIN %v",
		f.next, len(f.ahead), f.acked, f.at, f.terms, f.fin)
}

// piece is octets of the stream from one on.
type piece struct {
	from uint64
	b    []byte
}

// flip is what was done to one octet.
type flip struct {
	pos   uint64 // in the stream
	bit   byte
	field field
	at    uint64 // first octet of the FPDU
	n     int    // its ULPDU_Length
}

// field is what an octet of the stream belongs to.
type field int

const (
	inStartup field = iota
	inLength
	inHeader
	inPayload
	inPad
	inCRC
	inNothing // of an FPDU that was never seen whole
	fieldsN
)

var fieldNames = [fieldsN]string{"startup frame", "ULPDU_Length", "DDP/RDMAP header", "payload", "padding", "CRC", "unfinished FPDU"}

func sizeOf(n int) uint64 { return uint64((2+n+3)&^3 + 4) }

// offset is where in the stream a sequence number lies, near the octets last seen.
func (f *flow) offset(seq uint32) int64 {
	return int64(f.next) + int64(int32(seq-f.isn-1-uint32(f.next)))
}

// follow takes octets that pass for the first time, and those that passed before
// them and now have their turn.
func (f *flow) follow(b []byte) {
	for {
		for len(b) > 0 {
			used := f.advance(b)
			f.next += uint64(used)
			b = b[used:]
		}
		if len(f.ahead) == 0 || f.ahead[0].from > f.next {
			return
		}
		p := f.ahead[0]
		f.ahead = f.ahead[1:]
		b = p.b[min(f.next-p.from, uint64(len(p.b))):]
	}
}

// keepAhead keeps octets that pass before those in front of them, which the link lost
// for want of room before anybody saw them.
func (f *flow) keepAhead(from uint64, b []byte) {
	i, _ := slices.BinarySearchFunc(f.ahead, from, func(p piece, from uint64) int { return cmp.Compare(p.from, from) })
	f.ahead = slices.Insert(f.ahead, i, piece{from, bytes.Clone(b)})
}

// passed returns where the octets begin that have passed already, behind those that
// have yet to.
func (f *flow) passed() uint64 {
	if len(f.ahead) == 0 {
		return math.MaxUint64
	}
	return f.ahead[0].from
}

// advance goes on within the startup frame or the FPDU in progress.
func (f *flow) advance(b []byte) int {
	in := int(f.next - f.at) // octets of it seen
	if f.at == 0 && f.startup == 0 || in < f.startup && f.at == 0 {
		used := f.keep(b, in, 20)
		if f.have == 20 {
			f.startup = 20 + int(binary.BigEndian.Uint16(f.head[18:]))
		}
		if f.startup > 0 {
			used = min(len(b), f.startup-in)
			if in+used == f.startup {
				f.done(inStartup, f.startup-20, uint64(f.startup))
			}
		}
		return used
	}
	used := f.keep(b, in, len(f.head))
	if f.have < 2 {
		return used
	}
	n := int(binary.BigEndian.Uint16(f.head[:]))
	size := sizeOf(n)
	used = int(min(uint64(len(b)), size-uint64(in)))
	if uint64(in+used) < size {
		return used
	}
	f.fpdus++
	if n >= 22 && f.head[3]&0x0f == 7 {
		if f.head[20] == 0x20 && f.head[21] == 0x02 {
			f.terms++
		} else {
			f.others++
		}
	}
	f.done(inPayload, n, size)
	return used
}

// keep copies the first octets of an FPDU to head.
func (f *flow) keep(b []byte, in, limit int) int {
	if in < limit {
		k := copy(f.head[in:limit], b)
		f.have = in + k
		return k
	}
	return len(b)
}

// done ends the FPDU or startup frame in progress and says what its flips hit.
func (f *flow) done(what field, n int, size uint64) {
	later := f.pending[:0]
	for _, x := range f.pending {
		if x.pos >= f.at+size {
			later = append(later, x)
			continue
		}
		x.at, x.n, x.field = f.at, n, what
		if what != inStartup {
			x.field = f.fieldOf(int(x.pos-f.at), n, size)
		}
		f.flips = append(f.flips, x)
	}
	f.pending = later
	f.at += size
	f.have = 0
}

func (f *flow) fieldOf(off, n int, size uint64) field {
	head := 18
	if f.head[2]&0x80 != 0 {
		head = 14
	}
	switch {
	case off < 2:
		return inLength
	case off < 2+min(head, n):
		return inHeader
	case off < 2+n:
		return inPayload
	case uint64(off) < size-4:
		return inPad
	}
	return inCRC
}

// applies returns the flips of octets from to to.
func (f *flow) applies(from, to int64, do func(flip)) {
	for _, list := range [][]flip{f.flips, f.pending} {
		for _, x := range list {
			if int64(x.pos) >= from && int64(x.pos) < to {
				do(x)
			}
		}
	}
}

// marked reports whether a flip in the startup frame turned its M bit.
func (f *flow) marked() bool {
	for _, x := range f.flips {
		if x.field == inStartup && x.pos == 16 && x.bit == 0x80 {
			return true
		}
	}
	return false
}

// finish counts what hit an FPDU that the sender has not finished.
func (f *flow) finish() {
	for _, x := range f.pending {
		x.at, x.field = f.at, inNothing
		f.flips = append(f.flips, x)
	}
	f.pending = nil
}

// verdict says how the flips of a direction are accounted for, and whether a CRC
// termination is due for them.
func (f *flow) verdict(count *[fatesN]int) (due bool) {
	f.finish()
	if len(f.flips) == 0 {
		return false
	}
	worst := f.flips[0]
	for _, x := range f.flips {
		if x.at < worst.at {
			worst = x
		}
	}
	if worst.field == inStartup {
		count[byStartup] += len(f.flips)
		return false
	}
	n := uint16(worst.n)
	for _, x := range f.flips {
		if x.at == worst.at && x.field == inLength {
			n ^= uint16(x.bit) << (8 * (1 - (x.pos - x.at)))
		}
	}
	end := worst.at + sizeOf(int(n))
	fate := hit
	switch {
	case worst.field == inNothing:
		fate = undelivered
	case end > f.acked && f.acked >= worst.at+sizeOf(worst.n):
		fate = cutShort
	case end > f.acked:
		fate = undelivered
	}
	first := true
	for _, x := range f.flips {
		switch {
		case x.at != worst.at:
			count[behind]++
		case first:
			count[fate]++
			first = false
		default:
			count[sameFPDU]++
		}
	}
	return fate == hit
}

// fate is how a flip is accounted for.
type fate int

const (
	hit fate = iota
	sameFPDU
	behind
	cutShort
	undelivered
	byStartup
	stale
	fatesN
)

var fateNames = [fatesN]string{"hit", "same FPDU", "behind", "cut short", "undelivered", "startup", "stale"}
