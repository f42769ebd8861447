package rdmap

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// imm builds an Immediate Data message by hand (RFC 7306, Section 6.1).
func imm(op byte, msn uint32, payload ...byte) []byte {
	return untaggedSeg(0x41, 0x40|op, 0, 0, msn, 0, payload...)
}

var eight = []byte{1, 2, 3, 4, 5, 6, 7, 8}

const eightValue = 0x0102030405060708

func TestImmediateOut(t *testing.T) {
	t.Run("RDM-69 the first octet on the wire is the top one", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.post(&Op{Kind: Immediate, ID: 1, Imm: 0xdeadbeef << 32})
		settle(e)
		require.Equal(t, imm(8, 1, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0), peer.expectFPDU())
		peer.silent()
		require.Equal(t, []uint64{1}, e.sent)
		require.EqualValues(t, 1, e.Stats().ImmediatesOut)
	})
	t.Run("RDM-42 RDM-66 the vectors", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.post(&Op{Kind: Immediate, Imm: 0xdeadbeef}, &Op{Kind: Immediate, Imm: 0xdeadbeef, Solicited: true})
		settle(e)
		peer.expectBytes(unhex(t, vecImm))
		peer.expectBytes(unhex(t, vecImmSE))
	})
	for _, se := range []bool{false, true} {
		for _, size := range []int{0, 8, 4000} {
			t.Run(fmt.Sprintf("RDM-68 a Write of %d octets with Immediate, SE=%v", size, se), func(t *testing.T) {
				k := newScene(t)
				cfg := k.config()
				cfg.IRD = 16
				e, peer := newRaw(t, cfg)
				src := newRegion(t, k.table, 4000, testPD, 0)
				for i := range uint32(8) { // answers that could come between
					peer.play(fpdu(readReq(i+1, 1, 0, 8, k.s.stag, base)))
				}
				e.receive()
				e.post(
					&Op{Kind: Write, ID: 1, WithImm: true, Imm: eightValue, Solicited: se, RemoteSTag: 9, RemoteTO: 5, SGL: []SGE{src.sge(0, size)}},
					&Op{Kind: Send, ID: 2},
				)
				settle(e)
				for range 4 {
					require.Equal(t, byte(0x42), peer.expectFPDU()[1])
				}
				got := 0
				for {
					s := peer.expectFPDU()
					require.Equal(t, byte(0x40), s[1], "nothing comes between the segments")
					got += len(s) - 14
					if s[0]&0x40 != 0 {
						break
					}
				}
				require.Equal(t, size, got)
				op := byte(8)
				if se {
					op = 9
				}
				require.Equal(t, imm(op, 1, eight...), peer.expectFPDU(), "nothing comes between the Write and its Immediate")
				for range 4 {
					require.Equal(t, byte(0x42), peer.expectFPDU()[1])
				}
				require.Equal(t, untaggedSeg(0x41, 0x43, 0, 0, 2, 0), peer.expectFPDU(), "the Send has MSN 2")
				peer.silent()
				require.Equal(t, []uint64{1, 2}, e.sent, "one completion")
				st := e.Stats()
				require.EqualValues(t, 1, st.WritesOut)
				require.EqualValues(t, 1, st.ImmediatesOut)
				require.EqualValues(t, 1, st.SendsOut)
			})
		}
	}
	t.Run("RDM-68 without room for the Immediate it comes later, and with it the completion", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, Table: ddp.NewTable()})
		g := newRegion(t, e.table, 4<<20, testPD, 0)
		e.post(&Op{Kind: Write, ID: 1, WithImm: true, Imm: eightValue, RemoteSTag: 9, SGL: []SGE{g.sge(0, 4<<20)}}, &Op{Kind: Send, ID: 2})
		var last []byte
		for n := 0; n < 4<<20 || last[1] != 0x43; {
			settle(e)
			peer.read()
			require.NotEmpty(t, peer.got)
			for len(peer.got) > 0 {
				s := peer.expectFPDU()
				if s[1] != 0x40 {
					require.Equal(t, 4<<20, n)
					if s[1] == 0x43 {
						require.Equal(t, imm(8, 1, eight...), last)
					}
				}
				n += len(s) - 14
				if s[1] != 0x40 {
					n = 4 << 20
				}
				last = s
			}
		}
		require.Positive(t, e.blocks)
		require.Equal(t, []uint64{1, 2}, e.sent)
	})
}

