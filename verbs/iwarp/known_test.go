package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// outgoing is a connection of ours to a scripted responder.
type outgoing struct {
	*wiretest.Peer
	e      *end
	dialed chan error
}

// meet lets a new device dial a scripted peer, which has said nothing yet. The receives
// are 64 octets each.
func meet(t *testing.T, proto iwarp.Protocol, receives int, set func(d *rdmacm.Dialer)) *outgoing {
	t.Helper()
	return meetFrom(t, kernel(t, proto).a, receives, set)
}

// meetFrom is meet from a device that exists.
func meetFrom(t *testing.T, from *verbs.Device, receives int, set func(d *rdmacm.Dialer)) *outgoing {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	o := &outgoing{dialed: make(chan error, 1)}
	e := newEnd(t, from, arena)
	o.e = &e
	d := rdmacm.Dialer{Device: e.dev, PD: e.pd, QP: e.qp(), Prepare: receives64(&e, receives)}
	if set != nil {
		set(&d)
	}
	ctx := within(t, 20*time.Second)
	go func() {
		var err error
		e.Conn, err = d.Dial(ctx, lis.Addr().String())
		o.dialed <- err
	}()
	tcp, err := lis.Accept()
	require.NoError(t, err)
	o.Peer = wiretest.NewPeer(t, tcp)
	return o
}

// incoming is a scripted initiator's connection to us.
type incoming struct {
	*wiretest.Peer
	e        *end
	accepted chan error
}

// call connects a scripted peer, which has said nothing yet, to a new device that
// accepts it.
func call(t *testing.T, proto iwarp.Protocol, receives int, set func(a *rdmacm.AcceptConfig)) *incoming {
	t.Helper()
	l := kernel(t, proto)
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	e := newEnd(t, l.b, arena)
	i := &incoming{e: &e, accepted: make(chan error, 1)}
	a := rdmacm.AcceptConfig{PD: e.pd, QP: e.qp(), Prepare: receives64(&e, receives)}
	if set != nil {
		set(&a)
	}
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			e.Conn, err = req.Accept(ctx, a)
		}
		i.accepted <- err
	}()
	i.Peer = wiretest.DialPeer(t, lis.Addr().String())
	return i
}

// receives64 posts receives of 64 octets at the start of e's region, with IDs from 1.
func receives64(e *end, n int) func(*verbs.QP) error {
	return func(qp *verbs.QP) error {
		for i := range n {
			if _, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(i + 1), SGL: []verbs.SGE{e.mr.SGE(i*64, 64)}}}); err != nil {
				return err
			}
		}
		return nil
	}
}

// careful checks what all peers need of a Request of ours.
func careful(t *testing.T, req wiretest.Startup) {
	t.Helper()
	require.Zero(t, req.Flags&(wiretest.FlagM|wiretest.FlagR|0x0f), "no markers, no R, no reserved bit")
	require.NotZero(t, req.Flags&wiretest.FlagC, "the CRC is asked for")
	require.EqualValues(t, 2, req.Rev)
	require.NotZero(t, req.Flags&wiretest.FlagS, "revision 2 has the block")
	in, out := binary.BigEndian.Uint16(req.Private), binary.BigEndian.Uint16(req.Private[2:])
	require.EqualValues(t, wiretest.BlockA, in&0xc000, "A, and not B")
	require.EqualValues(t, wiretest.BlockD, out&0xc000, "D alone")
	require.LessOrEqual(t, in&0x3fff, uint16(128), "the IRD is a number that siw takes")
	require.LessOrEqual(t, out&0x3fff, uint16(128))
	require.Positive(t, out&0x3fff, "the Read that opens the connection needs ORD 1")
}

// known returns the implementation of that name.
func known(t *testing.T, name string) wiretest.Known {
	for _, k := range wiretest.Knowns() {
		if k.Name == name {
			return k
		}
	}
	require.Fail(t, "no such implementation", name)
	return wiretest.Known{}
}

