package mpa

import (
	"bytes"
	"encoding/binary"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// vectorStream is all golden FPDUs behind one another, and their ULPDUs.
func vectorStream() (b []byte, ulpdus [][]byte) {
	for _, v := range wiretest.FPDUs() {
		b = append(b, v.Octets...)
		ulpdus = append(ulpdus, v.ULPDU())
	}
	return b, ulpdus
}

func TestNextVectors(t *testing.T) {
	for _, v := range wiretest.FPDUs() {
		t.Run(v.Name, func(t *testing.T) {
			c, _, far := openConn(t, Params{CRC: true})
			write(t, far, v.Octets)
			got, err := drain(t, c)
			require.NoError(t, err)
			require.Equal(t, [][]byte{v.ULPDU()}, got)
			require.Equal(t, Stats{FPDUsIn: 1, OctetsIn: uint64(len(v.Octets))}, c.Stats())

			wiretest.Prefixes(t, v.Octets, func(b []byte) bool {
				c, near, far := openConn(t, Params{CRC: true})
				write(t, far, b)
				got, err := drain(t, c)
				require.NoError(t, err)
				if len(got) == 0 {
					require.Equal(t, len(b), near.Buffered(), "an FPDU in progress stays in the stream")
				}
				return len(got) == 1
			})
		})
	}
}

func TestNextSplit(t *testing.T) {
	stream, want := vectorStream()
	t.Run("MPA-76 all in one piece", func(t *testing.T) {
		c, near, far := openConn(t, Params{CRC: true})
		write(t, far, stream)
		got, err := drain(t, c)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Zero(t, near.Buffered())
	})
	t.Run("MPA-75 MPA-76 octet by octet", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		var got [][]byte
		for i := range stream {
			write(t, far, stream[i:i+1])
			more, err := drain(t, c)
			require.NoError(t, err)
			got = append(got, more...)
		}
		require.Equal(t, want, got)
	})
	t.Run("MPA-75 resume at every cut of three FPDUs", func(t *testing.T) {
		stream, want := stream[:96], want[:3]
		require.Equal(t, len(stream), FPDUSize(len(want[0]))+FPDUSize(len(want[1]))+FPDUSize(len(want[2])))
		for i := range stream {
			for j := i; j <= len(stream); j++ {
				c, _, far := openConn(t, Params{CRC: true})
				var got [][]byte
				for _, part := range [][]byte{stream[:i], stream[i:j], stream[j:]} {
					write(t, far, part)
					more, err := drain(t, c)
					require.NoError(t, err)
					got = append(got, more...)
				}
				require.Equal(t, want, got)
			}
		}
	})
	t.Run("MPA-72 IOP-13 any pieces, empty ones too", func(t *testing.T) {
		for seed := range uint64(300) {
			c, near, far := openConn(t, Params{CRC: true})
			near.Rechunk(seed, 1+int(seed%40))
			write(t, far, stream)
			var got [][]byte
			for rounds := 0; len(got) < len(want); rounds++ {
				more, err := drain(t, c)
				require.NoError(t, err)
				got = append(got, more...)
				require.Less(t, rounds, 10000)
			}
			require.Equal(t, want, got)
		}
	})
}

// TestNextAnything sends random ULPDUs in random pieces, with and without CRC.
func TestNextAnything(t *testing.T) {
	pool := newPool(t, poolConfig)
	short := rapid.OneOf(rapid.IntRange(0, 80), rapid.IntRange(0, 500))
	long := rapid.OneOf(short, rapid.IntRange(0, 3000), rapid.SampledFrom([]int{MaxULPDU, 65535}))
	rapid.Check(t, func(t *rapid.T) {
		crc := rapid.Bool().Draw(t, "CRC")
		near, far := streamPair(testMSS, 1<<20)
		length := long
		if rapid.Bool().Draw(t, "cut") {
			largest := rapid.SampledFrom([]int{1, 3, 70, 1448, 65536}).Draw(t, "largest")
			near.Rechunk(rapid.Uint64().Draw(t, "seed"), largest)
			if largest < 1448 {
				length = short
			}
		}
		c := open(NewConn(near, pool), Params{CRC: crc})
		for _, n := range rapid.SliceOfN(length, 1, 8).Draw(t, "lengths") {
			want := count(n)
			if err := far.Writev([][]byte{wiretest.Frame(want, crc)}); err != nil {
				require.ErrorIs(t, err, syscall.ENOBUFS)
				break
			}
			var u *ULPDU
			ok := false
			for rounds := 0; !ok; rounds++ {
				var err error
				require.NoError(t, soon(func() { u, ok, err = c.Next() }))
				require.NoError(t, err)
				require.Less(t, rounds, 20000)
			}
			require.Equal(t, n, u.Len(), "MPA-52")
			got := bytes.Repeat([]byte{0xaa}, n+1)
			require.Equal(t, n, u.CopyTo(got, 0))
			require.True(t, bytes.Equal(want, got[:n]))
			require.EqualValues(t, 0xaa, got[n])

			h := rapid.IntRange(0, MaxHead).Draw(t, "head")
			require.True(t, bytes.Equal(want[:min(h, n)], u.Head(h)))
			off := rapid.IntRange(0, n+2).Draw(t, "off")
			part := make([]byte, rapid.IntRange(0, n+2).Draw(t, "part"))
			m := u.CopyTo(part, off)
			require.Equal(t, max(0, min(len(part), n-off)), m)
			require.True(t, bytes.Equal(want[min(off, n):min(off, n)+m], part[:m]))
		}
	})
}

