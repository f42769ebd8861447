package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestDisconnectLosesNothing disconnects as soon as all Sends have completed, which says
// that TCP has them, not that the peer has.
func TestDisconnectLosesNothing(t *testing.T) {
	const n = 64
	post := func(t *testing.T, e *end, size, n int) {
		for i := range n {
			e.send(t, verbs.SendWR{ID: uint64(i), Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(i%(arena/size)*size, size)}})
		}
	}
	receives := func(size int) func(e *end, qp *verbs.QP) error {
		return func(e *end, qp *verbs.QP) error {
			for i := range n {
				if _, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{e.mr.SGE(i%(arena/size)*size, size)}}}); err != nil {
					return err
				}
			}
			return nil
		}
	}
	good := func(t *testing.T, wcs []verbs.WC) {
		for i, wc := range wcs {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i, wc.ID)
		}
	}
	t.Run("DDP-58 Sends, then Disconnect: a slow peer reads all of them, then the FIN", func(t *testing.T) {
		const size = arena / 16 // 4 MiB in all, of which little fits the peer's buffer
		o := meet(t, iwarp.Protocol{ClientServer: true, DrainTimeout: 15 * time.Second}, 0, nil)
		require.NoError(t, o.Conn().(*net.TCPConn).SetReadBuffer(32<<10))
		o.Respond(plain(1, 1))
		require.NoError(t, <-o.dialed)
		fill(o.e.mr.Bytes(), 58)
		post(t, o.e, size, n)

		msg, mo := 0, 0 // where the peer is
		read := func() {
			u := o.Next()
			payload := u[18:]
			require.Equal(t, byte(3), u[1]&0xf, "a Send and nothing else")
			require.EqualValues(t, msg+1, binary.BigEndian.Uint32(u[10:]), "MSN")
			require.EqualValues(t, mo, binary.BigEndian.Uint32(u[14:]), "MO")
			at := msg%16*size + mo
			require.True(t, bytes.Equal(o.e.mr.Bytes()[at:at+len(payload)], payload), "message %d from octet %d on", msg, mo)
			if mo += len(payload); u[0]&0x40 != 0 {
				require.Equal(t, size, mo)
				msg, mo = msg+1, 0
			}
		}
		var wcs [n]verbs.WC
		for got := 0; got < n; { // no more is read than what lets the Sends complete
			k, err := o.e.cq.Poll(wcs[got:])
			require.NoError(t, err)
			if got += k; k == 0 {
				read()
			}
		}
		good(t, wcs[:])
		require.Less(t, msg, n, "the last one is still on its way")
		require.NoError(t, o.e.Disconnect(within(t, 10*time.Second)))
		for msg < n {
			time.Sleep(time.Millisecond)
			read()
		}
		o.ExpectEOF()
		require.EqualValues(t, 1, connections(o.e.dev), "it is the peer's turn")
		require.NoError(t, o.Conn().Close())
		gone(t, o.e.dev)
		require.NoError(t, o.e.Err())
		o.e.quiet(t)
	})
	t.Run("DDP-58 a megabyte of Sends, then Disconnect: all are delivered before the end is told", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{DrainTimeout: 15 * time.Second}, func(t *testing.T, l link) {
			const size = arena / n
			p := l.connect(t, arena, receives(size))
			fill(p.mine.mr.Bytes(), 58)
			post(t, &p.mine, size, n)
			good(t, p.mine.wait(t, n))
			require.NoError(t, p.mine.Disconnect(within(t, 10*time.Second)))
			p.over(t)
			var wcs [n]verbs.WC
			k, err := p.theirs.cq.Poll(wcs[:])
			require.NoError(t, err)
			require.Equal(t, n, k, "in the completion queue when Done was closed")
			good(t, wcs[:])
			require.True(t, bytes.Equal(p.mine.mr.Bytes(), p.theirs.mr.Bytes()))
			for _, e := range []*end{&p.mine, &p.theirs} {
				require.NoError(t, e.Err())
			}
			require.Equal(t, flushed(n), statuses(p.mine.wait(t, n)), "its receives")
			p.mine.quiet(t)
			p.theirs.quiet(t)
			require.Empty(t, append(eventsOf(t, l.a), eventsOf(t, l.b)...))
		})
	})
	t.Run("DDP-58 Disconnect behind more than TCP takes, on a link that stands still: all arrives when it works again", func(t *testing.T) {
		const size = 100_000
		var wire *pktio.Faulty
		l := pipe(t, iwarp.PipeConfig{Protocol: iwarp.Protocol{DrainTimeout: 15 * time.Second}, Faulty: func(a, _ *pktio.Faulty) { wire = a }})
		// How many Sends complete without a single ACK? The last of them is not whole with TCP.
		p := l.connect(t, arena, nil)
		wire.Cut(true)
		taken := 0
		for ; taken < n; taken++ {
			post(t, &p.mine, size, 1)
			var wc [1]verbs.WC
			if k, _ := p.mine.cq.Wait(within(t, 300*time.Millisecond), wc[:]); k == 0 {
				break
			}
		}
		require.NoError(t, p.mine.QP.Close())
		wire.Cut(false)
		require.Less(t, taken, n, "TCP takes all")
		require.Greater(t, taken, arena/size)

		p = l.connect(t, arena, receives(size))
		fill(p.mine.mr.Bytes(), 58)
		wire.Cut(true)
		post(t, &p.mine, size, taken)
		good(t, p.mine.wait(t, taken))
		require.NoError(t, p.mine.Disconnect(within(t, 10*time.Second)))
		p.theirs.quiet(t)
		wire.Cut(false)
		p.over(t)
		wcs := p.theirs.wait(t, n)
		good(t, wcs[:taken])
		require.Equal(t, flushed(n-taken), statuses(wcs[taken:]))
		require.NoError(t, p.theirs.Err())
		all := arena / size * size
		require.True(t, bytes.Equal(p.mine.mr.Bytes()[:all], p.theirs.mr.Bytes()[:all]))
	})
}