// session exchanges every kind of message with a peer that frames as k does. next is the
// number of the peer's first Read, mine that of ours.
func session(t *testing.T, k wiretest.Known, p *wiretest.Peer, e *end, next, mine uint32) {
	t.Helper()
	p.Play(k)
	const theirKey, theirAddr = 0x0badf00d, 0x7f0000001000
	mr := e.mr.Bytes()
	data := mr[arena/2:]
	fill(data[:8192], 3)
	remote := verbs.RemoteBuf{Addr: theirAddr, RKey: theirKey, Len: 8192}

	// Sends both ways; theirs has padding.
	e.send(t, verbs.SendWR{ID: 20, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(arena/2, 17)}})
	require.Equal(t, wiretest.Untagged(3, true, 0, 0, 1, 0, data[:17]), meant(p))
	p.Send(send(1, "hello"))
	got := map[uint64]verbs.WC{}
	for _, wc := range e.wait(t, 2) {
		require.NoError(t, wc.Err())
		got[wc.ID] = wc
	}
	require.EqualValues(t, 5, got[1].ByteLen)
	require.Equal(t, "hello", string(mr[:5]))

	// Our Write.
	e.send(t, verbs.SendWR{ID: 21, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(arena/2, 3001)}, Remote: remote.Slice(8, 3001)})
	require.Equal(t, data[:3001], stretch(t, p, 0, theirKey, theirAddr+8))
	require.NoError(t, e.wait(t, 1)[0].Err())

	// Our Read, into memory that only we may write; the answer comes in segments as siw cuts them.
	sink, err := e.pd.AllocMR(5002, verbs.AccessLocalWrite)
	require.NoError(t, err)
	e.send(t, verbs.SendWR{ID: 22, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{sink.SGE(0, 5002)}, Remote: remote.Slice(0, 5002)})
	ask := meant(p)
	require.Equal(t, wiretest.ReadRequest(mine, uint32(sink.Key()), sink.Remote().Addr, 5002, theirKey, theirAddr), ask)
	for at := 0; at < 5002; at += 1428 {
		n := min(1428, 5002-at)
		p.Send(wiretest.Tagged(2, at+n == 5002, uint32(sink.Key()), sink.Remote().Addr+uint64(at), data[at:at+n]))
	}
	wc := e.wait(t, 1)[0]
	require.NoError(t, wc.Err())
	require.EqualValues(t, 5002, wc.ByteLen)
	require.True(t, bytes.Equal(data[:5002], sink.Bytes()), "the Read")

	// Their Read and their Write; the Send behind shows the Write.
	p.Send(wiretest.ReadRequest(next, 0x11223344, 16, 301, uint32(e.remote.RKey), e.remote.Addr+arena/2+1))
	require.Equal(t, data[1:302], stretch(t, p, 2, 0x11223344, 16))
	p.Send(wiretest.Tagged(0, true, uint32(e.remote.RKey), e.remote.Addr+arena/4, []byte("a Write with padding")), send(2, "done"))
	wc = e.wait(t, 1)[0]
	require.NoError(t, wc.Err())
	require.EqualValues(t, 2, wc.ID)
	require.Equal(t, "a Write with padding\x00\x00\x00", string(mr[arena/4:arena/4+23]))
}

// meant returns the next message that means something: an initiator of ours may have sent
// an empty Write to wake a responder that it finds slow.
func meant(p *wiretest.Peer) []byte {
	for {
		if u := p.Next(); !bytes.Equal(u, wiretest.Tagged(0, true, 1, 0, nil)) {
			return u
		}
	}
}

// stretch takes a tagged message: opcode, key and offset must be as said, and go up.
func stretch(t *testing.T, p *wiretest.Peer, opcode uint8, key uint32, to uint64) (data []byte) {
	t.Helper()
	for {
		u := meant(p)
		require.GreaterOrEqual(t, len(u), 14)
		last := u[0]&0x40 != 0
		require.Equal(t, fmt.Sprintf("% x", wiretest.Tagged(opcode, last, key, to+uint64(len(data)), nil)), fmt.Sprintf("% x", u[:14]))
		data = append(data, u[14:]...)
		if last {
			return data
		}
	}
}

func TestOurRequest(t *testing.T) {
	t.Run("IOP-07 IOP-10 IOP-11 IOP-21 IOP-24 all known responders can take it", func(t *testing.T) {
		for _, want := range []int{0, -1, 1, iwarp.MaxReadDepth} {
			o := meet(t, iwarp.Protocol{}, 1, func(d *rdmacm.Dialer) { d.IRD, d.ORD = want, want })
			careful(t, o.Startup())
		}
	})
}

