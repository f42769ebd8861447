package iwarp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
)

// loopTCP is memTCP that swallows what is written and plays one tape over and over.
type loopTCP struct {
	memTCP
	play []byte
	at   int // first octet of play not discarded
	keep bool
	one  [1][]byte
}

func (l *loopTCP) Writev(parts [][]byte) error {
	if !l.keep {
		return nil
	}
	return l.memTCP.Writev(parts)
}

func (l *loopTCP) Peek() ([][]byte, error) {
	switch {
	case l.play == nil:
		return l.memTCP.Peek()
	case l.at == len(l.play):
		return nil, nil
	}
	l.one[0] = l.play[l.at:]
	return l.one[:], nil
}

func (l *loopTCP) Discard(n int) {
	if l.play == nil {
		l.memTCP.Discard(n)
	}
	l.at += n
}

const halfBatch = 32

// half is one end of a connection without the other, and no TCP.
type half struct {
	r   *rig
	tcp *loopTCP
	c   *conn
	qp  *verbs.QP
	mr  *verbs.MR
	wrs [halfBatch]verbs.SendWR
	wcs [halfBatch]verbs.WC
}

// newHalf makes an initiator that writes to its own memory.
func newHalf(b *testing.B, size int, batch int) *half {
	r := newRig(b)
	d := r.d
	d.proto.NoCRC, d.proto.Rev1 = true, true
	h := &half{r: r, tcp: &loopTCP{memTCP: memTCP{window: generousWindow}, keep: true}}
	r.next = append(r.next, rigRegion{wiretest.RegionAll, wiretest.HostileBase, 1 << 20, rigAll, false, false})
	var err error
	h.mr, err = r.own.RegMR(make([]byte, 2<<20), rigAll)
	require.NoError(b, err)
	h.qp, err = r.own.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 64, MaxRecvWR: 64})
	require.NoError(b, err)
	q, err := d.qp(h.qp.Num())
	require.NoError(b, err)
	w := &dial{qp: q, params: verbs.ConnParams{IRD: 16, ORD: 16}, done: make(chan struct{})}
	d.role.mu.Lock()
	q.dial = w
	w.conn = d.newConn(h.tcp, dialing, time.Hour)
	w.conn.dial = w
	h.c = w.conn
	h.c.ready()
	d.role.mu.Unlock()
	h.tcp.arrive((&wiretest.Startup{Reply: true, Rev: 1}).Octets())
	d.role.mu.Lock()
	h.c.ready()
	d.role.mu.Unlock()
	require.NotNil(b, h.c.stream)
	for i := range h.wrs {
		h.wrs[i] = verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{h.mr.SGE(0, size)}, Remote: h.mr.Remote().Slice(1<<20, size)}
	}
	h.tcp.takeOut()
	h.send(batch)
	h.tcp.keep = false
	return h
}

func (h *half) send(n int) {
	if _, err := h.qp.PostSend(h.wrs[:n]); err != nil {
		panic(err)
	}
	for got := 0; got < n; {
		k, err := h.r.cq.Poll(h.wcs[:])
		if err != nil {
			panic(err)
		}
		for _, wc := range h.wcs[:k] {
			if wc.Err() != nil {
				panic(wc.Err())
			}
		}
		if got += k; k == 0 {
			h.r.step()
		}
	}
}

func (h *half) close(b *testing.B) {
	h.r.run(func() {
		h.c.dev.do(func() { h.c.reset(nil) })
		require.NoError(b, h.qp.Close())
		require.NoError(b, h.mr.Close())
	})
}

// BenchmarkHalf is what one side alone spends on Writes, over TCP that costs nothing
// and without CRC, from posting to completion or from octets to memory: ns/wr.
func BenchmarkHalf(b *testing.B) {
	for _, c := range []struct {
		name        string
		size, batch int
	}{{"64Bx32", 64, halfBatch}, {"64Bx1", 64, 1}, {"1MiB", 1 << 20, 1}} {
		b.Run("Send/"+c.name, func(b *testing.B) {
			h := newHalf(b, c.size, c.batch)
			b.ReportAllocs()
			for b.Loop() {
				h.send(c.batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.batch), "ns/wr")
			h.close(b)
		})
		b.Run("Receive/"+c.name, func(b *testing.B) {
			h := newHalf(b, c.size, c.batch)
			h.tcp.play = h.tcp.takeOut()
			b.ReportAllocs()
			for b.Loop() {
				for h.tcp.at = 0; h.tcp.at < len(h.tcp.play); {
					h.r.d.again = h.r.d.again[:0]
					h.c.queued = false
					h.c.ready()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.batch), "ns/wr")
			h.tcp.play = nil
			h.close(b)
		})
	}
}
