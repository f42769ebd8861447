package rdmap

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

func TestSendVariants(t *testing.T) {
	for _, c := range []struct {
		ulp            byte
		solicited, inv bool
	}{{0x43, false, false}, {0x44, false, true}, {0x45, true, false}, {0x46, true, true}} {
		t.Run(fmt.Sprintf("DDP-04 RDM-38 RDM-40 RDM-42 opcode octet %02x", c.ulp), func(t *testing.T) {
			tab := ddp.NewTable()
			a, b := newPair(t, 1448, 1<<16, Config{Table: tab}, Config{Table: tab})
			g := newRegion(t, tab, 64, testPD, remoteRights)
			require.NoError(t, tab.AllowInvalidate(g.stag))
			buf := newRegion(t, tab, 4000, testPD, ddp.LocalWrite)
			b.recvs = []RecvBuf{{ID: 4, SGL: []SGE{buf.sge(0, 4000)}}}
			data := pattern(3000, 1)
			a.post(&Op{Kind: Send, Solicited: c.solicited, Invalidate: c.inv, InvSTag: g.stag, Inline: data})
			settle(a, b)
			require.NoError(t, b.rxErr)
			want := Event{Kind: RecvDone, ID: 4, Len: 3000, Solicited: c.solicited, Invalidated: c.inv}
			if c.inv {
				want.InvSTag = g.stag
			}
			require.Equal(t, want, b.events[1])
			same(t, data, buf.mem[:3000], "received")
			_, err := tab.Check(g.stag, ddp.StreamID{PD: testPD}, g.base, 1, ddp.RemoteWrite)
			require.Equal(t, c.inv, err != nil)
			if !c.inv {
				return
			}
			t.Run("RDM-40 afterwards the peer meets nothing", func(t *testing.T) {
				a.post(&Op{Kind: Write, RemoteSTag: g.stag, RemoteTO: g.base, Inline: []byte{1}})
				settle(a, b)
				var pe *PeerError
				require.ErrorAs(t, a.rxErr, &pe)
				require.Equal(t, "invalid STag (1/1/00)", pe.Terminate.String())
				g.untouched(t)
			})
		})
	}
	t.Run("RDM-41 invalidating again is no error", func(t *testing.T) {
		k := newScene(t)
		require.NoError(t, k.table.AllowInvalidate(k.s.stag))
		e, peer := newRaw(t, k.config())
		k.post(e)
		k.post(e)
		peer.play(fpdu(untaggedSeg(0x41, 0x44, 0x12345678, 0, 1, 0)))
		peer.play(fpdu(untaggedSeg(0x41, 0x44, 0x12345678, 0, 2, 0)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Len(t, e.events, 3)
	})
	t.Run("RDM-39 refusals", func(t *testing.T) {
		for _, c := range []struct {
			stag uint32
			code uint16
		}{{0, 0x0100}, {0x0badcafe, 0x0100}, {0x12345679, 0x0100}, {0x33333301, 0x0109}, {0x12345678, 0x0109}} {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			seg := untaggedSeg(0x41, 0x46, c.stag, 0, 1, 0, 1, 2, 3)
			want := append(untaggedSeg(0x41, 0x47, 0, 2, 1, 0, byte(c.code>>8), byte(c.code), 0xc0, 0, 0, 21), seg[:18]...)
			peer.play(fpdu(seg))
			settle(e)
			require.Equal(t, want, peer.expectFPDU(), "%08x", c.stag)
			require.Len(t, e.events, 1, "not completed")
			k.untouched(t)
		}
	})
	t.Run("RDM-39 permission lost between the segments", func(t *testing.T) {
		k := newScene(t)
		require.NoError(t, k.table.AllowInvalidate(k.s.stag))
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(fpdu(untaggedSeg(0x01, 0x44, 0x12345678, 0, 1, 0, 1)))
		settle(e)
		require.NoError(t, k.table.Deregister(k.s.stag))
		peer.play(fpdu(untaggedSeg(0x41, 0x44, 0x12345678, 0, 1, 1, 1)))
		settle(e)
		require.Equal(t, uint16(0x0100), code(peer.expectFPDU()))
		require.Len(t, e.events, 1, "not completed")
	})
}

func TestContinuation(t *testing.T) {
	first := untaggedSeg(0x01, 0x44, 0x12345678, 0, 1, 0, 1, 2, 3, 4)
	next := untaggedSeg(0x41, 0x44, 0x12345678, 0, 1, 4, 5, 6)
	mod := func(at int, v byte) []byte {
		b := append([]byte{}, next...)
		b[at] = v
		return b
	}
	cases := []struct {
		name string
		seg  []byte
		code uint16
	}{
		{"RDM-06 SEC-42 other opcode", mod(1, 0x43), 0x0206},
		{"RDM-06 SEC-42 the opcode with SE", mod(1, 0x46), 0x0206},
		{"RDM-06 SEC-42 other Invalidate STag", mod(5, 0x79), 0x0206},
		{"RDM-04 opcode of a Write", mod(1, 0x40), 0x0206},
		{"SEC-42 other QN", mod(9, 1), 0x1201},
		{"SEC-42 QN of Terminates", mod(9, 2), 0x1201},
		{"SEC-42 next MSN", mod(13, 2), 0x1203},
		{"SEC-42 earlier MSN", mod(13, 0), 0x1203},
		{"DDP-34 MO one more", mod(17, 5), 0x1204},
		{"DDP-34 MO one less", mod(17, 3), 0x1204},
		{"DDP-34 MO 0", mod(17, 0), 0x1204},
		{"DDP-42 longer than the buffer", append(append([]byte{}, next...), make([]byte, 11)...), 0x1205},
		{"DDP-26 SEC-42 a Read Request inside", readReq(1, 1, 0, 1, 0x12345678, base), 0x0206},
		{"RDM-01 RV 2", mod(1, 0x84), 0x0205},
		{"DDP-03 DV 0", mod(0, 0x40), 0x1206},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			k := newScene(t)
			require.NoError(t, k.table.AllowInvalidate(k.s.stag))
			e, peer := newRaw(t, k.config())
			k.post(e)
			k.post(e)
			peer.play(append(fpdu(first), fpdu(c.seg)...))
			settle(e)
			require.Equal(t, fmt.Sprintf("% x", termULPDU(c.code, c.seg)), fmt.Sprintf("% x", peer.expectFPDU()))
			require.Len(t, e.events, 1, "not completed")
			require.Equal(t, append([]byte{1, 2, 3, 4}, canary, canary), k.recv.mem[:6])
			k.s.untouched(t)
		})
	}
	t.Run("DDP-36 a Write between two segments of a Send", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		peer.play(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1, 2)))
		peer.play(fpdu(taggedSeg(0x81, 0x40, k.s.stag, base, 7)))
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 2, 3)))
		peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base+1, 8)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []byte{1, 2, 3}, k.recv.mem[:3])
		require.Equal(t, []byte{7, 8}, k.s.mem[:2])
	})
	t.Run("DDP-35 segments of a Write may jump", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		g := newRegion(t, k.table, 8, testPD, ddp.RemoteWrite)
		peer.play(fpdu(taggedSeg(0x81, 0x40, k.s.stag, base+100, 7)))
		peer.play(fpdu(taggedSeg(0x81, 0x40, g.stag, g.base, 8)))
		peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 9)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []byte{7, 8, 9}, []byte{k.s.mem[100], g.mem[0], k.s.mem[0]})
		require.EqualValues(t, 1, e.Stats().WritesIn)
	})
	for _, seg := range [][]byte{untaggedSeg(0x41, 0x43, 0, 0, 1, 0), readReq(1, 1, 0, 0, 0, 0)} {
		t.Run(fmt.Sprintf("DDP-26 SEC-42 opcode octet %02x inside a Write", seg[1]), func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(append(fpdu(taggedSeg(0x81, 0x40, k.s.stag, base, 7)), fpdu(seg)...))
			settle(e)
			require.Equal(t, termULPDU(0x0206, seg), peer.expectFPDU())
			require.Len(t, e.recvs, 1, "no buffer is used up")
		})
	}
}

