package mpa

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mempool"
)

// TestOnlyWholeFPDUs lets the octets of FPDUs come one by one and looks after
// each: the ULPDU comes with the last octet of its FPDU, not before and not later.
func TestOnlyWholeFPDUs(t *testing.T) {
	lengths := []int{0, 1, 2, 3, 4, 18, 500, 513, 1100, 22}
	for _, p := range []Params{{CRC: true}, {}, bothMarked, {MarkersIn: true}} {
		t.Run(fmt.Sprintf("MPA-75 nothing is handed out before the last octet of its FPDU, CRC %t, markers %t", p.CRC, p.MarkersIn), func(t *testing.T) {
			marks := wiretest.Marks{CRC: p.CRC}
			c, _, far := openConn(t, p)
			for k, n := range lengths {
				u := bytes.Repeat([]byte{byte(k + 1)}, n)
				f := wiretest.Frame(u, p.CRC)
				if p.MarkersIn {
					f = marks.Frame(u)
				}
				for i := range f {
					got, err := drain(t, c)
					require.NoError(t, err)
					require.Empty(t, got, "%d of %d octets are there, for a ULPDU of %d", i, len(f), n)
					write(t, far, f[i:i+1])
				}
				got, err := drain(t, c)
				require.NoError(t, err)
				require.Len(t, got, 1, "all %d octets are there, for a ULPDU of %d", len(f), n)
				require.True(t, bytes.Equal(u, got[0]))
			}
		})
	}
}

// TestMarkerErrorLeavesTCP is the code 3 of what a bad CRC is the code 2 of.
func TestMarkerErrorLeavesTCP(t *testing.T) {
	for _, crc := range []bool{true, false} {
		t.Run(fmt.Sprintf("MPA-81 a wrong marker, code 3, does not close the stream: the Terminate goes out, then FIN, CRC %t", crc), func(t *testing.T) {
			c, near, far := openConn(t, Params{CRC: crc, MarkersIn: true})
			f := markedFrame(0, count(600))
			f[3] = 8 // FPDUPTR of the marker before the header
			if crc {
				sum(f)
			}
			write(t, far, f)
			got, err := drain(t, c)
			require.Empty(t, got)
			require.Equal(t, CodeMarker, code(t, err))
			require.False(t, near.Aborted())
			octets, _ := near.Written()
			require.Zero(t, octets, "MPA has nothing to say itself")
			_, end := far.Peek()
			require.NoError(t, end, "and sends no FIN")
			require.NoError(t, c.Write(wiretest.Terminate(0x2003), nil))
			require.NoError(t, c.CloseWrite())
			require.Equal(t, wiretest.Frame(wiretest.Terminate(0x2003), crc), readEnd(t, far, io.EOF))
		})
	}
}

// TestOrderIsLeftToTCP holds the package comment and the code to each other.
func TestOrderIsLeftToTCP(t *testing.T) {
	t.Run("MPA-82 the package comment says that a bad FPDU is not dropped for TCP to send again, and it is not", func(t *testing.T) {
		text, err := os.ReadFile("doc.go")
		require.NoError(t, err)
		require.Regexp(t, `(?s)^// Package mpa .*\npackage mpa\n$`, string(text), "the package comment")
		text = regexp.MustCompile(`\s*\n//\s*`).ReplaceAll(text, []byte(" "))
		require.Contains(t, string(text), "Frames that arrive out of order are left to TCP; MPA sees the stream in order only, "+
			"so that an FPDU with a bad CRC ends the connection and is not dropped for TCP to send again.")

		c, near, far := openConn(t, Params{CRC: true})
		bad := bytes.Clone(helloFPDU)
		bad[9] ^= 1
		write(t, far, append(bad, helloFPDU...))
		got, first := drain(t, c)
		require.Empty(t, got)
		require.Equal(t, CodeCRC, code(t, first))
		write(t, far, helloFPDU) // sent again
		got, err = drain(t, c)
		require.Empty(t, got)
		require.Equal(t, first, err)
		require.False(t, near.Aborted())
	})
}

