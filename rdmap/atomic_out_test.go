package rdmap

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/wiretest"
)

// adder is an initiator with one FetchAdd on the wire, of identifier 7; the
// value before goes to octet 16 of its region.
func adder(t *testing.T) (*end, *raw, *region) {
	e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: ddp.NewTable()})
	g := fixedRegion(t, e.table, 64, testPD, ddp.LocalWrite, 0x1000, 0xaabbcc01)
	e.tx.ident = 7
	e.post(&Op{Kind: FetchAdd, ID: 5, RemoteSTag: 0x12345678, RemoteTO: base, SGL: []SGE{g.sge(16, 8)}, Val: 1, Compare: 3, CompareMask: 4})
	settle(e)
	peer.expectBytes(unhex(t, vecFetchAdd))
	require.Equal(t, []uint64{5}, e.sent, "the request has been sent")
	require.Equal(t, 1, e.OutstandingReads())
	require.EqualValues(t, 1, e.Stats().AtomicsOut)
	return e, peer, g
}

func TestAtomicRequests(t *testing.T) {
	t.Run("RDM-77 DDP-14 the vectors, FetchAdd with Compare Data 0 and Compare Mask all ones", func(t *testing.T) {
		e, peer, g := adder(t)
		e.post(&Op{
			Kind: CompareSwap, ID: 6, RemoteSTag: 0x12345678, RemoteTO: base + 8, SGL: []SGE{g.sge(24, 8)},
			Val: 0x1122334455667788, ValMask: math.MaxUint64, Compare: 0x41, CompareMask: math.MaxUint64,
		})
		settle(e)
		peer.expectBytes(unhex(t, vecCmpSwap))
	})
	t.Run("RDM-83 completion with the response, the value in host order where it belongs", func(t *testing.T) {
		e, peer, g := adder(t)
		require.Empty(t, e.drained())
		g.untouched(t)
		b := unhex(t, vecAtomicResp)
		peer.play(b[:len(b)-1])
		settle(e)
		require.Empty(t, e.drained())
		g.untouched(t)
		peer.play(b[len(b)-1:])
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: 8}}, e.events)
		require.Equal(t, uint64(41), word(g, 16))
		setWord(g, 16, 0xa5a5a5a5a5a5a5a5)
		g.untouched(t) // else
		require.Zero(t, e.OutstandingReads())
		require.EqualValues(t, 1, e.Stats().AtomicResponsesIn)
		peer.silent()
	})
	t.Run("RDM-81 the second response has MSN 2", func(t *testing.T) {
		e, peer, g := adder(t)
		e.post(&Op{Kind: FetchAdd, ID: 6, RemoteSTag: 1, SGL: []SGE{g.sge(0, 8)}})
		settle(e)
		require.Equal(t, atomicReq(2, codeFetchAdd, 8, 1, 0, 0, 0, 0, math.MaxUint64), peer.expectFPDU())
		peer.play(append(fpdu(atomicResp(1, 7, 1)), fpdu(atomicResp(2, 8, 2))...))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: 8}, {Kind: ReadDone, ID: 6, Len: 8}}, e.events)
		require.Equal(t, uint64(2), word(g, 0))
	})
	t.Run("RDM-78 identifiers go on across the wrap", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: ddp.NewTable()})
		g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
		e.tx.ident = math.MaxUint32
		for i, ident := range []uint32{math.MaxUint32, 0, 1} {
			msn := uint32(i + 1)
			e.post(&Op{Kind: FetchAdd, ID: uint64(i), RemoteSTag: 1, SGL: []SGE{g.sge(0, 8)}})
			settle(e)
			require.Equal(t, atomicReq(msn, codeFetchAdd, ident, 1, 0, 0, 0, 0, math.MaxUint64), peer.expectFPDU())
			peer.play(fpdu(atomicResp(msn, ident, 0)))
			settle(e)
			require.Equal(t, uint64(i), e.drained()[0].ID)
		}
	})
}