// TestKnownResponders dials every known implementation with the defaults, or with what it
// takes to reach it.
func TestKnownResponders(t *testing.T) {
	for _, c := range []struct {
		name  string
		proto iwarp.Protocol
	}{
		{name: "siw"}, {name: "siw-strict"}, {name: "cxgb4"}, {name: "irdma"},
		{name: "softiwarp", proto: iwarp.Protocol{Rev1: true, NoCRC: true}},
	} {
		t.Run("IOP-35 IOP-14 MPA-12 "+c.name, func(t *testing.T) {
			k := known(t, c.name)
			o := meet(t, c.proto, 4, nil)
			req := o.Startup()
			if c.proto == (iwarp.Protocol{}) {
				careful(t, req)
			}
			o.ExpectSilence(20 * time.Millisecond)
			rep := k.Answer(t, req, 1, 1, []byte("welcome")...)
			require.Zero(t, rep.Flags&wiretest.FlagR)
			o.Write(rep.Octets())
			o.CRC = rep.Flags&wiretest.FlagC != 0
			first := uint32(1)
			if k.Rev == 2 {
				require.Equal(t, wiretest.ReadRequest(1, 1, 0, 0, 1, 0), meant(o.Peer), "the ready-to-receive message")
				o.Send(wiretest.Tagged(2, true, 1, 0, nil))
				first = 2
			}
			require.NoError(t, <-o.dialed)
			require.Equal(t, "welcome", string(o.e.PrivateData()))
			session(t, k, o.Peer, o.e, 1, first)
			orderly(t, o.Peer, o.e)
		})
	}
}

// TestKnownInitiators takes the connections of every known implementation.
func TestKnownInitiators(t *testing.T) {
	for _, name := range []string{"siw", "siw-strict", "cxgb4", "irdma", "softiwarp"} {
		t.Run("IOP-35 "+name, func(t *testing.T) {
			k := known(t, name)
			i := call(t, iwarp.Protocol{}, 4, func(a *rdmacm.AcceptConfig) { a.PrivateData = []byte("welcome") })
			i.ExpectSilence(20 * time.Millisecond)
			req := k.Ask(2, 2)
			i.Write(req.Octets())
			rep := i.Startup()
			require.True(t, rep.Reply)
			require.Zero(t, rep.Flags&(wiretest.FlagM|wiretest.FlagR|0x0f))
			require.NotZero(t, rep.Flags&wiretest.FlagC)
			require.Equal(t, req.Rev, rep.Rev)
			require.Equal(t, req.Flags&wiretest.FlagS, rep.Flags&wiretest.FlagS)
			if k.Rev == 2 {
				// What was asked for is granted, and one of the offered messages chosen.
				require.GreaterOrEqual(t, binary.BigEndian.Uint16(rep.Private)&0x3fff, uint16(2))
				chosen := binary.BigEndian.Uint16(rep.Private[2:]) & 0xc000
				require.Equal(t, chosen, chosen&k.Offer)
				require.Equal(t, k.Offer != 0, chosen == wiretest.BlockC || chosen == wiretest.BlockD)
				rep.Private = rep.Private[4:]
			}
			require.Equal(t, "welcome", string(rep.Private))
			i.ExpectSilence(20 * time.Millisecond)
			read := uint32(1)
			opener := k.Opens(wiretest.Startup{Private: wiretest.Block(wiretest.BlockA, wiretest.BlockD)})
			if opener == nil {
				// Its application speaks first.
				i.Play(k)
				i.Send(wiretest.Tagged(0, true, uint32(i.e.remote.RKey), i.e.remote.Addr+64, []byte("first")))
			} else if chosenRead(k) {
				i.Send(opener)
				require.Equal(t, wiretest.Tagged(2, true, 1, k.ReadTO, nil), i.Next())
				read = 2
			} else {
				i.Send(wiretest.Tagged(0, true, 1, 0, nil))
			}
			require.NoError(t, <-i.accepted)
			session(t, k, i.Peer, i.e, read, 1)
			orderly(t, i.Peer, i.e)
		})
	}
}

// chosenRead tells whether we have chosen the Read of what k offers: only where the Write
// is not offered.
func chosenRead(k wiretest.Known) bool { return k.Offer == wiretest.BlockD }

// orderly ends the connection as all of them do: a FIN, and all is closed when one comes.
func orderly(t *testing.T, p *wiretest.Peer, e *end) {
	t.Helper()
	p.CloseWrite()
	p.ExpectEOF()
	require.NoError(t, p.Conn().Close())
	e.ended(t)
	require.NoError(t, e.Err())
	for _, wc := range e.wait(t, 2) { // the receives that are left
		require.Equal(t, verbs.WCWRFlushErr, wc.Status)
	}
	e.quiet(t)
}

// ended waits until the queue pair is in ERR and flushed.
func (e *end) ended(t *testing.T) {
	t.Helper()
	select {
	case <-e.Done():
	case <-time.After(20 * time.Second):
		require.Fail(t, "the queue pair did not end", "state %v", e.State())
	}
}
