package rdmap

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// reader is an initiator with one read of n octets on the wire.
func reader(t *testing.T, n int) (*end, *raw, *region) {
	e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: ddp.NewTable()})
	g := fixedRegion(t, e.table, 4096, testPD, ddp.LocalWrite, 0x1000, 0xaabbcc01)
	fixedRegion(t, e.table, 4096, testPD, ddp.LocalWrite, 0x1000, 0xaabbcd01)
	e.post(&Op{Kind: Read, ID: 5, RemoteSTag: 0x12345678, RemoteTO: base, SGL: []SGE{g.sge(16, n)}})
	settle(e)
	peer.expectFPDU()
	require.Equal(t, 1, e.OutstandingReads())
	return e, peer, g
}

func TestResponseChecks(t *testing.T) {
	const stag, to, size = 0xaabbcc01, 0x1010, 100
	data := pattern(size+1, 1)
	resp := func(last bool, s ddp.STag, at uint64, payload []byte) []byte {
		control := byte(0x81)
		if last {
			control = 0xc1
		}
		return taggedSeg(control, 0x42, s, at, payload...)
	}
	first := resp(false, stag, to, data[:40])
	cases := []struct {
		name string
		segs [][]byte
		code uint16 // of the last segment; 0: the read completes
	}{
		{"RDM-21 RDM-35 in one segment, to a sink with no right but local write", [][]byte{resp(true, stag, to, data[:100])}, 0},
		{"RDM-21 in two", [][]byte{first, resp(true, stag, to+40, data[40:100])}, 0},
		{"DDP-47 with an empty last segment", [][]byte{resp(false, stag, to, data[:100]), resp(true, 0, 0, nil)}, 0},
		{"with an empty segment inside", [][]byte{first, resp(false, 0, 0, nil), resp(true, stag, to+40, data[40:100])}, 0},
		{"RDM-33 other STag", [][]byte{resp(true, stag+0x100, to, data[:100])}, 0x1100},
		{"RDM-33 other STag later", [][]byte{first, resp(true, stag+0x100, to+40, data[40:100])}, 0x1100},
		{"RDM-33 TO one less", [][]byte{resp(true, stag, to-1, data[:100])}, 0x1101},
		{"RDM-33 TO one more", [][]byte{resp(true, stag, to+1, data[:99])}, 0x1101},
		{"RDM-33 TO not continued", [][]byte{first, resp(true, stag, to, data[40:100])}, 0x1101},
		{"RDM-33 too long", [][]byte{resp(true, stag, to, data[:101])}, 0x1101},
		{"RDM-33 too long in the second", [][]byte{first, resp(true, stag, to+40, data[40:101])}, 0x1101},
		{"RDM-34 short", [][]byte{resp(true, stag, to, data[:99])}, 0x0207},
		{"RDM-34 short in the second", [][]byte{first, resp(true, stag, to+40, data[40:99])}, 0x0207},
		{"RDM-34 empty", [][]byte{resp(true, stag, to, nil)}, 0x0207},
		{"RDM-34 more after all", [][]byte{resp(false, stag, to, data[:100]), resp(true, stag, to+100, data[100:101])}, 0x1101},
		{"DDP-36 SEC-42 a Write inside", [][]byte{first, taggedSeg(0xc1, 0x40, stag, to, 1)}, 0x0206},
		{"DDP-36 SEC-42 inside a Write", [][]byte{taggedSeg(0x81, 0x40, 0, 0), resp(true, stag, to, data[:100])}, 0x0206},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e, peer, g := reader(t, size)
			before := append([]byte{}, g.mem...)
			for i, s := range c.segs {
				if i == len(c.segs)-1 && c.code != 0 {
					settle(e)
					copy(before, g.mem)
				}
				peer.play(fpdu(s))
			}
			settle(e)
			if c.code == 0 {
				require.NoError(t, e.rxErr)
				require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: size}}, e.events)
				same(t, data[:size], g.mem[16:16+size], "read")
				require.Zero(t, e.OutstandingReads())
				peer.silent()
				return
			}
			require.Equal(t, termULPDU(c.code, c.segs[len(c.segs)-1]), peer.expectFPDU())
			require.Empty(t, e.events, "the read does not complete")
			same(t, before, g.mem, "nothing of the bad segment is placed")
			g.intact(t)
			var re *ResponseError
			if c.code != 0x0206 {
				require.ErrorAs(t, e.rxErr, &re)
				require.EqualValues(t, 5, re.ID)
				require.NotEmpty(t, re.Error())
			}
		})
	}
	t.Run("RDM-32 the oldest read is answered first", func(t *testing.T) {
		e, peer, g := reader(t, size)
		e.post(&Op{Kind: Read, ID: 6, RemoteSTag: 1, SGL: []SGE{g.sge(1000, 8)}})
		settle(e)
		peer.expectFPDU()
		bad := taggedSeg(0xc1, 0x42, stag, 0x1000+1000, data[:8]...)
		peer.play(fpdu(bad))
		settle(e)
		require.Equal(t, termULPDU(0x1101, bad), peer.expectFPDU())
	})
	t.Run("RDM-31 one response too many", func(t *testing.T) {
		e, peer, _ := reader(t, size)
		good := resp(true, stag, to, data[:100])
		peer.play(append(fpdu(good), fpdu(good)...))
		settle(e)
		require.Len(t, e.events, 1)
		require.Equal(t, termULPDU(0x0206, good), peer.expectFPDU())
	})
	t.Run("SEC-17 RDM-31 the same response again with other octets", func(t *testing.T) {
		e, peer, g := reader(t, size)
		peer.play(fpdu(resp(true, stag, to, data[:size])))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: size}}, e.drained())
		before := bytes.Clone(g.mem)
		again := resp(true, stag, to, pattern(size, 99))
		peer.play(fpdu(again))
		settle(e)
		require.Equal(t, termULPDU(0x0206, again), peer.expectFPDU())
		same(t, before, g.mem, "the sink is open no more")
		require.Empty(t, e.events)
	})
	t.Run("SEC-17 RDM-32 the same response again while another read is outstanding", func(t *testing.T) {
		e, peer, g := reader(t, size)
		e.post(&Op{Kind: Read, ID: 6, RemoteSTag: 1, SGL: []SGE{g.sge(1000, size)}})
		settle(e)
		peer.expectFPDU()
		peer.play(fpdu(resp(true, stag, to, data[:size])))
		settle(e)
		before := bytes.Clone(g.mem)
		again := resp(true, stag, to, pattern(size, 99))
		peer.play(fpdu(again))
		settle(e)
		require.Equal(t, termULPDU(0x1101, again), peer.expectFPDU())
		same(t, before, g.mem, "the sink is open no more")
	})
	t.Run("RDM-35 the sink has gone", func(t *testing.T) {
		e, peer, g := reader(t, size)
		require.NoError(t, e.table.Deregister(g.stag))
		good := resp(true, stag, to, data[:100])
		peer.play(fpdu(good))
		settle(e)
		require.Equal(t, termULPDU(0x1100, good), peer.expectFPDU())
		g.untouched(t)
		var re *ResponseError
		require.ErrorAs(t, e.rxErr, &re)
		var f *ddp.Fault
		require.ErrorAs(t, e.rxErr, &f)
		require.Equal(t, ddp.FaultSTag, f.Kind)
	})
	t.Run("SEC-17 the sink takes no Write", func(t *testing.T) {
		e, peer, g := reader(t, size)
		w := taggedSeg(0xc1, 0x40, stag, to, 1, 2)
		peer.play(fpdu(w))
		settle(e)
		require.Equal(t, termULPDU(0x1102, w), peer.expectFPDU())
		g.untouched(t)
	})
	t.Run("an empty read takes any empty response", func(t *testing.T) {
		e, peer, _ := reader(t, 0)
		peer.play(fpdu(resp(true, 0xdead, 42, nil)))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5}}, e.events)
	})
	t.Run("an empty read takes no data", func(t *testing.T) {
		e, peer, g := reader(t, 0)
		bad := resp(true, 1, 0, []byte{1})
		peer.play(fpdu(bad))
		settle(e)
		require.Equal(t, termULPDU(0x1101, bad), peer.expectFPDU())
		g.untouched(t)
	})
}

