package iwarp_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// scriptedResponder connects a queue pair, in the client/server model, to a
// scripted peer that takes ird requests at once.
func scriptedResponder(t *testing.T, ird uint16, d rdmacm.Dialer) (*wiretest.Peer, end) {
	return dialScripted(t, iwarp.Protocol{DrainTimeout: time.Second, ClientServer: true}, wiretest.Block(ird, 8), d)
}

// dialScripted connects a queue pair to a scripted peer that replies with that
// block.
func dialScripted(t *testing.T, proto iwarp.Protocol, block []byte, d rdmacm.Dialer) (*wiretest.Peer, end) {
	l := kernel(t, proto)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	e := newEnd(t, l.a, 4096)
	dialed := make(chan error, 1)
	go func() {
		var err error
		d.Device, d.PD, d.QP = l.a, e.pd, e.qp()
		e.Conn, err = d.Dial(within(t, 10*time.Second), lis.Addr().String())
		dialed <- err
	}()
	conn, err := lis.Accept()
	require.NoError(t, err)
	p := wiretest.NewPeer(t, conn)
	p.Respond(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: block})
	require.NoError(t, <-dialed)
	return p, e
}

// The peer's memory, as far as a scripted peer has some.
const (
	farKey  = 0x0badcafe
	farAddr = 0x7f1200001000
)

// atomic makes a signaled atomic on the scripted peer's memory.
func (e *end) atomic(id uint64, op verbs.Opcode) verbs.SendWR {
	return verbs.SendWR{ID: id, Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(int(8*id), 8)},
		Remote: verbs.RemoteBuf{Addr: farAddr + 8*id, RKey: farKey}}
}

// read is the same for a Read of 8 octets.
func (e *end) read(id uint64) verbs.SendWR { return e.atomic(id, verbs.OpRead) }

// expectAtomic takes the next Atomic Request, which must be as given but for its
// identifier, and returns that.
func expectAtomic(t *testing.T, p *wiretest.Peer, msn, code uint32, to, val, valMask, compare, compareMask uint64) (ident uint32) {
	t.Helper()
	u := p.Next()
	require.Len(t, u, 70)
	ident = binary.BigEndian.Uint32(u[22:])
	require.Equal(t, fmt.Sprintf("% x", atomicRequest(msn, code, ident, farKey, to, val, valMask, compare, compareMask)), fmt.Sprintf("% x", u))
	return ident
}

const all64 = math.MaxUint64

