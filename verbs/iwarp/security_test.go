package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// TestMalformed plays segments whose numbers do not fit together.
func TestMalformed(t *testing.T) {
	h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: time.Second}})
	key := func(e *end) uint32 { return uint32(e.remote.RKey) }
	// The first message makes a window, 3 octets of the second stand.
	begun := func(p *wiretest.Peer, e *end, next func(window uint32) []byte) {
		p.Send(send(1, "go"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		w := newKeys(t, e).window(t, verbs.MWType2, verbs.AccessRemoteWrite)
		inv := uint32(w.Key())
		p.Send(wiretest.Untagged(4, false, inv, 0, 2, 0, []byte("abc")), next(inv))
	}
	for _, c := range []struct {
		name string
		term uint16
		play func(p *wiretest.Peer, e *end)
	}{
		{"SEC-41 a Write whose TO and length pass 2^64", 0x1103, func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.Tagged(0, true, key(e), math.MaxUint64-3, []byte("12345678")))
		}},
		{"SEC-41 a Read whose source passes 2^64", 0x0104, func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.ReadRequest(1, 1, 0, 16, key(e), math.MaxUint64-7))
		}},
		{"SEC-41 a Read whose sink passes 2^64", 0x0104, func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.ReadRequest(1, 1, math.MaxUint64-7, 16, key(e), e.remote.Addr))
		}},
		{"SEC-41 a Read of 2^32-1 octets from a small region", 0x0101, func(p *wiretest.Peer, e *end) {
			p.Send(wiretest.ReadRequest(1, 1, 0, math.MaxUint32, key(e), e.remote.Addr))
		}},
		{"SEC-41 a Send that begins at MO 2^32-1", 0x1204, func(p *wiretest.Peer, _ *end) {
			p.Send(wiretest.Untagged(3, true, 0, 0, 1, math.MaxUint32, []byte("12345678")))
		}},
		{"SEC-41 a Send that goes on at MO 2^32-1", 0x1204, func(p *wiretest.Peer, e *end) {
			p.Send(half(1, "abc"), wiretest.Untagged(3, true, 0, 0, 1, math.MaxUint32, []byte("x")))
		}},
		{"SEC-42 the second segment has another opcode", 0x0206, func(p *wiretest.Peer, _ *end) {
			p.Send(half(1, "abc"), wiretest.Untagged(5, true, 0, 0, 1, 3, []byte("x")))
		}},
		{"SEC-42 the second segment has another queue", 0x1201, func(p *wiretest.Peer, _ *end) {
			p.Send(half(1, "abc"), wiretest.Untagged(3, true, 0, 1, 1, 3, []byte("x")))
		}},
		{"SEC-42 the second segment has another MSN", 0x1203, func(p *wiretest.Peer, _ *end) {
			p.Send(half(1, "abc"), wiretest.Untagged(3, true, 0, 0, 2, 3, []byte("x")))
		}},
		{"SEC-42 the second segment invalidates another STag", 0x0206, func(p *wiretest.Peer, e *end) {
			begun(p, e, func(w uint32) []byte { return wiretest.Untagged(4, true, w+1, 0, 2, 3, []byte("x")) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := h.accept(t, request, 2)
			before := bytes.Clone(e.mr.Bytes()[32:])
			c.play(p, &e)
			p.ExpectTerminate(c.term)
			p.ExpectEOF()
			stopped(t, &e)
			for wc := e.wait(t, 1)[0]; wc.Status != verbs.WCWRFlushErr; wc = e.wait(t, 1)[0] {
				require.NoError(t, wc.Err(), "what came before the bad segment")
			}
			require.Equal(t, before, e.mr.Bytes()[32:], "nothing outside the receives")
		})
	}
	t.Run("SEC-42 the same segments as they should be", func(t *testing.T) {
		p, e := h.accept(t, request, 2)
		begun(p, &e, func(w uint32) []byte { return wiretest.Untagged(4, true, w, 0, 2, 3, []byte("x")) })
		wc := e.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.EqualValues(t, 4, wc.ByteLen)
		require.Equal(t, verbs.QPSRTS, e.State())
	})
}

