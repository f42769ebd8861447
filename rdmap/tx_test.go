package rdmap

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

func TestFence(t *testing.T) {
	t.Run("RDM-48 a fenced operation waits for reads, RDM-49 others do not", func(t *testing.T) {
		e, peer, g := reader(t, 8)
		e.post(&Op{Kind: Send, ID: 1}, &Op{Kind: Write, ID: 2, Fence: true, RemoteSTag: 1}, &Op{Kind: Send, ID: 3})
		settle(e)
		peer.expectBytes(unhex(t, vecSendZero))
		peer.silent()
		require.Equal(t, []uint64{5, 1}, e.sent)
		ok, err := e.Submit(&Op{Kind: Send, Fence: true})
		require.False(t, ok)
		require.NoError(t, err)

		peer.play(fpdu(taggedSeg(0x81, 0x42, g.stag, 0x1010, 1, 2, 3, 4)))
		settle(e)
		peer.silent()
		peer.play(fpdu(taggedSeg(0xc1, 0x42, g.stag, 0x1014, 5, 6, 7, 8)))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: 8, KickTx: true}}, e.events)
		require.Equal(t, taggedSeg(0xc1, 0x40, 1, 0), peer.expectFPDU())
		require.Equal(t, untaggedSeg(0x41, 0x43, 0, 0, 2, 0), peer.expectFPDU())
		require.Equal(t, []uint64{5, 1, 2, 3}, e.sent)
	})
	t.Run("a read that nobody waits for does not kick", func(t *testing.T) {
		e, peer, g := reader(t, 1)
		peer.play(fpdu(taggedSeg(0xc1, 0x42, g.stag, 0x1010, 1)))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: 1}}, e.events)
	})
}

func TestORD(t *testing.T) {
	for ord := 1; ord <= 3; ord++ {
		t.Run(fmt.Sprintf("RDM-22 MPA-37 ORD %d", ord), func(t *testing.T) {
			e, peer := newRaw(t, Config{Initiator: true, ORD: ord})
			require.Equal(t, ord, e.ORD())
			for i := range 6 {
				e.post(&Op{Kind: Read, ID: uint64(i + 1), RemoteSTag: 9})
			}
			e.post(&Op{Kind: Send, ID: 9})
			settle(e)
			for answered := range 6 {
				require.Equal(t, min(ord, 6-answered), e.OutstandingReads())
				require.EqualValues(t, min(6, answered+ord), e.Stats().ReadsOut)
				require.Equal(t, answered+ord >= 6, e.Stats().SendsOut == 1, "the Send waits behind the reads")
				peer.play(fpdu(taggedSeg(0xc1, 0x42, 1, 0)))
				settle(e)
				require.Equal(t, answered+ord < 6, e.drained()[0].KickTx)
			}
			require.Zero(t, e.OutstandingReads())
			require.Equal(t, []uint64{1, 2, 3, 4, 5, 6, 9}, e.sent)
			for msn := range uint32(6) {
				require.Equal(t, readReq(msn+1, 1, 0, 0, 9, 0), peer.expectFPDU())
			}
		})
	}
	t.Run("RDM-24 ORD 0: no read is sent", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		_, err := e.Submit(&Op{Kind: Read, ID: 4})
		var le *LocalError
		require.ErrorAs(t, err, &le)
		require.ErrorIs(t, err, ErrNoReads)
		require.EqualValues(t, 4, le.ID)
		settle(e)
		peer.expectBytes(unhex(t, vecTerm0000))
		peer.silent()
	})
	t.Run("RDM-25 MPA-37 ORD can be lowered and not raised", func(t *testing.T) {
		e, _ := newRaw(t, Config{Initiator: true, ORD: 3})
		e.LowerORD(2)
		e.LowerORD(5)
		require.Equal(t, 2, e.ORD())
		for i := range 3 {
			e.post(&Op{Kind: Read, ID: uint64(i)})
		}
		settle(e)
		require.Equal(t, 2, e.OutstandingReads())
		e.LowerORD(-1)
		require.Zero(t, e.ORD())
	})
}

