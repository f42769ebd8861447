package iwarp_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestPrivateData(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 20*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
		require.NoError(t, err)
		defer lis.Close()
		for _, n := range []int{0, 1, 251, 252, 508} {
			sent := make([]byte, n)
			fill(sent, uint64(n))
			accepted := make(chan *rdmacm.Conn, 1)
			go func() {
				req, err := lis.Accept(ctx)
				if !errors.Is(err, nil) {
					t.Errorf("accept: %v", err)
					return
				}
				c, err := req.Accept(ctx, rdmacm.AcceptConfig{PrivateData: req.PrivateData()})
				if err != nil {
					t.Errorf("accept: %v", err)
				}
				accepted <- c
			}()
			c, err := (&rdmacm.Dialer{Device: l.a, PrivateData: sent}).Dial(ctx, lis.Addr().String())
			require.NoError(t, err)
			require.Equal(t, string(sent), string(c.PrivateData()))
			s := <-accepted
			require.Equal(t, c.LocalAddr(), s.RemoteAddr())
			require.NoError(t, c.Close())
			require.NoError(t, s.Close())
		}
		_, err = (&rdmacm.Dialer{Device: l.a, PrivateData: make([]byte, 509)}).Dial(ctx, lis.Addr().String())
		require.ErrorContains(t, err, "508")
	})
}

// TestConnectErrors shows that what can go wrong with a connect is told apart.
func TestConnectErrors(t *testing.T) {
	t.Run("rejected", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
			ctx := within(t, 10*time.Second)
			lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
			require.NoError(t, err)
			defer lis.Close()
			go func() {
				if req, err := lis.Accept(ctx); err == nil {
					err = req.Reject(ctx, []byte("go away"))
					if err == nil {
						err = req.Reject(ctx, nil)
						if err == nil {
							t.Error("a second answer was taken")
						}
						return
					}
					t.Errorf("reject: %v", err)
				}
			}()
			_, err = (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
			var rejected *verbs.RejectError
			require.ErrorAs(t, err, &rejected)
			require.Equal(t, "go away", string(rejected.PrivateData))
		})
	})
	t.Run("refused", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
			_, err := (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 10*time.Second), netip.AddrPortFrom(l.addr, 1).String())
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			var rejected *verbs.RejectError
			require.False(t, errors.As(err, &rejected))
		})
	})
	t.Run("unreachable", func(t *testing.T) {
		l := pipe(t, iwarp.PipeConfig{})
		_, err := (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 20*time.Second), "10.77.0.9:7174")
		require.ErrorIs(t, err, syscall.EHOSTUNREACH)
		_, err = (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 20*time.Second), "192.0.2.1:7174")
		require.ErrorIs(t, err, syscall.ENETUNREACH)
	})
	t.Run("nobody answers", func(t *testing.T) {
		var fb *pktio.Faulty
		l := pipe(t, iwarp.PipeConfig{
			Protocol: iwarp.Protocol{ConnectTimeout: 300 * time.Millisecond},
			Faulty:   func(_, b *pktio.Faulty) { fb = b },
		})
		l.connect(t, 4096, nil).mine.Close() // so that the neighbour is known
		fb.Cut(true)
		_, err := (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 10*time.Second), "10.77.0.2:7174")
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
	})
	t.Run("a silent server", func(t *testing.T) {
		l := kernel(t, iwarp.Protocol{ConnectTimeout: 300 * time.Millisecond})
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		_, err = (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 10*time.Second), lis.Addr().String())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err = (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)

		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err = (&rdmacm.Dialer{Device: l.a}).Dial(ctx, lis.Addr().String())
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("a server of another protocol", func(t *testing.T) {
		l := kernel(t, iwarp.Protocol{})
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		go func() {
			if c, err := lis.Accept(); err == nil {
				_, _ = c.Write([]byte("220 mail.example.org ESMTP ready\r\n"))
				_, _ = c.Read(make([]byte, 1024))
				c.Close()
			}
		}()
		_, err = (&rdmacm.Dialer{Device: l.a}).Dial(within(t, 10*time.Second), lis.Addr().String())
		require.ErrorContains(t, err, "MPA")
	})
	t.Run("the port is taken", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
			ctx := within(t, 10*time.Second)
			lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
			require.NoError(t, err)
			_, err = (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, lis.Addr().String())
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.NoError(t, lis.Close())
			require.NoError(t, lis.Close())
			_, err = lis.Accept(ctx)
			require.ErrorIs(t, err, net.ErrClosed)
		})
	})
	t.Run("a queue pair that was used", func(t *testing.T) {
		l := pipe(t, iwarp.PipeConfig{})
		p := l.connect(t, 4096, nil)
		_, err := l.a.Provider().Dial(within(t, time.Second), p.mine.Num(), verbs.ConnParams{Remote: p.mine.RemoteAddr()})
		require.ErrorContains(t, err, "state RTS")
	})
}

// TestRequestBeforeAccept is a peer that leaves while the application thinks.
func TestRequestBeforeAccept(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		ctx := within(t, 10*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
		require.NoError(t, err)
		defer lis.Close()
		dctx, cancel := context.WithCancel(ctx)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, err := (&rdmacm.Dialer{Device: l.a}).Dial(dctx, lis.Addr().String())
			if !errors.Is(err, context.Canceled) {
				t.Errorf("dial: %v", err)
			}
		}()
		req, err := lis.Accept(ctx)
		require.NoError(t, err)
		cancel()
		<-gone
		require.Eventually(t, func() bool {
			_, err = req.Accept(ctx, rdmacm.AcceptConfig{})
			return err != nil
		}, 5*time.Second, 10*time.Millisecond)
	})
}

