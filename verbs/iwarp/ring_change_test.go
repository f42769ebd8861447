package iwarp_test

import (
	"bytes"
	"net"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

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
		e, sq, _, peer := dialWithRings(t, size+marked, nil)
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
		w.SetNumSGE(1) // which SetHead has made 0
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
		e, _, rq, peer := dialWithRings(t, 8192, nil)
		e.recv(t, verbs.RecvWR{ID: 5, SGL: []verbs.SGE{e.mr.SGE(0, 64)}})
		begun(t, e, peer, "first ")
		changed(t, e, rq, 0, 5, 99)

		peer.Send(rest(1, 6, "second"))
		wc := e.wait(t, 1)[0]
		require.Equal(t, verbs.WCSuccess, wc.Status)
		require.EqualValues(t, 5, wc.ID)
		require.Equal(t, "first second", string(e.mr.Bytes()[:12]))
		require.Equal(t, make([]byte, 4096), e.mr.Bytes()[4096:])
	})
	t.Run("SEC-59 a Read that waits for another one starts and completes as it was posted", func(t *testing.T) {
		e, sq, _, peer := dialWithRings(t, 8192, oneRead)
		e.send(t, theirs(e, 1, verbs.OpRead), theirs(e, 2, verbs.OpRead))
		require.Equal(t, readOf(e, 2), meant(peer))
		peer.ExpectSilence(50 * time.Millisecond) // the second one has been looked at
		changed(t, e, sq, 1, 2, 98)

		peer.Send(answerTo(e))
		require.Equal(t, readOf(e, 3), meant(peer))
		peer.Send(answerTo(e))
		for i, wc := range e.wait(t, 2) {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i+1, wc.ID)
			require.Equal(t, verbs.OpRead, wc.Op)
			require.EqualValues(t, 8, wc.ByteLen)
		}
		require.Equal(t, make([]byte, 4096), e.mr.Bytes()[4096:])
	})
	t.Run("SEC-59 sends that were issued are flushed as they were posted", func(t *testing.T) {
		e, sq, _, peer := dialWithRings(t, 8192, oneRead)
		e.send(t, theirs(e, 1, verbs.OpRead), theirs(e, 2, verbs.OpWrite), theirs(e, 3, verbs.OpRead), theirs(e, 4, verbs.OpWrite))
		require.Equal(t, readOf(e, 2), meant(peer))
		require.Equal(t, make([]byte, 8), stretch(t, peer, 0, 0x700, 0x1000), "the Write behind it")
		peer.ExpectSilence(50 * time.Millisecond)
		for i := range uint64(4) {
			changed(t, e, sq, i, i+1, i+91)
		}
		// Nothing is done with what was never issued, so it is not known but from the ring: one
		// look that tells the client about a record of its own, whatever stands in it.
		last := sq.Record(sq.Head() + 3)
		for i := range last[8:] {
			last[8+i] = 0xff
		}
		sq.Publish()
		peer.Reset()
		e.ended(t)
		wcs := e.wait(t, 4)
		require.Equal(t, flushed(4), statuses(wcs))
		require.Equal(t, []uint64{1, 2}, ids(wcs[:2]))
		require.Contains(t, []uint64{3, 93}, wcs[2].ID, "in its place")
		require.Contains(t, []uint64{4, 94}, wcs[3].ID, "in its place")
		e.quiet(t)
	})
	t.Run("SEC-59 a receive that has begun is flushed as it was posted", func(t *testing.T) {
		e, _, rq, peer := dialWithRings(t, 8192, nil)
		e.recv(t, verbs.RecvWR{ID: 5, SGL: []verbs.SGE{e.mr.SGE(0, 64)}}, verbs.RecvWR{ID: 6, SGL: []verbs.SGE{e.mr.SGE(64, 64)}})
		begun(t, e, peer, "first ")
		changed(t, e, rq, 0, 5, 99)
		peer.Reset()
		e.ended(t)
		wcs := e.wait(t, 2)
		require.Equal(t, flushed(2), statuses(wcs))
		require.Equal(t, []uint64{5, 6}, ids(wcs))
		e.quiet(t)
	})
	t.Run("SEC-59 a shared receive that has begun is not the one posted over it", func(t *testing.T) {
		for _, reset := range []bool{false, true} {
			c := newCommons(t, verbs.SRQConfig{MaxWR: 4})
			depth := c.srq.Config().MaxWR
			c.post(t, 0, depth)
			p, e := c.member(t)
			p.Send(half(1, "first "))
			require.Eventually(t, func() bool { held, _ := e.SharedRecvs(); return held == 1 }, 10*time.Second, time.Millisecond)
			c.post(t, depth, 1) // into the slot of number 0, the only free one
			if reset {
				p.Reset()
				e.ended(t)
				wc := e.wait(t, 1)[0]
				require.Equal(t, verbs.WCWRFlushErr, wc.Status)
				require.Zero(t, wc.ID)
				e.quiet(t)
				continue
			}
			p.Send(rest(1, 6, "second"), send(2, "another"))
			require.Equal(t, []uint64{0, 1}, ids(e.wait(t, 2)))
			require.Equal(t, "first second", c.at(0, 12))
			require.Equal(t, "another", c.at(1, 7))
			require.Equal(t, make([]byte, 16), []byte(c.at(depth, 16)))
		}
	})
	t.Run("SEC-59 a record has no more SGEs than the queue pair allows, whatever it says", func(t *testing.T) {
		e, sq, _, peer := dialWithRings(t, 8192, func(d *rdmacm.Dialer) {
			oneRead(d)
			d.QP.MaxSendSGE, d.QP.MaxInline = 2, 256 // inline data makes room in the record
		})
		copy(e.mr.Bytes()[4096:], "onetwosecret")
		e.send(t, theirs(e, 1, verbs.OpRead), theirs(e, 2, verbs.OpRead),
			verbs.SendWR{ID: 3, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(4096, 3), e.mr.SGE(4099, 3)}})
		require.Equal(t, readOf(e, 2), meant(peer))
		peer.ExpectSilence(50 * time.Millisecond)
		w := ring.WQE(sq.Record(sq.Head() + 2))
		require.EqualValues(t, 3, w.ID())
		require.Greater(t, w.MaxSGE(), 3)
		w.SetNumSGE(0xffff)
		for i := 2; i < w.MaxSGE(); i++ {
			w.SetSGE(i, uint32(e.mr.Key()), 6, 4102)
		}
		sq.Publish()
		peer.Send(answerTo(e))
		require.Equal(t, readOf(e, 3), meant(peer))
		require.Equal(t, send(1, "onetwo"), meant(peer))
		peer.Send(answerTo(e))
		for i, wc := range e.wait(t, 3) {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i+1, wc.ID)
		}
	})
	t.Run("SEC-59 a tail that steps back makes nothing begin again", func(t *testing.T) {
		e, sq, _, peer := dialWithRings(t, 8192, oneRead)
		e.send(t, theirs(e, 1, verbs.OpRead), theirs(e, 2, verbs.OpWrite), theirs(e, 3, verbs.OpWrite))
		require.Equal(t, readOf(e, 2), meant(peer))
		for range 2 {
			require.Equal(t, make([]byte, 8), stretch(t, peer, 0, 0x700, 0x1000))
		}
		tail := tailOf(t, sq)
		tail.Store(sq.Head() + 1)
		require.Equal(t, sq.Head()+1, sq.Tail(), "behind the Read, which waits, and in front of the Writes, which have left")
		peer.Send(wiretest.ReadRequest(1, 0x900, 0, 8, uint32(e.mr.Key()), e.remote.Addr)) // gives the sending side a turn
		require.Equal(t, make([]byte, 8), stretch(t, peer, 2, 0x900, 0))
		peer.ExpectSilence(50 * time.Millisecond)
		tail.Store(sq.Head() + 3)
		peer.Send(answerTo(e))
		for i, wc := range e.wait(t, 3) {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i+1, wc.ID)
		}
		e.quiet(t)
	})
}

