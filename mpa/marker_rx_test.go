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

// markedFrame is the FPDU with markers that begins at pos, its CRC field zero.
func markedFrame(pos uint64, u []byte) []byte {
	m := wiretest.Marks{Pos: pos}
	return m.Frame(u)
}

// sum puts the CRC that is right for what stands before it.
func sum(f []byte) []byte {
	n := len(f) - crcLen
	binary.LittleEndian.PutUint32(f[n:], wiretest.CRC32C(f[:n]))
	return f
}

func TestMarkersRemoved(t *testing.T) {
	t.Run("MPA-67 MPA-52 any ULPDU at any position, in any pieces", func(t *testing.T) {
		pool := newPool(t, poolConfig)
		length := rapid.OneOf(rapid.IntRange(0, 80), rapid.IntRange(480, 540), rapid.IntRange(0, 3000), rapid.SampledFrom([]int{MaxULPDU, 65535}))
		rapid.Check(t, func(t *rapid.T) {
			near, far := streamPair(testMSS, 1<<19)
			p := Params{CRC: rapid.Bool().Draw(t, "CRC"), MarkersIn: true}
			c := open(NewConn(near, pool), p)
			m := wiretest.Marks{Pos: rapid.Uint64().Draw(t, "pos") &^ 3, CRC: p.CRC}
			c.rx.marked.pos = m.Pos
			largest := 0
			if rapid.Bool().Draw(t, "cut") {
				largest = rapid.SampledFrom([]int{1, 3, 70, 1448, 65536}).Draw(t, "largest")
				near.Rechunk(rapid.Uint64().Draw(t, "seed"), largest)
			}
			for _, n := range rapid.SliceOfN(length, 1, 6).Draw(t, "lengths") {
				if largest > 0 && largest < 1448 {
					n %= 1000
				}
				want := count(n)
				require.NoError(t, far.Writev([][]byte{m.Frame(want)}))
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
				k := u.CopyTo(part, off)
				require.Equal(t, max(0, min(len(part), n-off)), k)
				require.True(t, bytes.Equal(want[min(off, n):min(off, n)+k], part[:k]))
			}
		})
	})
	t.Run("MPA-75 MPA-76 octet by octet", func(t *testing.T) {
		m := wiretest.Marks{CRC: true}
		var stream []byte
		var want [][]byte
		for _, n := range []int{500, 5, 0, 1100, 18} {
			stream, want = append(stream, m.Frame(count(n))...), append(want, count(n))
		}
		c, _, far := openConn(t, bothMarked)
		var got [][]byte
		for i := range stream {
			write(t, far, stream[i:i+1])
			more, err := drain(t, c)
			require.NoError(t, err)
			got = append(got, more...)
		}
		require.Equal(t, want, got)
	})
	t.Run("MPA-54 MPA-77 the longest FPDU: 66064 octets with its markers", func(t *testing.T) {
		for pos := uint64(0); pos < markerGap; pos += 4 {
			require.LessOrEqual(t, markedSize(pos, 65535), 65544+4*130)
		}
		near, far := streamPair(testMSS, 65544+4*130)
		c := open(NewConn(near, newPool(t, poolConfig)), Params{MarkersIn: true})
		write(t, far, markedFrame(0, count(65535)))
		u, ok, err := c.Next()
		require.NoError(t, err)
		require.True(t, ok)
		require.True(t, bytes.Equal(count(65535), octets(t, u)))
	})
	t.Run("the octets are intact until the next call", func(t *testing.T) {
		c, _, far := openConn(t, bothMarked)
		m := wiretest.Marks{CRC: true}
		write(t, far, append(m.Frame(count(1000)), m.Frame(count(30))...))
		u, ok, err := c.Next()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, count(1000), octets(t, u))
		u, ok, err = c.Next()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, count(30), octets(t, u))
	})
}