func TestRequestChecks(t *testing.T) {
	ok := readReq(1, 1, 0, 16, 0x12345678, base)
	mod := func(f func(b []byte)) []byte {
		b := append([]byte{}, ok...)
		f(b)
		return b
	}
	cases := []struct {
		name string
		seg  []byte
		code uint16
	}{
		{"RDM-19 47 octets", append(mod(func([]byte) {}), 0), 0x0207},
		{"RDM-19 45 octets", ok[:45], 0x2003},
		{"RDM-19 18 octets", ok[:18], 0x2003},
		{"RDM-20 MO 4", mod(func(b []byte) { b[17] = 4 }), 0x0207},
		{"RDM-20 L=0", mod(func(b []byte) { b[0] = 0x01 }), 0x0207},
		{"RDM-04 T=1", append([]byte{0xc1}, ok[1:]...), 0x0206},
		{"RDM-04 QN 0", mod(func(b []byte) { b[9] = 0 }), 0x1201},
		{"RDM-04 QN 2", mod(func(b []byte) { b[9] = 2 }), 0x1201},
		{"RDM-04 QN 3", mod(func(b []byte) { b[9] = 3 }), 0x1201},
		{"DDP-11 DDP-40 MSN 2", mod(func(b []byte) { b[13] = 2 }), 0x1203},
		{"RDM-16 STag before PD", readReq(1, 1, 0, math.MaxUint32, 0x33333302, math.MaxUint64), 0x0100},
		{"RDM-16 PD before wrap", readReq(1, 1, 0, 2, 0x33333301, math.MaxUint64), 0x0103},
		{"RDM-16 wrap before bounds and right", readReq(1, 1, 0, 2, 0x44444401, math.MaxUint64), 0x0104},
		{"RDM-16 bounds before right", readReq(1, 1, 0, 4097, 0x44444401, base), 0x0101},
		{"SEC-05 size 2^32-1", readReq(1, 1, 0, math.MaxUint32, 0x12345678, base), 0x0101},
		{"SEC-12 source STag 0", readReq(1, 1, 0, 1, 0, base), 0x0100},
		{"DDP-25 a sink that wraps", readReq(1, 1, math.MaxUint64-14, 16, 0x12345678, base), 0x0104},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			peer.play(fpdu(c.seg))
			settle(e)
			require.Equal(t, fmt.Sprintf("% x", termULPDU(c.code, c.seg)), fmt.Sprintf("% x", peer.expectFPDU()))
			peer.silent()
			k.untouched(t)
		})
	}
	t.Run("RDM-17 an empty read is answered whatever it names", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		peer.play(fpdu(readReq(1, 0xaabbcc01, math.MaxUint64, 0, 0, math.MaxUint64)))
		settle(e)
		require.Equal(t, taggedSeg(0xc1, 0x42, 0xaabbcc01, math.MaxUint64), peer.expectFPDU())
		peer.silent()
	})
	t.Run("RDM-13 RDM-27 one response, any number of segments", func(t *testing.T) {
		k := newScene(t)
		copy(k.s.mem, pattern(4096, 3))
		e, peer := newRaw(t, k.config())
		peer.play(fpdu(readReq(1, 0xaabbcc01, 0x1000, 4000, 0x12345678, base+50)))
		settle(e)
		var got []byte
		for i := range 3 {
			s := peer.expectFPDU()
			control := byte(0x81)
			if i == 2 {
				control = 0xc1
			}
			require.Equal(t, taggedSeg(control, 0x42, 0xaabbcc01, 0x1000+uint64(len(got))), s[:14])
			got = append(got, s[14:]...)
		}
		same(t, k.s.mem[50:4050], got, "response")
		peer.silent()
	})
}

