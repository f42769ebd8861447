package mpa

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/softrdma/softrdma/internal/crc32c"
)

// discardBatch is how many octets of handed-out FPDUs may pile up before they go
// back to the stream: few enough to keep the TCP window open, many enough to
// make looking at the stream's pieces again cheap.
const discardBatch = 256 << 10

// rx is the receive half of a Conn.
type rx struct {
	crc bool
	err error // sticks

	// The stream's octets as last peeked, and the cursor in them.
	view   [][]byte // with markers: the ULPDU handed out last, all before the cursor
	i      int      // piece of the cursor
	off    int      // octet in that piece
	ready  int      // octets from the cursor on
	used   int      // octets before the cursor, to be discarded
	end    error    // how the stream ends behind the view; nil if it goes on
	marked *markedRx

	fpdus, octets uint64 // not yet in Stats

	u    ULPDU         // handed out last
	word [crcLen]byte  // a length or CRC field that is cut in two; not local, or it would be allocated
	head [MaxHead]byte // for ULPDU.Head
}

// Next returns the next ULPDU, whole and with its CRC checked. It is borrowed,
// octets and all, until the following call of Next. ok is false if more octets are
// needed, or FPDU mode has not begun.
//
// Errors stick. io.EOF: the peer sent FIN after a whole FPDU. Otherwise an
// *[Error]: [CodeClosed] for a stream that ended or died anywhere else,
// [CodeCRC] for a bad CRC and [CodeMarker] for a wrong marker under a CRC that
// is right or off; the stream is left open for a Terminate then.
func (c *Conn) Next() (u *ULPDU, ok bool, err error) {
	r := &c.rx
	if r.err != nil {
		return nil, false, r.err
	}
	if state(c.state.Load()) != stateFPDU {
		return nil, false, c.nextEarly()
	}
	if r.used < discardBatch {
		if ok, err = c.take(); ok || err != nil {
			return &r.u, ok, err
		}
	}
	c.refill()
	if ok, err = c.take(); ok || err != nil {
		return &r.u, ok, err
	}
	if r.end != nil {
		return nil, false, c.ended()
	}
	c.letGo()
	return nil, false, nil
}

// take hands out the FPDU at the cursor, if it is complete.
func (c *Conn) take() (bool, error) {
	r := &c.rx
	if r.i >= len(r.view) { // always with markers, so that they cost others nothing
		return c.takeSpread()
	}
	s := r.view[r.i][r.off:]
	if len(s) < lengthLen {
		return c.takeSpread()
	}
	n := int(binary.BigEndian.Uint16(s))
	size := FPDUSize(n)
	if len(s) < size {
		return c.takeSpread()
	}
	if r.crc && crc32c.Update(0, s[:size-crcLen]) != getCRC(s[size-crcLen:]) {
		return false, c.crcError()
	}
	if r.off += size; len(s) == size {
		r.i, r.off = r.i+1, 0
	}
	r.passed(size)
	r.u.first, r.u.n = s[lengthLen:lengthLen+n:lengthLen+n], n
	return true, nil
}

// takeSpread is take for an FPDU that does not lie in one piece.
func (c *Conn) takeSpread() (bool, error) {
	r := &c.rx
	if r.marked != nil {
		return c.takeMarked()
	}
	if r.ready < lengthLen {
		return false, nil
	}
	at := cursor{r.view, r.i, r.off}
	b := r.word[:]
	at.read(b[:lengthLen])
	n := int(binary.BigEndian.Uint16(b))
	size := FPDUSize(n)
	if r.ready < size {
		return false, nil
	}
	first, next := at.rest(), at.i+1
	if r.crc {
		crc := crc32c.Update(0, b[:lengthLen])
		crc = at.sum(crc, size-lengthLen-crcLen)
		at.read(b)
		if crc != getCRC(b) {
			return false, c.crcError()
		}
	} else {
		at.skip(size - lengthLen)
	}
	r.u.first, r.u.n, r.u.next = first[:min(n, len(first))], n, next
	r.i, r.off = at.i, at.off
	r.passed(size)
	return true, nil
}

func (r *rx) passed(size int) {
	r.used += size
	r.ready -= size
	r.fpdus++
	r.octets += uint64(size)
}

// refill gives handed-out octets back and looks at the stream afresh.
func (c *Conn) refill() {
	c.letGo()
	r := &c.rx
	view, end := c.bs.Peek()
	for _, p := range view {
		r.ready += len(p)
	}
	r.end = end
	if m := r.marked; m != nil {
		m.view = view
	} else {
		r.view = view
	}
}

// letGo discards what has been handed out and forgets the view.
func (c *Conn) letGo() {
	r := &c.rx
	if r.used > 0 {
		c.bs.Discard(r.used)
		c.stats.fpdusIn.Add(r.fpdus)
		c.stats.octetsIn.Add(r.octets)
	}
	r.fpdus, r.octets = 0, 0
	r.view, r.i, r.off, r.ready, r.used, r.u.first = nil, 0, 0, 0, 0, nil
	if m := r.marked; m != nil {
		clear(m.parts)
		m.view, m.i, m.off = nil, 0, 0
	}
}

// nextEarly is Next before FPDU mode: the octets wait, a dead stream is told.
func (c *Conn) nextEarly() error {
	pieces, err := c.bs.Peek()
	if err == nil || len(pieces) > 0 {
		return nil
	}
	c.rx.err = lost(err)
	return c.rx.err
}

func (c *Conn) crcError() error {
	c.stats.crcErrors.Add(1)
	c.rx.err = &Error{Code: CodeCRC}
	c.letGo()
	return c.rx.err
}

// ended turns the end of the stream into the error that sticks.
func (c *Conn) ended() error {
	r := &c.rx
	if r.ready == 0 && errors.Is(r.end, io.EOF) {
		r.err = io.EOF
	} else {
		r.err = lost(r.end)
	}
	c.letGo()
	return r.err
}

// lost is the error for a stream that ended where it should not have.
func lost(err error) *Error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &Error{Code: CodeClosed, Err: err}
}

// Drain discards, unread, everything that has arrived: what the receive half
// does after an error while the stream is closed. It returns how many octets
// it dropped, and io.EOF or an *[Error] once the stream has ended.
func (c *Conn) Drain() (int, error) {
	c.letGo()
	pieces, err := c.bs.Peek()
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	if n > 0 {
		c.bs.Discard(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = lost(err)
	}
	return n, err
}