// TestTerminateIsWord is SEC-43: a Terminate says something and does nothing but
// close the stream that carries it.
func TestTerminateIsWord(t *testing.T) {
	h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: time.Second}})
	po, other := h.accept(t, request, 1)
	for name, say := range map[string][][]byte{
		"one that names another connection's STag": {wiretest.Untagged(7, true, 0, 2, 1, 0, append([]byte{0x11, 0x00, 0xc0, 0, 0, 22}, wiretest.Tagged(0, true, uint32(other.remote.RKey), other.remote.Addr, nil)...))},
		"two of them":                  {wiretest.Terminate(0x1100), wiretest.Terminate(0x0000)},
		"bits M, D and R and no data":  {wiretest.Untagged(7, true, 0, 2, 1, 0, []byte{0x01, 0x02, 0xe0, 0})},
		"no octet at all":              {wiretest.Untagged(7, true, 0, 2, 1, 0, nil)},
		"garbage":                      {wiretest.Untagged(7, true, 0, 2, 1, 0, bytes.Repeat([]byte{0xff}, 50))},
		"one that says device failure": {wiretest.Untagged(7, true, 0, 2, 1, 0, []byte{0x00, 0x01, 0, 0})},
	} {
		t.Run("SEC-43 "+name, func(t *testing.T) {
			p, e := h.accept(t, request, 1)
			p.Send(append(say, wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr+64, []byte("behind")))...)
			stopped(t, &e)
			p.ExpectEOF() // and no answer
			require.Equal(t, make([]byte, 6), e.mr.Bytes()[64:70], "SEC-44 what follows is dropped")
			require.Equal(t, flushed(1), statuses(e.wait(t, 1)))
			require.Equal(t, verbs.QPSRTS, other.State())
		})
	}
	t.Run("SEC-43 SEC-45 the other connection goes on", func(t *testing.T) {
		po.Send(send(1, "alive"))
		require.NoError(t, other.wait(t, 1)[0].Err())
	})
}

// TestNothing is SEC-46: messages of no octets with keys that name nothing.
func TestNothing(t *testing.T) {
	h := newHost(t, iwarp.Config{})
	p, e := h.accept(t, request, 1)
	t.Run("SEC-46 empty Writes with any STag do nothing", func(t *testing.T) {
		for _, stag := range []uint32{0, 0xffffffff, 0x0badcafe, uint32(e.remote.RKey)} {
			p.Send(wiretest.Tagged(0, true, stag, math.MaxUint64, nil))
		}
	})
	t.Run("SEC-46 empty Reads with any STag are answered", func(t *testing.T) {
		for i, stag := range []uint32{0, 0xffffffff, 0x0badcafe, uint32(e.remote.RKey)} {
			p.Send(wiretest.ReadRequest(uint32(i+1), stag, 9, 0, stag, math.MaxUint64))
			u := p.Next()
			require.Equal(t, []byte{0xc1, 0x42}, u[:2])
			require.Len(t, u, 14)
			require.Equal(t, stag, binary.BigEndian.Uint32(u[2:]))
		}
	})
	p.Send(send(1, "alive"))
	require.NoError(t, e.wait(t, 1)[0].Err())
	require.Equal(t, make([]byte, 4096-16), e.mr.Bytes()[16:])
}

// TestTerminateQuotes is SEC-22.
func TestTerminateQuotes(t *testing.T) {
	h := newHost(t, iwarp.Config{})
	secret := bytes.Repeat([]byte("SECRET!!"), 50)
	for name, c := range map[string]struct {
		segment []byte
		code    uint16
		headers int
	}{
		"a Write":        {wiretest.Tagged(0, true, 0x0badcafe, 1<<40, secret), 0x1100, 14},
		"a Send":         {wiretest.Untagged(3, true, 0, 0, 2, 0, secret), 0x1203, 18},
		"a Read Request": {wiretest.ReadRequest(1, 1, 0, 16, 0x0badcafe, 0), 0x0100, 18 + 28},
	} {
		t.Run("SEC-22 SEC-21 the Terminate for "+name+" quotes its header and no octet more", func(t *testing.T) {
			p, e := h.accept(t, request, 1)
			p.Send(c.segment)
			got := p.ExpectTerminate(c.code)
			stopped(t, &e)
			want := make([]byte, 6, 6+c.headers)
			copy(want, got[:3]) // layer, type, code and the bits
			binary.BigEndian.PutUint16(want[4:], uint16(len(c.segment)))
			require.Equal(t, append(want, c.segment[:c.headers]...), got)
			require.NotContains(t, string(got), "SECRET")
		})
	}
}

