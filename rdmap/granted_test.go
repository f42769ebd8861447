package rdmap

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

func TestGranted(t *testing.T) {
	t.Run("DDP-54 an STag of another connection gives no right", func(t *testing.T) {
		tab := ddp.NewTable()
		g := newRegion(t, tab, 64, otherPD, remoteRights)
		other, _ := newRaw(t, Config{Table: tab, PD: otherPD, IRD: 1})
		require.NotNil(t, other)
		for _, c := range []struct {
			seg  []byte
			code uint16
		}{
			{taggedSeg(0xc1, 0x40, g.stag, g.base, 1), 0x1102},
			{readReq(1, 1, 0, 8, g.stag, g.base), 0x0103},
			{atomicReq(1, codeFetchAdd, 1, g.stag, g.base, 1), 0x0103},
		} {
			e, peer := newRaw(t, Config{Table: tab, PD: testPD, IRD: 1})
			peer.play(fpdu(c.seg))
			settle(e)
			require.Equal(t, termULPDU(c.code, c.seg), peer.expectFPDU())
			peer.silent()
			g.untouched(t)
		}
		e, peer := newRaw(t, Config{Table: tab, PD: otherPD, IRD: 1}) // the one it was given to
		peer.play(fpdu(taggedSeg(0xc1, 0x40, g.stag, g.base, 1)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, byte(1), g.mem[0])
	})
	t.Run("DDP-56 a read shows exactly what was asked for", func(t *testing.T) {
		tab := ddp.NewTable()
		g := newRegion(t, tab, 100, testPD, remoteRights)
		copy(g.mem, pattern(100, 1))
		e, peer := newRaw(t, Config{Table: tab, IRD: 1})
		msn := uint32(0)
		for _, c := range [][2]int{{0, 1}, {0, 100}, {99, 1}, {13, 17}, {50, 0}} {
			msn++
			peer.play(fpdu(readReq(msn, 1, 0, uint32(c[1]), g.stag, g.base+uint64(c[0]))))
			settle(e)
			require.Equal(t, taggedSeg(0xc1, 0x42, 1, 0, g.mem[c[0]:c[0]+c[1]]...), peer.expectFPDU())
		}
		peer.silent()
		over := readReq(msn+1, 1, 0, 1, g.stag, g.base+100)
		peer.play(fpdu(over))
		settle(e)
		require.Equal(t, termULPDU(0x0101, over), peer.expectFPDU())
	})
	t.Run("DDP-56 a Send shows exactly its list", func(t *testing.T) {
		tab := ddp.NewTable()
		g := newRegion(t, tab, 100, testPD, 0)
		copy(g.mem, pattern(100, 1))
		e, peer := newRaw(t, Config{Initiator: true, Table: tab})
		e.post(&Op{Kind: Send, SGL: []SGE{g.sge(10, 2), g.sge(99, 1), g.sge(0, 1)}})
		settle(e)
		require.Equal(t, untaggedSeg(0x41, 0x43, 0, 0, 1, 0, g.mem[10], g.mem[11], g.mem[99], g.mem[0]), peer.expectFPDU())
	})
	t.Run("RDM-28 the wire shows the sink of a read and no other region, and the sink takes nothing but the answer", func(t *testing.T) {
		tab := ddp.NewTable()
		g := newRegion(t, tab, 64, testPD, ddp.LocalWrite)
		newRegion(t, tab, 64, testPD, remoteRights)
		e, peer := newRaw(t, Config{Initiator: true, ORD: 2, IRD: 2, Table: tab})
		e.post(&Op{Kind: Read, RemoteSTag: 9, RemoteTO: 7, SGL: []SGE{g.sge(8, 16)}})
		settle(e)
		require.Equal(t, readReq(1, g.stag, g.base+8, 16, 9, 7), peer.expectFPDU())
		for _, seg := range [][]byte{taggedSeg(0xc1, 0x40, g.stag, g.base+8, 1)} {
			peer.play(fpdu(seg))
			settle(e)
			require.Equal(t, termULPDU(0x1102, seg), peer.expectFPDU())
		}
		g.untouched(t)
	})
	t.Run("RDM-43 any STag can be sent to be invalidated", func(t *testing.T) {
		for _, s := range []ddp.STag{0, 1, 0x0badcafe, math.MaxUint32} {
			e, peer := newRaw(t, Config{Initiator: true})
			e.post(&Op{Kind: Send, Invalidate: true, InvSTag: s})
			settle(e)
			require.Equal(t, untaggedSeg(0x41, 0x44, uint32(s), 0, 1, 0), peer.expectFPDU())
		}
	})
}