func TestInboundLimit(t *testing.T) {
	for _, c := range []struct{ ird, held int }{{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}, {16, 16}} {
		t.Run(fmt.Sprintf("DDP-40 RDM-23 IRD %d holds %d requests", c.ird, c.held), func(t *testing.T) {
			k := newScene(t)
			cfg := k.config()
			cfg.IRD = c.ird
			e, peer := newRaw(t, cfg)
			require.Equal(t, c.held, e.IRD())
			for i := range c.held {
				peer.play(fpdu(readReq(uint32(i+1), 1, 0, 8, 0x12345678, base)))
			}
			e.receive()
			require.NoError(t, e.rxErr)
			over := readReq(uint32(c.held+1), 1, 0, 8, 0x12345678, base)
			peer.play(fpdu(over))
			e.receive()
			require.Error(t, e.rxErr)
			settle(e)
			require.Equal(t, termULPDU(0x1203, over), peer.expectFPDU())
			peer.silent()
		})
	}
	t.Run("SEC-24 served in turn, any number", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.IRD = 2
		e, peer := newRaw(t, cfg)
		for i := range 50 {
			peer.play(fpdu(readReq(uint32(2*i+1), 1, 0, 8, 0x12345678, base)))
			peer.play(fpdu(readReq(uint32(2*i+2), 2, 0, 9, 0x12345678, base)))
			settle(e)
			require.Len(t, peer.expectFPDU(), 14+8)
			require.Len(t, peer.expectFPDU(), 14+9)
		}
		peer.silent()
	})
	t.Run("RDM-23 with IRD 0 none", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		require.Zero(t, e.IRD())
		peer.play(unhex(t, vecReadRTR))
		settle(e)
		require.Equal(t, uint16(0x1203), code(peer.expectFPDU()))
	})
}