// tailOf finds the tail in a queue's memory, where a client that shares it has it. It is the only word of that value.
func tailOf(t *testing.T, q *ring.Queue) *atomic.Uint64 {
	t.Helper()
	var tail *atomic.Uint64
	for i := 0; i < 256; i += 8 {
		w := (*atomic.Uint64)(unsafe.Pointer(&q.Region()[i]))
		if w.Load() == q.Tail() {
			require.Nil(t, tail, "two words that could be the tail")
			tail = w
		}
	}
	require.NotNil(t, tail)
	return tail
}

// oneRead lets one Read be under way: the next one waits.
func oneRead(d *rdmacm.Dialer) { d.ORD = 1 }

// theirs is a request about eight octets of the peer.
func theirs(e *end, id uint64, op verbs.Opcode) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, 8)},
		Remote: verbs.RemoteBuf{Addr: 0x1000, RKey: 0x700, Len: 8}}
}

// readOf is the Read of theirs as it is on the wire, answerTo its answer.
func readOf(e *end, msn uint32) []byte {
	return wiretest.ReadRequest(msn, uint32(e.mr.Key()), e.remote.Addr, 8, 0x700, 0x1000)
}

func answerTo(e *end) []byte {
	return wiretest.Tagged(2, true, uint32(e.mr.Key()), e.remote.Addr, make([]byte, 8))
}

