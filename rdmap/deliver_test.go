package rdmap

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

func TestDelivery(t *testing.T) {
	t.Run("RDM-36 RDM-37 DDP-09 DDP-10 DDP-26 DDP-27 DDP-28 a thousand Sends, each into the next buffer and once", func(t *testing.T) {
		const n = 1000
		tab := ddp.NewTable()
		a, b := newPair(t, 1448, 1<<16, Config{Table: tab}, Config{Table: tab})
		buf := newRegion(t, tab, n*8, testPD, ddp.LocalWrite)
		var want []Event
		var data []byte
		for i := range n {
			size := []int{8, 0, 3, 0, 0, 8, 1}[i%7] // many of them empty
			p := pattern(size, byte(i))
			data = append(append(data, p...), make([]byte, 8-size)...)
			for j := size; j < 8; j++ {
				data[i*8+j] = canary
			}
			a.post(&Op{Kind: Send, ID: uint64(i), Inline: p})
			b.recvs = append(b.recvs, RecvBuf{ID: uint64(5000 + i), SGL: []SGE{buf.sge(i*8, 8)}})
			want = append(want, Event{Kind: RecvDone, ID: uint64(5000 + i), Len: uint32(size)})
		}
		settle(a, b)
		require.NoError(t, b.rxErr)
		require.Equal(t, want, b.events[1:])
		require.Empty(t, b.recvs)
		same(t, data, buf.mem, "received")
		buf.intact(t)
	})
	t.Run("RDM-09 RDM-36 a hundred Writes: no event and no receive used", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		for i := range 100 {
			peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base+uint64(i), byte(i))))
			settle(e)
		}
		require.Equal(t, []EventKind{FirstFPDU}, kinds(e.drained()))
		require.Len(t, e.recvs, 1)
		require.EqualValues(t, 100, e.Stats().WritesIn)
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 7)))
		settle(e)
		require.Equal(t, []Event{{Kind: RecvDone, ID: 77, Len: 1}}, e.events, "the Send that follows has the first receive")
	})
	t.Run("DDP-33 a buffer is given back with its message, and not before", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		e.recvs = []RecvBuf{{ID: 1, SGL: []SGE{k.recv.sge(0, 8)}}, {ID: 2, SGL: []SGE{k.recv.sge(8, 8)}}}
		peer.play(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1, 2)))
		settle(e)
		require.Equal(t, []EventKind{FirstFPDU}, kinds(e.drained()))
		require.Len(t, e.recvs, 1, "it is in use")
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 2, 3)))
		settle(e)
		require.Equal(t, []Event{{Kind: RecvDone, ID: 1, Len: 3}}, e.drained())
		peer.play(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 2, 0, 4)))
		peer.play(fpdu(taggedSeg(0xc1, 0x40, 0x0badcafe, base, 1))) // ends the stream
		settle(e)
		require.Error(t, e.rxErr)
		require.Empty(t, e.drained(), "the buffer of an unfinished message is never given back")
		require.NoError(t, k.table.Deregister(k.recv.stag), "no use is left behind")
	})
	t.Run("DDP-53 an initiator has its receive side ready before the Reply is read", func(t *testing.T) {
		na, peer := bareConn(t)
		require.NoError(t, na.c.Request(mpa.Config{Rev1: true}, nil))
		peer.expectBytes(unhex(t, mpaRequest))
		peer.play(append(unhex(t, mpaReply), unhex(t, vecSendHello)...))
		_, ok, err := na.c.RecvReply()
		require.True(t, ok, "%v", err)
		helloArrives(t, na, Config{Initiator: true})
	})
	t.Run("DDP-53 a responder receives what comes at once behind its Reply", func(t *testing.T) {
		nb, peer := bareConn(t)
		peer.play(unhex(t, mpaRequest))
		_, ok, err := nb.c.RecvRequest(mpa.Config{})
		require.True(t, ok, "%v", err)
		_, err = nb.c.Accept(mpa.Config{}, nil)
		require.NoError(t, err)
		peer.play(unhex(t, vecSendHello)) // before anybody listens
		helloArrives(t, nb, Config{})
	})
	t.Run("DDP-58 RDM-85 a megabyte of Sends and a FIN: all is delivered first", func(t *testing.T) {
		const n, size = 64, 16 << 10
		tab := ddp.NewTable()
		a, b := newPair(t, 1448, 2<<20, Config{Table: tab}, Config{Table: tab})
		src := newRegion(t, tab, size, testPD, 0)
		buf := newRegion(t, tab, size, testPD, ddp.LocalWrite)
		for i := range uint64(n) {
			a.post(&Op{Kind: Send, ID: i, SGL: []SGE{src.sge(0, size)}})
			b.recvs = append(b.recvs, RecvBuf{ID: i, SGL: []SGE{buf.sge(0, size)}})
		}
		for a.transmit() {
		}
		require.Len(t, a.sent, n)
		require.Zero(t, a.conn.Pending())
		require.NoError(t, a.net.CloseWrite())
		settle(a, b)
		require.Equal(t, io.EOF, b.rxErr, "an end in order, on an FPDU boundary")
		got := slices.DeleteFunc(b.events, func(ev Event) bool { return ev.Kind != RecvDone })
		require.Len(t, got, n)
		for i, ev := range got {
			require.Equal(t, Event{Kind: RecvDone, ID: uint64(i), Len: size}, ev)
		}
	})
	t.Run("DDP-32 RDM-50 nothing of a message can be looked at before its event", func(t *testing.T) {
		// No call of a Stream, and no field of an event, hands out memory.
		octets := reflect.TypeFor[[]byte]()
		for _, typ := range []reflect.Type{reflect.TypeFor[*Stream](), reflect.TypeFor[Event](), reflect.TypeFor[Progress]()} {
			if typ.Kind() == reflect.Struct {
				for _, f := range reflect.VisibleFields(typ) {
					require.NotContains(t, []reflect.Kind{reflect.Slice, reflect.Pointer, reflect.Interface}, f.Type.Kind(), f.Name)
				}
			}
			for i := range typ.NumMethod() {
				m := typ.Method(i)
				for j := range m.Type.NumOut() {
					out := m.Type.Out(j)
					require.NotEqual(t, octets, out, m.Name)
					require.NotContains(t, []reflect.Kind{reflect.Slice, reflect.Pointer, reflect.UnsafePointer}, out.Kind(), m.Name)
				}
			}
		}
		// And a Send that is not whole is not reported, whatever of it has come.
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		k.post(e)
		for i := range byte(15) {
			peer.play(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, uint32(i), i)))
			settle(e)
			require.Equal(t, []EventKind{FirstFPDU}, kinds(e.events))
		}
		peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 15, 15)))
		settle(e)
		require.Equal(t, []EventKind{FirstFPDU, RecvDone}, kinds(e.events))
	})
}

