package iwarp_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// post5 posts five receives, numbered from 1.
func post5(e *end, qp *verbs.QP) error {
	for i := range 5 {
		if _, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i + 1), SGL: []verbs.SGE{e.mr.SGE(i*16, 16)}}}); err != nil {
			return err
		}
	}
	return nil
}

func flushed(n int) (s []verbs.WCStatus) {
	for range n {
		s = append(s, verbs.WCWRFlushErr)
	}
	return s
}

func TestDisconnect(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		p := l.connect(t, 4096, post5)
		fill(p.mine.mr.Bytes()[100:116], 1)
		p.mine.send(t, verbs.SendWR{ID: 9, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(100, 16)}})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		require.NoError(t, p.mine.Disconnect(within(t, 5*time.Second)))
		p.over(t)
		require.NoError(t, p.mine.Err())
		require.NoError(t, p.theirs.Err())

		// What had completed arrives, and the posted receives are flushed in order.
		wcs := p.theirs.wait(t, 5)
		require.Equal(t, append([]verbs.WCStatus{verbs.WCSuccess}, flushed(4)...), statuses(wcs))
		require.Equal(t, []uint64{1, 2, 3, 4, 5}, ids(wcs))
		require.Equal(t, p.mine.mr.Bytes()[100:116], p.theirs.mr.Bytes()[:16])
		require.Equal(t, flushed(5), statuses(p.mine.wait(t, 5)))

		// VRB-18: work requests posted in ERR are flushed too, the unsignaled ones as well.
		p.mine.send(t, verbs.SendWR{ID: 20, Op: verbs.OpSend})
		p.mine.recv(t, verbs.RecvWR{ID: 21})
		require.ElementsMatch(t, []uint64{20, 21}, ids(p.mine.wait(t, 2)))
	})
}

// TestErrors has one row for each way a stream ends by an error: what the two
// sides' work requests get and what each side says.
func TestErrors(t *testing.T) {
	bad := verbs.Key(0x12345601)
	for _, c := range []struct {
		name   string
		op     verbs.Opcode
		local  func(p *pair) verbs.SGE
		remote func(p *pair) verbs.RemoteBuf
		posted int // receives of the responder, 16 octets each
		status verbs.WCStatus
		code   uint16 // of the Terminate
		byPeer bool   // sent by the responder
		recv   verbs.WCStatus
	}{
		{name: "RDM-16 Read of an unknown key", op: verbs.OpRead, byPeer: true, status: verbs.WCRemAccessErr, code: 0x0100,
			remote: func(p *pair) verbs.RemoteBuf { return verbs.RemoteBuf{Addr: p.theirs.remote.Addr, RKey: bad, Len: 16} }},
		{name: "RDM-16 Read past the end", op: verbs.OpRead, byPeer: true, status: verbs.WCRemAccessErr, code: 0x0101,
			remote: func(p *pair) verbs.RemoteBuf {
				r := p.theirs.remote
				r.Addr += uint64(r.Len) - 8
				return r
			}},
		{name: "SEC-11 Read without the right", op: verbs.OpRead, byPeer: true, status: verbs.WCRemAccessErr, code: 0x0102,
			remote: func(p *pair) verbs.RemoteBuf { return region(p.theirs.pd, verbs.AccessLocalWrite) }},
		{name: "SEC-03 Read of another protection domain", op: verbs.OpRead, byPeer: true, status: verbs.WCRemAccessErr, code: 0x0103,
			remote: func(p *pair) verbs.RemoteBuf {
				pd, _ := p.theirs.dev.AllocPD()
				return region(pd, verbs.AccessRemoteRead)
			}},
		{name: "DDP-43 Write to an unknown key", op: verbs.OpWrite, byPeer: true, status: verbs.WCSuccess, code: 0x1100,
			remote: func(p *pair) verbs.RemoteBuf { return verbs.RemoteBuf{Addr: p.theirs.remote.Addr, RKey: bad, Len: 16} }},
		{name: "DDP-39 Send without a receive", op: verbs.OpSend, byPeer: true, status: verbs.WCSuccess, code: 0x1202},
		{name: "DDP-42 Send longer than the receive", op: verbs.OpSend, posted: 1, byPeer: true, status: verbs.WCSuccess, code: 0x1205,
			recv: verbs.WCLocLenErr, local: func(p *pair) verbs.SGE { return p.mine.mr.SGE(0, 17) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
				p := l.connect(t, 4096, nil)
				for i := range c.posted {
					p.theirs.recv(t, verbs.RecvWR{ID: uint64(i + 1), SGL: []verbs.SGE{p.theirs.mr.SGE(0, 16)}})
				}
				wr := verbs.SendWR{ID: 1, Op: c.op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, 16)}}
				if c.local != nil {
					wr.SGL[0] = c.local(&p)
				}
				if c.remote != nil {
					wr.Remote = c.remote(&p)
				}
				p.mine.send(t, wr)
				wc := p.mine.wait(t, 1)[0]
				require.Equal(t, c.status, wc.Status)
				p.over(t)

				var term *verbs.TerminateError
				require.ErrorAs(t, p.mine.Err(), &term)
				require.Equal(t, c.code, term.Value(), "%v", term)
				require.Equal(t, c.byPeer, term.Remote)
				require.ErrorAs(t, p.theirs.Err(), &term)
				require.Equal(t, c.code, term.Value(), "%v", term)
				require.Equal(t, !c.byPeer, term.Remote)
				if wc.Err() != nil {
					require.EqualValues(t, c.code, wc.VendorErr)
				}
				if c.posted > 0 {
					require.Equal(t, c.recv, p.theirs.wait(t, 1)[0].Status)
				}
				p.mine.quiet(t)
			})
		})
	}
}