// TestCloseWriteSendsWhatIsStaged writes without Flush and closes.
func TestCloseWriteSendsWhatIsStaged(t *testing.T) {
	for _, n := range []int{1, 3, 20} { // 20 need more than one staging buffer
		t.Run(fmt.Sprintf("DDP-58 %d FPDUs written and not flushed go out before the FIN", n), func(t *testing.T) {
			near, far := streamPair(testMSS, wideBuffer)
			pool := newPool(t, mempool.Config{Count: 1, Size: testBuffer})
			c := open(NewConn(near, pool), Params{CRC: true})
			var want []byte
			for i := range n {
				u := wiretest.Untagged(3, true, 0, 0, uint32(i+1), 0, count(500))
				require.NoError(t, c.Write(u[:18], [][]byte{u[18:]}))
				want = append(want, wiretest.Frame(u, true)...)
			}
			require.Positive(t, c.Pending())
			_, end := far.Peek()
			require.NoError(t, end)
			require.NoError(t, c.CloseWrite())
			require.Equal(t, want, readEnd(t, far, io.EOF))
			require.Zero(t, c.Pending())
			require.Zero(t, pool.Out())
			require.EqualValues(t, n, c.Stats().FPDUsOut)
			require.NoError(t, c.Write(count(20), nil))
			require.ErrorIs(t, c.Flush(), syscall.EPIPE, "nothing can follow the FIN")
			require.Empty(t, read(far))
		})
	}
}

// TestHalvesEnd closes our half first.
func TestHalvesEnd(t *testing.T) {
	for _, p := range []Params{{CRC: true}, {}, bothMarked} {
		t.Run(fmt.Sprintf("MPA-83 our FIN ends our half alone: what the peer sends later is handed out, then its FIN is told, CRC %t, markers %t", p.CRC, p.MarkersIn), func(t *testing.T) {
			c, near, far := openConn(t, p)
			marks := wiretest.Marks{CRC: p.CRC}
			frame := func(u []byte) []byte {
				if p.MarkersIn {
					return marks.Frame(u)
				}
				return wiretest.Frame(u, p.CRC)
			}
			write(t, far, frame(count(7))) // is there before
			require.NoError(t, c.CloseWrite())
			require.Empty(t, readEnd(t, far, io.EOF))
			want := count(7)
			for n := range 5 {
				got, err := drain(t, c)
				require.NoError(t, err)
				require.Equal(t, [][]byte{want}, got)
				got, err = drain(t, c)
				require.NoError(t, err, "the peer has not closed")
				require.Empty(t, got)
				want = count(100 * n)
				write(t, far, frame(want))
			}
			require.NoError(t, far.CloseWrite())
			got, err := drain(t, c)
			require.Equal(t, [][]byte{want}, got, "what came before the FIN comes first")
			require.Equal(t, io.EOF, err)
			_, ok, err := c.Next()
			require.False(t, ok)
			require.Equal(t, io.EOF, err)
			require.False(t, near.Aborted())
		})
	}
	t.Run("MPA-83 FIN of the peer is told as io.EOF, behind its FPDUs, and once for all", func(t *testing.T) {
		for fpdus := range 3 {
			c, near, far := openConn(t, Params{CRC: true})
			for range fpdus {
				write(t, far, helloFPDU)
			}
			got, err := drain(t, c)
			require.NoError(t, err, "no FIN yet")
			require.Len(t, got, fpdus)
			require.NoError(t, far.CloseWrite())
			for range 3 {
				got, err = drain(t, c)
				require.Empty(t, got)
				require.Equal(t, io.EOF, err)
			}
			require.False(t, near.Aborted())
			require.True(t, c.CanWrite(100), "our half stays")
		}
	})
}