// begun sends the first segment of message 1 and waits until a receive was taken for it:
// an FPDU is counted when it was dealt with.
func begun(t *testing.T, e *end, peer *wiretest.Peer, payload string) {
	t.Helper()
	n := arrived(e) + 1
	peer.Send(half(1, payload))
	require.Eventually(t, func() bool { return arrived(e) == n }, 10*time.Second, time.Millisecond)
}

// arrived is how many FPDUs e's device has got.
func arrived(e *end) uint64 {
	s := e.dev.Stats()
	return s.Counter("mpa.fpdus_in")
}

// changed makes another request of the at-th posted record that is not released, which
// was id: a Send of 4096 octets from 4096 on, or a receive there.
func changed(t *testing.T, e *end, q *ring.Queue, at, id, to uint64) {
	t.Helper()
	w := ring.WQE(q.Record(q.Head() + at))
	require.Equal(t, id, w.ID())
	w.SetHead(to, uint8(verbs.OpSend), uint8(verbs.SendSignaled))
	w.SetRemote(0xffff, 0xbad)
	w.SetNumSGE(1) // which SetHead has made 0
	w.SetSGE(0, uint32(e.mr.Key()), 4096, 4096)
	q.Publish() // who looks at the tail from now on sees the change
}

// dialWithRings connects a device whose rings the test sees to a scripted responder. set,
// if not nil, changes how.
func dialWithRings(t *testing.T, size int, set func(*rdmacm.Dialer)) (*end, *ring.Queue, *ring.Queue, *wiretest.Peer) {
	var setup verbs.QPSetup
	dev, err := iwarp.OpenKernelWithRings(func(s verbs.QPSetup) { setup = s })
	require.NoError(t, err)
	closeAfter(t, dev)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	e := newEnd(t, dev, size)
	dialer := rdmacm.Dialer{Device: e.dev, PD: e.pd, QP: e.qp()}
	if set != nil {
		set(&dialer)
	}
	dialed := make(chan error, 1)
	ctx := within(t, 20*time.Second)
	go func() {
		var err error
		e.Conn, err = dialer.Dial(ctx, lis.Addr().String())
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
	require.Eventually(t, func() bool { return arrived(&e) == 1 }, 10*time.Second, time.Millisecond, "the answer to it")
	return &e, setup.SQ, setup.RQ, peer
}
