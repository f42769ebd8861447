package mpa

import (
	"bytes"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mempool"
)

// lend makes the streams of a test lend n octets.
func lend(t *testing.T, n int) {
	lent = n
	t.Cleanup(func() { lent = 0 })
}

// lentSize is what the streams of package netstack lend.
const lentSize = 64 << 10

// TestLent is all that tests write, on streams that lend memory.
func TestLent(t *testing.T) {
	lend(t, lentSize)
	for name, f := range map[string]func(*testing.T){
		"WriteVectors": TestWriteVectors, "MULPDU": TestMULPDU, "CanWrite": TestCanWrite,
		"BothHalves": TestBothHalves, "WriteNext": TestWriteNext,
		"MarkedVectors": TestMarkedVectors, "MarkersInserted": TestMarkersInserted,
		"MarkerPositionsWrap": TestMarkerPositionsWrap, "MarkedMULPDU": TestMarkedMULPDU, "MarkedRoom": TestMarkedRoom,
		"MarkedBothEnds": TestMarkedBothEnds, "BothEnds": TestBothEnds,
		"OnlyWholeFPDUs": TestOnlyWholeFPDUs, "MarkerErrorLeavesTCP": TestMarkerErrorLeavesTCP,
		"OrderIsLeftToTCP": TestOrderIsLeftToTCP, "HalvesEnd": TestHalvesEnd,
		"OutsideFPDUMode": TestOutsideFPDUMode, "FPDURules": TestFPDURules, "StateMoves": TestStateMoves,
		"CallsOutOfOrder": TestCallsOutOfOrder, "Rejected": TestRejectedLeaves, "PeerKinds": TestPeerKinds,
		"HostileStreams": TestHostileStreams,
	} {
		t.Run(name, f)
	}
	lent = testBuffer
	t.Run("CloseWriteSendsWhatIsStaged", TestCloseWriteSendsWhatIsStaged)
	lent = 1000 // as large as the buffers of these
	t.Run("FlushBySize", func(t *testing.T) {
		near, far := streamPair(testMSS, testBuffer)
		c := open(NewConn(near, nil), Params{CRC: true})
		var want []byte
		for range 5 {
			require.NoError(t, c.Write(count(394), nil)) // 400 octets
			want = append(want, wiretest.Frame(count(394), true)...)
		}
		require.Equal(t, want[:1600], read(far))
		require.Equal(t, 400, c.Pending())
		require.True(t, near.Lent())
		require.NoError(t, c.Flush())
		require.False(t, near.Lent())
		require.Equal(t, want[1600:], read(far))
		require.EqualValues(t, 5, c.Stats().FPDUsOut)
		require.NoError(t, c.Write(count(994), nil))
		require.NoError(t, c.Flush())
		require.PanicsWithValue(t, "mpa: an FPDU of 1004 octets does not fit the 1000 that the stream lends", func() { _ = c.Write(count(995), nil) })
		c.Drop()
		require.False(t, near.Lent())
	})
	t.Run("MarkedFlushBySize", TestMarkedFlushBySize)
}

// TestLentIsFull: what is staged is no more than was lent, to the octet, and CanWrite says so.
func TestLentIsFull(t *testing.T) {
	for _, p := range []Params{{CRC: true}, {}, bothMarked, {LargeFPDUs: true, CRC: true}} {
		lend(t, lentSize)
		pool := newPool(t, mempool.Config{Count: 1, Size: 128 << 10})
		near, far := streamPair(65000, wideBuffer)
		c := open(NewConn(near, pool), p)
		marks := wiretest.Marks{CRC: p.CRC}
		frame := func(n int) []byte {
			if p.MarkersOut {
				return marks.Frame(count(n))
			}
			return wiretest.Frame(count(n), p.CRC)
		}
		sizeAt := func(n int) int {
			if p.MarkersOut {
				return markedSize(c.tx.pos+uint64(c.tx.n), n)
			}
			return FPDUSize(n)
		}
		for _, first := range []int{0, 1000, 32000, MaxULPDU} {
			require.False(t, near.Lent())
			require.True(t, c.CanWrite(first))
			var want []byte
			require.NoError(t, c.Write(count(first), nil))
			want = append(want, frame(first)...)
			require.True(t, near.Lent(), "the stream's own memory")
			require.Zero(t, pool.Out(), "and none of the pool's")
			// As many more as fit, the last of them up to the last octets of what was lent.
			for left := lentSize - c.Pending(); left >= FPDUSize(0); left = lentSize - c.Pending() {
				n := min(left, 9000)
				for ; n > 0 && sizeAt(n) > left; n-- {
				}
				if sizeAt(n) > left {
					break
				}
				if n < MaxULPDU && sizeAt(n+8) > left {
					require.False(t, c.CanWrite(n+8), "%d octets more than the %d there is room for", sizeAt(n+8)-left, left)
				}
				require.True(t, c.CanWrite(n), "%d octets with %d left", n, left)
				require.NoError(t, c.Write(count(n), nil))
				want = append(want, frame(n)...)
			}
			require.Greater(t, c.Pending(), lentSize-FPDUSize(0)-markerLen)
			require.Equal(t, len(want), c.Pending())
			require.False(t, c.CanWrite(18), "the staging buffer is full")
			require.Empty(t, read(far), "nothing was sent so far")
			require.NoError(t, c.Flush())
			require.False(t, near.Lent())
			require.True(t, c.CanWrite(18), "and empty again")
			require.True(t, bytes.Equal(want, read(far)))
		}
	}
}