// TestStaleOctets is SEC-21 and SEC-18: what is on the wire and in the receives is
// what the message has, and no octet of what was there before.
func TestStaleOctets(t *testing.T) {
	t.Run("SEC-21 short messages behind long ones leave zeros in the padding", func(t *testing.T) {
		for _, crc := range []bool{true, false} {
			h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{NoCRC: !crc}})
			req := request
			if !crc {
				req.Flags = 0
			}
			p, e := h.accept(t, req, 1)
			p.Send(send(1, "go"))
			e.wait(t, 1)
			copy(e.mr.Bytes()[1024:], bytes.Repeat([]byte("POISON"), 400))
			for round := range 200 { // the buffers of earlier FPDUs are used again
				n := 1 + round%7
				if round%2 == 0 {
					n = 1200
				}
				e.send(t, verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(1024, n)}})
				u := p.Next() // checks padding and, without CRC, that the field is zero
				require.Len(t, u, 18+n)
				require.NoError(t, e.wait(t, 1)[0].Err())
			}
		}
	})
	t.Run("SEC-18 a receive beyond the message's length is not touched, and a new region is zero", func(t *testing.T) {
		h := newHost(t, iwarp.Config{})
		p, e := h.accept(t, request, 0)
		require.Equal(t, make([]byte, 4096), e.mr.Bytes(), "AllocMR")
		copy(e.mr.Bytes(), bytes.Repeat([]byte{0xee}, 16))
		_, err := e.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{e.mr.SGE(0, 16)}}})
		require.NoError(t, err)
		p.Send(send(1, "seven!!"))
		wc := e.wait(t, 1)[0]
		require.EqualValues(t, 7, wc.ByteLen)
		require.Equal(t, append([]byte("seven!!"), bytes.Repeat([]byte{0xee}, 9)...), e.mr.Bytes()[:16])
	})
}

