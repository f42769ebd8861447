package rdmap

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/mpa"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

const (
	testPD  = ddp.PD(1)
	otherPD = ddp.PD(2)
	// base is where the regions of the test vectors lie.
	base = uint64(0x7f1200001000)

	remoteRights = ddp.LocalWrite | ddp.RemoteWrite | ddp.RemoteRead | ddp.RemoteAtomic
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8) + seed
	}
	return b
}

// region is registered memory between untouchable surroundings.
type region struct {
	all, mem []byte
	stag     ddp.STag
	base     uint64
}

const (
	guard  = 64
	canary = 0xa5
)

func newRegion(t testing.TB, tab *ddp.Table, n int, pd ddp.PD, a ddp.Access) *region {
	t.Helper()
	g := guarded(n)
	var err error
	g.stag, g.base, err = tab.Register(g.mem, pd, a)
	require.NoError(t, err)
	return g
}

func fixedRegion(t testing.TB, tab *ddp.Table, n int, pd ddp.PD, a ddp.Access, at uint64, s ddp.STag) *region {
	t.Helper()
	g := guarded(n)
	g.stag, g.base = s, at
	require.NoError(t, tab.RegisterBase(g.mem, pd, a, at, s))
	return g
}

func guarded(n int) *region {
	all := bytes.Repeat([]byte{canary}, n+2*guard)
	return &region{all: all, mem: all[guard : guard+n : guard+n]}
}

func (g *region) sge(off, n int) SGE {
	return SGE{STag: g.stag, Off: uint64(off), Len: uint32(n)}
}

func (g *region) untouched(t testing.TB) {
	t.Helper()
	same(t, bytes.Repeat([]byte{canary}, len(g.all)), g.all, "region was written to")
}

func (g *region) intact(t testing.TB) {
	t.Helper()
	want := bytes.Repeat([]byte{canary}, guard)
	same(t, want, g.all[:guard], "octets before the region")
	same(t, want, g.all[len(g.all)-guard:], "octets after the region")
}

// same compares long octet strings and shows only where they differ.
func same(t testing.TB, want, got []byte, what string) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	require.Len(t, got, len(want), what)
	for i := range want {
		if want[i] != got[i] {
			require.FailNow(t, what, "octet %d of %d is %02x, not %02x", i, len(want), got[i], want[i])
		}
	}
}

// end is one end of a connection with the simplest of users: receives and
// operations are queued, events are logged.
type end struct {
	*Stream
	t     testing.TB
	conn  *mpa.Conn
	net   *simnet.Stream
	table *ddp.Table

	recvs  []RecvBuf
	sq     []*Op
	events []Event  // all but NeedRecv
	sent   []uint64 // IDs of operations sent
	rxErr  error
	txErrs []error
	blocks int
}

func newPool(t testing.TB) *mempool.Pool {
	t.Helper()
	pool, err := mempool.New(mempool.Config{Count: 2, Size: 128 << 10})
	require.NoError(t, err)
	return leakcheck.Pool(t, pool)
}

func newEnd(t testing.TB, c *mpa.Conn, n *simnet.Stream, cfg Config) *end {
	if cfg.Table == nil {
		cfg.Table = ddp.NewTable()
	}
	if cfg.PD == 0 {
		cfg.PD = testPD
	}
	t.Cleanup(c.Drop)
	return &end{Stream: NewStream(c, cfg), t: t, conn: c, net: n, table: cfg.Table}
}

// newPair joins two streams in memory.
func newPair(t testing.TB, mss, buffer int, ca, cb Config) (a, b *end) {
	t.Helper()
	pool := newPool(t)
	na, nb := simnet.StreamPair(mss, buffer)
	ma, mb := mpa.NewConn(na, pool), mpa.NewConn(nb, pool)
	require.NoError(t, ma.Request(mpa.Config{ClientServer: true}, nil))
	_, ok, err := mb.RecvRequest(mpa.Config{})
	require.True(t, ok, "%v", err)
	_, err = mb.Accept(mpa.Config{}, nil)
	require.NoError(t, err)
	_, ok, err = ma.RecvReply()
	require.True(t, ok, "%v", err)
	ca.Initiator, cb.Initiator = true, false
	return newEnd(t, ma, na, ca), newEnd(t, mb, nb, cb)
}

// receive works until the stream runs dry. It reports whether anything
// happened.
func (e *end) receive() (busy bool) {
	for e.rxErr == nil {
		ev, ok, err := e.Receive()
		switch {
		case err != nil:
			e.rxErr = err
			return true
		case !ok:
			return busy
		case ev.Kind != NeedRecv:
			e.events = append(e.events, ev)
		case len(e.recvs) == 0:
			e.Refuse()
		default:
			e.Give(e.recvs[0])
			e.recvs = e.recvs[1:]
		}
		busy = true
	}
	return busy
}

// transmit works until the stream has nothing to do or no room.
func (e *end) transmit() (busy bool) {
	for {
		p, err := e.Pump()
		if errors.Is(err, ErrStopped) {
			return busy
		} else if err != nil {
			e.txErrs = append(e.txErrs, err)
			if len(e.txErrs) > 2 {
				return busy
			}
			continue // the Terminate
		}
		if p.Sent {
			e.sent = append(e.sent, p.SentID)
			busy = true
		}
		if p.Blocked {
			e.blocks++
			return busy
		}
		if p.WantOp && len(e.sq) > 0 {
			ok, err := e.Submit(e.sq[0])
			if err != nil && !errors.Is(err, ErrStopped) {
				e.txErrs = append(e.txErrs, err)
			}
			if ok || err != nil {
				e.sq = e.sq[1:]
				busy = true
				continue
			}
		}
		if !p.More {
			if e.conn.Pending() > 0 {
				busy = true
				require.NoError(e.t, e.Flush())
			}
			return busy
		}
	}
}

// settle runs both ends until nothing moves.
func settle(ends ...*end) {
	for busy := true; busy; {
		busy = false
		for _, e := range ends {
			written, _ := e.net.Written()
			buffered := e.net.Buffered()
			b := e.receive()
			b = e.net.Buffered() != buffered || b
			b = e.transmit() || b
			now, _ := e.net.Written()
			busy = busy || b || now != written || e.net.Buffered() > 0 && e.rxErr == nil && canRead(e)
		}
	}
}

// canRead tells a stream that re-chunks and has octets to show from one with
// half an FPDU.
func canRead(e *end) bool {
	select {
	case <-e.net.Notify():
		return true
	default:
		return false
	}
}

// drained returns the events so far and forgets them.
func (e *end) drained() []Event {
	ev := e.events
	e.events = nil
	return ev
}

func (e *end) post(ops ...*Op) { e.sq = append(e.sq, ops...) }