// TestConnectionLost resets TCP under work requests of every kind: four Reads that are
// with the peer, and behind them what waits for them, signaled or not.
func TestConnectionLost(t *testing.T) {
	for _, c := range []struct{ sends, recvs int }{{10, 0}, {0, 10}, {6, 4}} {
		t.Run(fmt.Sprintf("DDP-60 a RST with %d requests and %d receives open: each is flushed, no more, and one event", c.sends, c.recvs), func(t *testing.T) {
			o := meet(t, iwarp.Protocol{ClientServer: true, DrainTimeout: time.Minute}, c.recvs, nil)
			o.Respond(plain(4, 4))
			require.NoError(t, <-o.dialed)
			remote := verbs.RemoteBuf{Addr: farAddr, RKey: farKey, Len: 64}
			kinds := []verbs.SendWR{
				{Op: verbs.OpRead, Remote: remote, SGL: []verbs.SGE{o.e.mr.SGE(0, 64)}},
				{Op: verbs.OpSend, Flags: verbs.SendFence, Inline: []byte("x")},
				{Op: verbs.OpWrite, Remote: remote, SGL: []verbs.SGE{o.e.mr.SGE(0, 64)}},
				{Op: verbs.OpFetchAdd, Remote: remote.Slice(0, 8), SGL: []verbs.SGE{o.e.mr.SGE(0, 8)}},
			}
			var sends, recvs []uint64
			for i := range c.sends {
				wr := kinds[max(0, i-3)%len(kinds)]
				wr.ID = uint64(100 + i)
				if i%2 == 0 {
					wr.Flags |= verbs.SendSignaled
				}
				o.e.send(t, wr)
				sends = append(sends, wr.ID)
			}
			for i := range c.recvs {
				recvs = append(recvs, uint64(i+1))
			}
			for range min(4, c.sends) {
				require.Equal(t, byte(1), o.Next()[1]&0xf, "a Read Request")
			}
			o.Reset()
			o.e.ended(t)
			gone(t, o.e.dev)

			evs := eventsOf(t, o.e.dev) // which takes its time, too
			wcs := make([]verbs.WC, 32)
			n, err := o.e.cq.Poll(wcs)
			require.NoError(t, err)
			require.Equal(t, 10, n, "%+v", wcs[:n])
			var gotSends, gotRecvs []uint64
			for _, wc := range wcs[:n] {
				require.Equal(t, verbs.WCWRFlushErr, wc.Status, "request %d", wc.ID)
				if wc.ID >= 100 {
					gotSends = append(gotSends, wc.ID)
				} else {
					gotRecvs = append(gotRecvs, wc.ID)
				}
			}
			require.Equal(t, sends, gotSends)
			require.Equal(t, recvs, gotRecvs)
			require.Len(t, evs, 1)
			require.Equal(t, verbs.EventQPFatal, evs[0].Type)
			require.Equal(t, o.e.Num(), evs[0].QP)
			require.ErrorIs(t, evs[0].Err, syscall.ECONNRESET)
			s := o.e.dev.Stats()
			require.Zero(t, s.Counter("cm.events_merged")+s.Counter("cm.events_dropped"), "events that nobody saw")
			require.EqualValues(t, 1, s.Counter("cm.ended"))
			require.Equal(t, verbs.QPSErr, o.e.State())
			require.ErrorIs(t, o.e.Err(), syscall.ECONNRESET)
			require.NoError(t, o.e.Conn.Close())
			o.e.quiet(t)
		})
	}
}

