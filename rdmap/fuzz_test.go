package rdmap

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// FuzzReceive gives a stream of octets to a whole stack from MPA up. Whatever
// it is, nothing may panic, no octet outside the granted regions may change and
// no more than one Terminate may come out.
func FuzzReceive(f *testing.F) {
	var all []byte
	for _, v := range allVectors {
		f.Add(unhex(f, v), uint8(0), true, false)
		f.Add(unhex(f, v), uint8(9), false, true)
		all = append(all, unhex(f, v)...)
	}
	for _, c := range hostile {
		f.Add(unhex(f, c.hex), uint8(3), true, false)
		f.Add(unhex(f, c.hex), uint8(0), false, true)
	}
	f.Add(all, uint8(7), true, false)
	f.Add(append(unhex(f, vecWriteRTR), unhex(f, vecResponse)...), uint8(1), false, false)
	f.Add(append(unhex(f, vecResponse), fpdu(atomicResp(1, 0, 9))...), uint8(1), true, true)
	f.Add(append(unhex(f, vecFetchAdd), fpdu(atomicReq(2, codeCompareSwap, 2, 0x12345678, base+8, 1, 2, 3, 4))...), uint8(1), false, false)
	f.Add(append(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1)), fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 1, 2))...), uint8(2), true, false)
	pool := newPool(f)
	f.Fuzz(func(t *testing.T, b []byte, chunk uint8, crc, initiator bool) {
		if !crc {
			b = reframe(b)
		}
		if len(b) > rawBuffer {
			return
		}
		k := newScene(t)
		cfg := k.config()
		cfg.Initiator = initiator
		e, peer := newRawPool(t, cfg, pool)
		sink := fixedRegion(t, k.table, 16, testPD, ddp.LocalWrite, 0x1000, 0xaabbcc01)
		require.NoError(t, k.table.AllowInvalidate(k.s.stag))
		e.recvs = []RecvBuf{{ID: 1, SGL: []SGE{k.recv.sge(0, 16)}}, {ID: 2, SGL: []SGE{k.recv.sge(0, 3), k.recv.sge(3, 13)}}}
		e.post(
			&Op{Kind: Read, ID: 3, RemoteSTag: 0x12345678, RemoteTO: base, SGL: []SGE{sink.sge(0, 16)}},
			&Op{Kind: FetchAdd, ID: 5, RemoteSTag: 1, SGL: []SGE{sink.sge(8, 8)}},
			&Op{Kind: Send, ID: 4, Fence: true},
		)
		settle(e) // an initiator's read is on the wire before the octets come
		e.net.Rechunk(uint64(chunk), int(chunk))
		peer.play(b)
		settle(e)
		require.NoError(t, peer.net.CloseWrite())
		settle(e)

		for _, g := range []*region{k.s, k.r, k.w, k.p, k.recv, sink} {
			g.intact(t)
		}
		k.p.untouched(t)
		k.r.untouched(t)
		terms := 0
		peer.read()
		for len(peer.got) > 0 {
			if s := peer.expectFPDU(); s[1] == 0x47 {
				terms++
				require.Empty(t, peer.got, "nothing follows a Terminate")
				require.LessOrEqual(t, len(s), 18+maxTermLen)
			}
		}
		require.LessOrEqual(t, terms, 1)
		require.Error(t, e.rxErr, "the stream has ended")
	})
}

// reframe makes FPDUs with good CRCs of octets that fuzzing has changed, so
// that it gets past MPA.
func reframe(b []byte) (out []byte) {
	for len(b) >= 2 && len(out) < rawBuffer {
		n := min(int(b[0])<<8|int(b[1]), len(b)-2, mpa.MaxULPDU)
		out = append(out, fpdu(b[2:2+n])...)
		b = b[min(len(b), (2+n+3)&^3+4):]
	}
	return out
}

func FuzzTerminate(f *testing.F) {
	for _, s := range []string{
		"", "11", "00 00 00 00", "20 06 00 00", "02 02 00 00", "10 02 07 00", "01 02 e0 00 00 2e",
		"11 01 03 00 00 64 c1 42 57 4e bc 00 00 00 55 6b e8 d2 75 50",
	} {
		f.Add(unhex(f, s))
	}
	for _, v := range []string{vecTermWrite, vecTermRead, vecTerm2002} {
		b := unhex(f, v)
		f.Add(b[20 : 2+int(b[1])])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		got := ParseTerminate(b)
		require.Equal(t, before, b)
		require.NotEmpty(t, got.String())
		if got.DDPHeader != nil {
			_, ok := ddp.ParseHeader(got.DDPHeader)
			require.True(t, ok)
			require.True(t, got.HasSegLen)
		}
		if got.ReadHeader != nil {
			require.Len(t, got.ReadHeader, requestLen)
			require.NotNil(t, got.DDPHeader)
		}
		if got.HasSegLen { // else the bits do not tell the form
			got.Swapped = false
			require.Equal(t, got, ParseTerminate(got.append(nil)))
		}
	})
}
