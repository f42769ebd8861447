package iwarp_test

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestHalfOpen(t *testing.T) {
	t.Run("SEC-09 beside 1000 silent connections an honest one gets in before their time is over", func(t *testing.T) {
		for _, limit := range []int{0, 128} { // the default, and less
			h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{HalfOpen: limit}})
			h.serveAll(t)
			for range 1000 {
				h.dial(t)
			}
			start := time.Now()
			p := wiretest.DialPeer(t, h.lis.Addr().String())
			p.Initiate(request)
			t.Logf("limit %d: the honest peer was in after %v, %d silent ones were dropped", limit, time.Since(start), h.counter("cm.half_open_dropped"))
			require.Less(t, time.Since(start), 5*time.Second)
			require.Zero(t, h.counter("cm.request_timeouts"), "it did not have to wait for the end of their time")
		}
	})
	t.Run("SEC-09 the oldest gives way to one past the limit", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{HalfOpen: 16, RequestTimeout: time.Minute}})
		var cs []net.Conn
		for range 16 { // one by one, so that the first is the oldest
			cs = append(cs, h.dial(t))
			require.Eventually(t, func() bool { return h.counter("tcp.open") == uint64(len(cs)) }, 10*time.Second, time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond)
		require.Zero(t, h.counter("cm.half_open_dropped"), "at the limit nobody is dropped")
		h.dial(t)
		require.Eventually(t, func() bool { return h.counter("cm.half_open_dropped") == 1 }, 10*time.Second, time.Millisecond)
		require.NoError(t, cs[0].SetReadDeadline(time.Now().Add(5*time.Second)))
		_, err := cs[0].Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET, "the one that has been silent longest")
		require.NoError(t, cs[1].SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = cs[1].Read(make([]byte, 1))
		require.ErrorContains(t, err, "timeout", "the next one stays")
		require.EqualValues(t, 16, h.counter("tcp.open"))
		time.Sleep(300 * time.Millisecond)
		require.EqualValues(t, 1, h.counter("cm.half_open_dropped"), "and nobody else goes, because nobody else has come")
	})
	t.Run("SEC-09 each holds no more than a Request", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{RequestTimeout: 500 * time.Millisecond}})
		most := wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: make([]byte, 512)}.Octets()
		require.Len(t, most, 532)
		c := h.dial(t)
		_, err := c.Write(most[:531])
		require.NoError(t, err)
		require.Eventually(t, func() bool { return h.counter("cm.request_timeouts") == 1 && h.counter("tcp.open") == 0 }, 10*time.Second, time.Millisecond,
			"531 of 532 octets have their time like none")
	})
	t.Run("SEC-09 who does not wait for the answer is cut off", func(t *testing.T) {
		h := newHost(t, iwarp.Config{})
		c := h.dial(t)
		_, err := c.Write(request.Octets())
		require.NoError(t, err)
		req, err := h.lis.Accept(within(t, 10*time.Second))
		require.NoError(t, err)
		_, err = c.Write(make([]byte, 1000)) // one FPDU's worth is no harm
		require.NoError(t, err)
		time.Sleep(50 * time.Millisecond)
		require.EqualValues(t, 1, h.counter("tcp.open"))
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(10*time.Second)))
		for err == nil { // until the reset
			_, err = c.Write(make([]byte, 16<<10))
		}
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it was not cut off")
		require.Eventually(t, func() bool { return h.counter("tcp.open") == 0 }, 10*time.Second, time.Millisecond)
		_, err = req.Accept(within(t, 5*time.Second), rdmacm.AcceptConfig{Easy: small})
		require.ErrorContains(t, err, "before it is accepted")
	})
	t.Run("SEC-09 those that were refused and stay are bounded too", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{RequireRev2: true, HalfOpen: 8, DrainTimeout: time.Minute}})
		for range 40 {
			p := wiretest.DialPeer(t, h.lis.Addr().String())
			p.Write(request.Octets())
			require.Equal(t, byte(wiretest.FlagR), p.Startup().Flags&wiretest.FlagR)
		}
		require.LessOrEqual(t, h.counter("tcp.open"), uint64(9))
		require.GreaterOrEqual(t, h.counter("cm.half_open_dropped"), uint64(31))
	})
	t.Run("SEC-09 crowd after crowd, memory is flat", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{HalfOpen: 128}})
		flat(t, 8, func(t testing.TB) {
			var cs []net.Conn
			for range 300 {
				c, err := net.Dial("tcp", h.lis.Addr().String())
				require.NoError(t, err)
				_, err = c.Write([]byte("MPA ID Req"))
				require.NoError(t, err)
				cs = append(cs, c)
			}
			for _, c := range cs {
				c.Close()
			}
			require.Eventually(t, func() bool { return h.counter("tcp.open") == 0 }, 20*time.Second, 5*time.Millisecond)
		})
	})
}

// readAll reads FPDUs until the Terminate, whose code it returns, or fails after the
// peer's patience.
func readAll(p *wiretest.Peer) uint16 {
	for {
		u := p.Next()
		if u[0]&0x80 == 0 && u[1]&0xf == 7 {
			return uint16(u[18])<<8 | uint16(u[19])
		}
	}
}

