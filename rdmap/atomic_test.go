package rdmap

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// atomicReq builds an Atomic Request by hand, after the drawing in RFC 7306,
// Section 5.2.1. Code 0 is FetchAdd, 2 CmpSwap.
func atomicReq(msn uint32, code, ident uint32, stag ddp.STag, to uint64, operands ...uint64) []byte {
	b := untaggedSeg(0x41, 0x4a, 0, 1, msn, 0)
	b = binary.BigEndian.AppendUint32(b, code)
	b = binary.BigEndian.AppendUint32(b, ident)
	b = binary.BigEndian.AppendUint32(b, uint32(stag))
	b = binary.BigEndian.AppendUint64(b, to)
	for i := range 4 {
		v := uint64(0)
		if i < len(operands) {
			v = operands[i]
		}
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b
}

// atomicResp builds an Atomic Response by hand (RFC 7306, Section 5.2.2).
func atomicResp(msn, ident uint32, value uint64) []byte {
	b := untaggedSeg(0x41, 0x4b, 0, 3, msn, 0)
	b = binary.BigEndian.AppendUint32(b, ident)
	return binary.BigEndian.AppendUint64(b, value)
}

func word(g *region, off int) uint64       { return binary.NativeEndian.Uint64(g.mem[off:]) }
func setWord(g *region, off int, v uint64) { binary.NativeEndian.PutUint64(g.mem[off:], v) }

// modelFetchAdd adds field by field with big integers: no field knows of the
// others.
func modelFetchAdd(old, val, mask uint64) uint64 {
	sum := new(big.Int)
	for low := 0; low < 64; {
		top := low
		for top < 63 && mask>>top&1 == 0 {
			top++
		}
		width := uint(top - low + 1)
		size := new(big.Int).Lsh(big.NewInt(1), width)
		field := func(v uint64) *big.Int {
			x := new(big.Int).Rsh(new(big.Int).SetUint64(v), uint(low))
			return x.Mod(x, size)
		}
		f := field(old)
		f.Add(f, field(val))
		f.Mod(f, size)
		sum.Or(sum, f.Lsh(f, uint(low)))
		low = top + 1
	}
	return sum.Uint64()
}

// modelCmpSwap is the definition, bit by bit.
func modelCmpSwap(old, val, mask, cmp, cmpMask uint64) uint64 {
	o, v := new(big.Int).SetUint64(old), new(big.Int).SetUint64(val)
	c := new(big.Int).SetUint64(cmp)
	for i := range 64 {
		if cmpMask>>i&1 != 0 && o.Bit(i) != c.Bit(i) {
			return old
		}
	}
	for i := range 64 {
		if mask>>i&1 != 0 {
			o.SetBit(o, i, v.Bit(i))
		}
	}
	return o.Uint64()
}

// operand draws a number with many ends and edges among them.
func operand(rnd *rand.Rand) uint64 {
	switch rnd.IntN(8) {
	case 0:
		return 0
	case 1:
		return math.MaxUint64
	case 2:
		return 1 << rnd.IntN(64)
	case 3:
		return math.MaxUint64 << rnd.IntN(64)
	case 4:
		return uint64(rnd.IntN(256))
	}
	return rnd.Uint64()
}

// TestAtomicModel plays requests and holds memory and answers against the
// models.
func TestAtomicModel(t *testing.T) {
	const cases = 10_000 / slow
	for _, c := range []struct {
		name string
		code uint32
	}{{"FetchAdd", codeFetchAdd}, {"CmpSwap", codeCompareSwap}} {
		t.Run("RDM-72 "+c.name+" against big integers", func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			rnd := rand.New(rand.NewPCG(7, uint64(c.code)))
			hits := 0
			for i := range uint32(cases) {
				old, val, mask := operand(rnd), operand(rnd), operand(rnd)
				cmp, cmpMask := operand(rnd), operand(rnd)
				if rnd.IntN(2) == 0 {
					cmp = old ^ operand(rnd)&^cmpMask // equal where it counts
				}
				want := modelFetchAdd(old, val, mask)
				if c.code == codeCompareSwap {
					want = modelCmpSwap(old, val, mask, cmp, cmpMask)
				}
				if want != old {
					hits++
				}
				at := 8 * rnd.IntN(512)
				setWord(k.s, at, old)
				peer.play(fpdu(atomicReq(i+1, c.code, ^i, k.s.stag, base+uint64(at), val, mask, cmp, cmpMask)))
				settle(e)
				if got := word(k.s, at); got != want {
					require.Failf(t, "wrong result", "old %x val %x mask %x cmp %x mask %x: %x, not %x", old, val, mask, cmp, cmpMask, got, want)
				}
				if got, want := peer.expectFPDU(), atomicResp(i+1, ^i, old); string(got) != string(want) {
					require.Equal(t, want, got)
				}
			}
			require.Greater(t, hits, cases/4)
			k.s.intact(t)
		})
	}
	t.Run("RDM-72 mask 0 is a plain addition", func(t *testing.T) {
		require.Equal(t, uint64(0), fetchAdd(math.MaxUint64, 1, 0))
		require.Equal(t, uint64(7), fetchAdd(3, 4, 0))
		require.Equal(t, uint64(1)<<32, fetchAdd(1<<32-1, 1, 0))
	})
	t.Run("RDM-72 a mask bit stops the carry", func(t *testing.T) {
		require.Equal(t, uint64(0), fetchAdd(1<<32-1, 1, 1<<31))
		require.Equal(t, uint64(0x00ff_ff00), fetchAdd(0x00ff_01ff, 0x0000_fe01, 0x8080_8080_8080_8080))
	})
}

