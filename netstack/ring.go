package netstack

import "fmt"

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
