package iwarp_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// The tests here are troubles that users of other stacks have reported.

func TestShortFPDU(t *testing.T) {
	ask := wiretest.ReadRequest(1, 1, 0, 8, 1, 0)
	for name, u := range map[string][]byte{
		"of nothing":                   {},
		"of one octet":                 {0xc1},
		"with half a tagged header":    wiretest.Tagged(0, true, 1, 0, nil)[:13],
		"with half an untagged header": send(1, "")[:17],
		"of a Read Request cut short":  ask[:45],
		"of a Read Request's header":   ask[:18],
	} {
		t.Run("MPA-55 DDP-05 SEC-38 an FPDU "+name+" is shorter than its header", func(t *testing.T) {
			p, e := victim(t, 1)
			p.Send(u, send(1, "never"))
			p.ExpectTerminate(0x2003)
			p.ExpectEOF()
			e.ended(t)
			e.flushedOf(t, 1)
		})
	}
}

func TestReadResponseTooLong(t *testing.T) {
	for name, segments := range map[string][]int{
		"in its only segment":           {101},
		"in its last of several":        {50, 50, 1},
		"in a segment before the last":  {50, 100, 1},
		"with no end after all is here": {100, 4},
	} {
		t.Run("RDM-33 a Read Response is longer than the Read, "+name, func(t *testing.T) {
			o := agree(t, 1, 0, 1, plain(1, 1))
			sink := o.e.mr.Bytes()[4096:5000]
			o.e.send(t, o.e.readOf(100))
			o.Next()
			to := o.e.remote.Addr + 4096
			for i, n := range segments {
				o.Send(wiretest.Tagged(2, i == len(segments)-1, uint32(o.e.remote.RKey), to, bytesOf('x', n)))
				to += uint64(n)
			}
			o.ExpectTerminate(0x1101)
			o.e.ended(t)
			for _, wc := range o.e.wait(t, 2) {
				want := verbs.WCWRFlushErr
				if wc.ID == 30 {
					want = verbs.WCBadRespErr
				}
				require.Equal(t, want, wc.Status)
			}
			require.Equal(t, make([]byte, len(sink)-100), sink[100:], "nothing stands behind the sink")
		})
	}
}

func bytesOf(c byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = c
	}
	return b
}

func TestPadWithoutCRC(t *testing.T) {
	t.Run("MPA-76 MPA-75 MPA-56 padding comes without its CRC", func(t *testing.T) {
		p, e := victim(t, 4)
		for i, payload := range []string{"hello", "hell", "helloo"} { // 1, 2 and no octets of padding after the header's
			f := wiretest.Frame(send(uint32(i+1), payload), true)
			end := 2 + 18 + len(payload)
			for _, part := range [][]byte{f[:end], f[end : len(f)-4], f[len(f)-4 : len(f)-1]} {
				if len(part) > 0 {
					p.Write(part)
					time.Sleep(10 * time.Millisecond)
				}
				e.quiet(t)
			}
			p.Write(f[len(f)-1:])
			wc := e.wait(t, 1)[0]
			require.NoError(t, wc.Err())
			require.EqualValues(t, len(payload), wc.ByteLen)
			require.Equal(t, payload, string(e.mr.Bytes()[i*16:i*16+len(payload)]))
		}
	})
}

func TestGluedToReply(t *testing.T) {
	t.Run("MPA-10 the first FPDUs are glued to the Reply and its private data", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{}, 2, nil)
		rep := known(t, "cxgb4").Answer(t, o.Startup(), 1, 1, []byte("private")...)
		b := rep.Octets()
		for i, s := range []string{"first", "second"} {
			b = append(b, wiretest.Frame(send(uint32(i+1), s), true)...)
		}
		o.Write(b)
		require.NoError(t, <-o.dialed)
		require.Equal(t, "private", string(o.e.PrivateData()))
		for i, wc := range o.e.wait(t, 2) {
			require.NoError(t, wc.Err())
			require.EqualValues(t, 5+i, wc.ByteLen)
		}
		require.Equal(t, "first", string(o.e.mr.Bytes()[:5]))
		require.Equal(t, "second", string(o.e.mr.Bytes()[64:70]))
	})
}

