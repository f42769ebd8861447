package iwarp_test

import (
	"encoding/binary"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// dialing is a connect of ours to a scripted responder that takes several TCP
// connections, one after the other.
type dialing struct {
	t    *testing.T
	lis  net.Listener
	e    end
	done chan error
}

func newDialing(t *testing.T, p iwarp.Protocol, set func(*rdmacm.Dialer)) *dialing {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	d := &dialing{t: t, lis: lis, e: newEnd(t, kernel(t, p).a, 4096), done: make(chan error, 1)}
	dialer := rdmacm.Dialer{Device: d.e.dev, PD: d.e.pd, QP: d.e.qp(), Prepare: func(qp *verbs.QP) error {
		_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{d.e.mr.SGE(0, 64)}}})
		return err
	}}
	if set != nil {
		set(&dialer)
	}
	ctx := within(t, 20*time.Second)
	go func() {
		var err error
		d.e.Conn, err = dialer.Dial(ctx, lis.Addr().String())
		d.done <- err
	}()
	return d
}

func (d *dialing) accept() *wiretest.Peer {
	d.t.Helper()
	require.NoError(d.t, d.lis.(*net.TCPListener).SetDeadline(time.Now().Add(10*time.Second)))
	c, err := d.lis.Accept()
	require.NoError(d.t, err)
	return wiretest.NewPeer(d.t, c)
}

// alone checks that no further connection comes.
func (d *dialing) alone() {
	d.t.Helper()
	require.NoError(d.t, d.lis.(*net.TCPListener).SetDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := d.lis.Accept()
	require.Error(d.t, err, "a second TCP connection")
}

func TestFallBack(t *testing.T) {
	rev1 := wiretest.Startup{Reply: true, Flags: wiretest.FlagC, Rev: 1}
	t.Run("MPA-34 a reset Request of revision 2 is followed by one of revision 1, on a new TCP connection", func(t *testing.T) {
		d := newDialing(t, iwarp.Protocol{}, func(d *rdmacm.Dialer) { d.PrivateData = []byte("again") })
		first := d.accept()
		req := first.Startup()
		require.EqualValues(t, 2, req.Rev)
		require.Equal(t, "again", string(req.Private[4:]))
		first.Reset()
		second := d.accept()
		req = second.Startup()
		require.Equal(t, wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: []byte("again")}, req)
		second.Write(rev1.Octets())
		require.NoError(t, <-d.done)
		d.e.send(t, verbs.SendWR{Op: verbs.OpSend, Inline: []byte("hi")})
		second.Expect(send(1, "hi"))
		second.Send(send(1, "hello"))
		require.NoError(t, d.e.wait(t, 1)[0].Err())
	})
	t.Run("MPA-34 once: a second reset is the end", func(t *testing.T) {
		d := newDialing(t, iwarp.Protocol{}, nil)
		for range 2 {
			p := d.accept()
			p.Startup()
			p.Reset()
		}
		require.ErrorIs(t, <-d.done, syscall.ECONNRESET)
		d.alone()
	})
	t.Run("MPA-34 IOP-19 with the opening Read that cxgb4 waits for, where it is told so", func(t *testing.T) {
		d := newDialing(t, iwarp.Protocol{LegacyRTR: true}, nil)
		p := d.accept()
		p.Startup()
		p.Reset()
		p = d.accept()
		p.Respond(rev1)
		p.Expect(wiretest.ReadRequest(1, 1, 0, 0, 1, 0))
		require.NoError(t, <-d.done)
	})
	for name, p := range map[string]iwarp.Protocol{
		"RequireRev2": {RequireRev2: true}, "RequireRTR": {RequireRTR: true}, "Rev1": {Rev1: true},
	} {
		t.Run("MPA-34 SEC-60 not with "+name, func(t *testing.T) {
			d := newDialing(t, p, nil)
			peer := d.accept()
			peer.Startup()
			peer.Reset()
			require.ErrorIs(t, <-d.done, syscall.ECONNRESET)
			d.alone()
		})
	}
	t.Run("MPA-34 not for a FIN, nor for another kind of Reply", func(t *testing.T) {
		d := newDialing(t, iwarp.Protocol{}, nil)
		p := d.accept()
		p.Startup()
		p.CloseWrite()
		require.Error(t, <-d.done)
		d.alone()
		d = newDialing(t, iwarp.Protocol{}, nil)
		d.accept().Respond(rev1)
		require.ErrorIs(t, <-d.done, mpa.ErrEnhanced)
		d.alone()
	})
	t.Run("MPA-34 two of ours: revision 1 alone meets revision 2", func(t *testing.T) {
		old, err := iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Protocol: iwarp.Protocol{Rev1: true}})
		require.NoError(t, err)
		l := kernel(t, iwarp.Protocol{})
		closeAfter(t, old)
		l.b = old
		p := l.connect(t, 4096, post5)
		p.mine.send(t, verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		require.NoError(t, p.theirs.wait(t, 1)[0].Err())
	})
	t.Run("MPA-34 a closed queue pair is not connected by the second attempt", func(t *testing.T) {
		held := make(chan *verbs.QP, 1)
		d := newDialing(t, iwarp.Protocol{}, func(d *rdmacm.Dialer) {
			d.Prepare = func(qp *verbs.QP) error { held <- qp; return nil }
		})
		p := d.accept()
		p.Startup()
		require.NoError(t, (<-held).Close())
		p.Reset()
		require.Error(t, <-d.done)
	})
}