func TestLocalErrors(t *testing.T) {
	tab := ddp.NewTable()
	ro := newRegion(t, tab, 64, testPD, 0)
	rw := newRegion(t, tab, 64, testPD, ddp.LocalWrite)
	other := newRegion(t, tab, 64, otherPD, ddp.LocalWrite)
	huge := SGE{STag: rw.stag, Len: math.MaxUint32}
	cases := []struct {
		name  string
		op    Op
		fault ddp.FaultKind
		is    error
	}{
		{"RDM-55 unknown key", Op{Kind: Send, SGL: []SGE{{STag: 0x0badcafe, Len: 1}}}, ddp.FaultSTag, nil},
		{"SEC-55 other PD", Op{Kind: Send, SGL: []SGE{rw.sge(0, 8), other.sge(0, 8)}}, ddp.FaultPD, nil},
		{"out of bounds", Op{Kind: Write, SGL: []SGE{rw.sge(60, 5)}}, ddp.FaultBounds, nil},
		{"RDM-30 a read longer than its region", Op{Kind: Read, SGL: []SGE{rw.sge(0, 65)}}, ddp.FaultBounds, nil},
		{"RDM-35 a read into memory without local write", Op{Kind: Read, SGL: []SGE{ro.sge(0, 64)}}, ddp.FaultAccess, nil},
		{"a read into memory of another PD", Op{Kind: Read, SGL: []SGE{other.sge(0, 64)}}, ddp.FaultPD, nil},
		{"a read into two pieces", Op{Kind: Read, SGL: []SGE{rw.sge(0, 4), rw.sge(4, 4)}}, 0, ErrReadSink},
		{"a read with inline data", Op{Kind: Read, Inline: []byte{1}}, 0, ErrReadSink},
		{"DDP-25 a Write that wraps", Op{Kind: Write, RemoteTO: math.MaxUint64 - 3, Inline: make([]byte, 8)}, ddp.FaultWrap, nil},
		{"no kind", Op{}, 0, ErrKind},
		{"a kind of the future", Op{Kind: CompareSwap + 1}, 0, ErrKind},
		{"SEC-35 a huge element", Op{Kind: Send, SGL: []SGE{huge}}, ddp.FaultBounds, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e, peer := newRaw(t, Config{Initiator: true, ORD: 1, Table: tab})
			c.op.ID = 6
			ok, err := e.Submit(&c.op)
			require.False(t, ok)
			var le *LocalError
			require.ErrorAs(t, err, &le)
			require.EqualValues(t, 6, le.ID)
			require.False(t, le.Recv)
			require.Contains(t, le.Error(), "operation 6")
			var f *ddp.Fault
			if c.fault != 0 {
				require.ErrorAs(t, err, &f)
				require.Equal(t, c.fault, f.Kind)
			} else {
				require.ErrorIs(t, err, c.is)
			}
			ok, err = e.Submit(&Op{Kind: Send})
			require.False(t, ok)
			require.ErrorIs(t, err, ErrStopped)
			settle(e)
			peer.expectBytes(unhex(t, vecTerm0000))
			peer.silent()
			_, _, err = e.Receive()
			require.ErrorIs(t, err, ErrStopped)
			require.Empty(t, e.sent)
		})
	}
	t.Run("DDP-22 4 GiB in two pieces", func(t *testing.T) {
		big := ddp.NewTable()
		mem, err := syscall.Mmap(-1, 0, 1<<31, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		require.NoError(t, err)
		defer func() { require.NoError(t, syscall.Munmap(mem)) }()
		g, _, err := big.Register(mem, testPD, 0)
		require.NoError(t, err)
		half := SGE{STag: g, Len: 1 << 31}
		e, _ := newRaw(t, Config{Initiator: true, Table: big})
		ok, err := e.Submit(&Op{Kind: Write, SGL: []SGE{half, {STag: g, Len: 1<<31 - 1}}})
		require.NoError(t, err, "2^32-1 octets are fine")
		require.True(t, ok)
		e, _ = newRaw(t, Config{Initiator: true, Table: big})
		_, err = e.Submit(&Op{Kind: Write, SGL: []SGE{half, half}})
		require.ErrorIs(t, err, ErrTooLong)
	})
	t.Run("RDM-55 RDM-56 a region that goes away in the middle of a Send", func(t *testing.T) {
		tab := ddp.NewTable()
		g := newRegion(t, tab, 4<<20, testPD, 0)
		e, peer := newRaw(t, Config{Initiator: true, Table: tab})
		e.post(&Op{Kind: Send, ID: 2, SGL: []SGE{g.sge(0, 4<<20)}})
		settle(e)
		require.Positive(t, e.blocks)
		require.NoError(t, tab.Deregister(g.stag))
		for i := range g.mem {
			g.mem[i] = 0xee
		}
		peer.read()
		settle(e)
		require.Len(t, e.txErrs, 1)
		var le *LocalError
		require.True(t, errors.As(e.txErrs[0], &le))
		require.EqualValues(t, 2, le.ID)
		for {
			s := peer.expectFPDU()
			if s[1] == 0x47 {
				require.Equal(t, termULPDU(0, nil), s)
				break
			}
			require.Zero(t, s[0]&0x40, "the message is not finished")
			same(t, bytes.Repeat([]byte{canary}, len(s)-18), s[18:], "an octet leaked after Deregister")
		}
		peer.silent()
		require.Empty(t, e.sent)
	})
}