// TestZeroDepths: no Reads either way, and nothing posted to receive.
func TestZeroDepths(t *testing.T) {
	t.Run("IOP-30 RDM-24 connections without Reads, as perftest makes them", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{ClientServer: true}, func(t *testing.T, l link) {
			p := zeroPair(t, l)
			ird, ord := p.mine.ReadDepths()
			require.Zero(t, ird+ord)
			fill(p.mine.mr.Bytes()[:100], 1)
			p.mine.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.mine.mr.SGE(0, 100)}, Remote: p.theirs.remote.Slice(0, 100)})
			require.NoError(t, p.mine.wait(t, 1)[0].Err(), "a Write takes no receive")
			p.theirs.recv(t, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{p.theirs.mr.SGE(200, 10)}})
			p.mine.send(t, verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: []verbs.SGE{p.mine.mr.SGE(0, 10)}})
			require.NoError(t, p.theirs.wait(t, 1)[0].Err())
			require.Equal(t, p.mine.mr.Bytes()[:100], p.theirs.mr.Bytes()[:100])

			n, err := p.mine.PostSend([]verbs.SendWR{{ID: 4, Op: verbs.OpRead, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(0, 8)}})
			if err == nil { // taken, but it never goes out
				require.Equal(t, 1, n)
				wc := p.mine.wait(t, 1)[0]
				require.Equal(t, verbs.WCLocQPOpErr, wc.Status)
			}
			s := p.mine.dev.Stats()
			require.Zero(t, s.Counter("rdmap.reads_out"))
		})
	})
	t.Run("IOP-30 with the defaults the opening Read alone is allowed", func(t *testing.T) {
		forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
			p := zeroPair(t, l)
			p.theirs.recv(t, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{p.theirs.mr.SGE(200, 10)}})
			p.mine.send(t, verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: []verbs.SGE{p.mine.mr.SGE(0, 10)}})
			require.NoError(t, p.theirs.wait(t, 1)[0].Err())
		})
	})
	t.Run("SEC-27 DDP-39 a Send finds no receive, ever", func(t *testing.T) {
		p, e := victim(t, 0)
		p.Send(send(1, "nobody"), send(2, "waits"))
		p.ExpectTerminate(0x1202)
		p.ExpectEOF()
		e.ended(t)
		e.quiet(t)
	})
}

func zeroPair(t *testing.T, l link) pair {
	p := pair{newEnd(t, l.a, 4096), newEnd(t, l.b, 4096)}
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, l.addr.String()+":0")
	require.NoError(t, err)
	defer lis.Close()
	accepted := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			p.theirs.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: p.theirs.pd, QP: p.theirs.qp(), IRD: -1, ORD: -1})
		}
		accepted <- err
	}()
	d := rdmacm.Dialer{Device: l.a, PD: p.mine.pd, QP: p.mine.qp(), IRD: -1, ORD: -1}
	p.mine.Conn, err = d.Dial(ctx, lis.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	return p
}

// TestWrap: key, offset and length are right each, and end beyond 64 bits together.
func TestWrap(t *testing.T) {
	for _, c := range []struct {
		name string
		u    func(e *end) []byte
		term uint16
	}{
		{"DDP-46 SEC-05 SEC-41 a Write", func(e *end) []byte {
			return wiretest.Tagged(0, true, uint32(e.remote.RKey), math.MaxUint64, []byte("12"))
		}, 0x1103},
		{"DDP-46 SEC-05 a Write that would end in the region", func(e *end) []byte {
			return wiretest.Tagged(0, true, uint32(e.remote.RKey), math.MaxUint64-6, []byte("12345678"))
		}, 0x1103},
		{"RDM-16 SEC-05 SEC-41 a Read", func(e *end) []byte {
			return wiretest.ReadRequest(1, 1, 0, math.MaxUint32, uint32(e.remote.RKey), math.MaxUint64-8)
		}, 0x0104},
		{"SEC-05 a Read of all octets there are", func(e *end) []byte {
			return wiretest.ReadRequest(1, 1, 0, math.MaxUint32, uint32(e.remote.RKey), e.remote.Addr)
		}, 0x0101},
		{"SEC-41 a Send behind 4 GiB of others", func(e *end) []byte {
			return wiretest.Untagged(3, true, 0, 0, 1, math.MaxUint32, []byte("12"))
		}, 0x1204},
	} {
		t.Run(c.name+" wraps around", func(t *testing.T) {
			p, e := victim(t, 1)
			before := append([]byte(nil), e.mr.Bytes()...)
			p.Send(c.u(&e))
			p.ExpectTerminate(c.term)
			p.ExpectEOF()
			e.ended(t)
			require.Equal(t, before, e.mr.Bytes())
		})
	}
	t.Run("DDP-25 our own Write wraps around", func(t *testing.T) {
		o := agree(t, 1, 0, 1, plain(1, 1))
		o.e.send(t, verbs.SendWR{ID: 30, Op: verbs.OpWrite, SGL: []verbs.SGE{o.e.mr.SGE(0, 8)}, Remote: verbs.RemoteBuf{RKey: 1, Addr: math.MaxUint64 - 6, Len: 8}})
		o.e.ended(t)
		o.ExpectTerminate(0x0000)
		require.Error(t, o.e.wait(t, 1)[0].Err())
	})
}
