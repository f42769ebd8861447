package ddp

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// take returns the next segment as octets.
func (l *link) take(t *testing.T) []byte {
	t.Helper()
	g := pull(t, l.b)
	b := bytes.Clone(g.Header)
	p := make([]byte, g.PayloadLen())
	g.Copy(p, 0)
	return append(b, p...)
}

func TestSegmentsOfOneMessage(t *testing.T) {
	t.Run("DDP-04 DDP-08 queue, number and what the ULP put in are the same in every segment", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		for msn := range byte(2) {
			l.a.StartUntagged(QNSend, 0x46, 0x0a0b0c0d, 4000)
			push(t, l.a, make([]byte, 4000))
			mo := 0
			for i := range 3 {
				s := l.take(t)
				control := byte(0x01)
				if i == 2 {
					control = 0x41
				}
				require.Equal(t, []byte{control, 0x46, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 0, 0, 0, 0, msn + 1}, s[:14])
				require.Equal(t, []byte{0, 0, byte(mo >> 8), byte(mo)}, s[14:18])
				mo += len(s) - 18
			}
			require.Equal(t, 4000, mo)
		}
	})
	t.Run("DDP-04 what the ULP put in is handed to the ULP with every segment", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		l.a.StartUntagged(QNSend, 0x46, 0x0a0b0c0d, 4000)
		push(t, l.a, make([]byte, 4000))
		for range 3 {
			g := pull(t, l.b)
			require.Equal(t, byte(0x46), g.ULP())
			require.Equal(t, uint32(0x0a0b0c0d), g.ULPWord())
		}
	})
}

func TestMessagesInOrder(t *testing.T) {
	t.Run("DDP-20 DDP-21 DDP-27 messages go out in the order they were begun, one after the other", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		for i := range uint32(6) {
			if i%2 == 0 {
				l.a.StartUntagged(QNSend, byte(i), 0, i*1000)
			} else {
				l.a.StartTagged(byte(i), STag(i), 0, i*1000)
			}
			require.Panics(t, func() { l.a.StartTagged(0x40, 1, 0, 1) }, "no message begins inside another")
			require.Panics(t, func() { l.a.StartUntagged(QNSend, 0x43, 0, 1) })
			push(t, l.a, make([]byte, i*1000))
		}
		for i := range 6 {
			for left := i * 1000; ; {
				s := l.take(t)
				require.Equal(t, byte(i), s[1])
				h, ok := ParseHeader(s)
				require.True(t, ok)
				left -= len(s) - len(h)
				require.Equal(t, left == 0, h.Last())
				if h.Last() {
					break
				}
			}
		}
	})
	t.Run("DDP-13 a Terminate is message 1 of queue 2, also after messages of other queues", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		for _, qn := range []uint32{QNSend, QNSend, QNRequest, QNTerminate} {
			l.a.StartUntagged(qn, 0x47, 0, 4)
			push(t, l.a, make([]byte, 4))
		}
		for range 3 {
			pull(t, l.b)
		}
		g := pull(t, l.b)
		require.EqualValues(t, 2, g.QN())
		require.EqualValues(t, 1, g.MSN())
		require.EqualValues(t, 0, g.MO())
		require.True(t, g.Last())
	})
}

func TestBuffersInOrder(t *testing.T) {
	t.Run("DDP-10 DDP-33 message k goes to the buffer that is given for it, which is free after its last segment", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		for k := range byte(4) {
			g := newGuarded(3000)
			s, _, err := l.table.Register(g.mem, 1, LocalWrite)
			require.NoError(t, err)
			data := pattern(3000, k)
			l.a.StartUntagged(QNSend, 0x43, 0, 3000)
			push(t, l.a, data)
			var c Cursor
			c.Reset(l.table, 1, []SGE{{STag: s, Len: 3000}})
			for done := false; !done; {
				seg := pull(t, l.b)
				first, err := l.b.Arrive(seg)
				require.NoError(t, err)
				require.Equal(t, seg.MO() == 0, first)
				_, done, err = l.b.Place(seg, &c)
				require.NoError(t, err)
				require.Equal(t, !done, l.b.Open(QNSend))
			}
			require.NoError(t, l.table.Deregister(s), "nothing holds it")
			require.Equal(t, data, g.mem)
			g.intact(t)
		}
	})
}

