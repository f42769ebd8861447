package iwarp_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// commons is a device whose connections to scripted peers share their receives:
// 16 octets each, number i at 16*i of mr.
type commons struct {
	dev *verbs.Device
	lis *rdmacm.Listener
	pd  *verbs.PD // of the shared queue
	mr  *verbs.MR
	srq *verbs.SRQ
}

func newCommons(t *testing.T, cfg verbs.SRQConfig) *commons {
	l := kernel(t, iwarp.Protocol{DrainTimeout: time.Second})
	c := &commons{dev: l.b}
	var err error
	c.lis, err = (&rdmacm.ListenConfig{Device: l.b}).Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { c.lis.Close() })
	c.pd, err = l.b.AllocPD()
	require.NoError(t, err)
	c.mr, err = c.pd.AllocMR(16*1024, verbs.AccessLocalWrite)
	require.NoError(t, err)
	c.srq, err = c.pd.CreateSRQ(cfg)
	require.NoError(t, err)
	return c
}

// post posts n receives from number first on.
func (c *commons) post(t *testing.T, first, n int) {
	for i := first; i < first+n; i++ {
		_, err := c.srq.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{c.mr.SGE(16*i, 16)}}})
		require.NoError(t, err)
	}
}

// at is what receive number i holds.
func (c *commons) at(i, n int) string { return string(c.mr.Bytes()[16*i:][:n]) }

// member connects a scripted peer to a queue pair of its own protection domain.
func (c *commons) member(t *testing.T) (*wiretest.Peer, end) {
	e := newEnd(t, c.dev, 4096)
	done := make(chan error, 1)
	go func() {
		req, err := c.lis.Accept(within(t, 20*time.Second))
		if err == nil {
			cfg := e.qp()
			cfg.SRQ = c.srq
			e.Conn, err = req.Accept(within(t, 20*time.Second), rdmacm.AcceptConfig{PD: e.pd, QP: cfg})
		}
		done <- err
	}()
	p := wiretest.DialPeer(t, c.lis.Addr().String())
	p.Initiate(request)
	require.NoError(t, <-done)
	return p, e
}

// stopped waits for the end of e.
func stopped(t testing.TB, e *end) {
	t.Helper()
	select {
	case <-e.Done():
	case <-time.After(10 * time.Second):
		require.Fail(t, "the queue pair did not end", "state %v", e.State())
	}
}

// eventsOf returns those that have come, up to a moment after the last one.
func eventsOf(t *testing.T, d *verbs.Device) (evs []verbs.AsyncEvent) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for ev, err := range d.Events(ctx) {
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return evs
		}
		evs = append(evs, ev)
	}
	return evs
}

func ofType(evs []verbs.AsyncEvent, typ verbs.EventType) (some []verbs.AsyncEvent) {
	for _, ev := range evs {
		if ev.Type == typ {
			some = append(some, ev)
		}
	}
	return some
}

func half(msn uint32, payload string) []byte {
	return wiretest.Untagged(3, false, 0, 0, msn, 0, []byte(payload))
}

func rest(msn, mo uint32, payload string) []byte {
	return wiretest.Untagged(3, true, 0, 0, msn, mo, []byte(payload))
}