// TestLentSpansBuffers writes without CanWrite over the end of what is lent: it is flushed on the way.
func TestLentSpansBuffers(t *testing.T) {
	for _, p := range []Params{{CRC: true}, bothMarked} {
		lend(t, lentSize)
		near, far := streamPair(testMSS, wideBuffer)
		c := open(NewConn(near, nil), p)
		marks := wiretest.Marks{CRC: true}
		var want, got []byte
		for i := range 300 {
			u := count(i * 7919 % 9000)
			require.NoError(t, c.Write(u[:min(14, len(u))], [][]byte{u[min(14, len(u)):]}))
			if p.MarkersOut {
				want = append(want, marks.Frame(u)...)
			} else {
				want = append(want, wiretest.Frame(u, true)...)
			}
			got = append(got, read(far)...)
			require.Less(t, len(want)-len(got), lentSize+1)
		}
		require.NoError(t, c.Flush())
		require.True(t, bytes.Equal(want, append(got, read(far)...)))
		require.EqualValues(t, 300, c.Stats().FPDUsOut)
		require.EqualValues(t, len(want), c.Stats().OctetsOut)
	}
}

// TestLoanEnds: however it ends, what was lent goes back, and once.
func TestLoanEnds(t *testing.T) {
	staged := func(t *testing.T) (c *Conn, near, far interface {
		Abort()
		Lent() bool
	}) {
		lend(t, lentSize)
		c, n, f := openConn(t, Params{CRC: true})
		require.NoError(t, c.Write(count(20), nil))
		require.True(t, n.Lent())
		return c, n, f
	}
	t.Run("Flush of a stream that was reset", func(t *testing.T) {
		c, near, far := staged(t)
		far.Abort()
		err := c.Flush()
		require.Equal(t, CodeClosed, code(t, err))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.False(t, near.Lent())
		require.Zero(t, c.Pending())
		require.Equal(t, err, c.Flush())
		require.Equal(t, err, c.Write(count(20), nil))
		require.False(t, near.Lent())
		c.Drop()
	})
	t.Run("a Write that needs more room on a stream that was reset", func(t *testing.T) {
		lend(t, 1000)
		c, near, far := openConn(t, Params{CRC: true})
		require.NoError(t, c.Write(count(600), nil))
		far.Abort()
		require.ErrorIs(t, c.Write(count(600), nil), syscall.ECONNRESET)
		require.False(t, near.Lent())
	})
	t.Run("Drop", func(t *testing.T) {
		c, near, _ := staged(t)
		c.Drop()
		require.False(t, near.Lent())
		require.Zero(t, c.Pending())
		c.Drop()
		require.NoError(t, c.Flush())
		require.True(t, c.CanWrite(20), "it is no error")
		require.NoError(t, c.Write(count(20), nil))
		require.True(t, near.Lent())
		c.Drop()
	})
	t.Run("Drop of an aborted stream", func(t *testing.T) {
		c, near, _ := staged(t)
		near.Abort()
		c.Drop()
		require.False(t, near.Lent())
	})
	t.Run("CloseWrite", func(t *testing.T) {
		lend(t, lentSize)
		c, near, far := openConn(t, Params{CRC: true})
		require.NoError(t, c.Write(wiretest.FPDUs()[0].ULPDU(), nil))
		require.NoError(t, c.CloseWrite())
		require.False(t, near.Lent())
		require.Equal(t, helloFPDU, readEnd(t, far, io.EOF))
	})
}