func TestAtomicOnTheWire(t *testing.T) {
	t.Run("RDM-77 RDM-83 a fetch and add has the fields of the RFC and completes with its response", func(t *testing.T) {
		p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
		wr := e.atomic(1, verbs.OpFetchAdd)
		wr.Val, wr.ValMask, wr.Compare, wr.CompareMask = 0x1112131415161718, 0x8000000080000000, 77, 78
		e.send(t, wr)
		id := expectAtomic(t, p, 1, 0, farAddr+8, wr.Val, wr.ValMask, 0, all64)
		time.Sleep(20 * time.Millisecond)
		e.quiet(t)
		p.Send(atomicResponse(1, id, 0x0102030405060708))
		wc := e.wait(t, 1)[0]
		require.Equal(t, verbs.WC{ID: 1, Op: verbs.OpFetchAdd, ByteLen: 8, QP: e.Num(), Time: wc.Time}, wc)
		require.EqualValues(t, 0x0102030405060708, e.mr.Uint64(8).Load())
	})
	t.Run("RDM-72 RDM-81 a compare and swap likewise, and masks travel as they are", func(t *testing.T) {
		p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
		for i, c := range []struct{ cm, vm, wireCM, wireVM uint64 }{{0, 0, all64, all64}, {0, 1, 0, 1}, {2, 0, 2, 0}, {3, 4, 3, 4}} {
			wr := e.atomic(5, verbs.OpCompareSwap)
			wr.Compare, wr.CompareMask, wr.Val, wr.ValMask = 0xc0, c.cm, 0xd0, c.vm
			e.send(t, wr)
			id := expectAtomic(t, p, uint32(1+i), 2, farAddr+40, 0xd0, c.wireVM, 0xc0, c.wireCM)
			p.Send(atomicResponse(uint32(1+i), id, uint64(i)))
			require.NoError(t, e.wait(t, 1)[0].Err())
			require.EqualValues(t, i, e.mr.Uint64(40).Load())
		}
	})
	t.Run("RDM-22 RDM-79 reads and atomics share the depth, and what waits stops all behind it", func(t *testing.T) {
		p, e := scriptedResponder(t, 1, rdmacm.Dialer{})
		e.send(t, e.read(0), e.atomic(1, verbs.OpFetchAdd), verbs.SendWR{ID: 2, Op: verbs.OpSend, Flags: verbs.SendSignaled}, e.atomic(3, verbs.OpCompareSwap))
		p.Expect(wiretest.ReadRequest(1, uint32(e.remote.RKey), e.remote.Addr, 8, farKey, farAddr))
		p.ExpectSilence(50 * time.Millisecond)
		p.Send(wiretest.Tagged(2, true, uint32(e.remote.RKey), e.remote.Addr, make([]byte, 8)))
		id := expectAtomic(t, p, 2, 0, farAddr+8, 0, 0, 0, all64)
		p.Expect(send(1, ""))
		p.ExpectSilence(50 * time.Millisecond)
		p.Send(atomicResponse(1, id, 1))
		id = expectAtomic(t, p, 3, 2, farAddr+24, 0, all64, 0, all64)
		p.Send(atomicResponse(2, id, 1))
		require.Equal(t, []uint64{0, 1, 2, 3}, ids(e.wait(t, 4)))
	})
	t.Run("RDM-48 a fenced request does not start before an atomic is answered", func(t *testing.T) {
		p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
		fenced := verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendFence}
		e.send(t, e.atomic(0, verbs.OpFetchAdd), fenced)
		id := expectAtomic(t, p, 1, 0, farAddr, 0, 0, 0, all64)
		p.ExpectSilence(50 * time.Millisecond)
		p.Send(atomicResponse(1, id, 1))
		p.Expect(send(1, ""))
		require.Equal(t, []uint64{0, 1}, ids(e.wait(t, 2)))
	})
	t.Run("RDM-45 RDM-49 VRB-34 a Send behind an atomic goes out at once and completes after it", func(t *testing.T) {
		p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
		e.send(t, e.atomic(0, verbs.OpFetchAdd), verbs.SendWR{ID: 1, Op: verbs.OpSend, Flags: verbs.SendSignaled},
			verbs.SendWR{ID: 2, Op: verbs.OpWrite, Flags: verbs.SendSignaled, Remote: verbs.RemoteBuf{Addr: farAddr, RKey: farKey}})
		id := expectAtomic(t, p, 1, 0, farAddr, 0, 0, 0, all64)
		p.Expect(send(1, ""))
		p.Expect(wiretest.Tagged(0, true, farKey, farAddr, nil))
		time.Sleep(20 * time.Millisecond)
		e.quiet(t)
		p.Send(atomicResponse(1, id, 1))
		wcs := e.wait(t, 3)
		require.Equal(t, []uint64{0, 1, 2}, ids(wcs))
		require.Equal(t, []verbs.Opcode{verbs.OpFetchAdd, verbs.OpSend, verbs.OpWrite}, []verbs.Opcode{wcs[0].Op, wcs[1].Op, wcs[2].Op})
	})
	t.Run("RDM-24 where no request is allowed an atomic fails here and never leaves", func(t *testing.T) {
		for _, op := range []verbs.Opcode{verbs.OpFetchAdd, verbs.OpCompareSwap, verbs.OpRead} {
			p, e := scriptedResponder(t, 8, rdmacm.Dialer{ORD: -1})
			_, ord := e.ReadDepths()
			require.Zero(t, ord)
			e.send(t, e.atomic(0, op), verbs.SendWR{ID: 1, Op: verbs.OpSend})
			p.ExpectTerminate(0x0000)
			wcs := e.wait(t, 2)
			require.Equal(t, []verbs.WCStatus{verbs.WCLocQPOpErr, verbs.WCWRFlushErr}, statuses(wcs))
			p.ExpectEOF()
		}
	})
}

