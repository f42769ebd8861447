// Package pattern fills memory with octets that can be told again from a seed,
// so that a receiver checks what arrived without seeing what was sent.
package pattern

import (
	"encoding/binary"
	"fmt"
)

// step is odd, so that the words of a stream repeat after 2^64 only.
const step = 0x9e3779b97f4a7c15

// word returns the n-th word of the stream that seed names (the mixer of
// splitmix64, a public-domain generator by Sebastiano Vigna).
func word(seed, n uint64) uint64 {
	z := seed + (n+1)*step
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Seed derives the seed of one message from that of a run. Neighbouring
// messages share no octets but by chance.
func Seed(run uint64, message uint64) uint64 { return word(run, ^message) }

// Fill writes the stream of seed into b from its first octet on.
func Fill(b []byte, seed uint64) {
	n := uint64(0)
	for ; len(b) >= 8; b, n = b[8:], n+1 {
		binary.LittleEndian.PutUint64(b, word(seed, n))
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], word(seed, n))
		copy(b, last[:])
	}
}

// At returns the octet of the stream at offset off.
func At(seed uint64, off int) byte { return byte(word(seed, uint64(off)/8) >> (off % 8 * 8)) }

// Diff says where memory differs from a stream.
type Diff struct {
	Wrong   int // octets that differ
	Of      int // octets compared
	Offset  int // of the first that differs
	Want    byte
	Got     byte
	Offsets []int // of the first few that differ, Offset among them
}

// keep is how many offsets a Diff names.
const keep = 8

// OK reports whether all octets were as they should be.
func (d Diff) OK() bool { return d.Wrong == 0 }

func (d Diff) String() string {
	if d.OK() {
		return fmt.Sprintf("all %d octets are right", d.Of)
	}
	more := ""
	if d.Wrong > len(d.Offsets) {
		more = ", ..."
	}
	at := fmt.Sprint(d.Offsets)
	return fmt.Sprintf("%d of %d octets differ, at offset %s%s: the first is 0x%02x and should be 0x%02x",
		d.Wrong, d.Of, at[1:len(at)-1], more, d.Got, d.Want)
}

// Check compares b with the stream of seed, octet by octet.
func Check(b []byte, seed uint64) Diff {
	d := Diff{Of: len(b)}
	for i := 0; i < len(b); i += 8 {
		w := word(seed, uint64(i)/8)
		if rest := b[i:]; len(rest) >= 8 && binary.LittleEndian.Uint64(rest) == w {
			continue
		}
		for j := i; j < len(b) && j < i+8; j++ {
			if want := byte(w >> (8 * (j - i))); b[j] != want {
				d.add(j, want, b[j])
			}
		}
	}
	return d
}

// CheckOctets compares b with octets that are known, as many of them.
func CheckOctets(b, want []byte) Diff {
	d := Diff{Of: len(b)}
	for i, got := range b {
		if got != want[i] {
			d.add(i, want[i], got)
		}
	}
	return d
}

// CheckByte compares b with octets that are all the same.
func CheckByte(b []byte, want byte) Diff {
	d := Diff{Of: len(b)}
	for i, got := range b {
		if got != want {
			d.add(i, want, got)
		}
	}
	return d
}

func (d *Diff) add(off int, want, got byte) {
	if d.Wrong == 0 {
		d.Offset, d.Want, d.Got = off, want, got
	}
	if len(d.Offsets) < keep {
		d.Offsets = append(d.Offsets, off)
	}
	d.Wrong++
}
