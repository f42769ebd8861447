package mpa

import (
	"testing"

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

// newConn returns a connection that has not begun, its stream and the far end.
func newConn(t testing.TB) (c *Conn, near, far *simnet.Stream) {
	t.Helper()
	near, far = simnet.StreamPair(testMSS, testBuffer)
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
	near, far = simnet.StreamPair(testMSS, wideBuffer)
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

// octets returns a copy of the ULPDU, taken in two ways.
func octets(t testing.TB, u ULPDU) []byte {
	t.Helper()
	b := make([]byte, u.Len())
	require.Equal(t, len(b), u.CopyTo(b, 0))
	require.Equal(t, b[:min(len(b), MaxHead)], append([]byte{}, u.Head(MaxHead)...))
	return b
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
