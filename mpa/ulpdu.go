package mpa

import "github.com/softrdma/softrdma/internal/crc32c"

// MaxHead is the most [ULPDU.Head] gives: a DDP header and the largest RDMAP
// header behind it.
const MaxHead = 72

// ULPDU is one received ULPDU, in one or more pieces of stream memory. It is
// borrowed: dead after the following call of [Conn.Next].
type ULPDU struct {
	first []byte // the octets in the first piece
	n     int    // all octets
	next  int    // the piece of r.view where the rest goes on
	r     *rx
}

// Len returns the ULPDU_Length in octets.
func (u *ULPDU) Len() int { return u.n }

// Head returns the first n octets, or all if there are fewer, in one slice. n
// is at most [MaxHead].
func (u *ULPDU) Head(n int) []byte {
	if n > MaxHead {
		panic("mpa: ULPDU.Head asked for more than MaxHead octets")
	}
	n = min(n, u.n)
	if n <= len(u.first) {
		return u.first[:n:n]
	}
	return u.r.head[:u.CopyTo(u.r.head[:n], 0)]
}

// CopyTo copies the octets from off on to dst and returns how many there were.
func (u *ULPDU) CopyTo(dst []byte, off int) int {
	dst = dst[:max(0, min(len(dst), u.n-off))]
	n := 0
	if off < len(u.first) {
		n = copyOut(dst, u.first[off:])
	}
	off = max(0, off-len(u.first))
	for i := u.next; n < len(dst); i++ {
		p := u.r.view[i]
		if off >= len(p) {
			off -= len(p)
			continue
		}
		n += copyOut(dst[n:], p[off:])
		off = 0
	}
	return n
}

// cursor walks the pieces of a view. Its caller has made sure that there are
// enough octets.
type cursor struct {
	view [][]byte
	i    int
	off  int
}

// rest returns what is left of the piece under the cursor, after stepping over
// empty pieces; nothing at the end of the view.
func (k *cursor) rest() []byte {
	for k.i < len(k.view) {
		if s := k.view[k.i][k.off:]; len(s) > 0 {
			return s
		}
		k.i, k.off = k.i+1, 0
	}
	return nil
}

func (k *cursor) read(b []byte) {
	for len(b) > 0 {
		n := copy(b, k.rest())
		k.off += n
		b = b[n:]
	}
}

func (k *cursor) sum(crc uint32, n int) uint32 {
	for n > 0 {
		s := k.rest()
		s = s[:min(n, len(s))]
		crc = crc32c.Update(crc, s)
		k.off += len(s)
		n -= len(s)
	}
	return crc
}

func (k *cursor) skip(n int) {
	for n > 0 {
		m := min(n, len(k.rest()))
		k.off += m
		n -= m
	}
}
