package iwarp_test

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// request is what a careful initiator without the enhanced block sends.
var request = wiretest.Startup{Flags: wiretest.FlagC, Rev: 1}

// victim accepts a scripted peer. The receives are 16 octets each.
func victim(t *testing.T, receives int) (*wiretest.Peer, end) {
	return victimWith(t, iwarp.Protocol{DrainTimeout: time.Second}, receives)
}

func victimWith(t *testing.T, proto iwarp.Protocol, receives int) (*wiretest.Peer, end) {
	l := kernel(t, proto)
	ctx := within(t, 10*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	e := newEnd(t, l.b, 4096)
	done := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			e.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: e.pd, QP: e.qp(), Prepare: func(qp *verbs.QP) error {
				for i := range receives {
					if _, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i + 1), SGL: []verbs.SGE{e.mr.SGE(i*16, 16)}}}); err != nil {
						return err
					}
				}
				return nil
			}})
		}
		done <- err
	}()
	p := wiretest.DialPeer(t, lis.Addr().String())
	rep := p.Initiate(request)
	require.EqualValues(t, wiretest.FlagC, rep.Flags&(wiretest.FlagC|wiretest.FlagR))
	require.NoError(t, <-done)
	return p, e
}

func send(msn uint32, payload string) []byte {
	return wiretest.Untagged(3, true, 0, 0, msn, 0, []byte(payload))
}

// TestScripted holds a responder against octets made by hand: the Terminate,
// then the FIN, then completions for everything posted, and nothing left.
func TestScripted(t *testing.T) {
	for _, c := range []struct {
		name string
		play func(p *wiretest.Peer, e *end)
		term uint16 // the Terminate due; 0 for none
		fin  bool   // the peer sees a FIN; else anything that ends the connection
		recv []verbs.WCStatus
		err  bool // QP.Err is set
	}{
		{name: "MPA-59 a flipped bit", term: 0x2002, fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, _ *end) {
			f := wiretest.Frame(send(1, "hello"), true)
			f[21] ^= 4
			p.Write(f)
		}},
		{name: "SEC-44 octets behind an error are not parsed", term: 0x2002, fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, e *end) {
			f := wiretest.Frame(send(1, "hello"), true)
			f[len(f)-1] ^= 1
			p.Write(append(f, wiretest.Frame(wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr, []byte("placed!!")), true)...))
		}},
		{name: "DDP-43 a Write to an unknown STag", term: 0x1100, fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.Tagged(0, true, uint32(e.remote.RKey)^0x100, e.remote.Addr, []byte("placed!!")))
		}},
		{name: "RDM-16 a Read past the end", term: 0x0101, fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.ReadRequest(1, 0x01020304, 0, 8, uint32(e.remote.RKey), e.remote.Addr+4089))
		}},
		{name: "RDM-31 a Read Response nobody asked for", term: 0x0206, fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.Tagged(2, true, uint32(e.remote.RKey), e.remote.Addr, []byte("placed!!")))
		}},
		{name: "DDP-39 a third Send into two receives", term: 0x1202, fin: true, err: true,
			recv: []verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess}, play: func(p *wiretest.Peer, _ *end) {
				p.Send(send(1, "one"), send(2, "two"), send(3, "three"))
			}},
		{name: "MPA-76 octet by octet, then a FIN in order", fin: true,
			recv: []verbs.WCStatus{verbs.WCSuccess, verbs.WCWRFlushErr}, play: func(p *wiretest.Peer, _ *end) {
				p.Drip(wiretest.Frame(send(1, "slow"), true))
				p.CloseWrite()
			}},
		{name: "MPA-78 a FIN inside an FPDU", recv: flushed(2), err: true, play: func(p *wiretest.Peer, _ *end) {
			p.Write(wiretest.Frame(send(1, "hello"), true)[:20])
			p.CloseWrite()
		}},
		{name: "DDP-59 a FIN inside a message", term: 0x0207, fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, _ *end) {
			p.Send(wiretest.Untagged(3, false, 0, 0, 1, 0, []byte("half")))
			p.CloseWrite()
		}},
		{name: "RDM-57 a Terminate is not answered", fin: true, recv: flushed(2), err: true, play: func(p *wiretest.Peer, _ *end) {
			p.Send(wiretest.Terminate(0x0000))
		}},
		{name: "RDM-88 a reset", recv: flushed(2), err: true, play: func(p *wiretest.Peer, _ *end) {
			p.Reset()
		}},
		{name: "RDM-88 a reset inside a message", recv: flushed(2), err: true, play: func(p *wiretest.Peer, _ *end) {
			p.Send(wiretest.Untagged(3, false, 0, 0, 1, 0, []byte("half")))
			p.Reset()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := victim(t, 2)
			before := append([]byte(nil), e.mr.Bytes()[32:]...)
			c.play(p, &e)
			if c.term != 0 {
				p.ExpectTerminate(c.term)
			}
			select {
			case <-e.Done():
			case <-time.After(5 * time.Second):
				require.Fail(t, "the queue pair did not end", "state %v", e.State())
			}
			require.Equal(t, c.recv, statuses(e.wait(t, 2)))
			require.Equal(t, c.err, e.Err() != nil, "%v", e.Err())
			require.Equal(t, before, e.mr.Bytes()[32:], "octets outside the receives changed")
			if c.fin {
				p.ExpectEOF()
			}
		})
	}
}