func TestAtomicByteOrder(t *testing.T) {
	t.Run("RDM-73 memory in host order, the wire big-endian", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		setWord(k.s, 0, 0x29)
		if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
			require.Equal(t, []byte{0x29, 0, 0, 0, 0, 0, 0, 0}, k.s.mem[:8])
		}
		peer.play(unhex(t, vecFetchAdd))
		settle(e)
		peer.expectBytes(unhex(t, vecAtomicResp))
		require.Equal(t, uint64(0x2a), word(k.s, 0))
		require.Equal(t, byte(canary), k.s.mem[8])
	})
	t.Run("RDM-72 CmpSwap of the vector", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		setWord(k.s, 8, 0x41)
		peer.play(unhex(t, vecFetchAdd))
		peer.play(unhex(t, vecCmpSwap))
		settle(e)
		require.Equal(t, uint64(0x1122334455667788), word(k.s, 8))
		peer.expectFPDU()
		require.Equal(t, atomicResp(2, 8, 0x41), peer.expectFPDU())
	})
}

func TestAtomicTarget(t *testing.T) {
	for _, c := range []struct {
		name string
		stag ddp.STag
		to   uint64
		code uint16
	}{
		{"RDM-75 unknown STag", 0x0badcafe, base, 0x0100},
		{"RDM-75 STag 0", 0, base, 0x0100},
		{"RDM-75 wrong key", 0x12345679, base, 0x0100},
		{"RDM-75 other PD", 0x33333301, base, 0x0103},
		{"RDM-75 wrap", 0x12345678, math.MaxUint64 - 6, 0x0104},
		{"RDM-75 no right", 0x55555501, base, 0x0102},
		{"RDM-75 PD before bounds", 0x33333301, base - 8, 0x0103},
		{"RDM-75 bounds before right", 0x55555501, base + 8192, 0x0101},
		{"RDM-75 right before alignment", 0x55555501, base + 1, 0x0102},
		{"RDM-75 8 before", 0x12345678, base - 8, 0x0101},
		{"RDM-75 8 past", 0x12345678, base + 4096, 0x0101},
		{"RDM-75 1 before", 0x12345678, base - 1, 0x0101},
		{"RDM-75 7 before", 0x12345678, base - 7, 0x0101},
		{"RDM-75 1 past", 0x12345678, base + 4089, 0x0101},
		{"RDM-74 address + 1", 0x12345678, base + 1, 0x0207},
		{"RDM-74 address + 2", 0x12345678, base + 2, 0x0207},
		{"RDM-74 address + 3", 0x12345678, base + 3, 0x0207},
		{"RDM-74 address + 4", 0x12345678, base + 4, 0x0207},
		{"RDM-74 address + 5", 0x12345678, base + 5, 0x0207},
		{"RDM-74 address + 6", 0x12345678, base + 6, 0x0207},
		{"RDM-74 address + 7", 0x12345678, base + 7, 0x0207},
		{"RDM-74 the TO is a multiple of 8, the address is not", 0x66666601, base, 0x0207},
	} {
		for _, code := range []uint32{codeFetchAdd, codeCompareSwap} {
			t.Run(fmt.Sprintf("%s, operation %d", c.name, code), func(t *testing.T) {
				k := newScene(t)
				noAtomic := fixedRegion(t, k.table, 4096, testPD, remoteRights&^ddp.RemoteAtomic, base, 0x55555501)
				odd := guarded(64)
				require.NoError(t, k.table.RegisterBase(odd.mem[4:], testPD, remoteRights, base, 0x66666601))
				e, peer := newRaw(t, k.config())
				seg := atomicReq(1, code, 1, c.stag, c.to, 1, math.MaxUint64, 0, 0)
				peer.play(append(fpdu(seg), fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 1))...))
				settle(e)
				require.Equal(t, fmt.Sprintf("% x", termULPDU(c.code, seg)), fmt.Sprintf("% x", peer.expectFPDU()))
				peer.silent()
				k.untouched(t)
				noAtomic.untouched(t)
				odd.untouched(t)
			})
		}
	}
	t.Run("RDM-74 it is the address that counts, not the TO", func(t *testing.T) {
		tab := ddp.NewTable()
		g := fixedRegion(t, tab, 64, testPD, ddp.RemoteAtomic, 0x1003, 0x12345678)
		e, peer := newRaw(t, Config{Table: tab, IRD: 1})
		setWord(g, 8, 5)
		peer.play(fpdu(atomicReq(1, codeFetchAdd, 1, g.stag, 0x1003+8, 1)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, atomicResp(1, 1, 5), peer.expectFPDU())
		require.Equal(t, uint64(6), word(g, 8))
	})
	t.Run("RDM-75 the last eight octets, and no right but that of atomics", func(t *testing.T) {
		tab := ddp.NewTable()
		g := fixedRegion(t, tab, 64, testPD, ddp.RemoteAtomic, base, 0x12345678)
		e, peer := newRaw(t, Config{Table: tab, IRD: 1})
		peer.play(fpdu(atomicReq(1, codeCompareSwap, 1, g.stag, base+56, 5, math.MaxUint64, 0, 0)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, uint64(5), word(g, 56))
		g.intact(t)
	})
	t.Run("RDM-18 RDM-75 the region goes away before the answer", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		seg := atomicReq(1, codeFetchAdd, 1, k.s.stag, base, 1)
		peer.play(fpdu(seg))
		e.receive()
		require.Equal(t, []Event{{Kind: FirstFPDU, KickTx: true}, {Kind: RequestQueued, KickTx: true}}, e.events)
		require.NoError(t, k.table.Deregister(k.s.stag))
		settle(e)
		require.Equal(t, fmt.Sprintf("% x", termULPDU(0x0100, seg)), fmt.Sprintf("% x", peer.expectFPDU()))
		peer.silent()
		k.untouched(t)
	})
}