// TestMarkersChecked bends markers of an FPDU with three, at 0, 512 and 1024.
func TestMarkersChecked(t *testing.T) {
	u := count(1200)
	for _, tc := range []struct {
		name string
		bend func(f []byte)
		crc  bool // the CRC is computed after bending
		code Code // 0: taken
	}{
		{"MPA-67 nothing wrong", func([]byte) {}, true, 0},
		{"MPA-67 MPA-80 FPDUPTR of the first marker", func(f []byte) { f[3] = 4 }, true, CodeMarker},
		{"MPA-67 MPA-80 FPDUPTR of the second marker", func(f []byte) { f[515] ^= 0x10 }, true, CodeMarker},
		{"MPA-67 MPA-80 FPDUPTR of the last marker", func(f []byte) { f[1026]++ }, true, CodeMarker},
		{"MPA-67 FPDUPTR 0 is for boundaries alone", func(f []byte) { clear(f[512:516]) }, true, CodeMarker},
		{"MPA-62 the low two bits of FPDUPTR are not looked at", func(f []byte) { f[3] |= 3; f[515] |= 2; f[1027] |= 1 }, true, 0},
		{"MPA-67 the reserved half is not looked at", func(f []byte) { f[0], f[1], f[512], f[1025] = 1, 2, 3, 0xff }, true, 0},
		{"MPA-67 MPA-59 a wrong marker under a wrong CRC is a CRC error", func(f []byte) { f[515] ^= 0x10 }, false, CodeCRC},
		{"MPA-58 the reserved half is under the CRC", func(f []byte) { f[512] = 1 }, false, CodeCRC},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, largest := range []int{0, 9} {
				c, near, far := openConn(t, bothMarked)
				near.Rechunk(uint64(largest), largest)
				f := sum(markedFrame(0, u))
				tc.bend(f)
				if tc.crc {
					sum(f)
				}
				next := wiretest.Marks{Pos: uint64(len(f)), CRC: true}
				write(t, far, append(f, next.Frame(count(20))...))
				var got [][]byte
				var err error
				for rounds := 0; len(got) < 2 && err == nil; rounds++ {
					var more [][]byte
					more, err = drain(t, c)
					got = append(got, more...)
					require.Less(t, rounds, 5000)
				}
				if tc.code == 0 {
					require.NoError(t, err)
					require.Equal(t, [][]byte{u, count(20)}, got)
					continue
				}
				require.Empty(t, got)
				require.Equal(t, tc.code, code(t, err))
				_, ok, again := c.Next()
				require.False(t, ok, "MPA-79 nothing behind the error")
				require.Equal(t, err, again)
				require.False(t, near.Aborted(), "MPA-81 TCP stays for the Terminate")
				require.NoError(t, c.Write(wiretest.Terminate(0x2003), nil))
				require.NoError(t, c.Flush())
				require.NotEmpty(t, read(far))
			}
		})
	}
	t.Run("MPA-67 MPA-25 with CRC off markers are checked all the same", func(t *testing.T) {
		c, _, far := openConn(t, Params{MarkersIn: true})
		f := markedFrame(0, u)
		f[515] ^= 0x10
		write(t, far, f)
		got, err := drain(t, c)
		require.Empty(t, got)
		require.Equal(t, CodeMarker, code(t, err))
		require.ErrorContains(t, err, "512")
	})
	t.Run("MPA-67 FPDUPTR is compared modulo 65536", func(t *testing.T) {
		f := markedFrame(0, count(65535))
		last := len(f) - crcLen
		for last%512 != 0 {
			last -= 4
		}
		require.Greater(t, last-4, 65535, "a distance of more than 16 bits")
		require.EqualValues(t, last-4-65536, binary.BigEndian.Uint16(f[last+2:]))
		for _, bend := range []byte{0, 8} {
			c, _, far := openWide(t, bothMarked)
			b := bytes.Clone(f)
			b[last+3] ^= bend
			write(t, far, sum(b))
			got, err := drain(t, c)
			if bend != 0 {
				require.Equal(t, CodeMarker, code(t, err))
				continue
			}
			require.NoError(t, err)
			require.Len(t, got, 1)
		}
	})
	t.Run("MPA-20 a marked stream where none was asked for is a CRC error", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true, MarkersOut: true})
		write(t, far, wiretest.Marked()[0].Octets)
		_, err := drain(t, c)
		require.Equal(t, CodeCRC, code(t, err))
	})
}