func TestImmediateIn(t *testing.T) {
	t.Run("RDM-66 it takes a receive and its MSN, and leaves the buffer alone", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		e.recvs = []RecvBuf{{ID: 1, SGL: []SGE{k.recv.sge(0, 8)}}, {ID: 2, SGL: []SGE{k.recv.sge(8, 8)}}, {ID: 3, SGL: []SGE{{STag: 0xbad, Len: 8}}}}
		peer.play(append(fpdu(imm(8, 1, eight...)), fpdu(untaggedSeg(0x41, 0x43, 0, 0, 2, 0, 9))...))
		peer.play(fpdu(imm(9, 3, eight...)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []Event{
			{Kind: FirstFPDU, KickTx: true},
			{Kind: RecvDone, ID: 1, Immediate: true, Imm: eightValue},
			{Kind: RecvDone, ID: 2, Len: 1},
			{Kind: RecvDone, ID: 3, Immediate: true, Imm: eightValue, Solicited: true},
		}, e.events)
		require.Equal(t, byte(9), k.recv.mem[8])
		k.recv.mem[8] = canary
		k.untouched(t)
		require.EqualValues(t, 2, e.Stats().ImmediatesIn)
		require.EqualValues(t, 1, e.Stats().SendsIn)
	})
	t.Run("RDM-66 DDP-39 no receive posted", func(t *testing.T) {
		for _, payload := range [][]byte{eight, eight[:7], nil} {
			e, peer := newRaw(t, Config{})
			seg := imm(8, 1, payload...)
			peer.play(fpdu(seg))
			settle(e)
			require.Equal(t, termULPDU(0x1202, seg), peer.expectFPDU())
		}
	})
	t.Run("RDM-42 RDM-67 Write, Immediate, Send, Immediate with SE come in order", func(t *testing.T) {
		tab := ddp.NewTable()
		a, b := newPair(t, 1448, 1<<16, Config{Table: tab}, Config{Table: tab})
		dst := newRegion(t, tab, 3000, testPD, remoteRights)
		buf := newRegion(t, tab, 100, testPD, ddp.LocalWrite)
		for i := range uint64(4) {
			b.recvs = append(b.recvs, RecvBuf{ID: i, SGL: []SGE{buf.sge(int(i)*10, 10)}})
		}
		data := pattern(3000, 1)
		a.post(
			&Op{Kind: Write, Inline: data, RemoteSTag: dst.stag, RemoteTO: dst.base},
			&Op{Kind: Immediate, Imm: 1},
			&Op{Kind: Send, Inline: []byte("abc")},
			&Op{Kind: Immediate, Imm: 2, Solicited: true},
			&Op{Kind: Write, WithImm: true, Imm: 3, Inline: data[:7], RemoteSTag: dst.stag, RemoteTO: dst.base},
		)
		settle(a, b)
		require.NoError(t, b.rxErr)
		require.Equal(t, []Event{
			{Kind: FirstFPDU, KickTx: true},
			{Kind: RecvDone, ID: 0, Immediate: true, Imm: 1, Len: 3000},
			{Kind: RecvDone, ID: 1, Len: 3},
			{Kind: RecvDone, ID: 2, Immediate: true, Imm: 2, Solicited: true},
			{Kind: RecvDone, ID: 3, Immediate: true, Imm: 3, Len: 7},
		}, b.events)
		same(t, data, dst.mem, "written")
	})
	for _, c := range []struct {
		name string
		seg  []byte
		code uint16
	}{
		{"RDM-65 no octets", imm(8, 1), 0x0207},
		{"RDM-65 7 octets", imm(8, 1, eight[:7]...), 0x0207},
		{"RDM-65 9 octets", imm(9, 1, append(eight[:8:8], 9)...), 0x0207},
		{"RDM-65 16 octets, all that the receive holds", imm(8, 1, make([]byte, 16)...), 0x0207},
		{"RDM-65 17 octets", imm(8, 1, make([]byte, 17)...), 0x0207},
		{"RDM-65 more segments to come", untaggedSeg(0x01, 0x48, 0, 0, 1, 0, eight...), 0x0207},
		{"DDP-41 MO 8", untaggedSeg(0x41, 0x48, 0, 0, 1, 8, eight...), 0x1204},
		{"DDP-40 MSN 2", imm(8, 2, eight...), 0x1203},
		{"RDM-04 QN 1", untaggedSeg(0x41, 0x48, 0, 1, 1, 0, eight...), 0x1201},
		{"RDM-04 tagged", taggedSeg(0xc1, 0x48, 0x12345678, base, eight...), 0x0206},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(fpdu(c.seg))
			settle(e)
			require.Equal(t, termULPDU(c.code, c.seg), peer.expectFPDU())
			peer.silent()
			require.Len(t, e.events, 1, "not completed")
			k.untouched(t)
		})
	}
	for name, lead := range map[string][]byte{
		"Send":  untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 9),
		"Write": taggedSeg(0x81, 0x40, 0x12345678, base, 9),
	} {
		t.Run("DDP-26 RDM-06 RDM-67 inside a "+name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			seg := untaggedSeg(0x41, 0x48, 0, 0, 1, 0, eight...)
			if name == "Send" {
				seg[17] = 1 // it would go on where the Send stands
			}
			peer.play(append(fpdu(lead), fpdu(seg)...))
			settle(e)
			require.Equal(t, termULPDU(0x0206, seg), peer.expectFPDU())
			require.Len(t, e.events, 1, "not completed")
		})
	}
	t.Run("RDM-05 the Invalidate STag of an Immediate is ignored", func(t *testing.T) {
		k := newScene(t)
		require.NoError(t, k.table.AllowInvalidate(k.s.stag))
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(fpdu(untaggedSeg(0x41, 0x48, 0x12345678, 0, 1, 0, eight...)))
		peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 7)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, byte(7), k.s.mem[0])
	})
}

