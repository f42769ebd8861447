package rdmap

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// heard is one whole message as a raw peer hears it.
type heard struct {
	op  byte
	msn uint32 // untagged
	len int
}

// messages takes all whole messages off the wire. It fails if the segments of
// two are mixed.
func (r *raw) messages() (out []heard) {
	r.t.Helper()
	r.read()
	open := false
	for len(r.got) > 0 {
		s := r.expectFPDU()
		m := heard{op: s[1] & 0xf}
		if s[0]&0x80 == 0 {
			m.msn, m.len = binary.BigEndian.Uint32(s[10:]), len(s)-18
		} else {
			m.len = len(s) - 14
		}
		if open {
			last := &out[len(out)-1]
			require.Equal(r.t, last.op, m.op, "segments of two messages are mixed")
			require.Equal(r.t, last.msn, m.msn, "segments of two messages are mixed")
			last.len += m.len
		} else {
			out = append(out, m)
		}
		open = s[0]&0x40 == 0
	}
	return out
}

func TestOrderOut(t *testing.T) {
	t.Run("RDM-07 RDM-45 DDP-20 DDP-21 messages leave in the order of their operations, answers between them", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.IRD, cfg.ORD = 16, 16
		e, peer := newRaw(t, cfg)
		src := newRegion(t, k.table, 5000, testPD, ddp.LocalWrite)
		for i := range uint32(6) {
			peer.play(fpdu(readReq(i+1, 1, 0, 3000, k.s.stag, base)))
		}
		e.receive()
		e.drained()
		ops := []*Op{
			{Kind: Send, SGL: []SGE{src.sge(0, 5000)}},
			{Kind: Write, SGL: []SGE{src.sge(0, 4000)}},
			{Kind: Read, SGL: []SGE{src.sge(0, 100)}},
			{Kind: Immediate},
			{Kind: FetchAdd, SGL: []SGE{src.sge(0, 8)}},
			{Kind: Send},
			{Kind: Read},
			{Kind: Write, WithImm: true, SGL: []SGE{src.sge(0, 3000)}},
			{Kind: CompareSwap, SGL: []SGE{src.sge(8, 8)}},
			{Kind: Write},
		}
		for i, op := range ops {
			op.ID = uint64(i)
		}
		e.post(ops...)
		settle(e)
		got := peer.messages()
		answers := 0
		got = slices.DeleteFunc(got, func(m heard) bool {
			if m.op == 2 {
				answers++
				require.Equal(t, 3000, m.len)
			}
			return m.op == 2
		})
		require.Equal(t, 6, answers)
		require.Equal(t, []heard{
			{3, 1, 5000}, {0, 0, 4000}, {1, 1, 28}, {8, 2, 8}, {10, 2, 52}, {3, 3, 0}, {1, 3, 28},
			{0, 0, 3000}, {8, 4, 8}, {10, 4, 52}, {0, 0, 0},
		}, got)
		require.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, e.sent)

		// Whatever waits for an answer completes in the order of posting.
		peer.play(fpdu(taggedSeg(0xc1, 0x42, src.stag, src.base, make([]byte, 100)...)))
		peer.play(fpdu(atomicResp(1, 0, 0)))
		peer.play(fpdu(taggedSeg(0xc1, 0x42, 1, 0)))
		peer.play(fpdu(atomicResp(2, 1, 0)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []Event{
			{Kind: ReadDone, ID: 2, Len: 100}, {Kind: ReadDone, ID: 4, Len: 8}, {Kind: ReadDone, ID: 6}, {Kind: ReadDone, ID: 8, Len: 8},
		}, e.drained())
	})
	t.Run("RDM-15 RDM-27 ten reads are answered in order", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.IRD = 16
		e, peer := newRaw(t, cfg)
		for i := range uint32(10) {
			peer.play(fpdu(readReq(i+1, ddp.STag(100+i), uint64(i)<<32, 1500, k.s.stag, base+uint64(i))))
		}
		settle(e)
		for i := range 10 {
			for got, last := 0, false; !last; {
				s := peer.expectFPDU()
				h := ddp.Header(s[:14])
				require.Equal(t, ddp.STag(100+i), h.STag())
				require.Equal(t, uint64(i)<<32+uint64(got), h.TO(), "in increasing order")
				got += len(s) - 14
				last = h.Last()
				require.Equal(t, got == 1500, last, "L on the last segment alone")
			}
		}
		peer.silent()
	})
	t.Run("DDP-37 RDM-11 an operation is done when TCP has it, whatever the peer does", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.post(&Op{Kind: Send, ID: 1, Inline: make([]byte, 3000)}, &Op{Kind: Write, ID: 2, RemoteSTag: 0x0badcafe, Inline: []byte{1}}, &Op{Kind: Immediate, ID: 3})
		e.transmit()
		require.Equal(t, []uint64{1, 2, 3}, e.sent, "the peer has read nothing, and has no memory of that name")
		require.Len(t, peer.messages(), 3)
	})
}