func TestErrorsInARow(t *testing.T) {
	t.Run("DDP-52 RDM-51 two bad FPDUs in one piece: one Terminate, for the first", func(t *testing.T) {
		for _, c := range [][2][]byte{
			{taggedSeg(0xc1, 0x40, 0x0badcafe, base, 1), untaggedSeg(0x41, 0x43, 0, 0, 9, 0)},
			{untaggedSeg(0x41, 0x43, 0, 0, 9, 0), taggedSeg(0xc1, 0x40, 0x0badcafe, base, 1)},
		} {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			peer.play(append(fpdu(c[0]), fpdu(c[1])...))
			e.receive()
			e.receive()
			settle(e)
			want := uint16(0x1100)
			if c[0][0]&0x80 == 0 {
				want = 0x1203
			}
			require.Equal(t, termULPDU(want, c[0]), peer.expectFPDU())
			peer.silent()
			require.EqualValues(t, 1, e.Stats().TerminatesOut)
		}
	})
	t.Run("DDP-13 RDM-61 of two Terminates the second is dropped, and neither is answered", func(t *testing.T) {
		for _, second := range []uint32{1, 2} {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			term := func(msn uint32) []byte { return fpdu(untaggedSeg(0x41, 0x47, 0, 2, msn, 0, 0, 0, 0, 0)) }
			peer.play(append(term(1), term(second)...))
			e.receive()
			first := e.rxErr
			_, _, err := e.Receive()
			require.Equal(t, first, err)
			settle(e)
			peer.silent()
			require.EqualValues(t, 1, e.Stats().TerminatesIn)
		}
	})
	t.Run("DDP-13 our Terminate is message 1 of queue 2", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.post(&Op{Kind: Send}, &Op{Kind: Send, SGL: []SGE{{STag: 0xbad, Len: 1}}})
		settle(e)
		peer.expectFPDU()
		require.Equal(t, untaggedSeg(0x41, 0x47, 0, 2, 1, 0, 0, 0, 0, 0), peer.expectFPDU())
	})
	t.Run("RDM-64 DDP-49 what arrives after the end is dropped", func(t *testing.T) {
		for name, end := range map[string]func(e *end, peer *raw){
			"an error of ours": func(e *end, _ *raw) { e.Terminate(&LocalError{}) },
			"a Terminate": func(_ *end, peer *raw) {
				peer.play(fpdu(untaggedSeg(0x41, 0x47, 0, 2, 1, 0, 0, 0, 0, 0)))
			},
			"an error of the peer": func(_ *end, peer *raw) { peer.play(fpdu(imm(0xf, 1))) },
		} {
			k := newScene(t)
			e, peer := newRaw(t, k.config())
			k.post(e)
			peer.play(unhex(t, vecWriteRTR))
			settle(e)
			e.drained()
			end(e, peer)
			settle(e)
			peer.play(fpdu(untaggedSeg(0x41, 0x43, 0, 0, 1, 0, 1)))
			peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, 1)))
			peer.play(fpdu(atomicReq(1, codeFetchAdd, 1, k.s.stag, base, 1)))
			e.rxErr = nil
			settle(e)
			require.Error(t, e.rxErr, name)
			require.Empty(t, e.events, name)
			k.untouched(t)
		}
	})
	t.Run("RDM-62 after a Terminate nothing that is open completes", func(t *testing.T) {
		tab := ddp.NewTable()
		e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: tab})
		g := newRegion(t, tab, 64, testPD, ddp.LocalWrite)
		for i := range uint64(10) {
			e.post(&Op{Kind: Read, ID: i, RemoteSTag: 9, SGL: []SGE{g.sge(0, 8)}})
		}
		settle(e)
		require.Len(t, e.sent, 4)
		peer.play(fpdu(untaggedSeg(0x41, 0x47, 0, 2, 1, 0, 1, 2, 0, 0)))
		for range 4 {
			peer.play(fpdu(taggedSeg(0xc1, 0x42, g.stag, g.base, make([]byte, 8)...)))
		}
		settle(e)
		var pe *PeerError
		require.ErrorAs(t, e.rxErr, &pe)
		require.Empty(t, e.events, "no read completes")
		require.Len(t, e.sent, 4, "and none is sent")
		require.Equal(t, 4, e.OutstandingReads())
		g.untouched(t)
	})
}

