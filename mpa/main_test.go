package mpa

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/mempool"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// Most streams of these tests are small; wide ones hold several of the largest
// FPDUs.
const (
	testMSS    = 1448
	testBuffer = 4096
	wideBuffer = 512 << 10
)

var poolConfig = mempool.Config{Count: 2, Size: 128 << 10}

func newPool(t testing.TB, c mempool.Config) *mempool.Pool {
	t.Helper()
	p, err := mempool.New(c)
	require.NoError(t, err)
	return leakcheck.Pool(t, p)
}

// lent is how much memory to put FPDUs together in the streams of these tests
// lend; 0: none, so that it is the pool's.
var lent int

func streamPair(mss, buffer int) (a, b *simnet.Stream) {
	a, b = simnet.StreamPair(mss, buffer)
	a.Lend(lent)
	b.Lend(lent)
	return a, b
}

// newConn returns a connection that has not begun, its stream and the far end.
func newConn(t testing.TB) (c *Conn, near, far *simnet.Stream) {
	t.Helper()
	near, far = streamPair(testMSS, testBuffer)
	return NewConn(near, newPool(t, mempool.Config{Count: 1, Size: testBuffer})), near, far
}

// openConn returns a connection in FPDU mode, without any startup frame.
func openConn(t testing.TB, p Params) (c *Conn, near, far *simnet.Stream) {
	t.Helper()
	c, near, far = newConn(t)
	return open(c, p), near, far
}

// openWide is openConn with wide buffers.
func openWide(t testing.TB, p Params) (c *Conn, near, far *simnet.Stream) {
	t.Helper()
	near, far = streamPair(testMSS, wideBuffer)
	return open(NewConn(near, newPool(t, poolConfig)), p), near, far
}

func open(c *Conn, p Params) *Conn {
	c.advance(stateRequestSent)
	c.enterFPDU(p)
	return c
}

// write sends raw octets.
func write(t testing.TB, s *simnet.Stream, b []byte) {
	t.Helper()
	require.NoError(t, s.Writev([][]byte{b}))
}

// read takes all raw octets that have arrived.
func read(s *simnet.Stream) []byte {
	var b []byte
	pieces, _ := s.Peek()
	for _, p := range pieces {
		b = append(b, p...)
	}
	s.Discard(len(b))
	return b
}

// readEnd is read for a stream that must end behind the octets.
func readEnd(t testing.TB, s *simnet.Stream, end error) []byte {
	t.Helper()
	b := read(s)
	_, err := s.Peek()
	require.ErrorIs(t, err, end)
	return b
}

// octets returns a copy of the ULPDU, taken in three ways.
func octets(t testing.TB, u *ULPDU) []byte {
	t.Helper()
	b, err := taken(u)
	require.NoError(t, err)
	return b
}

func taken(u *ULPDU) ([]byte, error) {
	b := make([]byte, u.Len())
	if n := u.CopyTo(b, 0); n != len(b) {
		return nil, fmt.Errorf("CopyTo gave %d of %d octets", n, len(b))
	}
	half := make([]byte, len(b))
	if n := u.CopyTo(half, len(b)/2); !bytes.Equal(half[:n], b[len(b)/2:]) {
		return nil, fmt.Errorf("CopyTo from octet %d gave % x of % x", len(b)/2, half[:n], b)
	}
	if h := u.Head(MaxHead); !bytes.Equal(b[:min(len(b), MaxHead)], h) {
		return nil, fmt.Errorf("Head gave % x of % x", h, b)
	}
	return b, nil
}

// patience is what a call gets that waits for nothing, on the busiest machine; once
// one was stuck, and the tests have failed, others get a second.
const patience = 10 * time.Second

var stuck atomic.Bool

// soon runs f, which waits for nothing, and says so if it does not come back or
// panics. f may not fail the test itself.
func soon(f func()) error {
	done := make(chan error, 1)
	go func() { done <- caught(f) }()
	limit := patience
	if stuck.Load() {
		limit = time.Second
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		stuck.Store(true)
		return fmt.Errorf("no end within %v", limit)
	}
}

// caught turns a panic of f into an error, so that other tests go on.
func caught(f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	f()
	return nil
}

// drain takes all ULPDUs there are until Next has no more, or fails.
func drain(t testing.TB, c *Conn) (ulpdus [][]byte, err error) {
	t.Helper()
	var odd error
	require.NoError(t, soon(func() { ulpdus, err, odd = takeAll(c) }))
	require.NoError(t, odd)
	return ulpdus, err
}

// takeAll is drain without a test. odd tells of what may not be.
func takeAll(c *Conn) (ulpdus [][]byte, err, odd error) {
	for len(ulpdus) < 1<<16 {
		u, ok, err := c.Next()
		switch {
		case ok && err != nil:
			return ulpdus, err, fmt.Errorf("a ULPDU and an error at once: %w", err)
		case !ok:
			return ulpdus, err, nil
		}
		b, err := taken(u)
		if err != nil {
			return ulpdus, nil, err
		}
		ulpdus = append(ulpdus, b)
	}
	return nil, nil, errors.New("more FPDUs than were ever sent")
}

func code(t testing.TB, err error) Code {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Code
}

// count returns n octets 0, 1, 2, ...
func count(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}
