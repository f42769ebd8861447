package mempool

import (
	"fmt"
	"sync/atomic"
)

// Buf is one buffer of a [Pool]: headroom, then data, then room for more data. See the package comment for who may
// call what.
type Buf struct {
	pool       *Pool
	mem        []byte // headroom and data room
	start, end int    // the data is mem[start:end]
	refs       atomic.Int32
	next       atomic.Uint32 // free list: index+1 of the next free buffer, 0 at the end
	index      uint32
}

// Bytes returns the data. The slice is borrowed from the buffer and dead after the last Release.
func (b *Buf) Bytes() []byte {
	b.live()
	return b.mem[b.start:b.end:b.end]
}

// Len returns how many octets of data there are.
func (b *Buf) Len() int {
	b.live()
	return b.end - b.start
}

// Cap returns how long the data can get with SetLen or Append: the octets from its first one to the buffer's end.
func (b *Buf) Cap() int {
	b.live()
	return len(b.mem) - b.start
}

// Headroom returns how many octets Prepend can still take.
func (b *Buf) Headroom() int {
	b.live()
	return b.start
}

// SetLen makes the data n octets long. Octets that come into view hold whatever was there. It panics if n is
// negative or above Cap.
func (b *Buf) SetLen(n int) {
	b.live()
	if n < 0 || n > len(b.mem)-b.start {
		panic(fmt.Sprintf("mempool: length %d in a buffer with room for %d", n, len(b.mem)-b.start))
	}
	b.end = b.start + n
}

// Prepend grows the data by n octets at the front and returns those n, to be filled in. It panics if the headroom is
// less than n.
func (b *Buf) Prepend(n int) []byte {
	b.live()
	if n < 0 || n > b.start {
		panic(fmt.Sprintf("mempool: %d octets put in front with %d of headroom left", n, b.start))
	}
	b.start -= n
	return b.mem[b.start : b.start+n : b.start+n]
}

// Append copies p behind the data. It panics if there is no room.
func (b *Buf) Append(p []byte) {
	b.live()
	if len(p) > len(b.mem)-b.end {
		panic(fmt.Sprintf("mempool: %d octets appended with room for %d", len(p), len(b.mem)-b.end))
	}
	b.end += copy(b.mem[b.end:], p)
}

// Retain adds a reference. The caller must hold one.
func (b *Buf) Retain() {
	if b.refs.Add(1) <= 1 {
		panic("mempool: Retain of a released buffer")
	}
}

// Release gives one reference back; the last one returns the buffer to its pool.
func (b *Buf) Release() {
	switch n := b.refs.Add(-1); {
	case n == 0:
		b.pool.push(b)
	case n < 0:
		panic("mempool: buffer released once too often")
	}
}

// live panics on use after the last Release (as long as nobody else got the buffer meanwhile).
func (b *Buf) live() {
	if b.refs.Load() <= 0 {
		panic("mempool: use of a released buffer")
	}
}