func TestLostConnection(t *testing.T) {
	t.Run("DDP-60 RDM-88 the loss is told by each half once and for all, and ten operations fail", func(t *testing.T) {
		tab := ddp.NewTable()
		e, peer := newRaw(t, Config{Initiator: true, ORD: 4, Table: tab})
		g := newRegion(t, tab, 8, testPD, ddp.LocalWrite)
		for i := range uint64(10) {
			e.post(&Op{Kind: Read, ID: i, RemoteSTag: 9, SGL: []SGE{g.sge(0, 8)}})
		}
		settle(e)
		peer.net.Abort()
		settle(e)
		first := e.rxErr
		require.ErrorIs(t, first, syscall.ECONNRESET)
		for range 3 {
			_, ok, err := e.Receive()
			require.False(t, ok)
			require.Same(t, first, err, "the same report")
			_, err = e.Pump()
			require.ErrorIs(t, err, ErrStopped)
		}
		require.Empty(t, e.events)
		require.Len(t, e.sent, 4)
		require.False(t, e.TerminateSent())
	})
	t.Run("RDM-89 an abort of our own sends no Terminate", func(t *testing.T) {
		e, peer := newRaw(t, Config{Initiator: true})
		e.net.Abort()
		settle(e)
		require.Error(t, e.rxErr)
		_, err := e.Pump()
		require.ErrorIs(t, err, ErrStopped, "none is due")
		require.False(t, e.TerminateSent())
		_, err = peer.net.Peek()
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
	t.Run("RDM-85 RDM-89 a disconnect comes behind all that is pending, on an FPDU boundary", func(t *testing.T) {
		tab := ddp.NewTable()
		e, peer := newRaw(t, Config{Initiator: true, Table: tab})
		g := newRegion(t, tab, 4000, testPD, 0)
		for i := range uint64(5) {
			e.post(&Op{Kind: Send, ID: i, SGL: []SGE{g.sge(0, 4000)}})
		}
		settle(e)
		require.Len(t, e.sent, 5)
		require.NoError(t, e.conn.CloseWrite())
		require.Len(t, peer.messages(), 5) // every one whole
		_, err := peer.net.Peek()
		require.ErrorIs(t, err, io.EOF)
	})
	t.Run("RDM-59 a Terminate arrives although the peer keeps sending", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		bad := taggedSeg(0xc1, 0x40, 0x0badcafe, base, 1)
		peer.play(fpdu(bad))
		settle(e)
		require.True(t, e.TerminateSent())
		require.NoError(t, e.conn.CloseWrite())
		for range 100 { // nothing of this is left to lie: unread octets make TCP reset
			peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, make([]byte, 1000)...)))
			for n := 1; n > 0; {
				var err error
				n, err = e.conn.Drain()
				require.NoError(t, err)
			}
		}
		require.Zero(t, e.net.Buffered())
		require.Equal(t, termULPDU(0x1100, bad), peer.expectFPDU())
		peer.silent()
		_, err := peer.net.Peek()
		require.ErrorIs(t, err, io.EOF, "a FIN, no reset")
		k.untouched(t)
	})
}