func TestImmediateLength(t *testing.T) {
	write := func(k *scene, last bool, n int) []byte {
		control := byte(0x81)
		if last {
			control = 0xc1
		}
		return taggedSeg(control, 0x40, k.s.stag, base, make([]byte, n)...)
	}
	send := func(msn uint32) []byte { return untaggedSeg(0x41, 0x43, 0, 0, msn, 0) }
	one := func(msn uint32) []byte { return imm(8, msn, eight...) }
	for _, c := range []struct {
		name string
		segs func(k *scene) [][]byte
		want []uint32 // of each Immediate
	}{
		{"nothing before", func(k *scene) [][]byte { return [][]byte{one(1)} }, []uint32{0}},
		{"a Write before", func(k *scene) [][]byte { return [][]byte{write(k, true, 100), one(1)} }, []uint32{100}},
		{"three segments before", func(k *scene) [][]byte {
			return [][]byte{write(k, false, 1000), write(k, false, 1000), write(k, true, 1), one(1)}
		}, []uint32{2001}},
		{"an empty Write before", func(k *scene) [][]byte { return [][]byte{write(k, true, 5), write(k, true, 0), one(1)} }, []uint32{0}},
		{"the last of two Writes", func(k *scene) [][]byte { return [][]byte{write(k, true, 5), write(k, true, 6), one(1)} }, []uint32{6}},
		{"a Send between", func(k *scene) [][]byte { return [][]byte{write(k, true, 5), send(1), one(2)} }, []uint32{0}},
		{"a second Immediate", func(k *scene) [][]byte { return [][]byte{write(k, true, 5), one(1), one(2)} }, []uint32{5, 0}},
		{"a Read Request between", func(k *scene) [][]byte {
			return [][]byte{write(k, true, 5), readReq(1, 1, 0, 0, 1, 0), one(1)}
		}, []uint32{0}},
		{"an Atomic Request between", func(k *scene) [][]byte {
			return [][]byte{write(k, true, 5), atomicReq(1, 0, 1, k.s.stag, base), one(1)}
		}, []uint32{0}},
	} {
		t.Run("RDM-70 "+c.name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			for range 4 {
				k.post(e)
			}
			for _, s := range c.segs(k) {
				peer.play(fpdu(s))
			}
			settle(e)
			require.NoError(t, e.rxErr)
			var got []uint32
			for _, ev := range e.events {
				if ev.Immediate {
					require.Equal(t, uint64(eightValue), ev.Imm)
					got = append(got, ev.Len)
				}
			}
			require.Equal(t, c.want, got)
		})
	}
	t.Run("RDM-70 a Write longer than any length", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(fpdu(write(k, false, 8)))
		settle(e)
		e.rx.writing += math.MaxUint32 // as many octets later
		peer.play(append(fpdu(write(k, true, 8)), fpdu(one(1))...))
		settle(e)
		require.Equal(t, uint32(math.MaxUint32), e.events[1].Len)
	})
}