func TestSetupPolicy(t *testing.T) {
	dial := func(t *testing.T, mine, theirs iwarp.Protocol) (*rdmacm.Conn, error) {
		open := func(p iwarp.Protocol) *verbs.Device {
			d, err := iwarp.Open(within(t, time.Minute), iwarp.Config{Backend: iwarp.Kernel, Protocol: p})
			require.NoError(t, err)
			closeAfter(t, d)
			return d
		}
		ctx := within(t, 10*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: open(theirs)}).Listen(ctx, "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { lis.Close() })
		go func() {
			for req := range lis.All(ctx) {
				if _, err := req.Accept(ctx, rdmacm.AcceptConfig{}); err != nil {
					t.Logf("accept: %v", err)
				}
			}
		}()
		return (&rdmacm.Dialer{Device: open(mine)}).Dial(ctx, lis.Addr().String())
	}
	p := func(f func(*iwarp.Protocol)) iwarp.Protocol {
		var p iwarp.Protocol
		f(&p)
		return p
	}
	noCRC := p(func(p *iwarp.Protocol) { p.NoCRC = true })
	needCRC := p(func(p *iwarp.Protocol) { p.RequireCRC = true })
	rev1 := p(func(p *iwarp.Protocol) { p.Rev1 = true })
	needRev2 := p(func(p *iwarp.Protocol) { p.RequireRev2 = true })
	clientServer := p(func(p *iwarp.Protocol) { p.ClientServer = true })
	offerWrite := p(func(p *iwarp.Protocol) { p.OfferRTR = iwarp.RTRWrite | iwarp.RTRRead })
	for _, c := range []struct {
		name         string
		mine, theirs iwarp.Protocol
		ok           bool
	}{
		{"defaults", iwarp.Protocol{}, iwarp.Protocol{}, true},
		{"neither wants CRC", noCRC, noCRC, true},
		{"MPA-22 one side wants CRC", noCRC, iwarp.Protocol{}, true},
		{"SEC-60 CRC demanded of a peer that asks for none", noCRC, needCRC, false},
		{"SEC-60 CRC demanded by the initiator", needCRC, noCRC, true}, // a responder echoes C
		{"MPA-33 revision 1", rev1, iwarp.Protocol{}, true},
		{"MPA-34 revision 1 responder", iwarp.Protocol{}, rev1, true},
		{"MPA-34 revision 1 responder and no falling back", needRev2, rev1, false},
		{"SEC-60 revision 2 demanded", rev1, needRev2, false},
		{"client/server", clientServer, iwarp.Protocol{}, true},
		{"Write as ready-to-receive message", offerWrite, iwarp.Protocol{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := dial(t, c.mine, c.theirs)
			if !c.ok {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		})
	}
	for _, bad := range []iwarp.Protocol{
		{NoCRC: true, RequireCRC: true}, {Rev1: true, RequireRev2: true}, {IRD: 129}, {ORD: -1}, {ConnectTimeout: -1},
	} {
		_, err := iwarp.Open(context.Background(), iwarp.Config{Backend: iwarp.Kernel, Protocol: bad})
		require.Error(t, err, "%+v", bad)
	}
}

// TestWrongTerminates has a peer whose last word is not as it should be: it is taken for
// one, and what follows is the same as behind a right one.
func TestWrongTerminates(t *testing.T) {
	term := func(change func(b []byte)) []byte {
		b := wiretest.Terminate(0x1203)
		change(b)
		return b
	}
	right := wiretest.Terminate(0x1203)
	for name, words := range map[string][][]byte{
		"on queue 0":          {term(func(b []byte) { b[9] = 0 })},
		"on queue 1":          {term(func(b []byte) { b[9] = 1 })},
		"with MSN 2":          {term(func(b []byte) { b[13] = 2 })},
		"with MO 4":           {term(func(b []byte) { b[17] = 4 })},
		"without its payload": {right[:18]},
		"tagged":              {wiretest.Tagged(7, true, 1, 0, right[18:])},
		"and a second one":    {right, term(func(b []byte) { b[13] = 2 })},
		"twice the same":      {right, right},
	} {
		for role, begin := range map[string]func(t *testing.T) (*wiretest.Peer, end){
			"initiator": func(t *testing.T) (*wiretest.Peer, end) { return victim(t, 2) },
			"responder": func(t *testing.T) (*wiretest.Peer, end) {
				o := agree(t, 2, 0, 1, plain(1, 1))
				return o.Peer, *o.e
			},
		} {
			t.Run("RDM-61 a Terminate "+name+", of a peer that was the "+role+": no answer, and the connection is closed", func(t *testing.T) {
				t.Parallel()
				p, e := begin(t)
				p.Send(words...)
				e.ended(t)
				p.ExpectEOF() // nothing before it, and no reset
				require.Equal(t, verbs.QPSErr, e.State())
				var said *verbs.TerminateError
				require.ErrorAs(t, e.Err(), &said)
				require.True(t, said.Remote)
				e.flushedOf(t, 2)
			})
		}
	}
}