// TestRightsOnly is what a peer may do with a region that has one right.
func TestRightsOnly(t *testing.T) {
	h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: time.Second}})
	t.Run("SEC-20 a region for remote writes alone cannot be read", func(t *testing.T) {
		p, e := h.accept(t, request, 0)
		mr, err := e.pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		require.NoError(t, err)
		r := mr.Remote()
		p.Send(wiretest.Tagged(0, true, uint32(r.RKey), r.Addr, []byte("written")), wiretest.ReadRequest(1, 1, 0, 7, uint32(r.RKey), r.Addr))
		p.ExpectTerminate(0x0102)
		stopped(t, &e)
		require.Equal(t, "written", string(mr.Bytes()[:7]))
	})
	t.Run("SEC-19 a region that was taken back cannot change under who trusts it", func(t *testing.T) {
		p, e := h.accept(t, request, 1)
		mr, err := e.pd.AllocMR(64, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		require.NoError(t, err)
		r := mr.Remote()
		p.Send(wiretest.Tagged(0, true, uint32(r.RKey), r.Addr, []byte("amount=10")), send(1, "ready"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		require.NoError(t, mr.Close()) // then validate, then use
		require.Equal(t, "amount=10", string(mr.Bytes()[:9]))
		p.Send(wiretest.Tagged(0, true, uint32(r.RKey), r.Addr, []byte("amount=99")))
		p.ExpectTerminate(0x1100)
		require.Equal(t, "amount=10", string(mr.Bytes()[:9]))
	})
	t.Run("SEC-23 regions of two peers in two domains do not overlap: neither reaches the other's", func(t *testing.T) {
		pa, a := h.accept(t, request, 0)
		pb, b := h.accept(t, request, 0)
		pa.Send(wiretest.Tagged(0, true, uint32(b.remote.RKey), b.remote.Addr, []byte("mine")))
		pa.ExpectTerminate(0x1102)
		pb.Send(wiretest.ReadRequest(1, 1, 0, 8, uint32(a.remote.RKey), a.remote.Addr))
		pb.ExpectTerminate(0x0103)
		require.Equal(t, make([]byte, 4096), b.mr.Bytes())
	})
	t.Run("SEC-51 private data and Sends work with no memory that a peer may reach", func(t *testing.T) {
		l := kernel(t, iwarp.Protocol{})
		ctx := within(t, 20*time.Second)
		lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
		require.NoError(t, err)
		defer lis.Close()
		done := make(chan error, 1)
		go func() {
			req, err := lis.Accept(ctx)
			if err == nil && string(req.PrivateData()) != "who" {
				err = errors.New("no private data")
			}
			var c *rdmacm.Conn
			if err == nil {
				c, err = req.Accept(ctx, rdmacm.AcceptConfig{PrivateData: []byte("me"), Easy: small})
			}
			if err == nil {
				_, err = c.Recv(ctx, make([]byte, 8))
			}
			done <- err
		}()
		pd, err := l.a.AllocPD()
		require.NoError(t, err)
		cq, err := l.a.CreateCQ(verbs.CQConfig{})
		require.NoError(t, err)
		c, err := (&rdmacm.Dialer{Device: l.a, PD: pd, QP: verbs.QPConfig{SendCQ: cq}, PrivateData: []byte("who")}).Dial(ctx, lis.Addr().String())
		require.NoError(t, err)
		require.Equal(t, "me", string(c.PrivateData()))
		_, err = c.PostSend([]verbs.SendWR{{Op: verbs.OpSend, Inline: []byte("secret"), Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		require.NoError(t, <-done)
		require.Zero(t, l.a.Stats().MRs, "no region at all on this side")
	})
	t.Run("SEC-49 the CRC is asked for unless somebody says no", func(t *testing.T) {
		require.False(t, iwarp.Protocol{}.NoCRC)
		srv, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer srv.Close()
		go func() {
			_, _ = (&rdmacm.Dialer{Device: h.Device, Easy: small}).Dial(within(t, 10*time.Second), srv.Addr().String())
		}()
		c, err := srv.Accept()
		require.NoError(t, err)
		require.Equal(t, byte(wiretest.FlagC), wiretest.NewPeer(t, c).Startup().Flags&wiretest.FlagC)
		c.Close()
	})
	t.Run("SEC-52 there is no streaming mode: what is not MPA ends the connection before anything is exposed", func(t *testing.T) {
		p := wiretest.DialPeer(t, h.lis.Addr().String())
		p.Write([]byte("EHLO example.org\r\nSTARTMPA\r\n"))
		p.ExpectReset()
	})
}

// TestRestrictPeers is SEC-53: who may connect is decided before anything is bound.
func TestRestrictPeers(t *testing.T) {
	h := newHost(t, iwarp.Config{})
	friend := netip.MustParseAddr("127.0.0.2")
	ctx := within(t, 20*time.Second)
	before := h.Stats()
	go func() {
		for req, err := range h.lis.All(ctx) {
			if err != nil {
				return
			}
			if req.RemoteAddr().Addr() != friend || !bytes.HasPrefix(req.PrivateData(), []byte("tok")) {
				if s := h.Stats(); s.QPs+s.CQs+s.MRs+s.PDs != before.QPs+before.CQs+before.MRs+before.PDs {
					t.Error("a request holds verbs objects")
				}
				_ = req.Reject(ctx, []byte("not you"))
				continue
			}
			if c, err := req.Accept(ctx, rdmacm.AcceptConfig{Easy: small}); err == nil {
				defer c.Close()
			}
		}
	}()
	for _, c := range []struct {
		name, local, word string
		in                bool
	}{
		{"SEC-53 reject by address", "127.0.0.3", "token", false},
		{"SEC-53 reject by private data", "127.0.0.2", "guess", false},
		{"SEC-53 who is known gets in", "127.0.0.2", "token", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(c.local)}}
			conn, err := d.Dial("tcp", h.lis.Addr().String())
			require.NoError(t, err)
			p := wiretest.NewPeer(t, conn)
			p.Write(wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: []byte(c.word)}.Octets())
			rep := p.Startup()
			require.Equal(t, !c.in, rep.Flags&wiretest.FlagR != 0)
			if !c.in {
				require.Equal(t, "not you", string(rep.Private))
			}
		})
	}
}

// TestForeignHandles is SEC-54: handles of one device used with another.
func TestForeignHandles(t *testing.T) {
	l := kernel(t, iwarp.Protocol{})
	p := l.connect(t, 4096, nil)
	mine, theirs := &p.mine, &p.theirs
	srq, err := theirs.pd.CreateSRQ(verbs.SRQConfig{})
	require.NoError(t, err)
	mySRQ, err := mine.pd.CreateSRQ(verbs.SRQConfig{})
	require.NoError(t, err)
	ctx := within(t, 10*time.Second)
	for name, use := range map[string]func() error{
		"send CQ": func() error { _, err := mine.pd.CreateQP(verbs.QPConfig{SendCQ: theirs.cq}); return err },
		"receive CQ": func() error {
			_, err := mine.pd.CreateQP(verbs.QPConfig{SendCQ: mine.cq, RecvCQ: theirs.cq})
			return err
		},
		"SRQ": func() error { _, err := mine.pd.CreateQP(verbs.QPConfig{SRQ: srq}); return err },
		"MR in a Send": func() error {
			_, err := mine.PostSend([]verbs.SendWR{{Op: verbs.OpSend, SGL: []verbs.SGE{theirs.mr.SGE(0, 8)}}})
			return err
		},
		"MR in a receive": func() error {
			_, err := mine.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{theirs.mr.SGE(0, 8)}}})
			return err
		},
		"MR in a shared receive": func() error {
			_, err := mySRQ.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{theirs.mr.SGE(0, 8)}}})
			return err
		},
		"PD of a dial": func() error {
			_, err := (&rdmacm.Dialer{Device: l.a, PD: theirs.pd}).Dial(ctx, "127.0.0.1:1")
			return err
		},
	} {
		t.Run("SEC-54 "+name, func(t *testing.T) {
			before := l.a.Stats()
			require.ErrorIs(t, use(), syscall.EINVAL)
			require.Equal(t, before.QPs, l.a.Stats().QPs)
			require.Equal(t, verbs.QPSRTS, mine.State())
		})
	}
}

