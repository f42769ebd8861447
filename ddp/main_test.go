package ddp

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/mpa"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// unhex reads octets written in hex with spaces.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// in is a stream of a protection domain, without a queue pair.
func in(pd PD) StreamID { return StreamID{PD: pd} }

// fault is the kind of a *Fault, 0 for no error.
func fault(t testing.TB, err error) FaultKind {
	t.Helper()
	if err == nil {
		return 0
	}
	var f *Fault
	require.ErrorAs(t, err, &f)
	return f.Kind
}

// link is two streams of one table, joined in memory.
type link struct {
	a, b   *Stream
	ca, cb *mpa.Conn
	na, nb *simnet.Stream
	table  *Table
}

func newLink(t testing.TB, mss, buffer int) *link {
	t.Helper()
	pool, err := mempool.New(mempool.Config{Count: 4, Size: 128 << 10})
	require.NoError(t, err)
	leakcheck.Pool(t, pool)
	l := &link{table: NewTable()}
	l.na, l.nb = simnet.StreamPair(mss, buffer)
	l.ca, l.cb = mpa.NewConn(l.na, pool), mpa.NewConn(l.nb, pool)
	require.NoError(t, l.ca.Request(mpa.Config{ClientServer: true}, nil))
	_, ok, err := l.cb.RecvRequest(mpa.Config{})
	require.NoError(t, err)
	require.True(t, ok)
	_, err = l.cb.Accept(mpa.Config{}, nil)
	require.NoError(t, err)
	_, ok, err = l.ca.RecvReply()
	require.NoError(t, err)
	require.True(t, ok)
	l.a, l.b = NewStream(l.ca, l.table, in(1)), NewStream(l.cb, l.table, in(1))
	t.Cleanup(func() { l.ca.Drop(); l.cb.Drop() })
	return l
}

// push sends all segments of the message that has been started on s.
func push(t testing.TB, s *Stream, data []byte) {
	t.Helper()
	require.True(t, s.Busy())
	for done := false; !done; {
		n, ok := s.Room()
		require.True(t, ok, "no room")
		var err error
		done, err = s.Write([][]byte{data[:n]})
		require.NoError(t, err)
		data = data[n:]
	}
	require.Empty(t, data)
	require.False(t, s.Busy())
	require.NoError(t, s.Flush())
}

// pull returns the next segment, which has to be there.
func pull(t testing.TB, s *Stream) *Segment {
	t.Helper()
	g, ok, err := s.Next()
	require.NoError(t, err)
	require.True(t, ok)
	return g
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
	return b
}

// guarded is a region with untouchable surroundings.
type guarded struct {
	all []byte
	mem []byte
}

const guard = 64

func newGuarded(n int) *guarded {
	g := &guarded{all: bytes.Repeat([]byte{0xa5}, n+2*guard)}
	g.mem = g.all[guard : guard+n : guard+n]
	return g
}

func (g *guarded) intact(t testing.TB) {
	t.Helper()
	want := bytes.Repeat([]byte{0xa5}, guard)
	require.Equal(t, want, g.all[:guard], "octets before the region changed")
	require.Equal(t, want, g.all[len(g.all)-guard:], "octets after the region changed")
}

func (g *guarded) untouched(t testing.TB) {
	t.Helper()
	require.Equal(t, bytes.Repeat([]byte{0xa5}, len(g.all)), g.all, "the region was written to")
}
