package mpa

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/softrdma/softrdma/internal/crc32c"
	"github.com/softrdma/softrdma/mempool"
)

// tx is the send half of a Conn.
type tx struct {
	crc   bool
	large bool
	marks bool  // the peer asked for markers
	err   error // sticks

	pool *mempool.Pool
	data []byte       // room for the FPDUs staged since the last Flush; nil if none
	buf  *mempool.Buf // whose memory data is; nil if it is the stream's
	n    int          // octets staged
	room int          // what the stream takes at least; refreshed when it matters
	pos  uint64       // octets handed to the stream in FPDU mode; it may wrap

	fpdus uint64    // staged
	parts [1][]byte // for Writev
}

// MULPDU returns the largest ULPDU that fits one TCP segment now, in octets:
// 128 to 64768. It follows the stream's MSS. Longer ULPDUs, cut before the MSS
// became smaller, can still be written. RFC 5044, Section 4.1.
func (c *Conn) MULPDU() int {
	if c.tx.large {
		return MaxULPDU
	}
	if c.tx.marks {
		return markedMULPDUFor(c.bs.MSS())
	}
	return mulpduFor(c.bs.MSS())
}

// CanWrite reports whether the stream has room for one more FPDU with n ULPDU
// octets behind what is staged. When it is false, Flush and wait until the
// stream is writable again. It is false before FPDU mode, and true once the
// send half has failed: Write says how.
func (c *Conn) CanWrite(n int) bool {
	t := &c.tx
	if t.err != nil {
		return true
	}
	if state(c.state.Load()) != stateFPDU {
		return false
	}
	need := t.n
	if t.marks {
		need += markedSize(t.pos+uint64(t.n), n)
	} else {
		need += FPDUSize(n)
	}
	if t.n > 0 && need > len(t.data) {
		return false // the stream may have room for no more than one staging buffer
	}
	if t.n == 0 || need > t.room {
		t.room = c.bs.Room()
	}
	return need <= t.room
}

// Write stages one FPDU whose ULPDU is head followed by payload. It copies
// both, and computes the CRC over the copy. A full staging buffer is flushed on
// the way; otherwise nothing is sent before Flush. The caller has asked
// CanWrite.
//
// The first Write of a batch takes a staging buffer: the stream's if it lends one,
// else from the pool, and waits if all are out. It goes back with Flush, so flush
// before waiting for anything else.
//
// Errors stick: an *[Error] with [CodeClosed], or the pool's error if it was
// closed.
func (c *Conn) Write(head []byte, payload [][]byte) error {
	t := &c.tx
	if t.err != nil {
		return t.err
	}
	c.must(stateFPDU, "Write")
	n := len(head)
	for _, p := range payload {
		n += len(p)
	}
	if n > MaxULPDU {
		panic(fmt.Sprintf("mpa: Write of %d octets, the maximum is %d", n, MaxULPDU))
	}
	if t.marks {
		return c.writeMarked(n, head, payload)
	}
	size := FPDUSize(n)
	if t.n+size > len(t.data) {
		if err := c.makeRoom(size); err != nil {
			return err
		}
	}
	b := t.data[t.n : t.n+size : t.n+size]
	binary.BigEndian.PutUint16(b, uint16(n))
	at := lengthLen + copy(b[lengthLen:], head)
	for _, p := range payload {
		at += copy(b[at:], p)
	}
	clear(b[at:]) // pad, and the CRC field where CRC is off
	if t.crc {
		body := b[:size-crcLen]
		putCRC(b[size-crcLen:], crc32c.Update(0, body))
	}
	t.n += size
	t.fpdus++
	return nil
}

// makeRoom flushes, and takes a staging buffer.
func (c *Conn) makeRoom(size int) error {
	t := &c.tx
	if err := c.Flush(); err != nil {
		return err
	}
	if t.data = c.bs.Stage(); t.data != nil {
		if size > len(t.data) {
			panic(fmt.Sprintf("mpa: an FPDU of %d octets does not fit the %d that the stream lends", size, len(t.data)))
		}
		return nil
	}
	b, err := t.pool.Wait(context.Background())
	if err != nil {
		t.err = fmt.Errorf("mpa: no staging buffer: %w", err)
		return t.err
	}
	t.buf = b
	t.buf.SetLen(t.buf.Cap())
	t.data = t.buf.Bytes()
	if size > len(t.data) {
		panic(fmt.Sprintf("mpa: an FPDU of %d octets does not fit the pool's buffers of %d", size, len(t.data)))
	}
	return nil
}

// Flush hands the staged FPDUs to the stream, in one piece, and gives the
// staging buffer back. Errors stick.
func (c *Conn) Flush() error {
	t := &c.tx
	if t.data == nil {
		return t.err
	}
	if err := t.handOver(c.bs); err != nil {
		t.err = &Error{Code: CodeClosed, Err: err}
	} else {
		t.room -= t.n
		t.pos += uint64(t.n)
		c.stats.fpdusOut.Add(t.fpdus)
		c.stats.octetsOut.Add(uint64(t.n))
	}
	t.n, t.fpdus = 0, 0
	return t.err
}

// handOver lets the stream have what is staged, and its staging buffer go.
func (t *tx) handOver(bs ByteStream) error {
	if t.buf == nil {
		t.data = nil
		return bs.Commit(t.n)
	}
	t.parts[0] = t.data[:t.n]
	err := bs.Writev(t.parts[:])
	t.parts[0] = nil
	t.buf.Release()
	t.data, t.buf = nil, nil
	return err
}

// Pending returns how many octets are staged.
func (c *Conn) Pending() int { return c.tx.n }

// CloseWrite flushes and sends FIN. Nothing can be written afterwards.
func (c *Conn) CloseWrite() error {
	if err := c.Flush(); err != nil {
		return err
	}
	if err := c.bs.CloseWrite(); err != nil {
		c.tx.err = &Error{Code: CodeClosed, Err: err}
	}
	return c.tx.err
}

// Drop forgets what is staged and gives the staging buffer back, for a
// connection that ends without Flush. It leaves the stream alone.
func (c *Conn) Drop() {
	t := &c.tx
	switch {
	case t.buf != nil:
		t.buf.Release()
	case t.data != nil:
		_ = c.bs.Commit(0)
	}
	t.data, t.buf, t.n, t.fpdus = nil, nil, 0, 0
}