func TestLongestMessage(t *testing.T) {
	const size, rest = 1<<32 - 1, 3000
	t.Run("DDP-18 DDP-22 DDP-28 the end of a message of 2^32-1 octets", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		g := newGuarded(rest)
		s, _, err := l.table.Register(g.mem, 1, LocalWrite)
		require.NoError(t, err)
		l.a.StartUntagged(QNSend, 0x43, 0, size)
		l.a.tx.sent = size - rest // as if all the rest were on its way
		q := &l.b.rx.queue[QNSend]
		q.open, q.mo = true, size-rest
		var c Cursor
		c.Reset(l.table, 1, []SGE{{STag: s, Len: rest}})
		c.size = size
		data := pattern(rest, 1)
		push(t, l.a, data)
		var mos []uint32
		for done := false; !done; {
			seg := pull(t, l.b)
			mos = append(mos, seg.MO())
			first, err := l.b.Arrive(seg)
			require.NoError(t, err)
			require.False(t, first)
			var n uint32
			n, done, err = l.b.Place(seg, &c)
			require.NoError(t, err)
			if done {
				require.EqualValues(t, uint32(size), n)
			}
		}
		require.Equal(t, []uint32{size - 3000, size - 3000 + 1424, size - 3000 + 2848}, mos)
		require.Equal(t, data, g.mem)
		g.intact(t)
	})
	t.Run("DDP-19 DDP-46 the end of a message that ends at 2^64", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		g := newGuarded(rest)
		const stag = 0x12345678
		base := ^uint64(0) - rest + 1
		require.NoError(t, l.table.RegisterBase(g.mem, 1, RemoteWrite, base, stag))
		data := pattern(rest, 2)
		l.a.StartTagged(0x40, stag, base-(size-rest), size)
		l.a.tx.sent = size - rest
		push(t, l.a, data)
		for i := range uint64(3) {
			seg := pull(t, l.b)
			require.Equal(t, base+i*1428, seg.TO())
			require.Equal(t, i == 2, seg.Last())
			require.NoError(t, l.b.PlaceTagged(seg, RemoteWrite))
		}
		require.Equal(t, data, g.mem)
		g.intact(t)
	})
}

// TestOwnsNoConnection looks at the sources of this package.
func TestOwnsNoConnection(t *testing.T) {
	t.Run("DDP-57 nothing here can close the connection, or has a socket at all", func(t *testing.T) {
		ending := []string{"Close", "CloseWrite", "CloseRead", "Abort", "Drop", "Shutdown"}
		allowed := []string{"crypto/rand", "encoding/binary", "errors", "fmt", "hash/maphash", "slices", "sync", "sync/atomic", "unsafe"}
		names, err := filepath.Glob("*.go")
		require.NoError(t, err)
		seen := 0
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			src, err := os.ReadFile(name)
			require.NoError(t, err)
			f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
			require.NoError(t, err)
			seen++
			for _, imp := range f.Imports {
				path, err := strconv.Unquote(imp.Path.Value)
				require.NoError(t, err)
				if !strings.Contains(path, ".") {
					require.Contains(t, allowed, path, name)
				} else {
					require.Equal(t, "github.com/softrdma/softrdma/mpa", path, name)
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok {
					require.NotContains(t, ending, sel.Sel.Name, name)
				}
				return true
			})
		}
		require.Greater(t, seen, 5)
		for i, typ := 0, reflect.TypeFor[*Stream](); i < typ.NumMethod(); i++ {
			require.NotContains(t, ending, typ.Method(i).Name)
		}
	})
}