func TestSharedReceives(t *testing.T) {
	t.Run("DDP-12 VRB-67 a receive is bound when the first octet of a message comes, in posting order", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		c.post(t, 0, 8)
		pa, a := c.member(t)
		pb, b := c.member(t)
		taken := func(e *end, held int, n uint64) {
			t.Helper()
			require.Eventually(t, func() bool { h, k := e.SharedRecvs(); return h == held && k == n }, 5*time.Second, time.Millisecond)
		}
		pa.Send(half(1, "a-one ")) // takes 0
		taken(&a, 1, 1)
		pb.Send(send(1, "b-one"), send(2, "b-two"), half(3, "b-three ")) // take 1, 2, 3
		taken(&b, 1, 3)
		pa.Send(rest(1, 6, "ends"), send(2, "a-two")) // takes 4
		pb.Send(rest(3, 8, "ends"))
		as, bs := a.wait(t, 2), b.wait(t, 3)
		require.Equal(t, []uint64{0, 4}, ids(as))
		require.Equal(t, []uint64{1, 2, 3}, ids(bs))
		for i, wc := range append(as, bs...) {
			require.NoError(t, wc.Err())
			require.Equal(t, map[bool]uint32{true: a.Num(), false: b.Num()}[i < 2], wc.QP, "the completion names who took it")
		}
		for i, want := range []string{"a-one ends", "b-one", "b-two", "b-three ends", "a-two"} {
			require.Equal(t, want, c.at(i, len(want)))
		}
		taken(&a, 0, 2)
		taken(&b, 0, 3)
		require.Equal(t, 3, c.srq.Len())
	})
	t.Run("SEC-16 VRB-67 the SRQ's protection domain counts, not the queue pair's", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		c.post(t, 0, 2)
		p, e := c.member(t)
		require.NotEqual(t, c.pd.Num(), e.QP.PD().Num())
		p.Send(send(1, "works"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		require.Equal(t, "works", c.at(0, 5))
		_, err := c.srq.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{e.mr.SGE(0, 16)}}})
		require.ErrorContains(t, err, "another protection domain", "a region of the queue pair's domain")
		require.NoError(t, c.mr.Close(), "the key is gone under a receive that is posted")
		p.Send(send(2, "fails"))
		p.ExpectTerminate(0x0000)
		stopped(t, &e)
		wc := e.wait(t, 1)[0]
		require.Equal(t, []any{uint64(1), verbs.WCLocProtErr}, []any{wc.ID, wc.Status})
	})
	t.Run("VRB-69 an empty SRQ ends the connection whose message comes, and no other", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		pa, a := c.member(t)
		pb, b := c.member(t)
		pa.Send(send(1, "nowhere to go"))
		pa.ExpectTerminate(0x1202)
		stopped(t, &a)
		c.post(t, 0, 1)
		pb.Send(send(1, "hello"))
		require.NoError(t, b.wait(t, 1)[0].Err())
		require.Equal(t, verbs.QPSRTS, b.State())
		a.quiet(t)
		s := c.dev.Stats()
		require.EqualValues(t, 1, s.Counter("srq.empty"))
	})
	t.Run("VRB-19 VRB-70 the receive in use is flushed, the others stay, and LAST_WQE comes behind it", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		c.post(t, 0, 5)
		pa, a := c.member(t)
		pb, b := c.member(t)
		pa.Send(send(1, "whole"), half(2, "half"))
		require.NoError(t, a.wait(t, 1)[0].Err())
		pa.Reset()
		var wc [4]verbs.WC
		for ev, err := range c.dev.Events(within(t, 10*time.Second)) {
			require.NoError(t, err)
			if ev.Type == verbs.EventQPLastWQEReached {
				require.Equal(t, []uint32{a.Num(), c.srq.Num()}, []uint32{ev.QP, ev.SRQ})
				break
			}
		}
		n, err := a.cq.Poll(wc[:]) // the event is behind the last completion: no need to wait
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []any{uint64(1), verbs.WCWRFlushErr, a.Num()}, []any{wc[0].ID, wc[0].Status, wc[0].QP})
		stopped(t, &a)
		require.Equal(t, verbs.QPSErr, a.State())
		require.Equal(t, 3, c.srq.Len(), "those that nobody had taken")
		pb.Send(send(1, "goes on"))
		require.EqualValues(t, 2, b.wait(t, 1)[0].ID)
		require.Equal(t, "goes on", c.at(2, 7))
		a.quiet(t)
		require.NoError(t, b.QP.Close())
		b.quiet(t)
		require.Empty(t, ofType(eventsOf(t, c.dev), verbs.EventQPLastWQEReached), "one event, and none for a queue pair that the application closes")
		require.Equal(t, 2, c.srq.Len())
	})
	t.Run("VRB-70 a queue pair that holds no receive has its event too", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		c.post(t, 0, 1)
		p, e := c.member(t)
		p.Send(wiretest.Terminate(0x0000))
		stopped(t, &e)
		e.quiet(t)
		last := ofType(eventsOf(t, c.dev), verbs.EventQPLastWQEReached)
		require.Len(t, last, 1)
		require.Equal(t, e.Num(), last[0].QP)
	})
	t.Run("VRB-68 the limit raises one event and disarms", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 16})
		c.post(t, 0, 10)
		require.NoError(t, c.srq.Modify(5))
		pa, a := c.member(t)
		pb, b := c.member(t)
		limit := func() []verbs.AsyncEvent { return ofType(eventsOf(t, c.dev), verbs.EventSRQLimitReached) }
		for i := range uint32(5) { // in turns: 5 are taken, 5 are left
			p, e, n := pa, &a, i/2+1
			if i%2 == 1 {
				p, e = pb, &b
			}
			p.Send(send(n, "x"))
			e.wait(t, 1)
		}
		require.Empty(t, limit(), "5 are left, which is not fewer than 5")
		pb.Send(send(3, "x")) // the sixth
		b.wait(t, 1)
		evs := limit()
		require.Len(t, evs, 1)
		require.Equal(t, c.srq.Num(), evs[0].SRQ)
		pb.Send(send(4, "x"), send(5, "x"))
		b.wait(t, 2)
		require.Empty(t, limit(), "it is disarmed")
		require.NoError(t, c.srq.Modify(2))
		pb.Send(send(6, "x"))
		b.wait(t, 1)
		require.Len(t, limit(), 1, "armed anew, it fires again")
		require.NoError(t, c.srq.Modify(1))
		require.NoError(t, c.srq.Modify(0))
		pb.Send(send(7, "x"), send(8, "x"))
		pb.ExpectTerminate(0x1202)
		require.Empty(t, limit(), "0 disarms it")
		require.ErrorContains(t, c.srq.Modify(17), "limit 17 of a queue of 16")
	})
	t.Run("VRB-68 a message that finds nothing raises it too", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 4, Limit: 1})
		p, e := c.member(t)
		require.Empty(t, ofType(eventsOf(t, c.dev), verbs.EventSRQLimitReached), "an SRQ that nobody has posted to yet")
		p.Send(send(1, "x"))
		p.ExpectTerminate(0x1202)
		stopped(t, &e)
		require.Len(t, ofType(eventsOf(t, c.dev), verbs.EventSRQLimitReached), 1)
	})
	t.Run("VRB-71 the size cannot be changed", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{MaxWR: 4})
		c.post(t, 0, 4)
		_, err := c.srq.PostRecv(make([]verbs.RecvWR, 1))
		require.ErrorIs(t, err, verbs.ErrQueueFull, "it has what it was made with")
		require.Error(t, c.srq.Modify(5), "and Modify arms the limit alone")
		require.Equal(t, 4, c.srq.Config().MaxWR)
	})
	t.Run("VRB-05 posting to the queue pair's own queue is EINVAL", func(t *testing.T) {
		c := newCommons(t, verbs.SRQConfig{})
		_, e := c.member(t)
		n, err := e.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{e.mr.SGE(0, 16)}}})
		require.Zero(t, n)
		require.ErrorContains(t, err, "post them with SRQ.PostRecv")
	})
}