// caller is a scripted peer that keeps a connection busy until it breaks.
type caller struct {
	name string
	p    *wiretest.Peer
	e    end
	did  atomic.Int64 // octets of the peer
	end  chan error   // how it saw the connection end
}

// run does step, which returns how many octets it moved, until it fails.
func (c *caller) run(step func(tcp net.Conn) (int, error)) {
	tcp := c.p.Conn()
	c.end = make(chan error, 1)
	_ = tcp.SetDeadline(time.Now().Add(time.Minute))
	go func() {
		for {
			n, err := step(tcp)
			c.did.Add(int64(n))
			if err != nil {
				c.end <- err
				return
			}
		}
	}()
}

// TestDeviceClosedUnderTraffic is SEC-57.
func TestDeviceClosedUnderTraffic(t *testing.T) {
	t.Run("SEC-57 Close resets all connections, then ends the keys, then returns", func(t *testing.T) {
		// An end in order would wait for these peers, which never send a FIN.
		var callers []*caller
		var table *ddp.Table
		var running, early, late atomic.Int32 // keys ended while a connection lived, or not valid before, or valid after
		d, table, err := iwarp.OpenKernelWith(iwarp.Protocol{DrainTimeout: time.Minute}, func(p *verbs.Provider) {
			usual := p.DeregMR
			p.DeregMR = func(k verbs.Key) error {
				for _, c := range callers {
					if c.e.State() != verbs.QPSErr {
						running.Add(1)
					}
				}
				if !table.Valid(ddp.STag(k)) {
					early.Add(1)
				}
				err := usual(k)
				if table.Valid(ddp.STag(k)) {
					late.Add(1)
				}
				return err
			}
		})
		require.NoError(t, err)
		var posts sync.WaitGroup
		t.Cleanup(posts.Wait) // when the device is closed
		h := hostOn(t, d)
		meet := func(name string) *caller {
			c := &caller{name: name}
			c.p, c.e = h.accept(t, request, 4)
			c.p.Send(send(1, "go")) // now both sides may send
			require.NoError(t, c.e.wait(t, 1)[0].Err())
			callers = append(callers, c)
			return c
		}
		read := make([]byte, 64<<10)
		meet("a peer that waits").run(func(tcp net.Conn) (int, error) { return tcp.Read(read) })

		c := meet("a peer that writes")
		write := wiretest.Frame(wiretest.Tagged(0, true, uint32(c.e.remote.RKey), c.e.remote.Addr, make([]byte, 4096)), true)
		c.run(func(tcp net.Conn) (int, error) { return tcp.Write(write) })

		c = meet("a peer that reads")
		answer := make([]byte, len(write)) // a Read Response of 4096 octets
		msn := uint32(0)
		key, addr := uint32(c.e.remote.RKey), c.e.remote.Addr
		c.run(func(tcp net.Conn) (int, error) {
			msn++
			if _, err := tcp.Write(wiretest.Frame(wiretest.ReadRequest(msn, 1, 0, 4096, key, addr), true)); err != nil {
				return 0, err
			}
			return io.ReadFull(tcp, answer)
		})

		c = meet("a peer that is sent to")
		sink := make([]byte, 64<<10)
		c.run(func(tcp net.Conn) (int, error) { return tcp.Read(sink) })
		e := c.e
		posts.Go(func() {
			for e.State() == verbs.QPSRTS {
				_, _ = e.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGL: []verbs.SGE{e.mr.SGE(0, 4096)}}})
			}
		})
		for _, c := range callers[1:] {
			require.Eventually(t, func() bool { return c.did.Load() > 16<<10 }, 30*time.Second, time.Millisecond, c.name)
		}
		require.Equal(t, len(callers), table.Len())

		closed := make(chan error, 1)
		go func() { closed <- d.Close() }()
		select {
		case err := <-closed:
			require.NoError(t, err)
		case <-time.After(20 * time.Second):
			require.Fail(t, "Close waits for the peers")
		}
		require.Zero(t, table.Len())
		require.Zero(t, running.Load(), "keys were ended before the connections")
		require.Zero(t, early.Load())
		require.Zero(t, late.Load(), "memory was given back before its key was invalid")
		for _, c := range callers {
			require.False(t, table.Valid(ddp.STag(c.e.remote.RKey)), c.name)
			require.False(t, c.e.mr.Valid(), c.name)
			c.e.ended(t)
			require.NoError(t, c.e.Err(), c.name)
			require.ErrorIs(t, <-c.end, syscall.ECONNRESET, c.name)
		}
		s := d.Stats()
		require.Zero(t, s.Counter("rdmap.terminates_out"), "a reset has no last words")
	})
	for round := range 4 {
		l := kernel(t, iwarp.Protocol{DrainTimeout: time.Second})
		var ps []pair
		for range 4 {
			ps = append(ps, l.connect(t, arena, nil))
		}
		var posts sync.WaitGroup
		for i := range ps {
			fill(ps[i].mine.mr.Bytes(), uint64(i))
			posts.Go(func() {
				for ps[i].mine.State() == verbs.QPSRTS {
					_, _ = ps[i].mine.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, SGL: []verbs.SGE{ps[i].mine.mr.SGE(0, arena)}, Remote: ps[i].theirs.remote}})
				}
			})
		}
		time.Sleep(time.Duration(round*3) * time.Millisecond)
		require.NoError(t, l.b.Close())
		t.Run("SEC-57 after Close the memory of the regions is left alone", func(t *testing.T) {
			var after [][]byte
			for i := range ps {
				after = append(after, bytes.Clone(ps[i].theirs.mr.Bytes()))
			}
			time.Sleep(50 * time.Millisecond)
			for i := range ps {
				require.True(t, bytes.Equal(after[i], ps[i].theirs.mr.Bytes()), "octets came after Close")
			}
		})
		t.Run("SEC-57 every queue pair is over, on both sides", func(t *testing.T) {
			for i := range ps {
				ps[i].over(t)
				require.NoError(t, ps[i].theirs.Err(), "its own wish")
				require.ErrorIs(t, ps[i].mine.Err(), syscall.ECONNRESET)
			}
			posts.Wait()
			s := l.b.Stats()
			require.Zero(t, s.QPs+s.MRs+s.CQs+s.PDs+s.SRQs)
			require.Zero(t, s.Counter("tcp.open"))
		})
	}
}