func TestSourceGoesAway(t *testing.T) {
	t.Run("RDM-18 RDM-54 deregistered in the middle of a read", func(t *testing.T) {
		tab := ddp.NewTable()
		e, peer := newRaw(t, Config{Table: tab, IRD: 1})
		const size = 4 << 20
		g := fixedRegion(t, tab, size, testPD, ddp.RemoteRead, base, 0x12345678)
		req := readReq(1, 0xaabbcc01, 0x1000, size, 0x12345678, base)
		peer.play(fpdu(req))
		settle(e)
		require.Positive(t, e.blocks, "the stream holds less")
		require.NoError(t, tab.Deregister(g.stag))
		for i := range g.mem {
			g.mem[i] = 0xee
		}
		peer.read()
		settle(e)
		peer.read()
		sent := uint64(0)
		for {
			s := peer.expectFPDU()
			if s[1] == 0x47 {
				want := readReq(1, 0xaabbcc01, 0x1000+sent, size-uint32(sent), 0x12345678, base+sent)
				require.Equal(t, fmt.Sprintf("% x", termULPDU(0x0100, append(req[:18:18], want[18:]...))), fmt.Sprintf("% x", s))
				break
			}
			require.Equal(t, 0x1000+sent, ddp.Header(s[:14]).TO())
			same(t, bytes.Repeat([]byte{canary}, len(s)-14), s[14:], "an octet leaked after Deregister")
			sent += uint64(len(s) - 14)
		}
		require.Positive(t, sent)
		peer.silent()
		require.Len(t, e.txErrs, 1)
		var own *Error
		require.True(t, errors.As(e.txErrs[0], &own))
		require.Equal(t, uint8(CodeSTag), own.Code)
	})
}