func TestAtomicResponseChecks(t *testing.T) {
	ok := atomicResp(1, 7, 41)
	mod := func(at int, v byte) []byte {
		b := append([]byte{}, ok...)
		b[at] = v
		return b
	}
	for _, c := range []struct {
		name  string
		seg   []byte
		code  uint16
		named bool // the error names the operation
	}{
		{"RDM-78 wrong identifier", mod(21, 8), 0x0207, true},
		{"RDM-78 wrong identifier, first octet", mod(18, 8), 0x0207, true},
		{"RDM-81 MSN 2", mod(13, 2), 0x1203, false},
		{"RDM-81 MSN 0", mod(13, 0), 0x1203, false},
		{"SEC-37 SEC-38 11 octets", ok[:29], 0x0207, true},
		{"SEC-37 SEC-38 13 octets", append(mod(0, 0x41), 0), 0x0207, true},
		{"SEC-37 SEC-38 no octets", ok[:18], 0x0207, true},
		{"L=0", mod(0, 0x01), 0x0207, true},
		{"MO 4", mod(17, 4), 0x0207, true},
		{"RDM-04 QN 0", mod(9, 0), 0x1201, false},
		{"RDM-04 QN 1", mod(9, 1), 0x1201, false},
		{"RDM-32 a Read Response while an atomic operation is oldest", taggedSeg(0xc1, 0x42, 0xaabbcc01, 0x1010, make([]byte, 8)...), 0x0206, false},
		{"RDM-32 an empty Read Response", taggedSeg(0xc1, 0x42, 0xaabbcc01, 0x1010), 0x0206, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, peer, g := adder(t)
			peer.play(fpdu(c.seg))
			settle(e)
			require.Equal(t, termULPDU(c.code, c.seg), peer.expectFPDU())
			peer.silent()
			require.Empty(t, e.events, "not completed")
			g.untouched(t)
			var re *ResponseError
			if c.named {
				require.ErrorAs(t, e.rxErr, &re)
				require.EqualValues(t, 5, re.ID)
			}
		})
	}
	t.Run("RDM-78 an Atomic Response while an older read is unanswered", func(t *testing.T) {
		e, peer, g := reader(t, 8)
		e.post(&Op{Kind: FetchAdd, ID: 6, RemoteSTag: 1, SGL: []SGE{g.sge(0, 8)}})
		settle(e)
		peer.expectFPDU()
		seg := atomicResp(1, 0, 41)
		peer.play(fpdu(seg))
		settle(e)
		require.Equal(t, termULPDU(0x0206, seg), peer.expectFPDU())
		g.untouched(t)
	})
	t.Run("RDM-78 one response too many", func(t *testing.T) {
		e, peer, _ := adder(t)
		peer.play(append(fpdu(ok), fpdu(atomicResp(2, 8, 1))...))
		settle(e)
		require.Len(t, e.events, 1)
		require.Equal(t, termULPDU(0x0206, atomicResp(2, 8, 1)), peer.expectFPDU())
	})
	t.Run("RDM-35 the place of the value has gone", func(t *testing.T) {
		e, peer, g := adder(t)
		require.NoError(t, e.table.Deregister(g.stag))
		peer.play(fpdu(ok))
		settle(e)
		peer.expectBytes(unhex(t, vecTerm0000))
		g.untouched(t)
		var le *LocalError
		require.ErrorAs(t, e.rxErr, &le)
		require.EqualValues(t, 5, le.ID)
		require.False(t, le.Recv)
	})
	for name, lead := range map[string][]byte{
		"Send":  untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1),
		"Write": taggedSeg(0x81, 0x40, 0, 0),
	} {
		t.Run("DDP-26 an Atomic Response inside a "+name, func(t *testing.T) {
			e, peer, g := adder(t)
			r := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
			e.recvs = []RecvBuf{{SGL: []SGE{r.sge(0, 8)}}}
			peer.play(append(fpdu(lead), fpdu(ok)...))
			settle(e)
			require.Equal(t, termULPDU(0x0206, ok), peer.expectFPDU())
			g.untouched(t)
		})
	}
}

func TestAtomicDepths(t *testing.T) {
	t.Run("RDM-22 RDM-79 ORD 1: a read and an atomic operation one after the other", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, ORD: 1, Table: ddp.NewTable()})
		g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
		add := func(id uint64) *Op { return &Op{Kind: FetchAdd, ID: id, RemoteSTag: 9, SGL: []SGE{g.sge(0, 8)}} }
		e.post(add(1), &Op{Kind: Read, ID: 2, RemoteSTag: 9}, add(3), &Op{Kind: Send, ID: 4})
		settle(e)
		peer.expectFPDU()
		peer.silent()
		peer.play(fpdu(atomicResp(1, 0, 0)))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 1, Len: 8, KickTx: true}}, e.drained())
		require.Equal(t, readReq(2, 1, 0, 0, 9, 0), peer.expectFPDU())
		peer.silent()
		peer.play(fpdu(taggedSeg(0xc1, 0x42, 1, 0)))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 2, KickTx: true}}, e.drained())
		require.Equal(t, atomicReq(3, codeFetchAdd, 1, 9, 0, 0, 0, 0, math.MaxUint64), peer.expectFPDU())
		require.Equal(t, untaggedSeg(0x41, 0x43, 0, 0, 1, 0), peer.expectFPDU())
		require.Equal(t, []uint64{1, 2, 3, 4}, e.sent)
	})
	t.Run("RDM-48 a fenced operation waits for atomic operations", func(t *testing.T) {
		e, peer, _ := adder(t)
		e.post(&Op{Kind: Send, ID: 8, Fence: true})
		settle(e)
		peer.silent()
		peer.play(unhex(t, vecAtomicResp))
		settle(e)
		require.Equal(t, []Event{{Kind: ReadDone, ID: 5, Len: 8, KickTx: true}}, e.events)
		peer.expectBytes(unhex(t, vecSendZero))
	})
	t.Run("RDM-49 an operation without fence does not", func(t *testing.T) {
		e, peer, _ := adder(t)
		e.post(&Op{Kind: Send, ID: 8})
		settle(e)
		peer.expectBytes(unhex(t, vecSendZero))
	})
	t.Run("RDM-24 ORD 0: none is sent", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, Table: ddp.NewTable()})
		g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
		_, err := e.Submit(&Op{Kind: CompareSwap, SGL: []SGE{g.sge(0, 8)}})
		require.ErrorIs(t, err, ErrNoReads)
		settle(e)
		peer.expectBytes(unhex(t, vecTerm0000))
		peer.silent()
	})
}

