package rdmap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// Golden FPDUs, with CRC and without markers.
const (
	vecSendHello = "00 17 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 68 65 6c 6c 6f 00 00 00 b9 90 b1 0c"
	vecSendZero  = "00 12 41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 58 7b e8 c4"
	vecWrite8    = "00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 10 00 00 01 02 03 04 05 06 07 c8 81 2b 2c"
	vecWriteRTR  = "00 0e c1 40 00 00 00 01 00 00 00 00 00 00 00 00 eb d3 4c 5f"
	vecRead      = "00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 aa bb cc 01 00 00 00 00 00 00 10 00" +
		"00 00 00 10 12 34 56 78 00 00 7f 12 00 00 10 00 18 f8 ef 4b"
	vecReadRTR = "00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00" +
		"00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 27 db d7 e7"
	vecResponse     = "00 1e c1 42 aa bb cc 01 00 00 00 00 00 00 10 00 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 46 2c 15 28"
	vecResponseZero = "00 0e c1 42 00 00 00 01 00 00 00 00 00 00 00 00 21 a3 e8 3e"
	vecSendSEInv    = "00 16 41 46 0a 0b 0c 0d 00 00 00 00 00 00 00 02 00 00 00 00 64 6f 6e 65 71 48 e4 76"
	vecTermWrite    = "00 26 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 11 00 c0 00" +
		"00 16 c1 40 12 34 56 78 00 00 7f 12 00 00 10 00 31 dd 23 89"
	vecTermRead = "00 46 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 01 02 e0 00" +
		"00 2e 41 41 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00" +
		"aa bb cc 01 00 00 00 00 00 00 10 00 00 00 00 10 12 34 56 78 00 00 7f 12 00 00 10 00 ed 9c 32 20"
	vecTerm2002 = "00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 02 00 00 7f e4 25 85"
	vecTerm2006 = "00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 06 00 00 65 40 fb 1b"
	vecTerm2007 = "00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 20 07 00 00 1b d2 ba be"
	vecTerm0000 = "00 16 41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 00 f9 a2 6f 1d"
	vecImm      = "00 1a 41 48 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 de ad be ef 44 53 32 76"
	vecImmSE    = "00 1a 41 49 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 00 de ad be ef 76 d0 70 09"
	vecFetchAdd = "00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 07 12 34 56 78" +
		"00 00 7f 12 00 00 10 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00" +
		"ff ff ff ff ff ff ff ff 1c 1f bf 41"
	vecCmpSwap = "00 46 41 4a 00 00 00 00 00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 02 00 00 00 08 12 34 56 78" +
		"00 00 7f 12 00 00 10 08 11 22 33 44 55 66 77 88 ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 41" +
		"ff ff ff ff ff ff ff ff 56 4b bb c9"
	vecAtomicResp = "00 1e 41 4b 00 00 00 00 00 00 00 03 00 00 00 01 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 29 b9 eb af e8"
)

// allVectors feed the tests of the receive half and the fuzz targets.
var allVectors = []string{
	vecSendHello, vecSendZero, vecWrite8, vecWriteRTR, vecRead, vecReadRTR, vecResponse, vecResponseZero, vecSendSEInv,
	vecTermWrite, vecTermRead, vecTerm2002, vecTerm2006, vecTerm2007, vecTerm0000, vecImm, vecImmSE, vecFetchAdd, vecCmpSwap, vecAtomicResp,
}

