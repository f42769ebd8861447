package rdmap

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

func TestGate(t *testing.T) {
	t.Run("MPA-13 a responder waits for the first FPDU", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		op := &Op{Kind: Send, ID: 5}
		e.post(op, &Op{Kind: Send, ID: 6})
		settle(e)
		require.NoError(t, e.Flush())
		peer.silent()
		require.Empty(t, e.sent)

		peer.play(unhex(t, vecWrite8)[:20]) // not whole yet
		settle(e)
		peer.silent()
		peer.play(unhex(t, vecWrite8)[20:])
		settle(e)
		require.Equal(t, []Event{{Kind: FirstFPDU, KickTx: true}}, e.events)
		require.Equal(t, []uint64{5, 6}, e.sent)
		peer.expectFPDU()
		peer.expectFPDU()
		peer.silent()
	})
	t.Run("MPA-13 also a Terminate of our own waits", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		e.post(&Op{Kind: Send, SGL: []SGE{{STag: 0xbad, Len: 1}}})
		settle(e)
		require.Len(t, e.txErrs, 1)
		peer.silent()
		require.False(t, e.TerminateSent())
		peer.play(unhex(t, vecWrite8))
		settle(e)
		require.ErrorIs(t, e.rxErr, ErrStopped)
		peer.expectBytes(unhex(t, vecTerm0000))
		require.Equal(t, byte(canary), k.s.mem[0], "the Write is dropped")
	})
	t.Run("a first FPDU with a bad CRC opens the gate for the Terminate alone", func(t *testing.T) {
		e, peer := newRaw(t, Config{})
		e.post(&Op{Kind: Send})
		b := unhex(t, vecWrite8)
		b[10] ^= 1
		peer.play(b)
		settle(e)
		peer.expectBytes(unhex(t, vecTerm2002))
		peer.silent()
	})
	t.Run("IOP-09 an initiator has no gate and receives at once", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.recvs = []RecvBuf{{ID: 1}}
		peer.play(unhex(t, vecSendZero))
		settle(e)
		require.Equal(t, []Event{{Kind: RecvDone, ID: 1}}, e.events)
	})
}

