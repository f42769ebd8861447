package ddp

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/mpa"
)

// raw sends one ULPDU as it is.
func (l *link) raw(t testing.TB, ulpdu ...[]byte) {
	t.Helper()
	require.NoError(t, l.ca.Write(nil, ulpdu))
	require.NoError(t, l.ca.Flush())
}

func untagged(last bool, qn uint32, msn MSN, mo uint32) []byte {
	return PutUntagged(make([]byte, UntaggedLen), last, 0x43, 0, qn, msn, mo)
}

func tagged(last bool, s STag, to uint64) []byte {
	return PutTagged(make([]byte, TaggedLen), last, 0x40, s, to)
}

func requireCode(t testing.TB, err error, typ, code uint8, header []byte, segLen int) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, fmt.Sprintf("%x%02x", typ, code), fmt.Sprintf("%x%02x", e.Type, e.Code))
	require.Equal(t, header, e.Header, "DDP-50 the header of the bad segment")
	require.Equal(t, segLen, e.SegLen)
	require.NotEmpty(t, e.Error())
	return e
}

func TestShortSegments(t *testing.T) {
	for n := range UntaggedLen {
		for _, first := range []byte{0x41, 0xc1} {
			if first == 0xc1 && n >= TaggedLen {
				continue
			}
			t.Run(fmt.Sprintf("DDP-05 SEC-37 %d octets, control %02x", n, first), func(t *testing.T) {
				l := newLink(t, 1448, 4096)
				b := make([]byte, n)
				if n > 0 {
					b[0] = first
				}
				l.raw(t, b)
				_, _, err := l.b.Next()
				var e *mpa.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, mpa.CodeMarker, e.Code)
				require.ErrorIs(t, err, ErrShort)
			})
		}
	}
}

func TestVersion(t *testing.T) {
	for _, dv := range []byte{0, 2, 3} {
		t.Run(fmt.Sprintf("DDP-03 DV %d", dv), func(t *testing.T) {
			l := newLink(t, 1448, 4096)
			h := untagged(true, 0, 1, 0)
			h[0] = h[0]&^3 | dv
			l.raw(t, h)
			_, _, err := l.b.Next()
			requireCode(t, err, 2, 6, h, 18)

			l = newLink(t, 1448, 4096)
			h = tagged(true, 1, 0)
			h[0] = h[0]&^3 | dv
			l.raw(t, h, []byte{1, 2, 3})
			_, _, err = l.b.Next()
			requireCode(t, err, 1, 4, h, 17)
		})
	}
}

func TestPlaceTagged(t *testing.T) {
	l := newLink(t, 1448, 1<<16)
	g := newGuarded(3000)
	s, base, err := l.table.Register(g.mem, 1, RemoteWrite)
	require.NoError(t, err)

	data := pattern(3000, 5)
	t.Run("DDP-29 L, RsvdULP, STag and TO are told of every segment", func(t *testing.T) {
		l.a.StartTagged(0x72, s, base, 3000)
		push(t, l.a, data)
		at := base
		for i := range 3 {
			seg := pull(t, l.b)
			require.True(t, seg.Tagged())
			require.Equal(t, i == 2, seg.Last())
			require.Equal(t, byte(0x72), seg.ULP())
			require.Equal(t, s, seg.STag())
			require.Equal(t, at, seg.TO())
			at += uint64(seg.PayloadLen())
			require.NoError(t, l.b.PlaceTagged(seg, RemoteWrite))
		}
		require.Equal(t, base+3000, at)
		require.Equal(t, data, g.mem)
		g.intact(t)
	})

	t.Run("DDP-30 a segment that ends past the region places nothing", func(t *testing.T) {
		h := tagged(true, s, base+2990)
		l.raw(t, h, pattern(11, 9))
		err := l.b.PlaceTagged(pull(t, l.b), RemoteWrite)
		e := requireCode(t, err, 1, 1, h, 25)
		var f *Fault
		require.True(t, errors.As(e, &f))
		require.Equal(t, data, g.mem)
		g.intact(t)
	})
	t.Run("DDP-47 an empty segment is not checked", func(t *testing.T) {
		l.raw(t, tagged(true, 0, ^uint64(0)))
		require.NoError(t, l.b.PlaceTagged(pull(t, l.b), RemoteWrite))
	})
	l.b.Pause()
	st := l.b.Stats()
	require.EqualValues(t, 5, st.SegmentsIn)
	require.EqualValues(t, 3000, st.OctetsIn)
	require.EqualValues(t, 1, st.Errors)
}

// sink is a scatter list over three regions with an empty element.
type sink struct {
	parts [3]*guarded
	sgl   []SGE
}

func newSink(t testing.TB, l *link, a Access) *sink {
	k := &sink{}
	for i, n := range []int{5, 1000, 2000} {
		k.parts[i] = newGuarded(n + 20)
		s, _, err := l.table.Register(k.parts[i].mem, 1, a)
		require.NoError(t, err)
		k.sgl = append(k.sgl, SGE{STag: s, Off: 10, Len: uint32(n)})
	}
	k.sgl = append(k.sgl[:1], append([]SGE{{STag: 0xdead, Off: 99}}, k.sgl[1:]...)...)
	return k
}