func TestVectorsOut(t *testing.T) {
	count := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i)
		}
		return b
	}
	initiator := func(t *testing.T) (*end, *raw) {
		return newRaw(t, Config{Initiator: true, IRD: 4, ORD: 4, Table: ddp.NewTable()})
	}
	t.Run("RDM-01 SEND-HELLO", func(t *testing.T) {
		e, peer := initiator(t)
		e.post(&Op{Kind: Send, Inline: []byte("hello")})
		settle(e)
		peer.expectBytes(unhex(t, vecSendHello))
	})
	t.Run("DDP-16 SEND-ZERO", func(t *testing.T) {
		e, peer := initiator(t)
		e.post(&Op{Kind: Send})
		settle(e)
		peer.expectBytes(unhex(t, vecSendZero))
	})
	t.Run("RDM-08 WRITE-8", func(t *testing.T) {
		e, peer := initiator(t)
		g := newRegion(t, e.table, 16, testPD, 0)
		copy(g.mem[3:], count(8))
		e.post(&Op{Kind: Write, RemoteSTag: 0x12345678, RemoteTO: base, SGL: []SGE{g.sge(3, 2), g.sge(5, 6)}})
		settle(e)
		peer.expectBytes(unhex(t, vecWrite8))
	})
	t.Run("RDM-12 RREQ", func(t *testing.T) {
		e, peer := initiator(t)
		g := fixedRegion(t, e.table, 16, testPD, ddp.LocalWrite, 0x1000, 0xaabbcc01)
		e.post(&Op{Kind: Read, RemoteSTag: 0x12345678, RemoteTO: base, SGL: []SGE{g.sge(0, 16)}})
		settle(e)
		peer.expectBytes(unhex(t, vecRead))
	})
	t.Run("RDM-06 SEND-SE-INV", func(t *testing.T) {
		e, peer := initiator(t)
		e.post(&Op{Kind: Send}, &Op{Kind: Send, Solicited: true, Invalidate: true, InvSTag: 0x0a0b0c0d, Inline: []byte("done")})
		settle(e)
		peer.expectBytes(unhex(t, vecSendZero))
		peer.expectBytes(unhex(t, vecSendSEInv))
	})
	t.Run("RDM-13 RRESP and RRESP-ZERO", func(t *testing.T) {
		e, peer := newRaw(t, Config{IRD: 4, Table: ddp.NewTable()})
		g := fixedRegion(t, e.table, 4096, testPD, ddp.RemoteRead, base, 0x12345678)
		copy(g.mem, count(16))
		peer.play(unhex(t, vecRead))
		settle(e)
		peer.expectBytes(unhex(t, vecResponse))
		e, peer = newRaw(t, Config{IRD: 4})
		peer.play(unhex(t, vecReadRTR))
		settle(e)
		peer.expectBytes(unhex(t, vecResponseZero))
	})
	t.Run("RDM-52 TERM 0x1100 for WRITE-8", func(t *testing.T) {
		e, peer := newRaw(t, Config{})
		peer.play(unhex(t, vecWrite8))
		settle(e)
		peer.expectBytes(unhex(t, vecTermWrite))
	})
	t.Run("RDM-52 TERM 0x0102 for RREQ", func(t *testing.T) {
		e, peer := newRaw(t, Config{IRD: 1, Table: ddp.NewTable()})
		fixedRegion(t, e.table, 4096, testPD, ddp.LocalWrite|ddp.RemoteWrite, base, 0x12345678)
		peer.play(unhex(t, vecRead))
		settle(e)
		peer.expectBytes(unhex(t, vecTermRead))
	})
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"MPA-59 TERM 0x2002", &mpa.Error{Code: mpa.CodeCRC}, vecTerm2002},
		{"MPA-39 TERM 0x2006", &mpa.Error{Code: mpa.CodeIRD}, vecTerm2006},
		{"MPA-45 TERM 0x2007", &mpa.Error{Code: mpa.CodeRTR}, vecTerm2007},
		{"RDM-55 TERM 0x0000", &LocalError{}, vecTerm0000},
		{"RDM-55 TERM 0x0000 for an unknown error", nil, vecTerm0000},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, peer := newRaw(t, Config{Initiator: true, RTR: mpa.RTRRead, ORD: 1})
			e.post(&Op{Kind: Send})
			e.Terminate(c.err)
			settle(e)
			peer.expectBytes(unhex(t, c.want))
			peer.silent()
			require.True(t, e.TerminateSent())
		})
	}
}

func TestVectorsIn(t *testing.T) {
	cases := []struct {
		name, hex string
		term      uint16
		events    []Event
		off       bool // RFC 7306
	}{
		{"SEND-HELLO", vecSendHello, 0, []Event{{Kind: RecvDone, ID: 77, Len: 5}}, false},
		{"SEND-ZERO", vecSendZero, 0, []Event{{Kind: RecvDone, ID: 77}}, false},
		{"WRITE-8", vecWrite8, 0, nil, false},
		{"WRITE-ZERO-RTR", vecWriteRTR, 0, nil, false},
		{"RREQ", vecRead, 0, []Event{{Kind: RequestQueued, KickTx: true}}, false},
		{"RREQ-ZERO-RTR", vecReadRTR, 0, []Event{{Kind: RequestQueued, KickTx: true}}, false},
		{"RRESP unasked", vecResponse, 0x0206, nil, false},
		{"RRESP-ZERO unasked", vecResponseZero, 0x0206, nil, false},
		{"SEND-SE-INV out of order", vecSendSEInv, 0x1203, nil, false},
		{"RDM-66 IMM", vecImm, 0, []Event{{Kind: RecvDone, ID: 77, Immediate: true, Imm: 0xdeadbeef}}, false},
		{"IMM-SE out of order", vecImmSE, 0x1203, nil, false},
		{"ATOMIC-FETCHADD", vecFetchAdd, 0, []Event{{Kind: RequestQueued, KickTx: true}}, false},
		{"ATOMIC-CMPSWAP out of order", vecCmpSwap, 0x1203, nil, false},
		{"ATOMIC-RESP unasked", vecAtomicResp, 0x0206, nil, false},
		{"RDM-71 IMM, RFC 7306 is off", vecImm, 0x0206, nil, true},
		{"RDM-71 IMM-SE, RFC 7306 is off", vecImmSE, 0x0206, nil, true},
		{"RDM-82 FetchAdd, RFC 7306 is off", vecFetchAdd, 0x0206, nil, true},
		{"RDM-82 CmpSwap, RFC 7306 is off", vecCmpSwap, 0x0206, nil, true},
		{"RDM-82 atomic response, RFC 7306 is off", vecAtomicResp, 0x0206, nil, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := newScene(t)
			cfg := k.config()
			cfg.NoAtomics, cfg.NoImmediate = c.off, c.off
			e, peer := newRaw(t, cfg)
			k.post(e)
			b := unhex(t, c.hex)
			peer.play(b)
			settle(e)
			if c.term != 0 {
				require.Equal(t, termULPDU(c.term, b[2:2+int(b[1])]), peer.expectFPDU())
				peer.silent()
				k.untouched(t)
				return
			}
			require.NoError(t, e.rxErr)
			require.Equal(t, append([]Event{{Kind: FirstFPDU, KickTx: true}}, c.events...), e.events)
			switch c.name {
			case "WRITE-8":
				require.Equal(t, []byte{0, 1, 2, 3, 4, 5, 6, 7, canary}, k.s.mem[:9])
			case "RREQ":
				require.Len(t, peer.expectFPDU(), 14+16)
			case "ATOMIC-FETCHADD":
				require.Equal(t, uint64(0xa5a5a5a5a5a5a5a6), word(k.s, 0))
				require.Len(t, peer.expectFPDU(), 18+12)
			case "RREQ-ZERO-RTR":
				require.Len(t, peer.expectFPDU(), 14)
			default:
				k.s.untouched(t)
			}
			peer.silent()
		})
	}
}