func TestExtensionsOff(t *testing.T) {
	for _, kind := range []Kind{FetchAdd, CompareSwap, Immediate, Write} {
		t.Run("RDM-71 RDM-82 what is off is not sent either", func(t *testing.T) {
			e, peer := newRaw(t, Config{Initiator: true, ORD: 1, Table: ddp.NewTable(), NoAtomics: true, NoImmediate: true})
			g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
			_, err := e.Submit(&Op{Kind: kind, WithImm: kind == Write, SGL: []SGE{g.sge(0, 8)}})
			require.ErrorIs(t, err, ErrOff)
			settle(e)
			peer.expectBytes(unhex(t, vecTerm0000))
			peer.silent()
		})
	}
	t.Run("RDM-82 the two are turned off apart", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.NoAtomics = true
		e, peer := newRaw(t, cfg)
		k.post(e)
		peer.play(unhex(t, vecImm))
		settle(e)
		require.NoError(t, e.rxErr)
		cfg.NoAtomics, cfg.NoImmediate = false, true
		e, peer = newRaw(t, cfg)
		peer.play(unhex(t, vecFetchAdd))
		settle(e)
		require.NoError(t, e.rxErr)
	})
}

// TestAtomicVectors holds what is sent against octets that share nothing with
// this package.
func TestAtomicVectors(t *testing.T) {
	vectors := map[string][]byte{}
	for _, v := range wiretest.AtomicFPDUs() {
		vectors[v.Name] = v.Octets
	}
	t.Run("RDM-69 RDM-77 requests and Immediate Data", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: ddp.NewTable()})
		g := newRegion(t, e.table, 8, testPD, ddp.LocalWrite)
		e.tx.ident = math.MaxUint32
		e.post(
			&Op{Kind: Immediate, Imm: 0xdeadbeef << 32},
			&Op{
				Kind: FetchAdd, RemoteSTag: 0x12345678, RemoteTO: base + 16, SGL: []SGE{g.sge(0, 8)},
				Val: 0x1ffffffff, ValMask: 0x8000000080000000,
			},
			&Op{Kind: Read},
			&Op{
				Kind: CompareSwap, RemoteSTag: 0x12345678, RemoteTO: base + 8, SGL: []SGE{g.sge(0, 8)},
				Val: 0x0102030405060708, ValMask: math.MaxUint64,
			},
		)
		settle(e)
		peer.expectBytes(vectors["IMM-32"])
		peer.expectBytes(vectors["ATOMIC-FETCHADD-FIELDS"])
		peer.expectFPDU()
		peer.expectBytes(vectors["ATOMIC-SWAP"])
	})
	t.Run("RDM-78 RDM-81 responses", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		setWord(k.s, 0, 0x29)
		setWord(k.s, 8, 0x0102030405060708)
		peer.play(unhex(t, vecFetchAdd))
		peer.play(fpdu(atomicReq(2, codeCompareSwap, math.MaxUint32, k.s.stag, base+8)))
		settle(e)
		peer.expectBytes(unhex(t, vecAtomicResp))
		peer.expectBytes(vectors["ATOMIC-RESP-2"])
	})
	t.Run("RDM-52 Terminates for requests and Immediate Data have the DDP header alone", func(t *testing.T) {
		for name, seg := range map[string][]byte{
			"TERM-0102-ATOMIC": atomicReq(1, codeFetchAdd, 1, 0x55555501, base),
			"TERM-0207-ATOMIC": atomicReq(1, codeFetchAdd, 1, 0x12345678, base+4),
			"TERM-0207-IMM":    imm(8, 1, eight[:7]...),
		} {
			k := newScene(t)
			fixedRegion(t, k.table, 64, testPD, remoteRights&^ddp.RemoteAtomic, base, 0x55555501)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(fpdu(seg))
			settle(e)
			peer.expectBytes(vectors[name])
			peer.silent()
		}
	})
}