func TestNextLengths(t *testing.T) {
	t.Run("MPA-54 every ULPDU_Length of 16 bits", func(t *testing.T) {
		c, _, far := openWide(t, Params{})
		for _, n := range []int{0, 1, 2, 3, 4, 13, 17, 255, 256, 32767, 32768, MaxULPDU, MaxULPDU + 1, 65533, 65534, 65535} {
			write(t, far, wiretest.Frame(count(n), false))
			u, ok, err := c.Next()
			require.NoError(t, err)
			require.True(t, ok)
			require.True(t, bytes.Equal(count(n), octets(t, u)))
		}
		_, ok, err := c.Next()
		require.NoError(t, err)
		require.False(t, ok)
	})
	t.Run("SEC-37 a length the stream never fills waits", func(t *testing.T) {
		c, near, far := openWide(t, Params{CRC: true})
		write(t, far, []byte{0xff, 0xff})
		write(t, far, make([]byte, 65000))
		for range 3 {
			_, ok, err := c.Next()
			require.NoError(t, err)
			require.False(t, ok)
		}
		require.Equal(t, 65002, near.Buffered(), "MPA-77")
	})
}

func TestCRC(t *testing.T) {
	v := wiretest.FPDUs()[0]
	t.Run("MPA-57 the CRC is stored least significant octet first", func(t *testing.T) {
		n := len(v.Octets) - crcLen
		require.Equal(t, wiretest.CRC32C(v.Octets[:n]), getCRC(v.Octets[n:]))
		require.Equal(t, uint32(0x0cb190b9), getCRC(v.Octets[n:]))
	})
	t.Run("MPA-59 any flipped bit is noticed, and nothing follows", func(t *testing.T) {
		for _, v := range wiretest.FPDUs() {
			for i := range v.Octets {
				for bit := range 8 {
					b := bytes.Clone(v.Octets)
					b[i] ^= 1 << bit
					// What follows must not be taken for anything.
					b = append(b, v.Octets...)
					c, near, far := openConn(t, Params{CRC: true})
					write(t, far, b)
					got, err := drain(t, c)
					require.Empty(t, got, "MPA-56")
					if err == nil { // the length grew beyond what was sent
						require.Less(t, i, lengthLen)
						continue
					}
					require.Equal(t, CodeCRC, code(t, err), "MPA-80")
					first := err
					require.EqualValues(t, 1, c.Stats().CRCErrors)
					write(t, far, v.Octets)
					_, ok, again := c.Next()
					require.False(t, ok)
					require.Equal(t, err, again, "MPA-79")
					require.False(t, near.Aborted(), "MPA-81")
					require.NoError(t, c.Write(wiretest.Terminate(0x2002), nil))
					require.NoError(t, c.Flush())
					n, err := c.Drain()
					require.NoError(t, err)
					require.Equal(t, len(b)+len(v.Octets), n, "SEC-44 dropped unread")
					write(t, far, v.Octets)
					_, ok, again = c.Next()
					require.False(t, ok, "what comes behind the bad FPDU was handed out")
					require.Equal(t, first, again, "MPA-79")
					require.NotEmpty(t, read(far))
				}
			}
		}
	})
	t.Run("MPA-59 in pieces", func(t *testing.T) {
		stream, want := vectorStream()
		bad := bytes.Clone(stream)
		bad[40] ^= 1 // in the second FPDU
		for seed := range uint64(200) {
			c, near, far := openConn(t, Params{CRC: true})
			near.Rechunk(seed, 9)
			write(t, far, bad)
			var got [][]byte
			var err error
			for rounds := 0; err == nil; rounds++ {
				var more [][]byte
				more, err = drain(t, c)
				got = append(got, more...)
				require.LessOrEqual(t, len(got), 1, "the bad FPDU, or one behind it, was handed out")
				require.Less(t, rounds, 10000, "the bad FPDU is not noticed")
			}
			require.Equal(t, want[:1], got)
			require.Equal(t, CodeCRC, code(t, err))
		}
	})
	t.Run("MPA-25 with CRC off the field is not looked at", func(t *testing.T) {
		for seed := range uint64(20) {
			c, near, far := openConn(t, Params{})
			if seed > 0 {
				near.Rechunk(seed, 7)
			}
			b := wiretest.Frame(v.ULPDU(), false)
			binary.LittleEndian.PutUint32(b[len(b)-4:], 0xdeadbeef)
			write(t, far, b)
			var got [][]byte
			for rounds := 0; len(got) == 0; rounds++ {
				var err error
				got, err = drain(t, c)
				require.NoError(t, err)
				require.Less(t, rounds, 10000)
			}
			require.Equal(t, [][]byte{v.ULPDU()}, got)
		}
	})
	t.Run("MPA-53 pad octets of any value, if the CRC is right", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		b := bytes.Clone(v.Octets)
		n := len(b) - crcLen
		b[n-1], b[n-2], b[n-3] = 1, 2, 3
		putCRC(b[n:], wiretest.CRC32C(b[:n]))
		write(t, far, b)
		got, err := drain(t, c)
		require.NoError(t, err)
		require.Equal(t, [][]byte{v.ULPDU()}, got)
	})
}

