package mpa

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mempool"
)

var bothMarked = Params{CRC: true, MarkersIn: true, MarkersOut: true}

// figures are the FPDUs drawn in RFC 5044, Section 4.4, with their positions.
func figures() []wiretest.MarkedVector {
	u := func(msn byte) []byte {
		b := append([]byte{0x41, 0x43}, make([]byte, 40)...)
		b[13] = msn
		return b
	}
	zeros := func(n int) []byte { return make([]byte, n) }
	five := bytes.Join([][]byte{{0, 0, 0, 0, 0, 0x2a}, u(1), wiretest.Hex("52 23 99 83")}, nil)
	six := bytes.Join([][]byte{{0, 0x2a}, u(2)[:18], wiretest.Hex("00 00 00 14"), zeros(24), wiretest.Hex("84 92 58 98")}, nil)
	return []wiretest.MarkedVector{
		{Name: "RFC 5044 Figure 5", Pos: 0, Octets: five, ULPDUs: [][]byte{u(1)}},
		{Name: "RFC 5044 Figure 6", Pos: 492, Octets: six, ULPDUs: [][]byte{u(2)}},
	}
}

// marked are all golden streams with markers; each begins at start.
func marked() (vs []wiretest.MarkedVector, start []uint64) {
	for _, v := range wiretest.Marked() {
		vs, start = append(vs, v), append(start, 0)
	}
	for _, v := range figures() {
		vs, start = append(vs, v), append(start, uint64(v.Pos))
	}
	return vs, start
}

func TestMarkedVectors(t *testing.T) {
	vs, start := marked()
	for i, v := range vs {
		t.Run("MPA-58 MPA-61 MPA-62 MPA-63 written: "+v.Name, func(t *testing.T) {
			c, _, far := openConn(t, bothMarked)
			c.tx.pos = start[i]
			var got []byte
			for _, u := range v.ULPDUs {
				require.NoError(t, c.Write(u[:14], [][]byte{u[14:14], u[14:min(15, len(u))], u[min(15, len(u)):]}))
				require.NoError(t, c.Flush())
				got = append(got, read(far)...)
			}
			require.Equal(t, v.Octets, got)
			require.EqualValues(t, len(got), c.Stats().OctetsOut)
			require.Equal(t, start[i]+uint64(len(got)), c.tx.pos)
		})
		t.Run("MPA-58 MPA-67 MPA-52 read: "+v.Name, func(t *testing.T) {
			for seed := range uint64(40) {
				c, near, far := openConn(t, bothMarked)
				c.rx.marked.pos = start[i]
				near.Rechunk(seed, int(seed%13)) // none at first
				write(t, far, v.Octets)
				var got [][]byte
				for rounds := 0; len(got) < len(v.ULPDUs); rounds++ {
					more, err := drain(t, c)
					require.NoError(t, err)
					require.Less(t, rounds, 20000)
					got = append(got, more...)
				}
				require.Equal(t, v.ULPDUs, got)
				require.EqualValues(t, len(v.Octets), c.Stats().OctetsIn)
			}
		})
	}
	t.Run("MPA-58 a flipped bit anywhere is noticed, in markers too", func(t *testing.T) {
		for i, v := range vs {
			for at := range v.Octets {
				b := bytes.Clone(v.Octets)
				b[at] ^= 1 << (at % 8)
				c, _, far := openConn(t, bothMarked)
				c.rx.marked.pos = start[i]
				write(t, far, b)
				got, err := drain(t, c)
				require.Less(t, len(got), len(v.ULPDUs), "%s, octet %d", v.Name, at)
				if err != nil { // else a length grew beyond what was sent
					require.Equal(t, CodeCRC, code(t, err), "%s, octet %d", v.Name, at)
				}
			}
		}
	})
}