func TestMarkedStreamEnds(t *testing.T) {
	m := wiretest.Marks{CRC: true}
	var stream []byte
	ends := map[int]int{0: 0} // where an FPDU ends, and the how manieth
	for i, n := range []int{500, 5, 600} {
		stream = append(stream, m.Frame(count(n))...)
		ends[len(stream)] = i + 1
	}
	require.Contains(t, ends, 512, "an FPDU ends where a marker is due")
	for n := range len(stream) + 1 {
		for _, fin := range []bool{true, false} {
			c, near, far := openConn(t, bothMarked)
			near.Rechunk(uint64(n), n%3*200)
			write(t, far, stream[:n])
			if fin {
				require.NoError(t, far.CloseWrite())
			} else {
				far.Abort()
			}
			whole := 0
			for end, k := range ends {
				if end <= n {
					whole = max(whole, k)
				}
			}
			var got [][]byte
			var err error
			for rounds := 0; err == nil; rounds++ {
				var more [][]byte
				more, err = drain(t, c)
				got = append(got, more...)
				require.Less(t, rounds, 5000, "the end is noticed")
			}
			require.Len(t, got, whole)
			_, boundary := ends[n]
			switch {
			case fin && boundary:
				require.Equal(t, io.EOF, err, "FIN on a boundary, octet %d", n)
			case fin:
				require.Equal(t, CodeClosed, code(t, err), "MPA-78 FIN at octet %d", n)
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			default:
				require.Equal(t, CodeClosed, code(t, err), "MPA-84")
				require.ErrorIs(t, err, syscall.ECONNRESET)
			}
		}
	}
}

// TestMarkedBothEnds lets two of our own ends meet and talk, in all four
// combinations of M and both of CRC.
func TestMarkedBothEnds(t *testing.T) {
	for bits := range 8 {
		mine, theirs, crc := bits&1 != 0, bits&2 != 0, bits&4 != 0
		t.Run("MPA-20 MPA-22 "+map[bool]string{true: "M", false: "-"}[mine]+map[bool]string{true: "M", false: "-"}[theirs]+map[bool]string{true: "C", false: "-"}[crc], func(t *testing.T) {
			a, b := connect(t)
			require.NoError(t, a.Request(Config{Markers: mine, NoCRC: !crc}, nil))
			_, ok, err := b.RecvRequest(Config{})
			require.NoError(t, err)
			require.True(t, ok)
			p, err := b.Accept(Config{Markers: theirs, NoCRC: !crc}, nil)
			require.NoError(t, err)
			rep, ok, err := a.RecvReply()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, []bool{mine, theirs, crc}, []bool{rep.MarkersIn, rep.MarkersOut, rep.CRC})
			require.Equal(t, []bool{theirs, mine, crc}, []bool{p.MarkersIn, p.MarkersOut, p.CRC})
			for i := range 50 {
				for _, d := range []struct{ from, to *Conn }{{a, b}, {b, a}} {
					want := count(i * 37)
					require.NoError(t, d.from.Write(want, nil))
					require.NoError(t, d.from.Flush())
					u, ok, err := d.to.Next()
					require.NoError(t, err)
					require.True(t, ok)
					require.True(t, bytes.Equal(want, octets(t, u)))
					_, ok, err = d.to.Next()
					require.NoError(t, err)
					require.False(t, ok)
				}
			}
			size := func(marked bool) (n uint64) {
				for i := range 50 {
					if marked {
						n += uint64(markedSize(n, i*37))
					} else {
						n += uint64(FPDUSize(i * 37))
					}
				}
				return n
			}
			require.Equal(t, size(theirs), a.Stats().OctetsOut, "I to R")
			require.Equal(t, size(mine), b.Stats().OctetsOut, "R to I")
			require.Equal(t, a.Stats().OctetsOut, b.Stats().OctetsIn)
			require.Equal(t, b.Stats().OctetsOut, a.Stats().OctetsIn)
		})
	}
}
