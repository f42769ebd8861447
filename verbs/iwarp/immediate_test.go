package iwarp_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestImmediate(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		t.Run("RDM-70 RDM-66 VRB-66 the receive has the immediate data and the length of the Write, and no octet", func(t *testing.T) {
			p := l.connect(t, arena, nil)
			for i, n := range []int{0, 1, 8, 1427, 4096, 100_000} {
				before := bytes.Clone(p.theirs.mr.Bytes()[arena/2:])
				fill(p.mine.mr.Bytes()[:n], uint64(i))
				p.theirs.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.theirs.mr.SGE(arena/2, 4096)}})
				wr := verbs.SendWR{ID: uint64(100 + i), Op: verbs.OpWriteWithImm, Flags: verbs.SendSignaled, Imm: 0x0102030405060700 + uint64(i),
					SGL: []verbs.SGE{p.mine.mr.SGE(0, n/2), p.mine.mr.SGE(n/2, n-n/2)}, Remote: p.theirs.remote.Slice(0, n)}
				if n > 0 && n <= 8 {
					wr.SGL, wr.Inline = nil, bytes.Clone(p.mine.mr.Bytes()[:n])
				}
				p.mine.send(t, wr)
				wc := p.mine.wait(t, 1)[0]
				require.Equal(t, verbs.WC{ID: wr.ID, Op: verbs.OpWrite, QP: p.mine.Num(), Time: wc.Time}, wc, "RDM-68 one completion")
				wc = p.theirs.wait(t, 1)[0]
				require.Equal(t, verbs.WC{ID: uint64(i), Op: verbs.OpRecvWithImm, ByteLen: uint32(n), Flags: verbs.WCWithImm, Imm: wr.Imm,
					QP: p.theirs.Num(), Time: wc.Time}, wc)
				require.True(t, bytes.Equal(p.mine.mr.Bytes()[:n], p.theirs.mr.Bytes()[:n]), "RDM-67 the Write is in place by then")
				require.True(t, bytes.Equal(before, p.theirs.mr.Bytes()[arena/2:]), "the receive was written to")
				p.mine.quiet(t)
				p.theirs.quiet(t)
			}
		})
		t.Run("RDM-67 Sends and immediate data take receives and complete in the order they were posted", func(t *testing.T) {
			p := l.connect(t, 4096, nil)
			const rounds = 20
			for i := range 3 * rounds {
				p.theirs.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.theirs.mr.SGE(2048, 64)}})
			}
			for i := range rounds {
				imm := verbs.SendWR{Op: verbs.OpWriteWithImm, Inline: []byte{byte(i)}, Remote: p.theirs.remote.Slice(i, 1), Imm: uint64(i)}
				p.mine.send(t, imm, verbs.SendWR{Op: verbs.OpSend, Inline: []byte("send")}, imm)
			}
			for i, wc := range p.theirs.wait(t, 3*rounds) {
				require.EqualValues(t, i, wc.ID)
				if i%3 == 1 {
					require.Equal(t, []any{verbs.OpRecv, uint32(4), verbs.WCFlags(0)}, []any{wc.Op, wc.ByteLen, wc.Flags})
					continue
				}
				require.Equal(t, []any{verbs.OpRecvWithImm, uint32(1), uint64(i / 3)}, []any{wc.Op, wc.ByteLen, wc.Imm})
				require.EqualValues(t, i/3, p.theirs.mr.Bytes()[i/3])
			}
			p.mine.quiet(t)
		})
		t.Run("RDM-66 without a receive posted it ends the connection", func(t *testing.T) {
			p := l.connect(t, 4096, nil)
			p.mine.send(t, verbs.SendWR{Op: verbs.OpWriteWithImm})
			p.over(t)
			var term *verbs.TerminateError
			require.ErrorAs(t, p.mine.Err(), &term)
			require.EqualValues(t, 0x1202, term.Value())
		})
	})
}

