package rdmap

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// TestMixedTraffic runs random operations both ways over streams that re-chunk,
// with buffers so small that both ends block all the time.
func TestMixedTraffic(t *testing.T) {
	for _, c := range []struct {
		mss, buffer, chunk int
		ird, ord           int
	}{
		{1448, 1 << 20, 0, 16, 16},
		{1448, 4 << 10, 700, 1, 1},
		{1448, 3 << 10, 100, 2, 2},
		{536, 2 << 10, 64, 3, 2},
		{132, 1 << 10, 20, 1, 1},
		{9000, 20 << 10, 5000, 8, 8},
		{1461, 64 << 10, 1500, 4, 3},
	} {
		t.Run(fmt.Sprintf("DDP-26 MSS %d buffer %d chunk %d IRD %d ORD %d", c.mss, c.buffer, c.chunk, c.ird, c.ord), func(t *testing.T) {
			tab := ddp.NewTable()
			cfg := Config{Table: tab, IRD: c.ird, ORD: c.ord}
			a, b := newPair(t, c.mss, c.buffer, cfg, cfg)
			a.net.Rechunk(1, c.chunk)
			b.net.Rechunk(2, c.chunk)
			a.post(&Op{Kind: Write}) // opens the gate
			settle(a, b)
			require.Len(t, a.sent, 1)
			a.sent = nil
			k := newTraffic(t, a, b, uint64(c.mss+c.chunk))
			for range 8 {
				k.round()
			}
			for _, e := range k.ends {
				st := e.Stats()
				require.Positive(t, st.SendsIn)
				require.Positive(t, st.WritesIn)
				require.Positive(t, st.ResponsesIn)
				require.Positive(t, st.ImmediatesIn)
				require.Positive(t, st.AtomicResponsesIn)
				if c.buffer <= 4<<10 {
					require.Positive(t, e.blocks, "the flow was never blocked")
				}
			}
		})
	}
	t.Run("octet by octet", func(t *testing.T) {
		k := newScene(t)
		k.recv = newRegion(t, k.table, 5, testPD, ddp.LocalWrite)
		e, peer := newRaw(t, k.config())
		e.recvs = []RecvBuf{{ID: 1, SGL: []SGE{k.recv.sge(0, 2), k.recv.sge(2, 3)}}}
		var b []byte
		for _, v := range []string{vecWriteRTR, vecSendHello, vecWrite8, vecRead} {
			b = append(b, unhex(t, v)...)
		}
		for i := range b {
			peer.play(b[i : i+1])
			settle(e)
		}
		require.Equal(t, []Event{
			{Kind: FirstFPDU, KickTx: true}, {Kind: RecvDone, ID: 1, Len: 5}, {Kind: RequestQueued, KickTx: true},
		}, e.events)
		require.Equal(t, "hello", string(k.recv.mem))
		require.Len(t, peer.expectFPDU(), 30)
	})
}

func TestReadBack(t *testing.T) {
	t.Run("RDM-47 a read sees what was written before it", func(t *testing.T) {
		tab := ddp.NewTable()
		cfg := Config{Table: tab, IRD: 4, ORD: 4}
		a, b := newPair(t, 1448, 8<<10, cfg, cfg)
		src := newRegion(t, tab, 3000, testPD, ddp.LocalWrite)
		dst := newRegion(t, tab, 3000, testPD, remoteRights)
		back := newRegion(t, tab, 3000, testPD, ddp.LocalWrite)
		for i := range 50 {
			copy(src.mem, pattern(3000, byte(i)))
			a.post(
				&Op{Kind: Write, RemoteSTag: dst.stag, RemoteTO: dst.base, SGL: []SGE{src.sge(0, 3000)}},
				&Op{Kind: Read, ID: uint64(i), RemoteSTag: dst.stag, RemoteTO: dst.base, SGL: []SGE{back.sge(0, 3000)}},
			)
			settle(a, b)
			require.Equal(t, []Event{{Kind: ReadDone, ID: uint64(i), Len: 3000}}, a.drained())
			same(t, src.mem, back.mem, "read back")
		}
	})
}

func TestOverlap(t *testing.T) {
	t.Run("DDP-31 two Writes to one range: the second is seen", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 1, 1, 1, 1)))
		peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base+1, 2, 2)))
		peer.play(unhex(t, vecSendZero))
		settle(e)
		require.Len(t, e.events, 2)
		require.Equal(t, []byte{1, 2, 2, 1}, k.s.mem[:4])
	})
}

// side runs the two halves of an end in a goroutine each.
type side struct {
	e      *end
	kick   chan struct{}
	ready  chan struct{}
	next   func() *Op
	buf    func() RecvBuf
	done   atomic.Int64 // operations completed
	recvd  atomic.Int64
	reads  atomic.Int64
	failed chan error
	onRead func(*Event) // if set: hears of each ReadDone
	onRecv func()       // and of each RecvDone
}

