package rdmap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// TestInTurn has what the send half may do while reads are in progress, theirs or ours.
func TestInTurn(t *testing.T) {
	t.Run("RDM-07 RDM-26 answers stand between the operations while both are due", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.IRD, cfg.ORD = 16, 16
		e, peer := newRaw(t, cfg)
		for i := range uint32(11) {
			peer.play(fpdu(readReq(i+1, 1, 0, 1+i, k.s.stag, base)))
		}
		e.receive()
		e.post(&Op{Kind: Send}, &Op{Kind: Write}, &Op{Kind: Read}, &Op{Kind: Send}, &Op{Kind: Send})
		settle(e)
		var ops []byte
		answers := 0
		for _, m := range peer.messages() {
			ops = append(ops, m.op)
			if m.op == 2 {
				answers++
				require.Equal(t, answers, m.len, "answers in the order of the requests")
			}
		}
		require.Equal(t, []byte{2, 2, 2, 2, 3, 2, 2, 2, 2, 0, 2, 2, 2, 1, 3, 3}, ops)
		require.Empty(t, e.txErrs)
	})
	for name, ask := range map[string]func(t *testing.T) (*end, *raw, []byte){
		"a Read": func(t *testing.T) (*end, *raw, []byte) {
			e, peer, g := reader(t, 8)
			return e, peer, taggedSeg(0xc1, 0x42, g.stag, 0x1010, make([]byte, 8)...)
		},
		"an atomic operation": func(t *testing.T) (*end, *raw, []byte) {
			e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: ddp.NewTable()})
			g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
			e.post(&Op{Kind: FetchAdd, ID: 5, SGL: []SGE{g.sge(0, 8)}})
			settle(e)
			peer.expectFPDU()
			return e, peer, atomicResp(1, 0, 9)
		},
	} {
		for _, first := range []Kind{Send, Write} {
			t.Run("RDM-49 a Send and a Write without fence do not wait behind "+name+map[Kind]string{Send: ", Send first", Write: ", Write first"}[first], func(t *testing.T) {
				e, peer, answer := ask(t)
				ops := []*Op{{Kind: Send, ID: 6, Inline: []byte("s")}, {Kind: Write, ID: 7, RemoteSTag: 1, RemoteTO: 2, Inline: []byte("w")}}
				segs := [][]byte{untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 's'), taggedSeg(0xc1, 0x40, 1, 2, 'w')}
				if first == Write {
					ops[0], ops[1], segs[0], segs[1] = ops[1], ops[0], segs[1], segs[0]
				}
				e.post(ops...)
				settle(e)
				require.Equal(t, 1, e.OutstandingReads(), "it is not answered yet")
				require.Equal(t, segs[0], peer.expectFPDU())
				require.Equal(t, segs[1], peer.expectFPDU())
				require.Equal(t, []uint64{5, ops[0].ID, ops[1].ID}, e.sent)
				peer.silent()
				peer.play(fpdu(answer))
				settle(e)
				require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: 8}}, e.events)
			})
		}
	}
}

// TestRequestTaken holds the fields of Read Requests against the answers they get.
func TestRequestTaken(t *testing.T) {
	t.Run("RDM-12 RREQ, received", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		copy(k.s.mem, pattern(64, 5))
		peer.play(unhex(t, vecRead))
		settle(e)
		require.Equal(t, taggedSeg(0xc1, 0x42, 0xaabbcc01, 0x1000, pattern(64, 5)[:16]...), peer.expectFPDU())
		peer.silent()
	})
	t.Run("RDM-12 every octet of the fields counts", func(t *testing.T) {
		tab := ddp.NewTable()
		const at, size = 0x1122334455667788, 0x030201
		g := fixedRegion(t, tab, 8+size, testPD, ddp.RemoteRead, at, 0x91a2b3c4)
		copy(g.mem, pattern(8+size, 3))
		e, peer := newRaw(t, Config{Table: tab, IRD: 1})
		peer.play(fpdu(readReq(1, 0x0a0b0c0d, 0x0102030405060708, size, 0x91a2b3c4, at+5)))
		var got []byte
		for last := false; !last; {
			settle(e)
			peer.read()
			require.NotEmpty(t, peer.got, "%d octets came", len(got))
			for len(peer.got) > 0 && !last {
				s := peer.expectFPDU()
				last = s[0]&0x40 != 0
				require.Equal(t, taggedSeg(s[0], 0x42, 0x0a0b0c0d, 0x0102030405060708+uint64(len(got))), s[:14])
				got = append(got, s[14:]...)
			}
		}
		same(t, g.mem[5:5+size], got, "the answer")
		peer.silent()

		e, peer = newRaw(t, Config{Table: tab, IRD: 1})
		long := readReq(1, 1, 0, 1<<24|16, 0x91a2b3c4, at)
		peer.play(fpdu(long))
		settle(e)
		require.Equal(t, termULPDU(0x0101, long), peer.expectFPDU(), "the first octet of the size")
	})
}