func TestOpcodes(t *testing.T) {
	opcodes(t, false, "RDM-03 RDM-04 RDM-63 DDP-38")
	opcodes(t, true, "RDM-03 RDM-71 RDM-82 DDP-38 RFC 7306 off,")
	for _, rv := range []byte{0x00, 0x80, 0xc0} {
		t.Run(fmt.Sprintf("RDM-01 RDM-63 RV octet %02x comes before the opcode", rv), func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			seg := untaggedSeg(0x41, rv|0xf, 0, 9, 9, 9)
			peer.play(fpdu(seg))
			settle(e)
			require.Equal(t, termULPDU(0x0205, seg), peer.expectFPDU())
		})
	}
}

// opcodes plays every opcode in both models and on every queue, and looks for
// the Terminate where it is wrong there. off: without RFC 7306.
func opcodes(t *testing.T, off bool, rows string) {
	for op := byte(0); op < 16; op++ {
		for _, tagged := range []bool{false, true} {
			for qn := uint32(0); qn < 4; qn++ {
				if tagged && qn > 0 || op == 7 {
					continue
				}
				seg := untaggedSeg(0x41, 0x40|op, 0, qn, 1, 0, make([]byte, 28)...)
				if tagged {
					seg = taggedSeg(0xc1, 0x40|op, 0x12345678, base, make([]byte, 28)...)
				}
				want, wantQN, known := uint16(0x0206), uint32(0), false
				switch op {
				case 0, 2:
					known = tagged
				case 1:
					known, wantQN = !tagged, 1
				case 3, 4, 5, 6:
					known = !tagged
				case 8, 9:
					known = !tagged && !off
				case 10:
					known, wantQN = !tagged && !off, 1
				case 11:
					known, wantQN = !tagged && !off, 3
				}
				switch {
				case known && !tagged && qn != wantQN:
					want = 0x1201
				case known && op != 2 && op != 11: // nothing is outstanding
					continue // right
				}
				t.Run(fmt.Sprintf("%s opcode %x tagged=%v QN %d", rows, op, tagged, qn), func(t *testing.T) {
					k := newScene(t)
					cfg := k.config()
					cfg.NoAtomics, cfg.NoImmediate = off, off
					e, peer := newRaw(t, cfg)
					peer.play(fpdu(seg)) // no receive is posted, which is not what is told
					settle(e)
					require.Equal(t, termULPDU(want, seg), peer.expectFPDU())
					k.untouched(t)
				})
			}
		}
	}
}