// TestAtomicAnswers has answers to an atomic that are wrong.
func TestAtomicAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		first  bool // a Read is posted before the atomic
		answer func(ident uint32) []byte
		term   uint16
		status verbs.WCStatus // of the atomic
	}{
		{"RDM-78 the identifier of another", false, func(id uint32) []byte { return atomicResponse(1, id+1, 5) }, 0x0207, verbs.WCBadRespErr},
		{"RDM-78 before that of an older read", true, func(id uint32) []byte { return atomicResponse(1, id, 5) }, 0x0206, verbs.WCWRFlushErr},
		{"RDM-81 the first has not MSN 1", false, func(id uint32) []byte { return atomicResponse(2, id, 5) }, 0x1203, verbs.WCWRFlushErr},
		{"SEC-38 one octet short", false, func(id uint32) []byte { return atomicResponse(1, id, 5)[:29] }, 0x0207, verbs.WCBadRespErr},
		{"SEC-38 one octet too many", false, func(id uint32) []byte { return append(atomicResponse(1, id, 5), 0) }, 0x0207, verbs.WCBadRespErr},
		{"RDM-32 a Read Response", false, func(uint32) []byte { return wiretest.Tagged(2, true, 1, 0, nil) }, 0x0206, verbs.WCWRFlushErr},
		{"RDM-82 on another queue", false, func(id uint32) []byte {
			b := atomicResponse(1, id, 5)
			b[9] = 0
			return b
		}, 0x1201, verbs.WCWRFlushErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
			msn := uint32(1)
			want := []verbs.WCStatus{c.status, verbs.WCWRFlushErr}
			if c.first {
				e.send(t, e.read(0))
				p.Next()
				msn, want = 2, append([]verbs.WCStatus{verbs.WCWRFlushErr}, want...)
			}
			before := append([]byte(nil), e.mr.Bytes()...)
			e.send(t, e.atomic(1, verbs.OpFetchAdd), e.read(2))
			id := expectAtomic(t, p, msn, 0, farAddr+8, 0, 0, 0, all64)
			p.Next()
			p.Send(c.answer(id))
			p.ExpectTerminate(c.term)
			wcs := e.wait(t, len(want))
			require.Equal(t, want, statuses(wcs), "VRB-17 at most one tells")
			if c.status == verbs.WCBadRespErr {
				require.EqualValues(t, c.term, wcs[0].VendorErr)
			}
			require.Equal(t, before, e.mr.Bytes(), "nothing was placed")
			p.ExpectEOF()
		})
	}
}

// TestTerminateNamesAtomic is a peer that complains about one of several requests
// in flight.
func TestTerminateNamesAtomic(t *testing.T) {
	const r, f = verbs.WCRemAccessErr, verbs.WCWRFlushErr
	for _, c := range []struct {
		name string
		code uint16
		msn  uint32 // in the header that is quoted; 0: no header
		want []verbs.WCStatus
	}{
		{"VRB-72 VRB-17 the second", 0x0102, 3, []verbs.WCStatus{f, r, f, f}},
		{"VRB-72 VRB-17 the last", 0x0101, 5, []verbs.WCStatus{f, f, f, r}},
		{"VRB-72 VRB-17 none that is in flight: the oldest", 0x0100, 9, []verbs.WCStatus{r, f, f, f}},
		{"VRB-72 VRB-17 without a header: the oldest", 0x0103, 0, []verbs.WCStatus{r, f, f, f}},
		{"VRB-72 VRB-17 misaligned, the third", 0x0207, 4, []verbs.WCStatus{f, f, verbs.WCRemOpErr, f}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The Read that opens the connection has MSN 1.
			p, e := dialScripted(t, iwarp.Protocol{DrainTimeout: time.Second}, wiretest.Block(wiretest.BlockA|8, wiretest.BlockD|8), rdmacm.Dialer{})
			p.Expect(wiretest.ReadRequest(1, 1, 0, 0, 1, 0))
			p.Send(wiretest.Tagged(2, true, 1, 0, nil))
			e.send(t, e.atomic(0, verbs.OpFetchAdd), e.atomic(1, verbs.OpCompareSwap), e.read(2), e.atomic(3, verbs.OpFetchAdd))
			var head []byte
			for msn := uint32(2); msn < 6; {
				u := p.Next()
				if u[1] == 0x40 {
					continue // a slow test may get a nudge: an empty Write
				}
				require.Equal(t, msn, binary.BigEndian.Uint32(u[10:]))
				head, msn = u, msn+1
			}
			b := []byte{byte(c.code >> 8), byte(c.code), 0, 0}
			if c.msn != 0 {
				b[2] = 0xc0
				b = append(b, 0, 70)
				b = append(b, head[:18]...)
				binary.BigEndian.PutUint32(b[6+10:], c.msn)
			}
			p.Send(wiretest.Untagged(7, true, 0, 2, 1, 0, b))
			wcs := e.wait(t, 4)
			require.Equal(t, c.want, statuses(wcs))
			require.Equal(t, []uint64{0, 1, 2, 3}, ids(wcs))
			for _, wc := range wcs {
				if wc.Status != f {
					require.EqualValues(t, c.code, wc.VendorErr)
				}
			}
			p.ExpectEOF()
		})
	}
}