func TestReservedBits(t *testing.T) {
	t.Run("RDM-02 DDP-02 noise in reserved bits changes nothing", func(t *testing.T) {
		for _, noise := range []struct{ ddp, rdmap byte }{{0x3c, 0}, {0, 0x30}, {0x14, 0x20}} {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(fpdu(untaggedSeg(0x01|noise.ddp, 0x43|noise.rdmap, 0, 0, 1, 0, 1, 2)))
			peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 2, 3)))
			peer.play(fpdu(taggedSeg(0xc1|noise.ddp, 0x40|noise.rdmap, k.s.stag, base, 4)))
			settle(e)
			require.NoError(t, e.rxErr)
			require.Equal(t, []byte{1, 2, 3}, k.recv.mem[:3])
			require.Equal(t, byte(4), k.s.mem[0])
		}
	})
	t.Run("RDM-05 the Invalidate STag of other messages is ignored", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(fpdu(untaggedSeg(0x01, 0x43, 0x12345678, 0, 1, 0, 1, 2)))
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0xffffffff, 0, 1, 2, 3)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, Event{Kind: RecvDone, ID: 77, Len: 3}, e.events[1])
	})
	t.Run("RDM-05 own messages have 0", func(t *testing.T) {
		const inv = 0x0a0b0c0d
		k := newScene(t)
		cfg := k.config()
		cfg.Initiator, cfg.ORD = true, 16
		e, peer := newRaw(t, cfg)
		sink := k.recv.sge(0, 8)
		peer.play(append(fpdu(readReq(1, inv, 0, 8, k.s.stag, base)), fpdu(atomicReq(2, codeFetchAdd, inv, k.s.stag, base, 1, 0, 0, 0))...))
		// A key in an operation that does not invalidate is not for the wire, and the one
		// of the message before is not left in the header.
		named := &Op{Kind: Send, Invalidate: true, InvSTag: inv}
		for _, op := range []*Op{
			{Kind: Send, SGL: []SGE{k.s.sge(0, 4000)}}, {Kind: Send, Solicited: true}, {Kind: Read, SGL: []SGE{sink}},
			{Kind: FetchAdd, SGL: []SGE{sink}}, {Kind: CompareSwap, SGL: []SGE{sink}},
			{Kind: Immediate}, {Kind: Immediate, Solicited: true}, {Kind: Write, WithImm: true},
		} {
			op.InvSTag, op.RemoteSTag, op.Imm = inv, inv, inv
			e.post(named, op)
		}
		e.post(named)
		settle(e)
		require.Empty(t, e.txErrs)
		e.Terminate(nil)
		settle(e)
		seen := map[byte]int{}
		for peer.read(); len(peer.got) > 0; {
			s := peer.expectFPDU()
			op := s[1] & 0xf
			seen[op]++
			if s[0]&0x80 != 0 {
				continue // tagged: the octets are the STag
			}
			want := []byte{0, 0, 0, 0}
			if op == 4 {
				want = []byte{0x0a, 0x0b, 0x0c, 0x0d}
			}
			require.Equal(t, want, s[2:6], "opcode %d", op)
		}
		require.Equal(t, map[byte]int{0: 1, 1: 1, 2: 1, 3: 3, 4: 9, 5: 1, 7: 1, 8: 2, 9: 1, 10: 2, 11: 1}, seen)
		for _, kind := range []mpa.RTRKind{mpa.RTRRead, mpa.RTRSend} {
			e, peer := newRaw(t, Config{Initiator: true, RTR: kind, PeerToPeer: true, ORD: 1})
			settle(e)
			require.Equal(t, []byte{0, 0, 0, 0}, peer.expectFPDU()[2:6], "RTR %v", kind)
		}
	})
}
