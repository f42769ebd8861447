package netstack

import (
	"fmt"
	"sync"
)

// ringSize is the memory in which octets from the kernel arrive: more than peekEnough by what one system call is worth.
const ringSize = 256 << 10

// ring is a byte queue in fixed memory. Octets do not move while they are in it.
type ring struct {
	buf   []byte
	first int // where the oldest octet is
	n     int // octets in the ring
	view  [2][]byte
}

// free returns the room behind the newest octet, in up to two parts.
func (r *ring) free() (a, b []byte) {
	end := r.first + r.n
	if end >= len(r.buf) {
		return r.buf[end-len(r.buf) : r.first], nil
	}
	return r.buf[end:], r.buf[:r.first]
}

// pieces returns the octets in the ring, oldest first. The result is good until the next call.
func (r *ring) pieces() [][]byte {
	if r.n == 0 {
		return nil
	}
	end := r.first + r.n
	if end <= len(r.buf) {
		r.view[0] = r.buf[r.first:end]
		return r.view[:1]
	}
	r.view[0], r.view[1] = r.buf[r.first:], r.buf[:end-len(r.buf)]
	return r.view[:2]
}

// drop takes the n oldest octets out.
func (r *ring) drop(n int) {
	if n < 0 || n > r.n {
		panic(fmt.Sprintf("netstack: Discard of %d octets with %d peeked", n, r.n))
	}
	r.n -= n
	if r.first += n; r.first >= len(r.buf) {
		r.first -= len(r.buf)
	}
	if r.n == 0 {
		r.first = 0
	}
}

// buffers hands out the memory of rings, a bounded number, so that idle connections cost none.
type buffers struct {
	mu     sync.Mutex
	spare  [][]byte
	made   int
	most   int
	hungry []*Conn // found none, to be told
}

// get returns memory for a ring of c, or nil; then c gets an event when there may be some.
func (b *buffers) get(c *Conn) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.spare); n > 0 {
		buf := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return buf
	}
	if b.made < b.most {
		b.made++
		return make([]byte, ringSize)
	}
	b.hungry = append(b.hungry, c)
	return nil
}

func (b *buffers) put(buf []byte) {
	b.mu.Lock()
	b.spare = append(b.spare, buf)
	hungry := b.hungry
	b.hungry = nil
	b.mu.Unlock()
	for _, c := range hungry {
		c.st.ready.push(Event{Conn: c})
	}
}