// TestAtomicResponder plays requests to a responder.
func TestAtomicResponder(t *testing.T) {
	stag := func(e *end) uint32 { return uint32(e.remote.RKey) }
	add := func(e *end, msn, ident uint32, off, val uint64) []byte {
		return atomicRequest(msn, 0, ident, stag(e), e.remote.Addr+off, val, 0, 0, all64)
	}
	t.Run("RDM-73 RDM-81 RDM-79 responses count on their own queue, in the order of all requests", func(t *testing.T) {
		p, e := victim(t, 1)
		e.mr.Uint64(64).Store(0x29)
		p.Send(add(&e, 1, 7, 64, 1), wiretest.ReadRequest(2, 5, 6, 8, stag(&e), e.remote.Addr+64), add(&e, 3, 8, 64, 1))
		p.Expect(wiretest.Untagged(0xb, true, 0, 3, 1, 0, []byte{0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0x29}))
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], 0x2a)
		p.Expect(wiretest.Tagged(2, true, 5, 6, word[:]))
		p.Expect(atomicResponse(2, 8, 0x2a))
		require.EqualValues(t, 0x2b, e.mr.Uint64(64).Load())
	})
	t.Run("RDM-80 the second sees what the first has done", func(t *testing.T) {
		p, e := victim(t, 1)
		swap := func(msn uint32, was, now uint64) []byte {
			return atomicRequest(msn, 2, msn, stag(&e), e.remote.Addr, now, all64, was, all64)
		}
		p.Send(swap(1, 0, 5), swap(2, 5, 6), swap(3, 5, 7), swap(4, 6, 8))
		for i, was := range []uint64{0, 5, 6, 6} {
			p.Expect(atomicResponse(uint32(i+1), uint32(i+1), was))
		}
		require.EqualValues(t, 8, e.mr.Uint64(0).Load())
	})
	t.Run("RDM-77 what a fetch and add has no use for is not looked at", func(t *testing.T) {
		p, e := victim(t, 1)
		p.Send(atomicRequest(1, 0, 1, stag(&e), e.remote.Addr, 9, 0, 0x1234, 0x5678))
		p.Expect(atomicResponse(1, 1, 0))
		require.EqualValues(t, 9, e.mr.Uint64(0).Load())
	})
	t.Run("RDM-78 any identifier comes back", func(t *testing.T) {
		p, e := victim(t, 1)
		for i, id := range []uint32{0, 0xffffffff, 0x80000000} {
			p.Send(add(&e, uint32(i+1), id, 0, 0))
			p.Expect(atomicResponse(uint32(i+1), id, 0))
		}
	})

	type row struct {
		name string
		term uint16
		bad  func(e *end) []byte
	}
	change := func(f func(b []byte) []byte) func(e *end) []byte {
		return func(e *end) []byte { return f(add(e, 1, 7, 64, 1)) }
	}
	rows := []row{
		{"SEC-38 one octet short", 0x0207, change(func(b []byte) []byte { return b[:69] })},
		{"SEC-38 one octet too many", 0x0207, change(func(b []byte) []byte { return append(b, 0) })},
		{"RDM-80 not the last segment", 0x0207, change(func(b []byte) []byte { b[0] &^= 0x40; return b })},
		{"RDM-79 the MSN of another", 0x1203, change(func(b []byte) []byte { b[13] = 2; return b })},
		{"RDM-82 on the queue of Sends", 0x1201, change(func(b []byte) []byte { b[9] = 0; return b })},
	}
	for code := uint8(1); code < 16; code++ {
		if code != 2 {
			rows = append(rows, row{fmt.Sprintf("RDM-82 operation %d", code), 0x0206, change(func(b []byte) []byte { b[21] = code; return b })})
		}
	}
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			p, e := victim(t, 1)
			fill(e.mr.Bytes(), 9)
			before := append([]byte(nil), e.mr.Bytes()...)
			p.Send(c.bad(&e))
			p.ExpectTerminate(c.term)
			<-e.Done()
			require.Equal(t, flushed(1), statuses(e.wait(t, 1)))
			require.Equal(t, before, e.mr.Bytes(), "memory has changed")
			p.ExpectEOF()
		})
	}
	t.Run("RDM-82 both atomics off: neither is taken, and neither can be posted", func(t *testing.T) {
		for _, code := range []uint32{0, 2} {
			p, e := victimWith(t, iwarp.Protocol{DrainTimeout: time.Second, NoAtomics: true}, 1)
			require.Equal(t, verbs.AtomicNone, e.dev.Attr().AtomicCap)
			for _, op := range []verbs.Opcode{verbs.OpFetchAdd, verbs.OpCompareSwap} {
				_, err := e.PostSend([]verbs.SendWR{e.atomic(1, op)})
				require.ErrorContains(t, err, "an atomic is not supported")
			}
			p.Send(atomicRequest(1, code, 1, stag(&e), e.remote.Addr, 9, all64, 0, all64))
			p.ExpectTerminate(0x0206)
			<-e.Done()
			require.Zero(t, e.mr.Uint64(0).Load())
			p.ExpectEOF()
		}
	})
	t.Run("RDM-82 and on: both are there", func(t *testing.T) {
		_, e := victim(t, 1)
		require.Equal(t, verbs.AtomicHCA, e.dev.Attr().AtomicCap)
	})
}