func TestReceiveBuffers(t *testing.T) {
	t.Run("DDP-39 DDP-48 no receive posted", func(t *testing.T) {
		e, peer := newRaw(t, Config{})
		peer.play(unhex(t, vecSendZero))
		settle(e)
		require.Equal(t, termULPDU(0x1202, untaggedSeg(0x41, 0x43, 0, 0, 1, 0)), peer.expectFPDU(), "DDP-48 for an empty Send too")
	})
	t.Run("DDP-48 an empty buffer does for an empty Send", func(t *testing.T) {
		e, peer := newRaw(t, Config{})
		e.recvs = []RecvBuf{{ID: 1, SGL: []SGE{{STag: 0xbad}}}}
		peer.play(unhex(t, vecSendZero))
		settle(e)
		require.Equal(t, Event{Kind: RecvDone, ID: 1}, e.events[1])
	})
	t.Run("a bad receive buffer is our fault", func(t *testing.T) {
		for _, sge := range []SGE{{STag: 0x0badcafe, Len: 16}, {STag: 0x33333301, Len: 16}, {STag: 0x12345678, Off: 4090, Len: 16}} {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			e.recvs = []RecvBuf{{ID: 33, SGL: []SGE{sge}}}
			peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, make([]byte, 16)...)))
			settle(e)
			peer.expectBytes(unhex(t, vecTerm0000))
			var le *LocalError
			require.ErrorAs(t, e.rxErr, &le)
			require.True(t, le.Recv)
			require.EqualValues(t, 33, le.ID)
			require.NotEmpty(t, le.Error())
			k.untouched(t)
		}
	})
	t.Run("SEC-16 a buffer may have a PD of its own", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		e.recvs = []RecvBuf{
			{ID: 1, SGL: []SGE{k.p.sge(0, 16)}, PD: otherPD},
			{ID: 2, SGL: []SGE{k.s.sge(0, 16)}, PD: otherPD},
		}
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 1, 2, 3)))
		settle(e)
		require.NoError(t, e.rxErr)
		require.Equal(t, []byte{1, 2, 3}, k.p.mem[:3])
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 2, 0, 1, 2, 3)))
		settle(e)
		var le *LocalError
		require.ErrorAs(t, e.rxErr, &le)
		k.s.untouched(t)
	})
	t.Run("NeedRecv comes again until it is answered", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		peer.play(unhex(t, vecSendZero))
		for range 3 {
			ev, ok, err := e.Receive()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, Event{Kind: NeedRecv}, ev)
		}
		e.Give(RecvBuf{ID: 2})
		ev, ok, err := e.Receive()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, Event{Kind: RecvDone, ID: 2}, ev)
		_, ok, err = e.Receive()
		require.NoError(t, err)
		require.False(t, ok)
	})
}