// TestTerminateBehindFullWindow is a peer that errs and says FIN while it does
// not read what it asked for: RDM-59, the Terminate waits for the window and is
// not lost to the FIN.
func TestTerminateBehindFullWindow(t *testing.T) {
	const size = 16 << 20
	for range 5 {
		p, e := victim(t, 1)
		mr, err := e.pd.AllocMR(size, verbs.AccessRemoteRead)
		require.NoError(t, err)
		p.Send(wiretest.ReadRequest(1, 1, 0, size, uint32(mr.Key()), mr.Remote().Addr), send(1, "go"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		bad := wiretest.Frame(send(2, "x"), true)
		bad[20] ^= 1
		p.Write(bad)
		<-e.Done()
		p.CloseWrite()
		time.Sleep(20 * time.Millisecond) // so that it has met the FIN too
		var u []byte
		for u = p.Next(); u[0]&0x80 != 0; u = p.Next() { // parts of the Read Response
		}
		require.Equal(t, []byte{0x20, 0x02}, u[18:20], "the Terminate")
		p.ExpectEOF()
	}
}

// TestDisconnectAnswersReads ends a connection in order while the peer waits
// for more Reads than one burst answers, and more octets than the window takes.
// The peer takes them for longer than DrainTimeout, which begins with our FIN.
func TestDisconnectAnswersReads(t *testing.T) {
	const reads, size = 14, 1 << 20
	p, e := victim(t, 1)
	require.NoError(t, p.Conn().(*net.TCPConn).SetReadBuffer(64<<10))
	mr, err := e.pd.AllocMR(size, verbs.AccessRemoteRead)
	require.NoError(t, err)
	var requests [][]byte
	for i := range reads {
		requests = append(requests, wiretest.ReadRequest(uint32(i+1), 1, 0, size, uint32(mr.Key()), mr.Remote().Addr))
	}
	p.Send(append(requests, send(1, "go"))...)
	require.NoError(t, e.wait(t, 1)[0].Err()) // all requests were there before
	require.NoError(t, e.Disconnect(within(t, 5*time.Second)))
	require.NoError(t, p.Conn().SetReadDeadline(time.Now().Add(20*time.Second)))
	for range 10 {
		_, err := io.CopyN(io.Discard, p.Conn(), size)
		require.NoError(t, err)
		time.Sleep(150 * time.Millisecond)
	}
	rest, err := io.Copy(io.Discard, p.Conn()) // to the FIN
	require.NoError(t, err)
	require.Greater(t, rest, int64((reads-10)*size), "all responses and their headers")
	require.NoError(t, e.Err())
}

// TestNoAnswer is a peer that never says FIN after our Terminate.
func TestNoAnswer(t *testing.T) {
	p, e := victim(t, 1)
	p.Send(wiretest.Terminate(0x0000))
	<-e.Done()
	p.ExpectEOF()
	// RDM-59: the connection is given up after the drain timeout.
	require.Eventually(t, func() bool {
		_, err := p.Conn().Write([]byte{0})
		return err != nil
	}, 5*time.Second, 50*time.Millisecond)
}

// TestManyStrangers shows that peers which misbehave leave nothing behind.
func TestManyStrangers(t *testing.T) {
	l := kernel(t, iwarp.Protocol{DrainTimeout: 100 * time.Millisecond})
	ctx := within(t, 60*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	go func() {
		for req := range lis.All(ctx) {
			if c, err := req.Accept(ctx, rdmacm.AcceptConfig{}); err == nil {
				go func() {
					<-c.Done()
					c.Close()
				}()
			}
		}
	}()
	round := func(n int) {
		for range n {
			p := wiretest.DialPeer(t, lis.Addr().String())
			p.Initiate(request)
			p.Send(wiretest.Tagged(0, true, 0x0badcafe, 1<<40, []byte("nowhere")))
			p.ExpectTerminate(0x1100)
			p.Conn().Close()
		}
		require.Eventually(t, func() bool {
			s := l.b.Stats()
			return s.QPs+s.MRs+s.CQs+s.PDs == 0
		}, 10*time.Second, 10*time.Millisecond)
	}
	round(20)
	goroutines := runtime.NumGoroutine()
	round(200)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+2 }, 10*time.Second, 10*time.Millisecond,
		"%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
}

// TestScriptedResponder dials servers that go wrong at every stage of set-up.
func TestScriptedResponder(t *testing.T) {
	reply := func(depths ...uint16) wiretest.Startup {
		return wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(depths[0], depths[1])}
	}
	good := reply(wiretest.BlockA|8, wiretest.BlockD|8)
	for _, c := range []struct {
		name string
		play func(p *wiretest.Peer)
		err  string // of the dial; empty: it succeeds
		is   error  // in the chain of err
		term uint16 // the Terminate that the server is owed
	}{
		{name: "closes unheard", err: "MPA Reply", play: func(p *wiretest.Peer) { p.Startup(); p.Conn().Close() }},
		// It is dialed once more, with revision 1, and does not answer that.
		{name: "resets unheard", err: "no MPA Reply on the TCP connection to 127.0.0.1:", play: func(p *wiretest.Peer) { p.Startup(); p.Reset() }},
		{name: "half closes unheard", err: "MPA Reply", play: func(p *wiretest.Peer) { p.Startup(); p.CloseWrite() }},
		{name: "MPA-03 answers with a Request", err: "both ends are initiators", is: mpa.ErrBothInitiate, play: func(p *wiretest.Peer) {
			p.Startup()
			p.Write(good.Octets())
			p.ExpectClosed() // and nothing said
		}},
		{name: "half a Reply, then FIN", err: "MPA Reply", play: func(p *wiretest.Peer) {
			p.Startup()
			r := good
			r.Reply = true
			p.Write(r.Octets()[:19])
			p.CloseWrite()
		}},
		{name: "a Reply octet by octet, with a Send at its heels", play: func(p *wiretest.Peer) {
			p.Startup()
			r := good
			r.Reply = true
			p.Drip(append(r.Octets(), wiretest.Frame(send(1, "hello"), true)...))
		}},
		{name: "a Reply and a FIN", play: func(p *wiretest.Peer) { p.Respond(good); p.CloseWrite() }},
		{name: "a Reply and a reset", play: func(p *wiretest.Peer) { p.Respond(good); p.Reset() }},
		{name: "a Reply and garbage", play: func(p *wiretest.Peer) { p.Respond(good); p.Write(make([]byte, 1000)) }},
		{name: "MPA-39 needs more Reads than we take", err: "limit", term: 0x2006, play: func(p *wiretest.Peer) {
			p.Respond(reply(wiretest.BlockA|8, wiretest.BlockD|1000))
		}},
		{name: "MPA-45 no common ready-to-receive message", err: "mpa", term: 0x2007, play: func(p *wiretest.Peer) {
			p.Respond(reply(wiretest.BlockA|8, wiretest.BlockC|8))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := kernel(t, iwarp.Protocol{DrainTimeout: 200 * time.Millisecond, ConnectTimeout: 2 * time.Second})
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer lis.Close()
			e := newEnd(t, l.a, 4096)
			dialed := make(chan error, 1)
			go func() {
				var err error
				d := rdmacm.Dialer{Device: l.a, PD: e.pd, QP: e.qp(), Prepare: func(qp *verbs.QP) error {
					_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{e.mr.SGE(0, 16)}}})
					return err
				}}
				e.Conn, err = d.Dial(within(t, 10*time.Second), lis.Addr().String())
				dialed <- err
			}()
			tcp, err := lis.Accept()
			require.NoError(t, err)
			p := wiretest.NewPeer(t, tcp)
			c.play(p)
			if c.term != 0 {
				p.ExpectTerminate(c.term)
				p.ExpectEOF()
			}
			err = <-dialed
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
			} else if err == nil { // a reset may have been quicker
				require.NoError(t, e.Conn.Close())
			}
			require.EqualValues(t, 1, e.wait(t, 1)[0].ID, "the receive has its completion")
		})
	}
}

// TestNudge is a responder that does not notice what arrives right behind its
// Reply, as Linux siw may.
func TestNudge(t *testing.T) {
	l := kernel(t, iwarp.Protocol{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	sent := make(chan error, 1)
	ctx := within(t, 10*time.Second)
	go func() {
		sent <- func() error {
			c, err := (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
			if err != nil {
				return err
			}
			return c.Send(ctx, []byte("data"))
		}()
	}()
	conn, err := lis.Accept()
	require.NoError(t, err)
	p := wiretest.NewPeer(t, conn)
	p.Respond(wiretest.Startup{Reply: true, Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2,
		Private: wiretest.Block(wiretest.BlockA|1, wiretest.BlockD|1)})
	p.Expect(wiretest.ReadRequest(1, 1, 0, 0, 1, 0))
	p.Expect(wiretest.Tagged(0, true, 1, 0, nil)) // an empty Write, for the peer to look again
	p.Expect(send(1, "data"))
	require.NoError(t, <-sent)
	p.Send(wiretest.Tagged(2, true, 1, 0, nil))
	p.ExpectSilence(100 * time.Millisecond)
}