func TestResponsesAndOperationsAlternate(t *testing.T) {
	k := newScene(t)
	cfg := k.config()
	cfg.IRD = 16
	e, peer := newRaw(t, cfg)
	kinds := func() (s string) {
		peer.read()
		for len(peer.got) > 0 {
			s += map[byte]string{0x42: "r", 0x43: "S"}[peer.expectFPDU()[1]]
		}
		return s
	}
	requests := func(n int) {
		for range n {
			msn := uint32(e.Stats().RequestsIn) + 1
			peer.play(fpdu(readReq(msn, 1, 0, 8, 0x12345678, base)))
			e.receive()
		}
	}
	t.Run("RDM-26 four responses, then one message of the send queue", func(t *testing.T) {
		requests(16)
		for i := range 5 {
			e.post(&Op{Kind: Send, ID: uint64(i)})
		}
		settle(e)
		require.Equal(t, "rrrrSrrrrSrrrrSrrrrSS", kinds())
	})
	t.Run("RDM-26 responses alone", func(t *testing.T) {
		requests(10)
		settle(e)
		require.Equal(t, "rrrrrrrrrr", kinds())
	})
	t.Run("RDM-26 the send queue has a turn after four", func(t *testing.T) {
		requests(10)
		p, err := e.Pump()
		require.NoError(t, err)
		require.Equal(t, Progress{Next: Next{WantOp: true, More: true}}, p)
		ok, err := e.Submit(&Op{Kind: Send, ID: 70})
		require.NoError(t, err)
		require.True(t, ok)
		p, err = e.Pump()
		require.NoError(t, err)
		require.Equal(t, Progress{Sent: true, SentID: 70, Next: Next{WantOp: true, More: true}}, p)
		settle(e)
		require.NoError(t, e.Flush())
		require.Equal(t, "rrrrSrrrrrr", kinds())
	})
	t.Run("RDM-26 operations alone", func(t *testing.T) {
		for i := range 6 {
			e.post(&Op{Kind: Send, ID: uint64(i)})
		}
		settle(e)
		require.Equal(t, "SSSSSS", kinds())
	})
}