func TestEndOfStream(t *testing.T) {
	t.Run("RDM-86 RDM-87 FIN between messages", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		peer.play(unhex(t, vecWrite8))
		require.NoError(t, peer.net.CloseWrite())
		settle(e)
		require.Equal(t, io.EOF, e.rxErr)
		peer.silent()
		require.False(t, e.TerminateSent())
		t.Run("RDM-87 a bad close is the caller's to tell", func(t *testing.T) {
			e.Terminate(io.EOF) // nothing
			_, err := e.Pump()
			require.NoError(t, err)
			e.Terminate(&Error{Type: TypeOperation, Code: CodeCatastrophic})
			settle(e)
			require.Equal(t, termULPDU(0x0207, nil), peer.expectFPDU())
		})
	})
	for name, seg := range map[string][]byte{
		"Send":  untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1),
		"Write": taggedSeg(0x81, 0x40, 0x12345678, base, 1),
	} {
		t.Run("DDP-59 FIN inside a "+name, func(t *testing.T) {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(fpdu(seg))
			require.NoError(t, peer.net.CloseWrite())
			settle(e)
			require.ErrorIs(t, e.rxErr, io.ErrUnexpectedEOF)
			require.Equal(t, termULPDU(0x0207, nil), peer.expectFPDU())
			require.Len(t, e.events, 1)
		})
	}
	t.Run("MPA-78 FIN inside an FPDU", func(t *testing.T) {
		e, peer := newRaw(t, Config{})
		peer.play(unhex(t, vecWrite8)[:9])
		require.NoError(t, peer.net.CloseWrite())
		settle(e)
		var link *mpa.Error
		require.ErrorAs(t, e.rxErr, &link)
		require.Equal(t, mpa.CodeClosed, link.Code)
		peer.silent()
	})
	t.Run("RDM-60 RDM-88 no Terminate on a dead connection", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		peer.net.Abort()
		settle(e)
		require.ErrorIs(t, e.rxErr, syscall.ECONNRESET)
		_, err := e.Pump()
		require.ErrorIs(t, err, ErrStopped)
		require.False(t, e.TerminateSent())
	})
	t.Run("a dead connection met by the send half", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		ok, err := e.Submit(&Op{Kind: Send, ID: 1})
		require.NoError(t, err)
		require.True(t, ok)
		p, err := e.Pump()
		require.NoError(t, err)
		require.True(t, p.Sent)
		peer.net.Abort()
		require.ErrorIs(t, e.Flush(), syscall.ECONNRESET)
		_, err = e.Pump()
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = e.Submit(&Op{Kind: Send, ID: 2})
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.ErrorIs(t, e.Flush(), syscall.ECONNRESET)
		var le *LocalError
		require.False(t, errors.As(err, &le))
	})
	t.Run("DDP-58 what arrived before a dead connection is noticed by the send half is delivered", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.recvs = []RecvBuf{{ID: 1}}
		peer.play(unhex(t, vecSendZero))
		ok, err := e.Submit(&Op{Kind: Send})
		require.True(t, ok, "%v", err)
		_, err = e.Pump()
		require.NoError(t, err)
		peer.net.Abort()
		require.Error(t, e.Flush())
		e.receive()
		require.Equal(t, []Event{{Kind: RecvDone, ID: 1}}, e.events)
		require.ErrorIs(t, e.rxErr, syscall.ECONNRESET)
	})
}
