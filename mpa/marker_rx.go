package mpa

import (
	"encoding/binary"
	"fmt"
)

// markedRx is what the receive half needs for a stream with markers: the raw
// octets and the cursor in them, while rx.view holds what is between them.
type markedRx struct {
	view  [][]byte
	i     int      // piece of the cursor
	off   int      // octet in that piece
	pos   uint64   // of the cursor in the stream, from the start of FPDU mode; it may wrap
	parts [][]byte // room for rx.view
}

// takeMarked is take where we asked for markers: it removes and checks them.
// The CRC has its say first, as a flipped bit in a marker is no disagreement
// between marker and length.
func (c *Conn) takeMarked() (bool, error) {
	r, m := &c.rx, c.rx.marked
	head, mark := 0, toMarker(m.pos) // places in the FPDU of ULPDU_Length and of the next marker
	if mark == 0 {
		head = markerLen
	}
	if r.ready < head+lengthLen {
		return false, nil
	}
	at := cursor{m.view, m.i, m.off}
	at.skip(head)
	at.read(r.word[:lengthLen])
	n := int(binary.BigEndian.Uint16(r.word[:]))
	size := markedSize(m.pos, n)
	if r.ready < size {
		return false, nil
	}
	if r.crc {
		at = cursor{m.view, m.i, m.off}
		crc := at.sum(0, size-crcLen)
		at.read(r.word[:])
		if crc != getCRC(r.word[:]) {
			return false, c.crcError()
		}
	}
	at = cursor{m.view, m.i, m.off}
	clear(m.parts)
	m.parts = m.parts[:0]
	skip, left := lengthLen, n // octets of the length field, and of the ULPDU, that are still to come
	for k := 0; k < size; {
		if k == mark {
			at.read(r.word[:])
			if got, want := binary.BigEndian.Uint16(r.word[2:]), uint16(markerFor(k, head)); got&^3 != want {
				return false, c.markerError(m.pos+uint64(k), got, want)
			}
			k, mark = k+markerLen, mark+markerGap
			continue
		}
		run := min(mark, size) - k
		k += run
		at.skip(skip) // never cut by a marker
		run, skip = run-skip, 0
		for left > 0 && run > 0 {
			s := at.rest()
			l := min(left, run, len(s))
			m.parts = append(m.parts, s[:l:l])
			at.off += l
			left, run = left-l, run-l
		}
		at.skip(run)
	}
	r.u.first, r.u.n, r.u.next = nil, n, 1
	if n > 0 {
		r.u.first = m.parts[0]
	}
	r.view, r.i = m.parts, len(m.parts)
	m.i, m.off = at.i, at.off
	m.pos += uint64(size)
	r.passed(size)
	return true, nil
}

func (c *Conn) markerError(pos uint64, got, want uint16) error {
	c.rx.err = &Error{Code: CodeMarker, Err: fmt.Errorf("FPDUPTR %d at stream position %d, %d octets from the header", got, pos, want)}
	c.letGo()
	return c.rx.err
}
