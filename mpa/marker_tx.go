package mpa

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/internal/crc32c"
)

// writeMarked is Write, for n ULPDU octets, where the peer asked for markers.
func (c *Conn) writeMarked(n int, head []byte, payload [][]byte) error {
	t := &c.tx
	pos := t.pos + uint64(t.n) // a Flush on the way does not change it
	size := markedSize(pos, n)
	if t.n+size > len(t.data) {
		if err := c.makeRoom(size); err != nil {
			return err
		}
	}
	w := weaver{b: t.data[t.n : t.n+size : t.n+size], mark: toMarker(pos)}
	if w.mark == 0 {
		w.head = markerLen
	}
	w.mayMark()
	binary.BigEndian.PutUint16(w.b[w.at:], uint16(n))
	w.at += lengthLen
	w.put(head)
	for _, p := range payload {
		w.put(p)
	}
	var zero [3 + crcLen]byte
	w.put(zero[:FPDUSize(n)-lengthLen-n]) // pad, a marker before the CRC field, and this where CRC is off
	if t.crc {
		body := w.b[:size-crcLen]
		putCRC(w.b[size-crcLen:], crc32c.Update(0, body))
	}
	t.n += size
	t.fpdus++
	return nil
}

// weaver copies an FPDU to its place in the staging buffer, with the markers
// that fall into it.
type weaver struct {
	b    []byte // the place
	at   int    // how much of it is filled
	mark int    // where the next marker goes
	head int    // where ULPDU_Length is
}

func (w *weaver) put(src []byte) {
	for len(src) > 0 {
		w.mayMark()
		n := copy(w.b[w.at:min(w.mark, len(w.b))], src)
		w.at += n
		src = src[n:]
	}
}

// mayMark puts a marker if one is due.
func (w *weaver) mayMark() {
	if w.at == w.mark {
		binary.BigEndian.PutUint32(w.b[w.at:], markerFor(w.at, w.head))
		w.at += markerLen
		w.mark += markerGap
	}
}