// TestEstablished: when a passive side is told that it is connected.
func TestEstablished(t *testing.T) {
	block := func(in, out uint16) wiretest.Startup {
		return wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(in, out)}
	}
	pending := func(t *testing.T, i *incoming) {
		t.Helper()
		select {
		case err := <-i.accepted:
			require.Fail(t, "established already", "%v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for name, c := range map[string]struct {
		in, out uint16
		rtr     []byte
	}{
		"Write": {wiretest.BlockA, wiretest.BlockC, wiretest.Tagged(0, true, 1, 0, nil)},
		"Read":  {wiretest.BlockA, wiretest.BlockD, wiretest.ReadRequest(1, 1, 0, 0, 1, 0)},
		"Send":  {wiretest.BlockA | wiretest.BlockB, 0, wiretest.Untagged(3, true, 0, 0, 1, 0, nil)},
	} {
		t.Run("MPA-51 MPA-47 with A=1 when the RTR message has come: "+name, func(t *testing.T) {
			i := call(t, iwarp.Protocol{TakeRTR: iwarp.RTRWrite | iwarp.RTRRead | iwarp.RTRSend}, 2, nil)
			i.Initiate(block(c.in|1, c.out|1))
			pending(t, i)
			i.Send(c.rtr)
			require.NoError(t, <-i.accepted)
			if name == "Read" {
				i.Expect(wiretest.Tagged(2, true, 1, 0, nil))
			}
			i.e.quiet(t)
			msn := uint32(1)
			if name == "Send" {
				msn = 2
			}
			i.Send(send(msn, "first"))
			wc := i.e.wait(t, 1)[0]
			require.NoError(t, wc.Err())
			require.EqualValues(t, 5, wc.ByteLen, "the first message of the application is the first it sees")
			require.EqualValues(t, 1, wc.ID, "and takes its first receive")
		})
	}
	t.Run("MPA-51 MPA-50 MPA-13 with A=0 when the Reply is written; the first message lifts the gate", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 2, nil)
		i.Initiate(block(1, 1))
		require.NoError(t, <-i.accepted)
		i.e.send(t, verbs.SendWR{Op: verbs.OpSend, Inline: []byte("waits")})
		i.ExpectSilence(50 * time.Millisecond)
		i.Send(send(1, "go"))
		i.Expect(send(1, "waits"))
		require.NoError(t, i.e.wait(t, 1)[0].Err())
	})
	t.Run("MPA-46 MPA-49 an RTR Send that is no RTR ends the stream", func(t *testing.T) {
		i := call(t, iwarp.Protocol{TakeRTR: iwarp.RTRSend}, 2, nil)
		i.Initiate(block(wiretest.BlockA|wiretest.BlockB|1, 1))
		i.Send(send(1, "not empty"))
		i.ExpectTerminate(0x1205)
		<-i.accepted
	})
}