func TestInboundReads(t *testing.T) {
	const size = 16 << 20
	setup := func(t *testing.T, ird int) (*wiretest.Peer, end, *verbs.MR) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{IRD: ird}})
		p, e := h.accept(t, request, 1)
		mr, err := e.pd.AllocMR(size, verbs.AccessRemoteRead)
		require.NoError(t, err)
		return p, e, mr
	}
	ask := func(msn uint32, n uint32, mr *verbs.MR) []byte {
		return wiretest.ReadRequest(msn, 1, 0, n, uint32(mr.Key()), mr.Remote().Addr)
	}
	t.Run("SEC-24 IRD 1: a second request before the first is answered ends the stream with 0x1203", func(t *testing.T) {
		p, e, mr := setup(t, 1)
		p.Send(ask(1, size, mr), ask(2, 8, mr)) // the reader stands still: the first is not answered
		require.EqualValues(t, 0x1203, readAll(p))
		stopped(t, &e)
	})
	t.Run("SEC-24 IRD 2: two are held and served in turn, a third is not", func(t *testing.T) {
		p, e, mr := setup(t, 2)
		p.Send(ask(1, size, mr), ask(2, 8, mr), send(1, "go"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		for _, want := range []int{size, 8} {
			got := 0
			for last := false; !last; {
				u := p.Next()
				require.EqualValues(t, 0xc2&0x82, u[0]&0x80|u[1]&0xf)
				got += len(u) - 14
				last = u[0]&0x40 != 0
			}
			require.Equal(t, want, got)
		}
		p.Send(ask(3, size, mr), ask(4, size, mr), ask(5, 8, mr))
		require.EqualValues(t, 0x1203, readAll(p))
		stopped(t, &e)
	})
	t.Run("SEC-24 requests on and on, memory is flat", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{IRD: 1}})
		flat(t, 10, func(t testing.TB) {
			p, e := h.accept(t, request, 0)
			mr, err := e.pd.AllocMR(1<<20, verbs.AccessRemoteRead)
			require.NoError(t, err)
			var flood []byte
			for i := range uint32(2000) {
				flood = append(flood, wiretest.Frame(ask(i+1, 1<<20, mr), true)...)
			}
			p.Write(flood)
			require.EqualValues(t, 0x1203, readAll(p))
			stopped(t, &e)
			e.free(t, p)
			require.NoError(t, mr.Close())
		})
	})
}

// free closes an end and its peer, and waits until nothing is left of them.
func (e *end) free(t testing.TB, p *wiretest.Peer) {
	require.NoError(t, p.Conn().Close())
	require.NoError(t, e.QP.Close())
	require.NoError(t, e.cq.Close())
	require.NoError(t, e.mr.Close())
	require.Eventually(t, func() bool { s := e.dev.Stats(); return s.Counter("tcp.open") == 0 }, 10*time.Second, time.Millisecond)
}

// TestStalledPeer is SEC-26: a peer that asks for much and reads nothing.
func TestStalledPeer(t *testing.T) {
	l := kernel(t, iwarp.Protocol{})
	h := &host{Device: l.b}
	var err error
	h.lis, err = (&rdmacm.ListenConfig{Device: l.b}).Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { h.lis.Close() })
	other := l.connect(t, 8<<20, nil)
	for range 8 {
		p, e := h.accept(t, request, 1)
		mr, err := e.pd.AllocMR(32<<20, verbs.AccessRemoteRead)
		require.NoError(t, err)
		p.Send(wiretest.ReadRequest(1, 1, 0, 32<<20, uint32(mr.Key()), mr.Remote().Addr), send(1, "go"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		e.send(t, verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, 4096)}}) // behind it
	}
	time.Sleep(100 * time.Millisecond) // until every window is full
	t.Run("SEC-26 the connections of others go on", func(t *testing.T) {
		for range 20 {
			other.mine.send(t,
				verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{other.mine.mr.SGE(0, 4<<20)}, Remote: other.theirs.remote.Slice(0, 4<<20)},
				verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{other.mine.mr.SGE(4<<20, 4<<20)}, Remote: other.theirs.remote.Slice(0, 4<<20)})
			require.NoError(t, other.mine.wait(t, 1)[0].Err())
		}
	})
}

// TestFlood is SEC-27: Sends that meet no receive.
func TestFlood(t *testing.T) {
	h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: time.Second}})
	var flood []byte
	for i := range uint32(4000) {
		flood = append(flood, wiretest.Frame(send(i+1, strings.Repeat("x", 1000)), true)...)
	}
	one := func(t testing.TB, receives int) *end {
		p, e := h.accept(t, request, receives)
		wrote := make(chan struct{})
		go func() { // until the connection has ended
			defer close(wrote)
			_, _ = p.Conn().Write(flood)
		}()
		p.ExpectTerminate(0x1202)
		stopped(t, &e)
		<-wrote
		e.free(t, p)
		return &e
	}
	t.Run("SEC-27 0x1202 ends the stream, and nothing is kept for a receive that comes later", func(t *testing.T) {
		e := one(t, 0)
		require.EqualValues(t, 1, h.counter("rq.empty"))
		_, err := e.PostRecv([]verbs.RecvWR{{ID: 9}})
		require.ErrorIs(t, err, verbs.ErrClosed)
		e.cq = nil
	})
	t.Run("SEC-27 memory is flat", func(t *testing.T) {
		flat(t, 10, func(t testing.TB) { one(t, 0) })
	})
}
