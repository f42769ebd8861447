package iwarp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// TestPeersTerminate has a peer that ends the connection by a Terminate: the
// application is told in every way there is.
func TestPeersTerminate(t *testing.T) {
	for _, term := range []verbs.TerminateError{{Remote: true}, {Remote: true, Layer: 2, Code: 2}, {Remote: true, Layer: 1, Type: 2, Code: 3}} {
		t.Run(fmt.Sprintf("RDM-58 a Terminate %#04x comes: the queue pair in ERR, one event, both queues flushed", term.Value()), func(t *testing.T) {
			p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
			e.recv(t, verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2})
			fenced := func(id uint64, op verbs.Opcode) verbs.SendWR {
				return verbs.SendWR{ID: id, Op: op, Flags: verbs.SendFence, Remote: verbs.RemoteBuf{Addr: farAddr, RKey: farKey}}
			}
			e.send(t, e.read(10), fenced(11, verbs.OpWrite), fenced(12, verbs.OpSend))
			p.Expect(wiretest.ReadRequest(1, uint32(e.remote.RKey), e.remote.Addr+8*10, 8, farKey, farAddr+8*10))
			require.Empty(t, eventsOf(t, e.dev))
			p.Send(wiretest.Terminate(term.Value()))
			stopped(t, &e)
			p.ExpectEOF() // and no answer
			require.Equal(t, verbs.QPSErr, e.State())

			var evs []verbs.AsyncEvent
			for ev, err := range e.dev.Events(within(t, 10*time.Second)) {
				require.NoError(t, err, "no event came")
				evs = append(evs, ev)
				break
			}
			evs = append(evs, eventsOf(t, e.dev)...)
			require.Len(t, evs, 1)
			require.Equal(t, verbs.EventQPFatal, evs[0].Type)
			require.Equal(t, e.Num(), evs[0].QP)
			for _, err := range []error{evs[0].Err, e.Err()} {
				var said *verbs.TerminateError
				require.True(t, errors.As(err, &said), "%v", err)
				require.Equal(t, term, *said)
			}

			var sends, recvs []uint64
			for _, wc := range e.wait(t, 5) {
				require.Equal(t, verbs.WCWRFlushErr, wc.Status, "request %d", wc.ID)
				if wc.ID >= 10 {
					sends = append(sends, wc.ID)
				} else {
					recvs = append(recvs, wc.ID)
				}
			}
			require.Equal(t, []uint64{10, 11, 12}, sends)
			require.Equal(t, []uint64{1, 2}, recvs)
			e.quiet(t)
		})
	}
}

// TestTerminateThenFIN has the errors of MPA that its user answers: TCP stays until
// the Terminate is out.
func TestTerminateThenFIN(t *testing.T) {
	t.Run("MPA-81 a bad CRC, code 2: the Terminate goes out before the FIN", func(t *testing.T) {
		p, e := victim(t, 1)
		bad := wiretest.Frame(send(1, "never"), true)
		bad[len(bad)-1] ^= 1
		p.Write(append(bad, wiretest.Frame(send(1, "neither"), true)...))
		p.ExpectTerminate(0x2002)
		p.ExpectEOF()
		e.ended(t)
		e.flushedOf(t, 1)
	})
	t.Run("MPA-81 a wrong marker, code 3: the Terminate goes out before the FIN", func(t *testing.T) {
		p, e := victimWith(t, iwarp.Protocol{DrainTimeout: time.Second, Markers: true}, 1)
		bad := (&wiretest.Marks{}).Frame(send(1, "never"))
		bad[3] = 8 // FPDUPTR of the marker before the header
		end := len(bad) - 4
		crc := wiretest.CRC32C(bad[:end])
		for i := range 4 {
			bad[end+i] = byte(crc >> (8 * i))
		}
		p.Write(bad)
		p.ExpectTerminate(0x2003)
		p.ExpectEOF()
		e.ended(t)
		e.flushedOf(t, 1)
	})
}

// TestPostingOrder posts every kind of message and reads what comes out of the socket.
func TestPostingOrder(t *testing.T) {
	t.Run("RDM-07 messages leave in the order of posting, answers between them", func(t *testing.T) {
		p, e := scriptedResponder(t, 16, rdmacm.Dialer{})
		remote := verbs.RemoteBuf{Addr: farAddr, RKey: farKey, Len: 4096}
		var want []byte // opcodes
		var wrs []verbs.SendWR
		post := func(wr verbs.SendWR, opcodes ...byte) {
			wr.ID, wr.Flags = uint64(len(wrs)), verbs.SendSignaled
			wrs, want = append(wrs, wr), append(want, opcodes...)
		}
		for range 2 {
			post(verbs.SendWR{Op: verbs.OpSend, SGL: []verbs.SGE{e.mr.SGE(0, 4000)}}, 3)
			post(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{e.mr.SGE(0, 3000)}, Remote: remote}, 0)
			post(verbs.SendWR{Op: verbs.OpRead, SGL: []verbs.SGE{e.mr.SGE(0, 8)}, Remote: remote.Slice(0, 8)}, 1)
			post(verbs.SendWR{Op: verbs.OpWriteWithImm, Remote: remote, Imm: 5}, 0, 8)
			post(verbs.SendWR{Op: verbs.OpSendWithInv, Inv: 7}, 4)
			post(verbs.SendWR{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{e.mr.SGE(8, 8)}, Remote: remote.Slice(8, 8)}, 10)
			post(verbs.SendWR{Op: verbs.OpSend, Inline: []byte("s")}, 3)
		}
		const asked = 3
		for i := range uint32(asked) {
			p.Send(wiretest.ReadRequest(i+1, 1, 0, 3000, uint32(e.remote.RKey), e.remote.Addr))
		}
		for rest := wrs; len(rest) > 0; { // lists of 1, 2, 3 ...
			n := min(len(wrs)-len(rest)+1, len(rest))
			e.send(t, rest[:n]...)
			rest = rest[n:]
		}
		var got []byte
		msn := uint32(0)
		for answers := 0; len(got) < len(want) || answers < asked; {
			op, head := byte(0), []byte(nil)
			for last := false; !last; {
				u := p.Next()
				if head == nil {
					op, head = u[1]&0xf, u
				}
				require.Equal(t, op, u[1]&0xf, "segments of two messages are mixed")
				last = u[0]&0x40 != 0
			}
			if op == 2 {
				answers++
				continue
			}
			got = append(got, op)
			switch op { // answered at once, so that the depth holds nothing up
			case 1:
				p.Send(wiretest.Tagged(2, true, uint32(e.remote.RKey), e.remote.Addr, make([]byte, 8)))
			case 10:
				msn++
				p.Send(wiretest.AtomicResponse(msn, binary.BigEndian.Uint32(head[22:]), 0))
			}
		}
		require.Equal(t, want, got)
		for i, wc := range e.wait(t, len(wrs)) {
			require.NoError(t, wc.Err())
			require.EqualValues(t, i, wc.ID)
		}
	})
}
