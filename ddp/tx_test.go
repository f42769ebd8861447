package ddp

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// cut is one segment as an independent parser sees it.
type cut struct {
	last bool
	off  uint64 // TO or MO
	n    int
}

// fetch reads all segments at the other end, octet by octet of the headers.
func (l *link) fetch(t require.TestingT) (cuts []cut, data []byte) {
	for {
		u, ok, err := l.cb.Next()
		require.NoError(t, err)
		if !ok {
			return cuts, data
		}
		b := make([]byte, u.Len())
		u.CopyTo(b, 0)
		c := cut{last: b[0]&0x40 != 0}
		be := func(p []byte) (v uint64) {
			for _, x := range p {
				v = v<<8 | uint64(x)
			}
			return v
		}
		require.EqualValues(t, 1, b[0]&0x3f, "reserved bits and DV")
		head := 18
		if b[0]&0x80 != 0 {
			head = 14
			require.EqualValues(t, 0x40, b[1])
			require.EqualValues(t, 0x12345678, be(b[2:6]))
			c.off = be(b[6:14])
		} else {
			require.EqualValues(t, 0x46, b[1])
			require.EqualValues(t, 0x0a0b0c0d, be(b[2:6]))
			require.EqualValues(t, 0, be(b[6:10]))
			require.EqualValues(t, 1, be(b[10:14]))
			c.off = be(b[14:18])
		}
		c.n = len(b) - head
		cuts, data = append(cuts, c), append(data, b[head:]...)
	}
}

func TestSegmentationTable(t *testing.T) {
	// The MSS is chosen so that MPA reports the MULPDU: MSS - 6 for multiples of 4.
	cases := []struct {
		tagged bool
		size   int
		mss    int
		want   []cut
	}{
		{false, 0, 1448, []cut{{true, 0, 0}}},
		{true, 0, 1448, []cut{{true, 0x4000, 0}}},
		{true, 3000, 1448, []cut{{false, 0x4000, 1428}, {false, 0x4000 + 1428, 1428}, {true, 0x4000 + 2856, 144}}},
		{false, 2048, 1508, []cut{{false, 0, 1484}, {true, 1484, 564}}},
		{true, 2048, 1508, []cut{{false, 0x4000, 1488}, {true, 0x4000 + 1488, 560}}},
		{false, 1484, 1508, []cut{{true, 0, 1484}}},
		{false, 1485, 1508, []cut{{false, 0, 1484}, {true, 1484, 1}}},
		{true, 1488, 1508, []cut{{true, 0x4000, 1488}}},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("DDP-16 DDP-17 DDP-18 DDP-19 tagged=%v %d octets at MULPDU %d", c.tagged, c.size, c.mss-6), func(t *testing.T) {
			l := newLink(t, c.mss, 1<<16)
			require.Equal(t, c.mss-6, l.ca.MULPDU())
			data := pattern(c.size, 1)
			if c.tagged {
				l.a.StartTagged(0x40, 0x12345678, 0x4000, uint32(c.size))
			} else {
				l.a.StartUntagged(QNSend, 0x46, 0x0a0b0c0d, uint32(c.size))
			}
			push(t, l.a, data)
			cuts, got := l.fetch(t)
			require.Equal(t, c.want, cuts)
			require.Equal(t, data, append([]byte{}, got...))
		})
	}
}

func TestPayloadMax(t *testing.T) {
	for _, c := range []struct{ mulpdu, head, want int }{
		{1442, TaggedLen, 1428}, {1442, UntaggedLen, 1424}, {128, UntaggedLen, 108}, {128, TaggedLen, 112},
		{1500, TaggedLen, 1484}, {1501, TaggedLen, 1484}, {1502, TaggedLen, 1488}, {64768, UntaggedLen, 64748},
	} {
		t.Run(fmt.Sprintf("DDP-23 MULPDU %d header %d", c.mulpdu, c.head), func(t *testing.T) {
			n := PayloadMax(c.mulpdu, c.head)
			require.Equal(t, c.want, n)
			require.Zero(t, (n+c.head+2)%4, "pad octets needed")
			require.LessOrEqual(t, n+c.head, c.mulpdu)
			require.Greater(t, n+c.head+4, c.mulpdu)
		})
	}
}

func TestSegmentationProperty(t *testing.T) {
	t.Run("DDP-15 DDP-16 DDP-17 DDP-18 DDP-19 DDP-23 any message at any MULPDU", segmentationProperty)
}

func segmentationProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		mss := rapid.IntRange(100, 1510).Draw(r, "mss")
		l := newLink(t, mss, 1<<16)
		mulpdu := l.ca.MULPDU()
		size := rapid.IntRange(0, 5*mulpdu).Draw(r, "size")
		tagged := rapid.Bool().Draw(r, "tagged")
		data := pattern(size, byte(size))
		first, head := uint64(0), UntaggedLen
		if tagged {
			head = TaggedLen
			first = rapid.Uint64Range(0, math.MaxUint64-uint64(size)).Draw(r, "to")
			l.a.StartTagged(0x40, 0x12345678, first, uint32(size))
		} else {
			l.a.StartUntagged(QNSend, 0x46, 0x0a0b0c0d, uint32(size))
		}
		push(t, l.a, data)
		cuts, got := l.fetch(r)
		require.Equal(r, data, append([]byte{}, got...))
		sent := 0
		for i, c := range cuts {
			require.Equal(r, i == len(cuts)-1, c.last, "L on the last segment alone")
			require.Equal(r, first+uint64(sent), c.off, "MO or TO")
			require.LessOrEqual(r, c.n+head, mulpdu, "longer than the MULPDU")
			if !c.last {
				require.NotZero(r, c.n)
				require.Equal(r, PayloadMax(mulpdu, head), c.n, "as much as goes without pad octets")
			}
			sent += c.n
		}
		if size+head <= mulpdu {
			require.Len(r, cuts, 1, "it fits one segment")
		}
	})
}

func TestMULPDUChanges(t *testing.T) {
	t.Run("DDP-24 the segment size follows the MULPDU", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		data := pattern(4000, 3)
		l.a.StartTagged(0x40, 0x12345678, 0, 4000)
		n, ok := l.a.Room()
		require.True(t, ok)
		require.Equal(t, 1428, n)
		_, err := l.a.Write([][]byte{data[:n]})
		require.NoError(t, err)
		require.EqualValues(t, n, l.a.Sent())
		l.na.SetMSS(508)
		push(t, l.a, data[n:])
		cuts, got := l.fetch(t)
		require.Equal(t, data, got)
		require.Equal(t, []cut{
			{false, 0, 1428}, {false, 1428, 488}, {false, 1916, 488}, {false, 2404, 488},
			{false, 2892, 488}, {false, 3380, 488}, {true, 3868, 132},
		}, cuts)
	})
}

func TestRoom(t *testing.T) {
	l := newLink(t, 1448, 2048)
	l.a.StartUntagged(QNSend, 0x43, 0, 4000)
	n, ok := l.a.Room()
	require.True(t, ok)
	_, err := l.a.Write([][]byte{make([]byte, n)})
	require.NoError(t, err)
	n, ok = l.a.Room()
	require.False(t, ok, "the stream holds 2048 octets")
	require.Equal(t, 1424, n)
	require.NoError(t, l.a.Flush())
	pull(t, l.b)
	_, ok, err = l.b.Next() // lets the stream go on
	require.NoError(t, err)
	require.False(t, ok)
	_, ok = l.a.Room()
	require.True(t, ok)

	t.Run("RDM-56 a message can be given up between segments", func(t *testing.T) {
		require.True(t, l.a.Busy())
		l.a.Abandon()
		require.False(t, l.a.Busy())
		l.a.StartUntagged(QNTerminate, 0x47, 0, 4)
		push(t, l.a, []byte{1, 2, 3, 4})
		g := pull(t, l.b)
		require.EqualValues(t, 1, g.MSN())
		require.EqualValues(t, QNTerminate, g.QN())
	})
}

func TestMisuse(t *testing.T) {
	l := newLink(t, 1448, 4096)
	l.a.StartUntagged(QNSend, 0x43, 0, 1)
	require.Panics(t, func() { l.a.StartTagged(0x40, 1, 0, 1) })
	var c Cursor
	c.Reset(l.table, 1, nil)
	require.Panics(t, func() { _, _ = c.Take(1, 0) })
}

func TestWraps(t *testing.T) {
	t.Run("DDP-25 DDP-46 where a range wraps", func(t *testing.T) {
		require.False(t, Wraps(math.MaxUint64, 0))
		require.False(t, Wraps(math.MaxUint64, 1))
		require.True(t, Wraps(math.MaxUint64, 2))
		require.True(t, Wraps(math.MaxUint64-3, 8))
		require.False(t, Wraps(0, math.MaxUint64))
		require.True(t, Wraps(2, math.MaxUint64))
	})
}