// TestOverrunAlone is a completion queue that overruns between two that do not.
func TestOverrunAlone(t *testing.T) {
	h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: time.Second}})
	small, err := h.CreateCQ(verbs.CQConfig{Depth: 2})
	require.NoError(t, err)
	ctx := within(t, 20*time.Second)
	po, other := h.accept(t, request, 8)
	pa, a := h.acceptWith(t, request, 8, small)
	pb, b := h.acceptWith(t, request, 8, small)
	var wcs [8]verbs.WC
	pb.Send(send(1, "go")) // a responder says nothing before the first FPDU, no Terminate either
	_, err = small.Wait(ctx, wcs[:])
	require.NoError(t, err)
	for i := range uint32(5) {
		pa.Send(send(i+1, fmt.Sprint("a", i)))
	}
	stopped(t, &a)
	t.Run("VRB-63 the queue that overran: one CQ_ERR, all its queue pairs end with 0x0207, nothing is overwritten", func(t *testing.T) {
		pa.ExpectTerminate(0x0207)
		pb.ExpectTerminate(0x0207)
		stopped(t, &b)
		n, err := small.Wait(ctx, wcs[:])
		require.NoError(t, err)
		require.Equal(t, []uint64{1, 2}, ids(wcs[:n]))
		evs := ofType(eventsOf(t, h.Device), verbs.EventCQErr)
		require.Len(t, evs, 1)
		require.Equal(t, small.Num(), evs[0].CQ)
		require.NotZero(t, h.Stats().CompletionsLost)
	})
	t.Run("VRB-64 SEC-29 connections on other queues go on", func(t *testing.T) {
		require.Equal(t, verbs.QPSRTS, other.State())
		for i := range uint32(8) {
			po.Send(send(i+1, "x"))
			require.NoError(t, other.wait(t, 1)[0].Err())
		}
	})
}
