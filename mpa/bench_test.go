package mpa

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// loop is a stream that repeats the same pieces for ever and swallows what is
// written.
type loop struct {
	pieces [][]byte
	size   int
}

// newLoop holds total octets of FPDUs with n ULPDU octets each, at least one,
// in pieces of the given size.
func newLoop(n, total, piece int, crc bool) *loop {
	f := wiretest.Frame(count(n), crc)
	b := append([]byte(nil), f...)
	for len(b)+len(f) <= total {
		b = append(b, f...)
	}
	return loopOf(b, piece)
}

// newMarkedLoop is newLoop with markers. The stream goes round where an FPDU
// begins as the first did, with a marker; n must be such that this is soon.
func newMarkedLoop(n, piece int, crc bool) *loop {
	m := wiretest.Marks{CRC: crc}
	round := m.Frame(count(n))
	for m.Pos%markerGap != 0 {
		round = append(round, m.Frame(count(n))...)
	}
	b := append([]byte(nil), round...)
	for len(b)+len(round) <= 200<<10 {
		b = append(b, round...)
	}
	return loopOf(b, piece)
}

func loopOf(b []byte, piece int) *loop {
	l := &loop{size: len(b)}
	for len(b) > 0 {
		m := min(piece, len(b))
		l.pieces = append(l.pieces, b[:m:m])
		b = b[m:]
	}
	return l
}

func (l *loop) Peek() ([][]byte, error) { return l.pieces, nil }

func (l *loop) Discard(n int) {
	if n != l.size {
		panic("the benchmark discards whole rounds")
	}
}

func (l *loop) Room() int             { return 1 << 30 }
func (l *loop) Writev([][]byte) error { return nil }
func (l *loop) Stage() []byte         { return nil }
func (l *loop) Commit(int) error      { panic("nothing was lent") }
func (l *loop) MSS() int              { return testMSS }
func (l *loop) CloseWrite() error     { return nil }
func (l *loop) Abort()                {}
func (l *loop) conn(t testing.TB, crc bool) *Conn {
	return open(NewConn(l, newPool(t, poolConfig)), Params{CRC: crc})
}

func (l *loop) marked(t testing.TB, crc bool) *Conn {
	return open(NewConn(l, newPool(t, poolConfig)), Params{CRC: crc, MarkersIn: true, MarkersOut: true})
}

var benchSizes = []struct {
	name string
	n    int
}{{"64B", 64}, {"1448B", 1442}, {"64KiB", 64768}}

// roundSize is a size near n with which a marked stream goes round soon.
func roundSize(n int) int { return min(n, 127*(markerGap-markerLen)-lengthLen-crcLen) }

func forSizes(b *testing.B, f func(b *testing.B, n int, crc bool)) {
	for _, s := range benchSizes {
		for _, crc := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/crc=%v", s.name, crc), func(b *testing.B) {
				b.SetBytes(int64(s.n))
				b.ReportAllocs()
				f(b, s.n, crc)
			})
		}
	}
}

// BenchmarkNext: FPDUs that lie whole in pieces of 64 KiB.
func BenchmarkNext(b *testing.B) {
	forSizes(b, func(b *testing.B, n int, crc bool) {
		size := FPDUSize(n)
		c := newLoop(n, 200<<10, 65536/size*size, crc).conn(b, crc)
		for b.Loop() {
			if _, ok, err := c.Next(); !ok || err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkNextSplit: pieces of one TCP segment that do not respect FPDUs.
func BenchmarkNextSplit(b *testing.B) {
	forSizes(b, func(b *testing.B, n int, crc bool) {
		c := newLoop(n, 200<<10, 1428, crc).conn(b, crc)
		for b.Loop() {
			if _, ok, err := c.Next(); !ok || err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkNextMarked: the same with markers.
func BenchmarkNextMarked(b *testing.B) {
	forSizes(b, func(b *testing.B, n int, crc bool) {
		c := newMarkedLoop(roundSize(n), 1428, crc).marked(b, crc)
		for b.Loop() {
			if _, ok, err := c.Next(); !ok || err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWrite: 64 KiB a Flush.
func BenchmarkWrite(b *testing.B) {
	forSizes(b, func(b *testing.B, n int, crc bool) { benchWrite(b, newLoop(0, 0, 8, crc).conn(b, crc), n) })
}

// BenchmarkWriteMarked: the same with markers.
func BenchmarkWriteMarked(b *testing.B) {
	forSizes(b, func(b *testing.B, n int, crc bool) { benchWrite(b, newLoop(0, 0, 8, crc).marked(b, crc), n) })
}

func benchWrite(b *testing.B, c *Conn, n int) {
	defer c.Drop()
	head, payload := count(14), [][]byte{count(n - 14)}
	for b.Loop() {
		if !c.CanWrite(n) {
			b.Fatal("no room")
		}
		if err := c.Write(head, payload); err != nil {
			b.Fatal(err)
		}
		if c.Pending() >= 65536-FPDUSize(n) {
			if err := c.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func TestAllocs(t *testing.T) {
	t.Run("SEC-33 no allocation a received FPDU", func(t *testing.T) {
		for _, s := range benchSizes {
			s.n = roundSize(s.n)
			for _, crc := range []bool{true, false} {
				for _, piece := range []int{1 << 20, 1428, 7} {
					for _, c := range []*Conn{newLoop(s.n, 200<<10, piece, crc).conn(t, crc), newMarkedLoop(s.n, piece, crc).marked(t, crc)} {
						dst := make([]byte, s.n)
						take := func() {
							u, ok, err := c.Next()
							if !ok || err != nil || len(u.Head(46)) != 46 || u.CopyTo(dst, 0) != s.n {
								panic("no ULPDU")
							}
						}
						var n float64
						require.NoError(t, caught(func() { n = testing.AllocsPerRun(500, take) }))
						require.Zero(t, n)
					}
				}
			}
		}
	})
	t.Run("no allocation an FPDU sent", func(t *testing.T) {
		for _, s := range benchSizes {
			for _, crc := range []bool{true, false} {
				l := newLoop(0, 0, 8, crc)
				for _, c := range []*Conn{l.conn(t, crc), l.marked(t, crc)} {
					head, payload := count(14), [][]byte{count(s.n - 14)}
					require.Zero(t, testing.AllocsPerRun(500, func() {
						if !c.CanWrite(s.n) || c.Write(head, payload) != nil {
							t.Fatal("not written")
						}
						if c.MULPDU() == 0 || c.Flush() != nil {
							t.Fatal("not flushed")
						}
					}))
				}
			}
		}
	})
}