// TestSharedDrained is SEC-28: one peer takes everything there is.
func TestSharedDrained(t *testing.T) {
	c := newCommons(t, verbs.SRQConfig{MaxWR: 64})
	c.post(t, 0, 32)
	require.NoError(t, c.srq.Modify(8))
	pa, hostile := c.member(t)
	pb, honest := c.member(t)
	var flood [][]byte
	for i := range uint32(40) {
		flood = append(flood, send(i+1, "mine"))
	}
	pa.Send(flood...)
	pa.ExpectTerminate(0x1202)
	stopped(t, &hostile)
	require.Len(t, hostile.wait(t, 32), 32)
	t.Run("SEC-28 the limit event fires once", func(t *testing.T) {
		require.Len(t, ofType(eventsOf(t, c.dev), verbs.EventSRQLimitReached), 1)
	})
	t.Run("SEC-28 the queue pair tells who took them", func(t *testing.T) {
		held, taken := hostile.SharedRecvs()
		require.Equal(t, []uint64{0, 32}, []uint64{uint64(held), taken})
		_, taken = honest.SharedRecvs()
		require.Zero(t, taken)
	})
	t.Run("SEC-28 the others recover after a repost", func(t *testing.T) {
		c.post(t, 0, 4)
		pb.Send(send(1, "me too"))
		require.NoError(t, honest.wait(t, 1)[0].Err())
		require.Equal(t, "me too", c.at(0, 6))
		require.Equal(t, verbs.QPSRTS, honest.State())
	})
}