func region(pd *verbs.PD, a verbs.Access) verbs.RemoteBuf {
	mr, err := pd.AllocMR(4096, a)
	if err != nil {
		panic(err)
	}
	return mr.Remote()
}

// TestDeregistered posts work requests whose memory is gone when its turn comes.
func TestDeregistered(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	t.Run("VRB-32 a receive buffer", func(t *testing.T) {
		p := l.connect(t, 4096, nil)
		mr, err := p.theirs.pd.AllocMR(64, verbs.AccessLocalWrite)
		require.NoError(t, err)
		p.theirs.recv(t, verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 64)}}, verbs.RecvWR{ID: 2})
		require.NoError(t, mr.Close())
		p.mine.send(t, verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}})
		wcs := p.theirs.wait(t, 2)
		require.Equal(t, []verbs.WCStatus{verbs.WCLocProtErr, verbs.WCWRFlushErr}, statuses(wcs))
		p.over(t)
		var term *verbs.TerminateError
		require.ErrorAs(t, p.mine.Err(), &term)
		require.EqualValues(t, 0, term.Value())
	})
	t.Run("VRB-32 a source behind a Read", func(t *testing.T) {
		p := l.connect(t, 4096, nil)
		mr, err := p.mine.pd.AllocMR(64, verbs.AccessLocalWrite)
		require.NoError(t, err)
		sge := mr.SGE(0, 64)
		// Fenced behind Reads, so that it has not started when its memory goes.
		read := verbs.SendWR{ID: 1, Op: verbs.OpRead, SGL: []verbs.SGE{p.mine.mr.SGE(0, 2048)}, Remote: p.theirs.remote.Slice(0, 2048)}
		p.mine.send(t, read, read, read,
			verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.SendFence, SGL: []verbs.SGE{sge}, Remote: p.theirs.remote.Slice(0, 64)},
			verbs.SendWR{ID: 3, Op: verbs.OpWrite, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(0, 8)})
		require.NoError(t, mr.Close())
		// It may have been quick enough: then everything has succeeded silently.
		select {
		case <-p.mine.Done():
			wcs := p.mine.wait(t, 2)
			require.Equal(t, []uint64{2, 3}, ids(wcs))
			require.Equal(t, []verbs.WCStatus{verbs.WCLocProtErr, verbs.WCWRFlushErr}, statuses(wcs))
		case <-time.After(time.Second):
			p.mine.quiet(t)
			require.Equal(t, verbs.QPSRTS, p.mine.State())
		}
	})
}

// TestPeerGone cuts, resets and closes: every work request gets its completion.
func TestPeerGone(t *testing.T) {
	work := func(t *testing.T, p *pair) {
		for i := range 3 {
			p.mine.send(t, verbs.SendWR{ID: uint64(10 + i), Op: verbs.OpRead,
				SGL: []verbs.SGE{p.mine.mr.SGE(0, 1024)}, Remote: p.theirs.remote.Slice(0, 1024)})
		}
	}
	want := func(t *testing.T, p *pair) {
		var sends, recvs []uint64
		for _, wc := range p.mine.wait(t, 8) {
			require.Equal(t, verbs.WCWRFlushErr, wc.Status)
			if wc.ID >= 10 {
				sends = append(sends, wc.ID)
			} else {
				recvs = append(recvs, wc.ID)
			}
		}
		require.Equal(t, []uint64{10, 11, 12}, sends, "VRB-16 send queue in posting order, unsignaled too")
		require.Equal(t, []uint64{1, 2, 3, 4, 5}, recvs, "VRB-16 receive queue in posting order")
	}
	t.Run("the link is cut and the queue pair closed", func(t *testing.T) {
		var fa *pktio.Faulty
		l := pipe(t, iwarp.PipeConfig{Faulty: func(a, _ *pktio.Faulty) { fa = a }})
		p := l.connect(t, 4096, post5)
		fa.Cut(true)
		work(t, &p)
		require.NoError(t, p.mine.QP.Close())
		want(t, &p)
		fa.Cut(false)
	})
	t.Run("the peer resets", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
			p := l.connect(t, 4096, post5)
			require.NoError(t, p.theirs.QP.Close())
			work(t, &p)
			want(t, &p)
			require.Error(t, p.mine.Err())
			require.NoError(t, p.theirs.Err())
		})
	})
	t.Run("the device is closed under traffic", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
			p := l.connect(t, 4096, post5)
			require.NoError(t, l.b.Close())
			work(t, &p)
			want(t, &p)
		})
	})
}