func TestStreamEnds(t *testing.T) {
	stream, want := vectorStream()
	stream, want = stream[:56], want[:2] // 32 and 24 octets
	t.Run("MPA-78 MPA-84 FIN and RST behind any octet", func(t *testing.T) {
		for _, cut := range []int{0, 3} {
			for n := range len(stream) + 1 {
				for _, fin := range []bool{true, false} {
					c, near, far := openConn(t, Params{CRC: true})
					near.Rechunk(uint64(n), cut)
					write(t, far, stream[:n])
					if fin {
						require.NoError(t, far.CloseWrite())
					} else {
						far.Abort()
					}
					var got [][]byte
					var err error
					for rounds := 0; err == nil; rounds++ {
						var more [][]byte
						more, err = drain(t, c)
						got = append(got, more...)
						require.Less(t, rounds, 200, "the end is noticed")
					}
					whole := 0
					for whole < len(want) && n >= 32+24*whole {
						whole++
					}
					require.Len(t, got, whole, "octets before the end count")
					switch {
					case fin && (n == 0 || n == 32 || n == 56):
						require.Equal(t, io.EOF, err, "MPA-78 FIN on a boundary")
					case fin:
						require.Equal(t, CodeClosed, code(t, err), "MPA-78 FIN within an FPDU")
						require.ErrorIs(t, err, io.ErrUnexpectedEOF)
					default:
						require.Equal(t, CodeClosed, code(t, err), "MPA-84")
						require.ErrorIs(t, err, syscall.ECONNRESET)
					}
					_, ok, again := c.Next()
					require.False(t, ok)
					require.Equal(t, err, again)
					require.False(t, near.Aborted())
				}
			}
		}
	})
	t.Run("MPA-83 FIN of the peer leaves the other direction", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		require.NoError(t, far.CloseWrite())
		_, _, err := c.Next()
		require.Equal(t, io.EOF, err)
		require.NoError(t, c.Write(wiretest.FPDUs()[0].ULPDU(), nil))
		require.NoError(t, c.CloseWrite())
		require.Equal(t, helloFPDU, readEnd(t, far, io.EOF))
		_, err = c.Drain()
		require.Equal(t, io.EOF, err)
	})
	t.Run("Drain tells of a reset", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		write(t, far, []byte{1, 2, 3})
		far.Abort()
		n, err := c.Drain()
		require.Equal(t, 3, n)
		require.Equal(t, CodeClosed, code(t, err))
	})
}

// TestNextBorrows: the octets of a ULPDU are intact until the next call of Next.
// The stream overwrites what it gets back.
func TestNextBorrows(t *testing.T) {
	c, near, far := openConn(t, Params{CRC: true})
	write(t, far, helloFPDU)
	u, ok, err := c.Next()
	require.NoError(t, err)
	require.True(t, ok)
	head := u.Head(18)
	require.Equal(t, len(helloFPDU), near.Buffered())
	require.Equal(t, wiretest.FPDUs()[0].ULPDU()[:18], head)
	_, ok, err = c.Next()
	require.NoError(t, err)
	require.False(t, ok)
	require.Zero(t, near.Buffered(), "given back with ok false at the latest")
	require.NotEqual(t, wiretest.FPDUs()[0].ULPDU()[:18], head)
}

// TestNextBatches: octets go back to the stream now and then, however much is there.
func TestNextBatches(t *testing.T) {
	c, near, far := openWide(t, Params{})
	b := wiretest.Frame(count(16378), false) // 16 KiB
	for range wideBuffer / len(b) {
		write(t, far, b)
	}
	least := wideBuffer
	for range wideBuffer / len(b) {
		_, ok, err := c.Next()
		require.NoError(t, err)
		require.True(t, ok)
		least = min(least, near.Buffered())
	}
	require.Equal(t, wideBuffer-discardBatch, least)
}