// TestSharedTraffic has many queue pairs of two devices' worth of connections
// take from one queue while several goroutines post to it: every message
// arrives once and whole, and no receive completes twice.
func TestSharedTraffic(t *testing.T) {
	const peers, each, depth, size = 12, 400, 64, 32
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 60*time.Second)
		pd, err := l.b.AllocPD()
		require.NoError(t, err)
		mr, err := pd.AllocMR(depth*size, verbs.AccessLocalWrite)
		require.NoError(t, err)
		srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: depth})
		require.NoError(t, err)
		cq, err := l.b.CreateCQ(verbs.CQConfig{Depth: depth + peers*64})
		require.NoError(t, err)
		post := func(i uint64) error {
			_, err := srq.PostRecv([]verbs.RecvWR{{ID: i, SGL: []verbs.SGE{mr.SGE(int(i)*size, size)}}})
			return err
		}
		for i := range uint64(depth) {
			require.NoError(t, post(i))
		}
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, fmt.Sprintf("%s:0", l.addr))
		require.NoError(t, err)
		defer lis.Close()
		var conns []*rdmacm.Conn
		accepted := make(chan error, 1)
		go func() {
			for range peers {
				req, err := lis.Accept(ctx)
				if err == nil {
					var c *rdmacm.Conn
					c, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: pd, QP: verbs.QPConfig{SendCQ: cq, SRQ: srq}})
					conns = append(conns, c)
				}
				if err != nil {
					accepted <- err
					return
				}
			}
			accepted <- nil
		}()
		dialed := make([]*rdmacm.Conn, peers)
		for i := range dialed {
			dialed[i], err = (&rdmacm.Dialer{Device: l.a, Easy: small}).Dial(ctx, lis.Addr().String())
			require.NoError(t, err)
		}
		require.NoError(t, <-accepted)

		// A credit is a receive that is posted, so that no message finds none.
		credits := make(chan struct{}, depth)
		for range depth {
			credits <- struct{}{}
		}
		var work sync.WaitGroup
		for i, c := range dialed {
			work.Go(func() {
				for n := range each {
					<-credits
					if err := c.Send(ctx, fmt.Appendf(nil, "%03d %06d %020d", i, n, i*each+n)); err != nil {
						t.Errorf("peer %d, message %d: %v", i, n, err)
						return
					}
				}
			})
		}
		next := map[uint32]int{}
		got := 0
		for wcs := make([]verbs.WC, 16); got < peers*each; {
			n, err := cq.Wait(ctx, wcs)
			require.NoError(t, err)
			for _, wc := range wcs[:n] {
				require.NoError(t, wc.Err())
				var i, k, sum int
				_, err := fmt.Sscanf(string(mr.Bytes()[wc.ID*size:][:wc.ByteLen]), "%d %d %d", &i, &k, &sum)
				require.NoError(t, err)
				require.Equal(t, i*each+k, sum)
				require.Equal(t, next[wc.QP], k, "messages of one connection in order")
				next[wc.QP]++
				require.NoError(t, post(wc.ID))
				credits <- struct{}{}
				got++
			}
		}
		work.Wait()
		require.Len(t, next, peers)
		for _, c := range slices.Concat(dialed, conns) {
			_, taken := c.SharedRecvs()
			require.Equal(t, map[bool]uint64{true: each}[slices.Contains(conns, c)], taken)
			require.NoError(t, c.Close())
		}
		require.Equal(t, depth, srq.Len(), "those that nobody took were not flushed")
		require.NoError(t, srq.Close())
		require.NoError(t, cq.Close())
	})
}

// TestSharedAllocs: taking a receive from a shared queue and posting another does
// not allocate.
func TestSharedAllocs(t *testing.T) {
	c := newCommons(t, verbs.SRQConfig{MaxWR: 1024})
	p, e := c.member(t)
	const n = 20000
	var frames []byte
	for i := range uint32(n) {
		frames = append(frames, wiretest.Frame(send(i+1, "x"), true)...)
	}
	c.post(t, 0, 1000)
	wcs := make([]verbs.WC, 64)
	wr := []verbs.RecvWR{{SGL: []verbs.SGE{c.mr.SGE(0, 16)}}}
	sent := make(chan error, 1)
	pause := make(chan struct{}, n)
	go func() { // no more under way than receives posted
		var err error
		step := len(frames) / n
		for i := 0; i < n && err == nil; i += 500 {
			if i > 0 {
				for range 500 {
					<-pause
				}
			}
			_, err = p.Conn().Write(frames[i*step:][:500*step])
		}
		sent <- err
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx := within(t, 60*time.Second)
	for got := 0; got < n; {
		k, err := e.cq.Wait(ctx, wcs)
		require.NoError(t, err)
		for i := range k {
			if wcs[i].Status != verbs.WCSuccess {
				require.NoError(t, wcs[i].Err())
			}
			if _, err := c.srq.PostRecv(wr); err != nil {
				require.NoError(t, err)
			}
			pause <- struct{}{}
		}
		got += k
	}
	runtime.ReadMemStats(&after)
	require.NoError(t, <-sent)
	if raceEnabled {
		t.Skip("LEFT OUT: the race detector allocates on its own")
	}
	require.Less(t, float64(after.Mallocs-before.Mallocs)/n, 0.2, "allocations per message")
}