func TestOrderIn(t *testing.T) {
	t.Run("RDM-14 RDM-47 a read sees the Write in front of it, also in the same octets", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		b := fpdu(taggedSeg(0x81, 0x40, k.s.stag, base, 1, 2))
		b = append(b, fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base+2, 3, 4))...)
		peer.play(append(b, fpdu(readReq(1, 9, 8, 4, k.s.stag, base))...))
		settle(e)
		require.Equal(t, taggedSeg(0xc1, 0x42, 9, 8, 1, 2, 3, 4), peer.expectFPDU())
	})
	t.Run("RDM-14 the response is not begun before the Send in front of the request is delivered", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(append(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 1)), fpdu(readReq(1, 9, 8, 4, k.s.stag, base))...))
		settle(e)
		require.Equal(t, []EventKind{FirstFPDU, RecvDone, RequestQueued}, kinds(e.events))
	})
	t.Run("RDM-29 RDM-44 a Send is delivered while the answer to an earlier read is on its way", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		big := newRegion(t, k.table, 8<<20, testPD, ddp.RemoteRead)
		k.post(e)
		peer.play(fpdu(readReq(1, 9, 0, 8<<20, big.stag, big.base)))
		settle(e)
		require.Positive(t, e.blocks, "the answer does not fit")
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 5)))
		settle(e)
		require.Equal(t, []EventKind{FirstFPDU, RequestQueued, RecvDone}, kinds(e.events))
		require.Zero(t, e.Stats().ResponsesOut)
		require.Equal(t, byte(5), k.recv.mem[0])
	})
	t.Run("RDM-44 a connection that stands still does not hold up another", func(t *testing.T) {
		k := newScene(t)
		big := newRegion(t, k.table, 4<<20, testPD, 0)
		e1, p1 := newRaw(t, k.config())
		e2, p2 := newRaw(t, k.config())
		k.post(e1)
		k.post(e2)
		p1.play(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1)))                   // its rest never comes
		e1.post(&Op{Kind: Write, RemoteSTag: 1, SGL: []SGE{big.sge(0, 4<<20)}}) // nobody reads it
		settle(e1)
		require.Positive(t, e1.blocks)
		p2.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 2)))
		e2.post(&Op{Kind: Send, ID: 7})
		settle(e1, e2)
		require.Equal(t, []EventKind{FirstFPDU, RecvDone}, kinds(e2.events))
		require.Equal(t, []uint64{7}, e2.sent)
		require.Equal(t, []heard{{3, 1, 0}}, p2.messages())
	})
}

func kinds(events []Event) (k []EventKind) {
	for _, ev := range events {
		k = append(k, ev.Kind)
	}
	return k
}

// TestVisible has two goroutines an end. What a Send or Immediate announces has
// to be there, and a read has to bring it back.
func TestVisible(t *testing.T) {
	const rounds = 100_000 / slow
	for _, last := range []Kind{Send, Immediate} {
		t.Run(fmt.Sprintf("RDM-46 DDP-26 a Write is visible when what comes after it is delivered, kind %d", last), func(t *testing.T) {
			tab := ddp.NewTable()
			cfg := Config{Table: tab, IRD: 4, ORD: 4}
			a, b := newPair(t, 1448, 32<<10, cfg, cfg)
			dst := newRegion(t, tab, 8, testPD, remoteRights)
			var round uint64
			var data [8]byte
			write := Op{Kind: Write, RemoteSTag: dst.stag, RemoteTO: dst.base, Inline: data[:]}
			tell := Op{Kind: last, Inline: data[:]}
			said := false
			sa := newSide(a, func() *Op {
				if said = !said; !said {
					return &tell
				}
				if round == rounds {
					said = false
					return nil
				}
				round++
				binary.NativeEndian.PutUint64(data[:], round)
				return &write
			}, nil)
			recv := newRegion(t, tab, 8, testPD, ddp.LocalWrite)
			sb := newSide(b, func() *Op { return nil }, func() RecvBuf { return RecvBuf{SGL: []SGE{recv.sge(0, 8)}} })
			var delivered uint64
			bad := make(chan string, 1)
			sb.onRecv = func() {
				delivered++
				// No later than the Write before; a later one may have come, too.
				if v := word(dst, 0); v < delivered {
					select {
					case bad <- fmt.Sprintf("message %d: the memory has %d", delivered, v):
					default:
					}
				}
			}
			runSides(t, func() bool { return sb.recvd.Load() >= rounds || len(bad) > 0 }, sa, sb)
			require.Empty(t, bad)
			require.Equal(t, uint64(rounds), word(dst, 0))
		})
	}
	t.Run("RDM-47 a read brings back what was written before it", func(t *testing.T) {
		tab := ddp.NewTable()
		cfg := Config{Table: tab, IRD: 4, ORD: 1}
		a, b := newPair(t, 1448, 32<<10, cfg, cfg)
		dst := newRegion(t, tab, 8, testPD, remoteRights)
		back := newRegion(t, tab, 8, testPD, ddp.LocalWrite)
		var data [8]byte
		for i := range uint64(rounds) {
			binary.NativeEndian.PutUint64(data[:], i)
			a.post(
				&Op{Kind: Write, RemoteSTag: dst.stag, RemoteTO: dst.base, Inline: data[:]},
				&Op{Kind: Read, ID: i, RemoteSTag: dst.stag, RemoteTO: dst.base, SGL: []SGE{back.sge(0, 8)}},
			)
			settle(a, b)
			if word(back, 0) != i {
				require.Equal(t, i, word(back, 0))
			}
			a.sent, a.events, b.events = a.sent[:0], a.events[:0], b.events[:0]
		}
	})
}

// runSides runs both halves of each side until done, and fails if that never
// comes.
func runSides(t *testing.T, done func() bool, sides ...*side) {
	t.Helper()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for _, s := range sides {
		s.run(&wg, stop)
	}
	require.Eventually(t, done, 8*time.Minute, 5*time.Millisecond)
	close(stop)
	wg.Wait()
	for _, s := range sides {
		require.Empty(t, s.failed)
	}
}