func newSide(e *end, next func() *Op, buf func() RecvBuf) *side {
	s := &side{e: e, kick: make(chan struct{}, 1), ready: make(chan struct{}, 1), next: next, buf: buf, failed: make(chan error, 2)}
	return s
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *side) run(wg *sync.WaitGroup, stop <-chan struct{}) {
	s.e.net.OnReady(func() { poke(s.kick); poke(s.ready) })
	wg.Add(2)
	go func() { // receive half
		defer wg.Done()
		for {
			ev, ok, err := s.e.Receive()
			switch {
			case err != nil:
				s.failed <- err
				poke(s.kick)
				return
			case !ok:
				select {
				case <-s.ready:
				case <-stop:
					return
				}
			case ev.Kind == NeedRecv:
				s.e.Give(s.buf())
			case ev.Kind == RecvDone:
				if s.onRecv != nil {
					s.onRecv()
				}
				s.recvd.Add(1)
			case ev.Kind == ReadDone:
				s.reads.Add(1)
				if s.onRead != nil {
					s.onRead(&ev)
				}
			}
			if ev.KickTx {
				poke(s.kick)
			}
		}
	}()
	go func() { // send half
		defer wg.Done()
		op := s.next()
		for {
			if op == nil {
				op = s.next()
			}
			p, err := s.e.Pump()
			if err != nil {
				if s.e.TerminateSent() || s.e.due.Load() == &s.e.none {
					return
				}
				continue
			}
			if p.Sent {
				s.done.Add(1)
				op = s.next()
			}
			wait := p.Blocked
			if p.WantOp && op != nil {
				ok, err := s.e.Submit(op)
				if err == nil && ok {
					continue
				}
				wait = wait || !p.More
			} else {
				wait = wait || !p.More
			}
			if wait {
				_ = s.e.Flush()
				select {
				case <-s.kick:
				case <-stop:
					return
				}
			}
		}
	}()
}

func TestConcurrentHalves(t *testing.T) {
	t.Run("both halves of both ends at once", func(t *testing.T) {
		const each = 3000
		tab := ddp.NewTable()
		cfg := Config{Table: tab, IRD: 4, ORD: 4}
		a, b := newPair(t, 1448, 32<<10, cfg, cfg)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		sides := [2]*side{}
		for i, e := range []*end{a, b} {
			src := newRegion(t, tab, 4096, testPD, ddp.RemoteRead)
			dst := newRegion(t, tab, 4096, testPD, remoteRights)
			sink := newRegion(t, tab, 4096, testPD, ddp.LocalWrite)
			recv := newRegion(t, tab, 4096, testPD, ddp.LocalWrite)
			n := 0
			ops := [3]Op{
				{Kind: Send, SGL: []SGE{src.sge(0, 100)}},
				{Kind: Write, SGL: []SGE{src.sge(0, 4096)}, RemoteSTag: dst.stag, RemoteTO: dst.base},
				{Kind: Read, SGL: []SGE{sink.sge(0, 3000)}, RemoteSTag: src.stag, RemoteTO: src.base},
			}
			sides[i] = newSide(e, func() *Op {
				if n++; n > each {
					return nil
				}
				ops[n%3].ID = uint64(n)
				return &ops[n%3]
			}, func() RecvBuf { return RecvBuf{SGL: []SGE{recv.sge(0, 4096)}} })
		}
		for _, s := range sides {
			s.run(&wg, stop)
		}
		require.Eventually(t, func() bool {
			for _, s := range sides {
				if s.done.Load() < each || s.recvd.Load() < each/3 || s.reads.Load() < each/3 {
					return false
				}
			}
			return true
		}, 8*time.Minute, 5*time.Millisecond)
		close(stop)
		wg.Wait()
		for _, s := range sides {
			require.Empty(t, s.failed)
		}
	})
}

func TestDeregisterInAWriteStorm(t *testing.T) {
	t.Run("SEC-07, SEC-56, DDP-55 nothing is placed after Deregister", func(t *testing.T) {
		for round := range 15 {
			tab, own := ddp.NewTable(), ddp.NewTable()
			a, b := newPair(t, 1448, 64<<10, Config{Table: own}, Config{Table: tab})
			g := newRegion(t, tab, 8192, testPD, remoteRights)
			src := newRegion(t, own, 8192, testPD, 0)
			op := &Op{Kind: Write, SGL: []SGE{src.sge(0, 8192)}, RemoteSTag: g.stag, RemoteTO: g.base}
			for i := range src.mem {
				src.mem[i] = 1
			}
			var wg sync.WaitGroup
			stop := make(chan struct{})
			sa := newSide(a, func() *Op { return op }, nil)
			sb := newSide(b, func() *Op { return nil }, nil)
			sa.run(&wg, stop)
			sb.run(&wg, stop)
			for sa.done.Load() < int64(10+round*3) {
				time.Sleep(50 * time.Microsecond)
			}
			require.NoError(t, tab.Deregister(g.stag))
			for i := range g.mem { // ours again; a late writer is a race
				g.mem[i] = 0xff
			}
			err := <-sb.failed
			var low *ddp.Error
			require.ErrorAs(t, err, &low)
			require.Equal(t, uint8(ddp.CodeSTag), low.Code)
			var pe *PeerError
			require.ErrorAs(t, <-sa.failed, &pe)
			require.Equal(t, "invalid STag (1/1/00)", pe.Terminate.String())
			close(stop)
			wg.Wait()
			for _, v := range g.mem {
				require.Equal(t, byte(0xff), v)
			}
			g.intact(t)
		}
	})
}