func TestSubmitOneAtATime(t *testing.T) {
	e, _ := newRaw(t, Config{Initiator: true})
	ok, err := e.Submit(&Op{Kind: Send, ID: 1})
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = e.Submit(&Op{Kind: Send, ID: 2})
	require.NoError(t, err)
	require.False(t, ok)
	p, err := e.Pump()
	require.NoError(t, err)
	require.Equal(t, Progress{Sent: true, SentID: 1, Next: Next{WantOp: true}}, p)
	p, err = e.Pump()
	require.NoError(t, err)
	require.Equal(t, Progress{Next: Next{WantOp: true}}, p)
	require.Positive(t, e.conn.Pending(), "nothing leaves before Flush")
	require.NoError(t, e.Flush())
	require.Zero(t, e.conn.Pending())
}

func TestTerminateBetweenSegments(t *testing.T) {
	t.Run("RDM-56 DDP-51 the receive half fails while a message is on its way", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		g := newRegion(t, k.table, 4<<20, testPD, 0)
		peer.play(unhex(t, vecWrite8))
		e.post(&Op{Kind: Write, ID: 1, RemoteSTag: 1, SGL: []SGE{g.sge(0, 4<<20)}})
		settle(e)
		require.Positive(t, e.blocks)
		bad := taggedSeg(0xc1, 0x40, 0x0badcafe, base, 1)
		peer.play(fpdu(bad))
		settle(e)
		require.True(t, e.TerminateSent())
		n := 0
		for s := peer.expectFPDU(); s[1] != 0x47; s = peer.expectFPDU() {
			n++
			require.EqualValues(t, 0x81, s[0])
		}
		require.Positive(t, n)
		peer.silent()
		require.Empty(t, e.sent)
	})
	bad := taggedSeg(0xc1, 0x40, 0x0badcafe, base, 1)
	for _, c := range []struct {
		name string
		fail func(e *end, peer *raw, g *region)
		want []byte
	}{
		{"the receive half fails", func(e *end, peer *raw, g *region) { peer.play(fpdu(bad)); e.receive() }, termULPDU(0x1100, bad)},
		{"the owner ends it", func(e *end, peer *raw, g *region) { e.Terminate(nil) }, termULPDU(0, nil)},
		{"the memory goes away", func(e *end, peer *raw, g *region) { require.NoError(t, e.table.Deregister(g.stag)) }, termULPDU(0, nil)},
	} {
		t.Run("RDM-56 what is staged leaves whole: "+c.name, func(t *testing.T) {
			e, peer := newRaw(t, Config{Initiator: true, Table: ddp.NewTable()})
			g := newRegion(t, e.table, 64<<10, testPD, 0)
			for id, op := range []*Op{{Kind: Send, Inline: []byte("hello")}, {Kind: Write, RemoteSTag: 1, SGL: []SGE{g.sge(0, len(g.mem))}}} {
				op.ID = uint64(id)
				ok, err := e.Submit(op)
				require.NoError(t, err)
				require.True(t, ok)
				if id == 1 {
					e.tx.turn = maxTurn - 3000 // the Write gets three segments far
				}
				_, err = e.Pump()
				require.NoError(t, err)
			}
			staged := e.conn.Pending()
			peer.silent()
			c.fail(e, peer, g)
			e.transmit()
			peer.expectBytes(unhex(t, vecSendHello))
			whole := len(unhex(t, vecSendHello))
			for at := 0; whole < staged; {
				s := peer.expectFPDU()
				require.Equal(t, taggedSeg(0x81, 0x40, 1, uint64(at)), s[:14])
				same(t, g.mem[at:at+len(s)-14], s[14:], "a staged segment")
				at += len(s) - 14
				whole += len(fpdu(s))
			}
			require.Equal(t, staged, whole)
			require.Greater(t, staged, 3000)
			require.Equal(t, c.want, peer.expectFPDU())
			peer.silent()
		})
	}
}