func (k *sink) bytes() (b []byte) {
	for i, n := range []int{5, 1000, 2000} {
		b = append(b, k.parts[i].mem[10:10+n]...)
	}
	return b
}

func (k *sink) intact(t testing.TB) {
	for _, p := range k.parts {
		p.intact(t)
		for _, b := range append(p.mem[:10:10], p.mem[len(p.mem)-10:]...) {
			require.EqualValues(t, 0xa5, b, "octets of the region outside the SGE")
		}
	}
}

func TestPlaceUntagged(t *testing.T) {
	l := newLink(t, 1448, 1<<16)
	k := newSink(t, l, LocalWrite)
	var c Cursor
	for round, size := range []int{3005, 0, 1, 1424, 1425, 3004, 5, 6} {
		t.Run(fmt.Sprintf("DDP-06 DDP-09 DDP-28 %d octets", size), func(t *testing.T) {
			data := pattern(size, byte(round))
			l.a.StartUntagged(QNSend, 0x73, 0xc0ffee00+uint32(round), uint32(size))
			push(t, l.a, data)
			for seg := 0; ; seg++ {
				g := pull(t, l.b)
				require.EqualValues(t, round+1, g.MSN())
				require.EqualValues(t, QNSend, g.QN())
				require.EqualValues(t, 0x73, g.ULP(), "RsvdULP, all of it")
				require.EqualValues(t, 0xc0ffee00+uint32(round), g.ULPWord())
				first, err := l.b.Arrive(g)
				require.NoError(t, err)
				require.Equal(t, seg == 0, first)
				if first {
					c.Reset(l.table, 1, k.sgl)
					require.EqualValues(t, 3005, c.Size())
					require.NoError(t, c.Check(LocalWrite))
				}
				n, done, err := l.b.Place(g, &c)
				require.NoError(t, err)
				require.Equal(t, g.Last(), done)
				require.Equal(t, !done, l.b.Open(QNSend))
				if done {
					require.EqualValues(t, size, n)
					break
				}
			}
			require.Equal(t, data, k.bytes()[:size])
			k.intact(t)
		})
	}
	for _, e := range k.sgl {
		if e.Len > 0 {
			require.NoError(t, l.table.Deregister(e.STag), "nothing is held")
		}
	}
}

func TestUntaggedErrors(t *testing.T) {
	const size = 3005
	cases := []struct {
		name  string
		first []byte // a valid first segment of 100 octets comes before if set
		head  []byte
		n     int
		code  uint8
	}{
		{"DDP-38 QN 4", nil, untagged(true, 4, 1, 0), 8, CodeQN},
		{"DDP-38 QN 2^32-1", nil, untagged(true, 0xffffffff, 1, 0), 8, CodeQN},
		{"DDP-11 DDP-40 MSN 2 first", nil, untagged(true, 0, 2, 0), 8, CodeMSN},
		{"DDP-11 DDP-40 MSN 0", nil, untagged(true, 0, 0, 0), 8, CodeMSN},
		{"DDP-11 DDP-40 MSN + 2^31", nil, untagged(true, 0, 1+1<<31, 0), 8, CodeMSN},
		{"SEC-42 another MSN in the middle", untagged(false, 0, 1, 0), untagged(true, 0, 2, 100), 8, CodeMSN},
		{"DDP-41 first MO 4", nil, untagged(true, 0, 1, 4), 8, CodeMO},
		{"SEC-41 MO 2^32-1", nil, untagged(true, 0, 1, 0xffffffff), 8, CodeMO},
		{"DDP-34 gap", untagged(false, 0, 1, 0), untagged(true, 0, 1, 101), 8, CodeMO},
		{"DDP-34 overlap", untagged(false, 0, 1, 0), untagged(true, 0, 1, 99), 8, CodeMO},
		{"DDP-34 from the start again", untagged(false, 0, 1, 0), untagged(true, 0, 1, 0), 8, CodeMO},
		{"DDP-34 MO past the buffer", nil, untagged(true, 0, 1, size+1), 8, CodeMO},
		{"DDP-42 one octet too long", nil, untagged(true, 0, 1, 0), size + 1, CodeTooLong},
		{"DDP-42 one octet too long at the end", untagged(false, 0, 1, 0), untagged(false, 0, 1, 100), size - 99, CodeTooLong},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := newLink(t, 1448, 1<<16)
			k := newSink(t, l, LocalWrite)
			var cur Cursor
			cur.Reset(l.table, 1, k.sgl)
			if c.first != nil {
				l.raw(t, c.first, pattern(100, 1))
				g := pull(t, l.b)
				_, err := l.b.Arrive(g)
				require.NoError(t, err)
				_, done, err := l.b.Place(g, &cur)
				require.NoError(t, err)
				require.False(t, done)
			}
			before := k.bytes()
			l.raw(t, c.head, pattern(c.n, 2))
			g := pull(t, l.b)
			_, err := l.b.Arrive(g)
			if err == nil {
				_, _, err = l.b.Place(g, &cur)
			}
			requireCode(t, err, TypeUntagged, c.code, c.head, c.n+UntaggedLen)
			require.Equal(t, before, k.bytes(), "nothing of the segment is placed")
			k.intact(t)
		})
	}
}