func TestSetupOptions(t *testing.T) {
	block := func(in, out uint16, flags uint8) wiretest.Startup {
		return wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS | flags, Rev: 2, Private: wiretest.Block(in, out)}
	}
	// refused checks that a Request is answered by a rejecting Reply and FIN.
	refused := func(t *testing.T, p iwarp.Protocol, req wiretest.Startup, set func(*rdmacm.AcceptConfig)) wiretest.Startup {
		i := call(t, p, 1, set)
		rep := i.Initiate(req)
		require.NotZero(t, rep.Flags&wiretest.FlagR)
		i.CloseWrite()
		i.ExpectEOF()
		return rep
	}
	t.Run("MPA-27 markers refused", func(t *testing.T) {
		rep := refused(t, iwarp.Protocol{RefuseMarkers: true}, block(1, 1, wiretest.FlagM), nil)
		require.Zero(t, rep.Flags&wiretest.FlagM)
	})
	t.Run("MPA-40 a required ORD that the initiator does not take", func(t *testing.T) {
		rep := refused(t, iwarp.Protocol{RequireORD: true}, block(4, 4, 0), func(a *rdmacm.AcceptConfig) { a.ORD = 8 })
		require.EqualValues(t, 8, binary.BigEndian.Uint16(rep.Private[2:])&0x3fff)
	})
	t.Run("SEC-60 a ready-to-receive message required", func(t *testing.T) {
		refused(t, iwarp.Protocol{RequireRTR: true}, block(1, 1, 0), nil)
		refused(t, iwarp.Protocol{RequireRTR: true}, request, nil)
		d := newDialing(t, iwarp.Protocol{RequireRTR: true}, nil)
		p := d.accept()
		p.Respond(block(1, 1, 0))
		p.ExpectTerminate(0x2007)
		require.ErrorContains(t, <-d.done, "no matching RTR")
	})
	t.Run("IOP-06 C=1 is answered by C=1, and C=0 by what is wanted", func(t *testing.T) {
		for _, c := range []struct{ no, asked, answered bool }{
			{false, false, true}, {false, true, true}, {true, false, false}, {true, true, true},
		} {
			i := call(t, iwarp.Protocol{NoCRC: c.no}, 1, nil)
			req := wiretest.Startup{Rev: 1}
			if c.asked {
				req.Flags = wiretest.FlagC
			}
			rep := i.Initiate(req)
			require.Equal(t, c.answered, rep.Flags&wiretest.FlagC != 0)
			require.NoError(t, <-i.accepted)
			i.Send(send(1, "hello"))
			require.NoError(t, i.e.wait(t, 1)[0].Err())
		}
	})
	t.Run("IOP-11 MPA-41 SEC-40 depths on the wire are real numbers of at most 128", func(t *testing.T) {
		for _, depth := range []int{1, 128} {
			d := newDialing(t, iwarp.Protocol{}, func(d *rdmacm.Dialer) { d.IRD, d.ORD = depth, depth })
			p := d.accept()
			req := p.Startup()
			require.EqualValues(t, depth, binary.BigEndian.Uint16(req.Private)&0x3fff)
			require.EqualValues(t, depth, binary.BigEndian.Uint16(req.Private[2:])&0x3fff)
			p.Reset()
			d.accept().Reset()
			require.Error(t, <-d.done)
		}
		_, err := (&rdmacm.Dialer{Device: kernel(t, iwarp.Protocol{}).a, IRD: 129}).Dial(within(t, 10*time.Second), silentHost(t))
		require.ErrorIs(t, err, syscall.EINVAL)
		for _, asked := range []uint16{0x3ffe, 16383 - 1, 1000} {
			i := call(t, iwarp.Protocol{}, 1, nil)
			rep := i.Initiate(block(wiretest.BlockA|asked, wiretest.BlockD|asked, 0))
			require.LessOrEqual(t, binary.BigEndian.Uint16(rep.Private)&0x3fff, uint16(128), "IRD")
			require.LessOrEqual(t, binary.BigEndian.Uint16(rep.Private[2:])&0x3fff, uint16(128), "ORD")
			i.Reset()
			require.Error(t, <-i.accepted)
		}
	})
	t.Run("MPA-74 MPA-04 IOP-37 the bit for large FPDUs is answered only where it is set on both sides", func(t *testing.T) {
		for _, c := range []struct{ ours, theirs, large bool }{{false, true, false}, {true, false, false}, {true, true, true}} {
			req := block(1, 1, 0x07)
			if c.theirs {
				req.Flags |= 0x08
			}
			rep := call(t, iwarp.Protocol{LargeFPDUs: c.ours}, 1, nil).Initiate(req)
			require.Equal(t, c.large, rep.Flags&0x08 != 0)
			require.Zero(t, rep.Flags&0x07)
		}
	})
	for _, bad := range []iwarp.Protocol{
		{RequireRTR: true, Rev1: true}, {RequireRTR: true, ClientServer: true}, {OfferRTR: 0x10}, {TakeRTR: 0xff},
		{PrivateLimit: -1}, {PrivateLimit: 513}, {MaxORD: -1}, {MaxORD: 129},
	} {
		_, err := iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Protocol: bad})
		require.Error(t, err, "%+v", bad)
	}
}