// stays checks that no event comes: that nothing is on its way is known by then.
func stays(t *testing.T, c <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-c:
		require.Fail(t, "an event", why)
	case <-time.After(20 * time.Millisecond):
	}
}

// fires checks that an event comes.
func fires(t *testing.T, c <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		require.Fail(t, "no event", why)
	}
}

func TestSolicited(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		for _, c := range []struct {
			name string
			wr   verbs.SendWR
		}{
			{"Send", verbs.SendWR{Op: verbs.OpSend, Inline: []byte("x")}},
			{"Immediate Data", verbs.SendWR{Op: verbs.OpWriteWithImm, Imm: 1}},
		} {
			t.Run("RDM-42 VRB-60 a solicited event of a "+c.name, func(t *testing.T) {
				p := l.connect(t, 4096, nil)
				for i := range 8 {
					p.theirs.recv(t, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.theirs.mr.SGE(0, 64)}})
				}
				plain, asks := c.wr, c.wr
				asks.Flags = verbs.SendSolicited

				event := p.theirs.cq.Notify(true)
				p.mine.send(t, plain, plain)
				p.theirs.wait(t, 2)
				stays(t, event, "the peer has not asked for one")

				p.mine.send(t, asks)
				fires(t, event, "the peer has asked for one")
				p.theirs.wait(t, 1)

				p.mine.send(t, asks)
				p.theirs.wait(t, 1)
				stays(t, event, "one request is one event")

				event = p.theirs.cq.Notify(false)
				p.mine.send(t, plain)
				p.theirs.wait(t, 1)
				fires(t, event, "armed for any")
			})
		}
	})
}