func TestPlaceBadBuffer(t *testing.T) {
	t.Run("a bad piece of the buffer places nothing", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		k := newSink(t, l, LocalWrite)
		require.NoError(t, l.table.Deregister(k.sgl[2].STag))
		var c Cursor
		c.Reset(l.table, 1, k.sgl)
		require.Equal(t, FaultSTag, fault(t, c.Check(LocalWrite)))
		l.raw(t, untagged(true, 0, 1, 0), pattern(100, 1))
		g := pull(t, l.b)
		_, err := l.b.Arrive(g)
		require.NoError(t, err)
		_, _, err = l.b.Place(g, &c)
		require.Equal(t, FaultSTag, fault(t, err))
		for _, p := range k.parts {
			p.untouched(t)
		}
		require.NoError(t, l.table.Deregister(k.sgl[0].STag), "nothing is held")
	})
	t.Run("RDM-35 a buffer needs the right of local write", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		k := newSink(t, l, RemoteWrite)
		var c Cursor
		c.Reset(l.table, 1, k.sgl)
		l.raw(t, untagged(true, 0, 1, 0), pattern(3, 1))
		_, _, err := l.b.Place(pull(t, l.b), &c)
		require.Equal(t, FaultAccess, fault(t, err))
	})
}

func TestMessageTooLongForAnyBuffer(t *testing.T) {
	t.Run("SEC-41 no message passes 2^32-1 octets", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		s, _, err := l.table.Register(make([]byte, 64), 1, LocalWrite)
		require.NoError(t, err)
		huge := SGE{STag: s, Off: 0, Len: 1<<32 - 1}
		var c Cursor
		c.Reset(l.table, 1, []SGE{huge, huge})
		q := &l.b.rx.queue[QNSend]
		q.open, q.mo = true, 1<<32-4
		h := untagged(true, 0, 1, 1<<32-4)
		l.raw(t, h, pattern(4, 1))
		g := pull(t, l.b)
		_, err = l.b.Arrive(g)
		require.NoError(t, err)
		_, _, err = l.b.Place(g, &c)
		requireCode(t, err, TypeUntagged, CodeTooLong, h, 22)
	})
}

func TestMSNWrap(t *testing.T) {
	t.Run("DDP-07 ten messages across the wrap", func(t *testing.T) {
		l := newLink(t, 1448, 1<<16)
		k := newSink(t, l, LocalWrite)
		l.a.tx.msn[QNSend] = 0xfffffffd
		l.b.rx.queue[QNSend].msn = 0xfffffffd
		var c Cursor
		want := MSN(0xfffffffd)
		for i := range 10 {
			size := []int{0, 7, 2000}[i%3]
			data := pattern(size, byte(i))
			l.a.StartUntagged(QNSend, 0x43, 0, uint32(size))
			push(t, l.a, data)
			for done := false; !done; {
				g := pull(t, l.b)
				require.Equal(t, want, g.MSN())
				first, err := l.b.Arrive(g)
				require.NoError(t, err)
				if first {
					c.Reset(l.table, 1, k.sgl)
				}
				_, done, err = l.b.Place(g, &c)
				require.NoError(t, err)
			}
			require.Equal(t, data, k.bytes()[:size])
			want++
		}
		require.EqualValues(t, 7, want)
		l.raw(t, untagged(true, 0, 6, 0))
		_, err := l.b.Arrive(pull(t, l.b))
		require.Error(t, err)
	})
}

func TestQueuesCountApart(t *testing.T) {
	t.Run("DDP-06 DDP-14 each queue has message numbers of its own, from 1", queuesCountApart)
}

func queuesCountApart(t *testing.T) {
	l := newLink(t, 1448, 1<<16)
	for range 3 {
		for _, qn := range []uint32{QNSend, QNRequest, QNAtomic} {
			l.a.StartUntagged(qn, 0x41, 0, 28)
			push(t, l.a, make([]byte, 28))
		}
	}
	for i := range 3 {
		for range 3 {
			g := pull(t, l.b)
			require.EqualValues(t, i+1, g.MSN(), "on queue %d", g.QN())
			_, err := l.b.Arrive(g)
			require.NoError(t, err)
			require.Len(t, g.Payload(28), 28)
			l.b.Deliver(g)
		}
	}
}

func TestErrorTexts(t *testing.T) {
	for typ := uint8(0); typ < 4; typ++ {
		for code := uint8(0); code < 8; code++ {
			e := &Error{Type: typ, Code: code, Err: &Fault{FaultPD, 0x12345678}}
			require.Contains(t, e.Error(), fmt.Sprintf("1/%x/%02x", typ, code))
			require.Contains(t, e.Error(), "12345678")
		}
	}
	for k := FaultKind(0); k <= FaultKept+1; k++ {
		require.NotEmpty(t, k.String())
	}
}