func TestVersionsStay(t *testing.T) {
	t.Run("RDM-90 RDM-01 the versions are constants and every message has them", func(t *testing.T) {
		const rdmapVersion, ddpVersion = version, ddp.Version // does not compile if they could change
		require.Equal(t, 1, rdmapVersion)
		require.Equal(t, 1, ddpVersion)
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		g := newRegion(t, k.table, 4000, testPD, ddp.LocalWrite)
		peer.play(fpdu(readReq(1, 1, 0, 8, k.s.stag, base)))
		peer.play(fpdu(atomicReq(2, codeFetchAdd, 1, k.s.stag, base, 1)))
		e.post(
			&Op{Kind: Send, SGL: []SGE{g.sge(0, 4000)}}, &Op{Kind: Write, WithImm: true, SGL: []SGE{g.sge(0, 4000)}},
			&Op{Kind: Read, SGL: []SGE{g.sge(0, 4)}}, &Op{Kind: FetchAdd, SGL: []SGE{g.sge(0, 8)}},
			&Op{Kind: Immediate, Solicited: true}, &Op{Kind: Send, Invalidate: true, Solicited: true},
		)
		settle(e)
		e.Terminate(&LocalError{})
		settle(e)
		seen := map[byte]bool{}
		peer.read()
		for len(peer.got) > 0 {
			s := peer.expectFPDU()
			require.Equal(t, byte(1), s[0]&0x3f, "DV, and reserved bits")
			require.Equal(t, byte(0x40), s[1]&0xf0, "RV, and reserved bits")
			seen[s[1]&0xf] = true
		}
		for _, op := range []byte{0, 1, 2, 3, 6, 7, 8, 9, 10, 11} {
			require.True(t, seen[op], fmt.Sprintf("opcode %x", op))
		}
	})
}

func TestRepeated(t *testing.T) {
	t.Run("RDM-84 a repeated atomic request is refused, not carried out again", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		setWord(k.s, 0, 0x29)
		peer.play(append(unhex(t, vecFetchAdd), unhex(t, vecFetchAdd)...))
		e.receive()
		e.Pump()
		settle(e)
		var low *ddp.Error
		require.ErrorAs(t, e.rxErr, &low)
		require.Equal(t, uint8(ddp.CodeMSN), low.Code)
		require.LessOrEqual(t, word(k.s, 0), uint64(0x2a))
	})
}