// TestImmediateOnTheWire holds both ends of an Immediate against octets made by
// hand.
func TestImmediateOnTheWire(t *testing.T) {
	t.Run("RDM-68 RDM-69 RDM-42 a Write, then the immediate data, 32 bits in the first four octets", func(t *testing.T) {
		p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
		wr := verbs.SendWR{ID: 1, Op: verbs.OpWriteWithImm, Flags: verbs.SendSignaled, Inline: []byte("data"), Imm: verbs.Imm32(0xdeadbeef),
			Remote: verbs.RemoteBuf{Addr: farAddr, RKey: farKey}}
		other := verbs.SendWR{ID: 2, Op: verbs.OpWriteWithImm, Flags: verbs.SendSignaled | verbs.SendSolicited, Imm: 0x0102030405060708}
		e.send(t, wr, verbs.SendWR{Op: verbs.OpSend}, other)
		p.Expect(wiretest.Tagged(0, true, farKey, farAddr, []byte("data")))
		p.Expect(immediate(1, false, []byte{0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0}))
		p.Expect(send(2, ""))
		p.Expect(wiretest.Tagged(0, true, 0, 0, nil))
		p.Expect(immediate(3, true, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
		require.Equal(t, []uint64{1, 2}, ids(e.wait(t, 2)))
	})
	t.Run("RDM-69 on receipt the first four octets are the 32 bits", func(t *testing.T) {
		p, e := victim(t, 1)
		p.Send(immediate(1, false, []byte{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4}))
		wc := e.wait(t, 1)[0]
		require.EqualValues(t, 0xdeadbeef, wc.Imm32())
		require.EqualValues(t, uint64(0xdeadbeef01020304), wc.Imm)
	})
	t.Run("RDM-70 the length is that of the Write if it came directly before, else 0", func(t *testing.T) {
		p, e := victim(t, 5)
		key, addr, imm := uint32(e.remote.RKey), e.remote.Addr+1024, make([]byte, 8)
		p.Send(
			wiretest.Tagged(0, true, key, addr, make([]byte, 33)), immediate(1, false, imm), // directly before
			immediate(2, false, imm),                                                                     // used up
			wiretest.Tagged(0, true, key, addr, make([]byte, 5)), send(3, "x"), immediate(4, false, imm), // a Send between
			wiretest.Tagged(0, false, key, addr, make([]byte, 7)), wiretest.Tagged(0, true, key, addr+7, make([]byte, 9)), immediate(5, false, imm), // in two segments
		)
		var got []string
		for _, wc := range e.wait(t, 5) {
			require.NoError(t, wc.Err())
			got = append(got, fmt.Sprintf("%v %d", wc.Op, wc.ByteLen))
		}
		require.Equal(t, []string{"RECV_RDMA_WITH_IMM 33", "RECV_RDMA_WITH_IMM 0", "RECV 1", "RECV_RDMA_WITH_IMM 0", "RECV_RDMA_WITH_IMM 16"}, got)
	})
	t.Run("RDM-66 it takes the next MSN", func(t *testing.T) {
		p, e := victim(t, 2)
		p.Send(immediate(1, false, make([]byte, 8)), send(1, "again"))
		p.ExpectTerminate(0x1203)
		require.Equal(t, []verbs.WCStatus{verbs.WCSuccess, verbs.WCWRFlushErr}, statuses(e.wait(t, 2)))
	})
	for _, n := range []int{0, 7, 9, 16} {
		t.Run(fmt.Sprintf("RDM-65 SEC-38 %d octets", n), func(t *testing.T) {
			for _, solicited := range []bool{false, true} {
				p, e := victim(t, 2)
				fill(e.mr.Bytes(), 5)
				before := bytes.Clone(e.mr.Bytes())
				p.Send(immediate(1, solicited, make([]byte, n)))
				p.ExpectTerminate(0x0207)
				<-e.Done()
				require.Equal(t, flushed(2), statuses(e.wait(t, 2)))
				require.Equal(t, before, e.mr.Bytes())
				p.ExpectEOF()
			}
		})
	}
	t.Run("RDM-71 off: it is not taken, and cannot be posted", func(t *testing.T) {
		for _, solicited := range []bool{false, true} {
			p, e := victimWith(t, iwarp.Protocol{DrainTimeout: time.Second, NoImmediate: true}, 1)
			require.False(t, e.dev.Attr().Immediate)
			_, err := e.PostSend([]verbs.SendWR{{Op: verbs.OpWriteWithImm}})
			require.ErrorContains(t, err, "RDMA Write with Immediate is not supported")
			p.Send(immediate(1, solicited, make([]byte, 8)))
			p.ExpectTerminate(0x0206)
			<-e.Done()
			require.Equal(t, flushed(1), statuses(e.wait(t, 1)))
			p.ExpectEOF()
		}
	})
}

// TestImmediateRefused has a peer that complains about either half of a Write with
// Immediate while that has not gone out whole.
func TestImmediateRefused(t *testing.T) {
	const size = 32 << 20 // more than the window takes
	for _, c := range []struct {
		name   string
		code   uint16
		status verbs.WCStatus
	}{
		{"VRB-72 the Write", 0x1102, verbs.WCRemAccessErr},
		{"VRB-72 the immediate data", 0x1202, verbs.WCRemOpErr},
		{"VRB-72 neither", 0x2002, verbs.WCWRFlushErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := scriptedResponder(t, 8, rdmacm.Dialer{})
			mr, err := e.pd.AllocMR(size, 0)
			require.NoError(t, err)
			e.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWriteWithImm, SGL: []verbs.SGE{mr.SGE(0, size)}, Remote: verbs.RemoteBuf{Addr: farAddr, RKey: farKey}},
				verbs.SendWR{ID: 2, Op: verbs.OpSend})
			p.Next()
			p.Send(wiretest.Terminate(c.code))
			wcs := e.wait(t, 2)
			require.Equal(t, []uint64{1, 2}, ids(wcs))
			require.Equal(t, []verbs.WCStatus{c.status, verbs.WCWRFlushErr}, statuses(wcs))
		})
	}
}
