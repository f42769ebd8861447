package iwarp_test

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// TestRingChanged changes records of the rings after the device has taken them up, as
// a hostile poster could where rings are shared.
func TestRingChanged(t *testing.T) {
	t.Run("SEC-59 what a record says is read once: a Write goes on as it began", func(t *testing.T) {
		const size, marked = 16 << 20, 4096
		e, sq, _, peer := dialWithRings(t, size+marked)
		mem := e.mr.Bytes()
		for i := range size {
			mem[i] = byte(i >> 4)
		}
		secret := mem[size:]
		copy(secret, bytes.Repeat([]byte{0xee}, marked))
		e.send(t, verbs.SendWR{ID: 7, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, size)},
			Remote: verbs.RemoteBuf{Addr: 0x1000, RKey: 0x700, Len: size}})
		require.Eventually(t, func() bool {
			s := e.dev.Stats()
			return s.Counter("mpa.octets_out") > 1<<16
		}, 10*time.Second, time.Millisecond, "the peer reads nothing: the Write is under way")

		w := ring.WQE(sq.Record(sq.Head()))
		require.EqualValues(t, 7, w.ID())
		w.SetHead(99, uint8(verbs.OpSend), 0)
		w.SetRemote(0xffff, 0xbad)
		w.SetSGE(0, uint32(e.mr.Key()), marked, size)

		var got []byte
		for len(got) < size {
			u := meant(peer)
			require.Equal(t, byte(0x40), u[1], "an RDMA Write")
			require.Equal(t, []byte{0, 0, 7, 0}, u[2:6], "STag")
			got = append(got, u[14:]...)
		}
		require.True(t, bytes.Equal(mem[:size], got))
		wc := e.wait(t, 1)[0]
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.EqualValues(t, 7, wc.ID)
		require.Equal(t, verbs.OpWrite, wc.Op)
		peer.ExpectSilence(50 * time.Millisecond)
	})
	t.Run("SEC-59 a receive that has begun is filled as it was posted", func(t *testing.T) {
		e, _, rq, peer := dialWithRings(t, 8192)
		e.recv(t, verbs.RecvWR{ID: 5, SGL: []verbs.SGE{e.mr.SGE(0, 64)}})
		placed := func() uint64 {
			s := e.dev.Stats()
			return s.Counter("mpa.fpdus_in")
		}
		before := placed()
		peer.Send(wiretest.Untagged(3, false, 0, 0, 1, 0, []byte("first ")))
		require.Eventually(t, func() bool { return placed() > before }, 10*time.Second, time.Millisecond)

		w := ring.WQE(rq.Record(rq.Head()))
		require.EqualValues(t, 5, w.ID())
		w.SetHead(99, 0, 0)
		w.SetSGE(0, uint32(e.mr.Key()), 4096, 4096)

		peer.Send(wiretest.Untagged(3, true, 0, 0, 1, 6, []byte("second")))
		wc := e.wait(t, 1)[0]
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.EqualValues(t, 5, wc.ID)
		require.Equal(t, "first second", string(e.mr.Bytes()[:12]))
		require.Equal(t, make([]byte, 4096), e.mr.Bytes()[4096:])
	})
}

// dialWithRings connects a device whose rings the test sees to a scripted responder.
func dialWithRings(t *testing.T, size int) (*end, *ring.Queue, *ring.Queue, *wiretest.Peer) {
	var setup verbs.QPSetup
	dev, err := iwarp.OpenKernelWithRings(func(s verbs.QPSetup) { setup = s })
	require.NoError(t, err)
	closeAfter(t, dev)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	e := newEnd(t, dev, size)
	dialed := make(chan error, 1)
	ctx := within(t, 20*time.Second)
	go func() {
		var err error
		e.Conn, err = (&rdmacm.Dialer{Device: e.dev, PD: e.pd, QP: e.qp()}).Dial(ctx, lis.Addr().String())
		dialed <- err
	}()
	tcp, err := lis.Accept()
	require.NoError(t, err)
	peer := wiretest.NewPeer(t, tcp)
	k := known(t, "siw")
	req := peer.Startup()
	rep := k.Answer(t, req, 1, 1)
	peer.Write(rep.Octets())
	peer.CRC = (req.Flags|rep.Flags)&wiretest.FlagC != 0
	require.Equal(t, wiretest.ReadRequest(1, 1, 0, 0, 1, 0), meant(peer), "the ready-to-receive message")
	peer.Send(wiretest.Tagged(2, true, 1, 0, nil))
	require.NoError(t, <-dialed)
	return &e, setup.SQ, setup.RQ, peer
}