func TestAtomicShape(t *testing.T) {
	ok := atomicReq(1, codeFetchAdd, 1, 0x12345678, base, 1)
	mod := func(at int, v byte) []byte {
		b := append([]byte{}, ok...)
		b[at] = v
		return b
	}
	type shape struct {
		name string
		seg  []byte
		code uint16
	}
	cases := []shape{
		{"SEC-38 51 octets", ok[:69], 0x0207},
		{"SEC-38 53 octets", append(mod(0, 0x41), 0), 0x0207},
		{"SEC-38 no octets", ok[:18], 0x0207},
		{"RDM-20 L=0", mod(0, 0x01), 0x0207},
		{"RDM-20 MO 8", mod(17, 8), 0x0207},
		{"RDM-04 T=1", taggedSeg(0xc1, 0x4a, 0x12345678, base, ok[18:]...), 0x0206},
		{"RDM-04 QN 0", mod(9, 0), 0x1201},
		{"RDM-04 QN 3", mod(9, 3), 0x1201},
		{"DDP-40 MSN 2", mod(13, 2), 0x1203},
		{"DDP-40 MSN 0", mod(13, 0), 0x1203},
	}
	for code := byte(1); code < 16; code++ {
		if code != codeCompareSwap {
			cases = append(cases, shape{fmt.Sprintf("RDM-82 operation %d", code), mod(21, code), 0x0206})
		}
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
	for _, lead := range [][]byte{untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1), taggedSeg(0x81, 0x40, 0x12345678, base+8, 1)} {
		t.Run(fmt.Sprintf("DDP-26 inside a message of opcode octet %02x", lead[1]), func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(append(fpdu(lead), fpdu(ok)...))
			settle(e)
			require.Equal(t, termULPDU(0x0206, ok), peer.expectFPDU())
			require.Equal(t, []byte{canary, canary}, k.s.mem[:2])
		})
	}
	t.Run("RDM-77 noise in the unused fields of a FetchAdd is ignored", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		setWord(k.s, 0, 1<<32-1)
		seg := atomicReq(1, codeFetchAdd, 0xffffffff, k.s.stag, base, 2, 0, 0xdead, 0xbeef)
		copy(seg[18:], []byte{0xff, 0xff, 0xff, 0xf0}) // the reserved bits
		copy(seg[2:], []byte{0x12, 0x34, 0x56, 0x78})  // RDM-05
		peer.play(fpdu(seg))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, uint64(1<<32+1), word(k.s, 0))
		require.Equal(t, atomicResp(1, 0xffffffff, 1<<32-1), peer.expectFPDU())
	})
}