// TestStrangers are TCP clients that are no iWARP peers. None may leave
// anything behind, and an honest peer must get through.
func TestStrangers(t *testing.T) {
	l := kernel(t, iwarp.Protocol{RequestTimeout: 300 * time.Millisecond, HalfOpen: 16})
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	for _, c := range []struct {
		name string
		say  string
		fin  bool
	}{
		{"SEC-09 silence", "", false},
		{"connects and leaves", "", true},
		{"MPA-02 another protocol", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", false},
		{"half a Request", "MPA ID Req Frame", false},
		{"half a Request, then FIN", "MPA ID Req Frame", true},
		{"SEC-39 too much private data", "MPA ID Req Frame\x40\x01\xff\xff", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", lis.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte(c.say))
			require.NoError(t, err)
			if c.fin {
				require.NoError(t, conn.(*net.TCPConn).CloseWrite())
			}
			require.NoError(t, conn.SetReadDeadline(time.Now().Add(5*time.Second)))
			n, err := io.Copy(io.Discard, conn)
			require.Zero(t, n, "MPA-07 no reply to what is no Request")
			if nerr, ok := err.(net.Error); ok {
				require.False(t, nerr.Timeout(), "the connection was left open")
			}
		})
	}
	t.Run("SEC-09 a silent crowd does not lock out an honest peer", func(t *testing.T) {
		for range 100 {
			conn, err := net.Dial("tcp", lis.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
		}
		accepted := make(chan error, 1)
		go func() {
			req, err := lis.Accept(ctx)
			if err == nil {
				_, err = req.Accept(ctx, rdmacm.AcceptConfig{})
			}
			accepted <- err
		}()
		c, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
		require.NoError(t, err)
		require.NoError(t, <-accepted)
		require.NoError(t, c.Close())
		s := l.b.Stats()
		require.Positive(t, s.Counter("cm.half_open_dropped"))
	})
}

// TestOverrun is a completion queue that is too small.
func TestOverrun(t *testing.T) {
	l := pipe(t, iwarp.PipeConfig{})
	other := l.connect(t, 4096, nil)
	p := l.connect(t, 4096, nil)
	small, err := l.a.CreateCQ(verbs.CQConfig{Depth: 4})
	require.NoError(t, err)
	p.mine.cq = small
	waiting, err := p.mine.pd.CreateQP(p.mine.qp())
	require.NoError(t, err)
	q := l.connectWith(t, p.mine, p.theirs)
	for i := range 16 {
		if _, err := q.mine.PostSend([]verbs.SendWR{{ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{q.mine.mr.SGE(0, 8)}, Remote: q.theirs.remote.Slice(0, 8)}}); err != nil {
			break // in error already
		}
	}
	q.over(t)
	var term *verbs.TerminateError
	require.ErrorAs(t, q.theirs.Err(), &term)
	require.EqualValues(t, 0x0207, term.Value(), "VRB-63 an overrun ends the queue pair")
	select {
	case <-waiting.Done(): // VRB-63 all of them, the one without a connection too
	case <-time.After(5 * time.Second):
		require.Fail(t, "a queue pair without a connection was not ended")
	}
	overran, ended := false, false
	for ev, err := range l.a.Events(within(t, 5*time.Second)) {
		require.NoError(t, err)
		switch {
		case ev.Type == verbs.EventCQErr:
			require.Equal(t, small.Num(), ev.CQ)
			overran = true
		case ev.QP == q.mine.Num():
			require.Equal(t, verbs.EventQPFatal, ev.Type, "VRB-63 it is not the peer's fault")
			ended = true
		}
		if overran && ended {
			break
		}
	}
	require.Equal(t, verbs.QPSRTS, other.mine.State(), "VRB-64 other completion queues are not affected")
}

// TestEasy is the easy path: no queues, no registration.
func TestEasy(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 20*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
		require.NoError(t, err)
		defer lis.Close()
		served := make(chan error, 1)
		go func() {
			served <- func() error {
				req, err := lis.Accept(ctx)
				if err != nil {
					return err
				}
				c, err := req.Accept(ctx, rdmacm.AcceptConfig{})
				if err != nil {
					return err
				}
				defer c.Close()
				b := make([]byte, 1<<16)
				for {
					n, err := c.Recv(ctx, b)
					if err == io.EOF {
						return nil
					}
					if err != nil {
						return err
					}
					if err := c.Send(ctx, b[:n]); err != nil {
						return err
					}
				}
			}()
		}()
		c, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
		require.NoError(t, err)
		b := make([]byte, 1<<16)
		for i := range 100 {
			msg := make([]byte, i*600)
			fill(msg, uint64(i))
			require.NoError(t, c.Send(ctx, msg))
			n, err := c.Recv(ctx, b)
			require.NoError(t, err)
			require.Equal(t, string(msg), string(b[:n]))
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		require.NoError(t, c.Close())
		_, err = c.Recv(short, b)
		require.Error(t, err)
		require.NoError(t, <-served)
	})
}