// TestMarkersInserted writes long and short ULPDUs and has the stream taken
// apart by a parser that shares nothing with this package.
func TestMarkersInserted(t *testing.T) {
	// stream writes ULPDUs of the given sizes and returns what went out.
	stream := func(t *testing.T, p Params, sizes ...int) []byte {
		c, _, far := openWide(t, p)
		var b []byte
		for _, n := range sizes {
			require.NoError(t, c.Write(count(n), nil))
			require.NoError(t, c.Flush())
			b = append(b, read(far)...)
		}
		return b
	}
	t.Run("MPA-61 MPA-21 a marker at 0, 512, 1024 and so on, the first before the first FPDU", func(t *testing.T) {
		b := stream(t, bothMarked, 100, 3000, 1, 0, 1442, 1442, 2222, 9, 1700)
		require.Greater(t, len(b), 10000)
		m := wiretest.Marks{CRC: true}
		at, markers := 0, 0
		for at < len(b) {
			_, n := m.Read(t, func(n int) []byte { at += n; return b[at-n : at] })
			markers += n
		}
		require.Equal(t, (len(b)+511)/512, markers)
	})
	t.Run("MPA-62 FPDUPTR counts from the length field, over the markers before", func(t *testing.T) {
		for _, crc := range []bool{true, false} {
			sizes := []int{0, 1, 2, 3, 4, 18, 400, 505, 506, 507, 508, 509, 510, 511, 512, 513, 1442, 9000, MaxULPDU, 7}
			p := bothMarked
			p.CRC = crc
			b := stream(t, p, sizes...)
			m := wiretest.Marks{CRC: crc}
			at := 0
			for _, n := range sizes {
				u, _ := m.Read(t, func(n int) []byte { at += n; return b[at-n : at] })
				require.True(t, bytes.Equal(count(n), u))
			}
			require.Equal(t, len(b), at)
		}
	})
	t.Run("MPA-63 MPA-13 a marker between two FPDUs goes with the second, not before", func(t *testing.T) {
		b := stream(t, bothMarked, 502-2) // 4 of the marker, 2 + 500 + 2 pad, 4 of the CRC: 512
		require.Len(t, b, 512, "nothing while the direction is idle at the boundary")
		b = stream(t, bothMarked, 502-2, 5)[512:]
		require.Equal(t, []byte{0, 0, 0, 0, 0, 5, 0, 1, 2, 3, 4, 0}, b[:12])
		require.Equal(t, wiretest.CRC32C(b[:12]), getCRC(b[12:]), "the marker is covered by the CRC of its FPDU")
		require.Len(t, b, 16)
	})
	t.Run("MPA-64 three markers of one FPDU point at the same header", func(t *testing.T) {
		b := stream(t, bothMarked, 200, 1700)
		header := 4 + FPDUSize(200)
		for _, at := range []int{512, 1024, 1536} {
			require.EqualValues(t, at-header, binary.BigEndian.Uint32(b[at:]), "the marker at %d", at)
		}
	})
	t.Run("MPA-65 ULPDU_Length and pad are those of a stream without markers", func(t *testing.T) {
		for _, n := range []int{0, 1, 2, 3, 4, 5, 500, 501, 502, 503, 2000, 2001, 2002, 2003} {
			plain, with := wiretest.Frame(count(n), true), stream(t, bothMarked, n)
			var without []byte
			for at, octet := range with {
				if at%512 >= 4 {
					without = append(without, octet)
				}
			}
			require.Equal(t, plain[:len(plain)-crcLen], without[:len(without)-crcLen], "all but the CRC")
		}
	})
	t.Run("MPA-66 no marker within a length or CRC field, in 100000 FPDUs", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(5044, 66))
		l := newLoop(0, 0, 8, true)
		c := open(NewConn(l, newPool(t, poolConfig)), bothMarked)
		defer c.Drop()
		data := count(1500)
		for range 100_000 {
			n := rnd.IntN(len(data))
			pos := c.tx.pos + uint64(c.Pending())
			if err := c.Write(data[:n], nil); err != nil {
				t.Fatal(err)
			}
			end := c.tx.pos + uint64(c.Pending())
			header := pos
			if pos%512 == 0 {
				header += 4
			}
			f := c.tx.data[c.Pending()-int(end-pos) : c.Pending()]
			switch {
			case pos%4 != 0 || end%4 != 0:
				t.Fatalf("an FPDU from %d to %d", pos, end)
			case (end-4)%512 > 508, header%512 > 508, header%512 == 0:
				t.Fatalf("a marker within a field of the FPDU from %d to %d", pos, end)
			case binary.BigEndian.Uint16(f[header-pos:]) != uint16(n):
				t.Fatalf("no length at %d", header)
			}
			if c.Pending() > 64<<10 {
				if err := c.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
	t.Run("MPA-53 SEC-21 pad and CRC field never show old octets, markers neither", func(t *testing.T) {
		p := bothMarked
		p.CRC = false
		c, _, far := openWide(t, p)
		require.NoError(t, c.Write(bytes.Repeat([]byte{0xff}, 4000), nil))
		require.NoError(t, c.Flush())
		m := wiretest.Marks{Pos: uint64(len(read(far)))}
		for n := range 600 {
			require.NoError(t, c.Write(bytes.Repeat([]byte{0xee}, n), nil))
			require.NoError(t, c.Flush())
			require.Equal(t, m.Frame(bytes.Repeat([]byte{0xee}, n)), read(far))
		}
	})
	t.Run("MPA-26 startup frames have neither markers nor CRC, nor do they count", func(t *testing.T) {
		x, y := streamPair(testMSS, testBuffer)
		pool := newPool(t, poolConfig)
		a, b := NewConn(x, pool), NewConn(y, pool)
		private := count(MaxPrivateEnhanced)
		require.NoError(t, a.Request(Config{Markers: true}, private))
		pieces, _ := y.Peek()
		want := append(wiretest.Hex(hexReq+"d0 02 0200 8000 4001"), private...)
		require.Equal(t, want, bytes.Join(pieces, nil))
		_, ok, err := b.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		_, err = b.Accept(Config{Markers: true}, private)
		require.NoError(t, err)
		pieces, _ = x.Peek()
		want = append(wiretest.Hex(hexRep+"d0 02 0200 8001 4000"), private...)
		require.Equal(t, want, bytes.Join(pieces, nil))
		_, ok, err = a.RecvReply()
		require.NoError(t, err)
		require.True(t, ok)
		for _, d := range []struct {
			from *Conn
			to   *simnet.Stream
		}{{a, y}, {b, x}} {
			require.NoError(t, d.from.Write(wiretest.FPDUs()[0].ULPDU(), nil))
			require.NoError(t, d.from.Flush())
			require.Equal(t, wiretest.Marked()[0].Octets, read(d.to))
		}
	})
}

func TestMarkerPositionsWrap(t *testing.T) {
	for _, start := range []uint64{1<<32 - 1024, 1<<32 - 512, 1<<32 - 20, 1<<63 - 44, 1<<64 - 1024, 1<<64 - 512, 1<<64 - 44, 1<<64 - 4} {
		t.Run(fmt.Sprintf("MPA-68 from %#x", start), func(t *testing.T) {
			x, y := streamPair(testMSS, wideBuffer)
			pool := newPool(t, poolConfig)
			a, b := open(NewConn(x, pool), bothMarked), open(NewConn(y, pool), bothMarked)
			a.tx.pos, b.rx.marked.pos = start, start
			m := wiretest.Marks{Pos: start, CRC: true}
			for i, n := range []int{30, 5, 1442, 0, 700, 1442} {
				require.NoError(t, a.Write(count(n), nil))
				require.NoError(t, a.Flush())
				pieces, _ := y.Peek()
				require.Equal(t, m.Frame(count(n)), bytes.Join(pieces, nil), "ULPDU %d", i)
				u, ok, err := b.Next()
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, count(n), octets(t, u))
				_, ok, err = b.Next() // gives back what was handed out
				require.NoError(t, err)
				require.False(t, ok)
			}
			require.Equal(t, a.tx.pos, b.rx.marked.pos)
			require.Equal(t, m.Pos, a.tx.pos)
		})
	}
}

func TestMarkedMULPDU(t *testing.T) {
	t.Run("MPA-69 the table of sizes with markers, and EMSS changes", func(t *testing.T) {
		c, near, _ := openConn(t, Params{MarkersOut: true})
		for _, tc := range [][2]int{
			{536, 522}, {1220, 1202}, {1440, 1422}, {1448, 1430}, {1460, 1442}, {1461, 1442}, {8948, 8870}, {8960, 8882},
			{65483, 64768}, {100, 128}, {0, 128},
		} {
			near.SetMSS(tc[0])
			require.Equal(t, tc[1], c.MULPDU(), "EMSS %d", tc[0])
		}
	})
	t.Run("MPA-69 MPA-71 the largest FPDU fits the segment wherever it begins", func(t *testing.T) {
		for mss := 140; mss <= 9000; mss += 1 + mss%3 {
			n := markedMULPDUFor(mss)
			for pos := uint64(0); pos < markerGap; pos += 4 {
				if size := markedSize(pos, n); size > mss && n > MinMULPDU {
					t.Fatalf("an FPDU of %d octets at %d for a segment of %d", size, pos, mss)
				}
			}
		}
	})
	t.Run("MPA-69 MPA-74 large FPDUs with markers", func(t *testing.T) {
		c, _, far := openWide(t, Params{CRC: true, MarkersOut: true, LargeFPDUs: true})
		require.Equal(t, MaxULPDU, c.MULPDU())
		require.NoError(t, c.Write(count(MaxULPDU), nil))
		require.NoError(t, c.Flush())
		m := wiretest.Marks{CRC: true}
		require.True(t, bytes.Equal(m.Frame(count(MaxULPDU)), read(far)))
	})
}

// TestMarkedRoom: what CanWrite promises is exact at every position.
func TestMarkedRoom(t *testing.T) {
	for pos := uint64(0); pos < markerGap; pos += 4 {
		for _, n := range []int{0, 18, 500, 1442} {
			m := wiretest.Marks{Pos: pos, CRC: true}
			size := len(m.Frame(count(n)))
			for _, room := range []int{size - 1, size} {
				near, _ := streamPair(testMSS, room)
				c := open(NewConn(near, nil), bothMarked)
				c.tx.pos = pos
				require.Equal(t, room == size, c.CanWrite(n), "%d octets at %d, room for %d", n, pos, room)
			}
		}
	}
	pool := newPool(t, mempool.Config{Count: 1, Size: 8192})
	rapid.Check(t, func(t *rapid.T) {
		near, far := streamPair(testMSS, 4096)
		c := open(NewConn(near, pool), bothMarked)
		defer c.Drop()
		m := wiretest.Marks{Pos: rapid.Uint64().Draw(t, "pos") &^ 3, CRC: true}
		c.tx.pos = m.Pos
		var want []byte
		for range rapid.IntRange(1, 30).Draw(t, "ULPDUs") {
			n := rapid.IntRange(0, 1600).Draw(t, "octets")
			next := m
			f := next.Frame(count(n))
			require.Equal(t, len(want)+len(f) <= 4096, c.CanWrite(n), "%d octets behind %d", n, len(want))
			if len(want)+len(f) > 4096 {
				continue
			}
			m, want = next, append(want, f...)
			require.NoError(t, c.Write(count(n), nil))
			require.Equal(t, len(want), c.Pending())
			if rapid.Bool().Draw(t, "flush") {
				require.NoError(t, c.Flush())
				require.True(t, bytes.Equal(want, read(far)))
				want = nil
			}
		}
		require.NoError(t, c.Flush())
		require.True(t, bytes.Equal(want, read(far)))
	})
}

// TestMarkedFlushBySize: a full staging buffer is flushed on the way, and the
// positions go on.
func TestMarkedFlushBySize(t *testing.T) {
	near, far := streamPair(testMSS, wideBuffer)
	c := open(NewConn(near, newPool(t, mempool.Config{Count: 1, Size: 1000})), bothMarked)
	m := wiretest.Marks{CRC: true}
	var want []byte
	for i := range 20 {
		require.NoError(t, c.Write(count(300+i*7), nil))
		want = append(want, m.Frame(count(300+i*7))...)
	}
	require.NoError(t, c.Write(count(984), nil)) // with two markers 1000 octets
	want = append(want, m.Frame(count(984))...)
	require.NoError(t, c.Flush())
	require.True(t, bytes.Equal(want, read(far)))
	require.Panics(t, func() { _ = c.Write(count(995), nil) }, "no buffer is large enough")
	c.Drop()
}