func TestRTR(t *testing.T) {
	cases := []struct {
		kind mpa.RTRKind
		want string
	}{
		{mpa.RTRWrite, vecWriteRTR}, {mpa.RTRRead, vecReadRTR}, {mpa.RTRSend, vecSendZero},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("MPA-46 MPA-48 RTR %v comes first, with STag 1", c.kind), func(t *testing.T) {
			e, peer := newRaw(t, Config{Initiator: true, RTR: c.kind, PeerToPeer: true, ORD: 1})
			op := &Op{Kind: Send, ID: 3, Inline: []byte("x")}
			ok, err := e.Submit(op)
			require.NoError(t, err)
			require.True(t, ok)
			settle(e)
			peer.expectBytes(unhex(t, c.want))
			msn := uint32(1)
			switch c.kind {
			case mpa.RTRSend:
				msn = 2
			case mpa.RTRRead:
				peer.silent()
				peer.play(unhex(t, vecResponseZero))
				settle(e)
			}
			require.Equal(t, untaggedSeg(0x41, 0x43, 0, 0, msn, 0, 'x'), peer.expectFPDU())
			peer.silent()
			require.Equal(t, []uint64{3}, e.sent, "no completion for the RTR message")
		})
		t.Run(fmt.Sprintf("MPA-47 both ends of RTR %v", c.kind), func(t *testing.T) {
			a, b := newPair(t, 1448, 1<<16,
				Config{RTR: c.kind, PeerToPeer: true, IRD: 1, ORD: 1}, Config{PeerToPeer: true, IRD: 1, ORD: 1})
			b.recvs = []RecvBuf{{ID: 9}}
			settle(a, b)
			require.Equal(t, Event{Kind: FirstFPDU, KickTx: true}, b.events[0])
			require.Empty(t, a.sent)
			switch c.kind {
			case mpa.RTRWrite:
				require.Len(t, b.events, 1, "no event at the responder")
				require.Empty(t, a.events)
			case mpa.RTRRead:
				require.Equal(t, []Event{{Kind: RequestQueued, KickTx: true}}, b.events[1:])
				require.Equal(t, []Event{{Kind: RTRDone, KickTx: true}}, a.events, "no ReadDone at the initiator")
				require.EqualValues(t, 1, b.Stats().ResponsesOut)
			case mpa.RTRSend:
				require.Equal(t, []Event{{Kind: RecvDone, ID: 9}}, b.events[1:])
			}
			require.Zero(t, a.OutstandingReads())
		})
	}
	t.Run("operations wait for the answer to a Read RTR", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, RTR: mpa.RTRRead, PeerToPeer: true, ORD: 1})
		e.post(&Op{Kind: Write, ID: 8, RemoteSTag: 7, RemoteTO: 9, Inline: []byte("data")})
		settle(e)
		peer.expectBytes(unhex(t, vecReadRTR))
		peer.silent()
		require.True(t, e.Awaiting())
		peer.play(unhex(t, vecResponseZero))
		settle(e)
		require.False(t, e.Awaiting())
		require.Equal(t, []uint64{8}, e.sent)
		e.Nudge()
		settle(e)
		require.EqualValues(t, 1, e.Stats().WritesOut, "an answered RTR needs no nudge")
	})
	t.Run("a nudge behind a Read RTR that is not noticed", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, RTR: mpa.RTRRead, PeerToPeer: true, ORD: 1})
		settle(e)
		peer.expectBytes(unhex(t, vecReadRTR))
		for range 2 {
			e.Nudge()
			settle(e)
			peer.expectBytes(unhex(t, vecWriteRTR)) // an empty Write, which reaches no ULP
			peer.silent()
		}
		e.post(&Op{Kind: Send, ID: 8, Inline: []byte("data")})
		settle(e)
		require.Equal(t, []uint64{8}, e.sent, "operations go on behind a nudge")
	})
	t.Run("MPA-47 MPA-37 a Read RTR takes MSN 1 of queue 1 and one of ORD", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true, RTR: mpa.RTRRead, PeerToPeer: true, ORD: 1})
		op := &Op{Kind: Read, ID: 8, RemoteSTag: 7, RemoteTO: 9}
		ok, err := e.Submit(op)
		require.NoError(t, err)
		require.False(t, ok, "the RTR is still to be sent")
		e.post(op)
		settle(e)
		peer.expectBytes(unhex(t, vecReadRTR))
		peer.silent()
		require.Equal(t, 1, e.OutstandingReads())
		peer.play(unhex(t, vecResponseZero))
		settle(e)
		require.Equal(t, []Event{{Kind: RTRDone, KickTx: true}}, e.events)
		require.Equal(t, readReq(2, 1, 0, 0, 7, 9), peer.expectFPDU())
		require.Equal(t, []uint64{8}, e.sent)
	})
	t.Run("MPA-48 STag and TO of a Write RTR are not checked", func(t *testing.T) {
		e, peer := newRaw(t, Config{})
		peer.play(fpdu(taggedSeg(0xc1, 0x40, 0, ^uint64(0))))
		settle(e)
		require.NoError(t, e.rxErr)
	})
	t.Run("IOP-18 an unasked empty Read opens the connection with IRD 0", func(t *testing.T) {
		e, peer := newRaw(t, Config{IRD: 0})
		peer.play(unhex(t, vecReadRTR))
		settle(e)
		peer.expectBytes(unhex(t, vecResponseZero))
		peer.play(fpdu(readReq(2, 1, 0, 0, 1, 0))) // but only first
		settle(e)
		require.Equal(t, termULPDU(0x1203, readReq(2, 1, 0, 0, 1, 0)), peer.expectFPDU())
	})
	t.Run("IOP-18 not with data and not where an RTR was negotiated", func(t *testing.T) {
		e, peer := newRaw(t, Config{IRD: 0, PeerToPeer: true})
		peer.play(unhex(t, vecReadRTR))
		settle(e)
		require.Equal(t, termULPDU(0x1203, readReq(1, 1, 0, 0, 1, 0)), peer.expectFPDU())
		k := newScene(t)
		cfg := k.config()
		cfg.IRD = 0
		e, peer = newRaw(t, cfg)
		peer.play(unhex(t, vecRead))
		settle(e)
		require.Equal(t, uint16(0x1203), code(peer.expectFPDU()))
	})
}

// code returns layer, type and code of a Terminate, of its ULPDU.
func code(ulpdu []byte) uint16 { return uint16(ulpdu[18])<<8 | uint16(ulpdu[19]) }

func TestNewStreamMisuse(t *testing.T) {
	require.Panics(t, func() { NewStream(nil, Config{IRD: -1}) })
	e, _ := newRaw(t, Config{Table: ddp.NewTable()})
	require.Panics(t, func() { e.Give(RecvBuf{}) })
	require.Panics(t, func() { e.Refuse() })
}
