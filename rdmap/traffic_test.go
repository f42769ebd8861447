package rdmap

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// traffic is random work of both ends on one connection, with everything
// checked: data, order, completions.
type traffic struct {
	t    testing.TB
	rnd  *rand.Rand
	ends [2]*end
	side [2]trafficSide
	next uint64
	max  int // octets of a message
}

// trafficSide is what one end owns.
type trafficSide struct {
	src, dst, sink, recv *region // sources; target of the peer's Writes; read sink; receive buffers
	words                *region // target of the peer's atomic operations
	olds                 *region // where the values before go
}

func newTraffic(t testing.TB, a, b *end, seed uint64) *traffic {
	k := &traffic{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), ends: [2]*end{a, b}, max: 6000}
	for i, e := range k.ends {
		k.side[i] = trafficSide{
			src:  newRegion(t, e.table, 1<<16, testPD, ddp.RemoteRead),
			dst:  newRegion(t, e.table, 1<<16, testPD, ddp.LocalWrite|ddp.RemoteWrite),
			sink: newRegion(t, e.table, 1<<16, testPD, ddp.LocalWrite),
			recv: newRegion(t, e.table, 1<<16, testPD, ddp.LocalWrite),

			words: newRegion(t, e.table, 64, testPD, ddp.LocalWrite|ddp.RemoteAtomic),
			olds:  newRegion(t, e.table, 8<<10, testPD, ddp.LocalWrite),
		}
		k.rnd = rand.New(rand.NewPCG(seed, uint64(i)))
		for j := range k.side[i].src.mem {
			k.side[i].src.mem[j] = byte(k.rnd.Uint32())
		}
	}
	return k
}

// size draws a length, often a special one.
func (k *traffic) size() int {
	switch k.rnd.IntN(6) {
	case 0:
		return 0
	case 1:
		return 1
	case 2:
		return 1424 + k.rnd.IntN(8)
	}
	return k.rnd.IntN(k.max)
}

// expectation is one operation with what has to come of it.
type expectation struct {
	op     *Op
	from   int // end
	data   []byte
	at     int // offset at the target
	recvID uint64
	recvAt int
	old    uint64 // value before an atomic operation
}

// split makes a scatter list of n octets out of the source region.
func (k *traffic) split(g *region, off, n int) (sgl []SGE) {
	for n > 0 && len(sgl) < 4 {
		m := 1 + k.rnd.IntN(n)
		if len(sgl) == 3 {
			m = n
		}
		sgl = append(sgl, g.sge(off, m))
		off, n = off+m, n-m
	}
	if k.rnd.IntN(4) == 0 {
		sgl = append(sgl, SGE{STag: 1, Off: 1 << 40})
	}
	return sgl
}

// giveEmpty posts the receive that an Immediate of x uses up.
func (k *traffic) giveEmpty(x *expectation) {
	x.recvID = k.next + 1<<32
	k.ends[1-x.from].recvs = append(k.ends[1-x.from].recvs, RecvBuf{ID: x.recvID})
}

// round posts a batch at both ends, runs it to the end and checks it.
func (k *traffic) round() {
	k.t.Helper()
	exp := k.batch(12)
	settle(k.ends[0], k.ends[1])
	k.check(exp)
}

// batch posts n operations an end. Targets of one batch do not overlap.
func (k *traffic) batch(n int) (exp []*expectation) {
	for from, e := range k.ends {
		own, peer := &k.side[from], &k.side[1-from]
		at, sinkAt, recvAt, oldAt := 0, 0, 0, 0
		var words [8]uint64
		for i := range words {
			words[i] = word(peer.words, 8*i)
		}
		for range n {
			k.next++
			size := k.size()
			if max(at, sinkAt, recvAt)+size > 1<<16 {
				break
			}
			off := k.rnd.IntN(1<<16 - size)
			x := &expectation{from: from, op: &Op{ID: k.next, Fence: k.rnd.IntN(8) == 0}}
			x.data = own.src.mem[off : off+size]
			switch x.op.Kind = Kind(1 + k.rnd.IntN(int(CompareSwap))); x.op.Kind {
			case Send:
				x.recvID, x.recvAt = k.next+1<<32, recvAt
				x.op.Solicited = k.rnd.IntN(2) == 0
				k.ends[1-from].recvs = append(k.ends[1-from].recvs, RecvBuf{
					ID: x.recvID, SGL: k.split(peer.recv, recvAt, size+k.rnd.IntN(2)),
				})
				recvAt += size + 1
			case Write:
				x.at = at
				x.op.RemoteSTag, x.op.RemoteTO = peer.dst.stag, peer.dst.base+uint64(at)
				at += size
				if k.rnd.IntN(3) == 0 {
					x.op.WithImm, x.op.Imm = true, k.next
					k.giveEmpty(x)
				}
			case Immediate:
				x.op.Imm = k.next
				k.giveEmpty(x)
			case FetchAdd, CompareSwap:
				i := k.rnd.IntN(len(words))
				x.at, x.old = oldAt, words[i]
				x.op.RemoteSTag, x.op.RemoteTO = peer.words.stag, peer.words.base+uint64(8*i)
				x.op.SGL = []SGE{own.olds.sge(oldAt, 8)}
				x.op.Val, x.op.ValMask = operand(k.rnd), operand(k.rnd)
				differ, where := operand(k.rnd), operand(k.rnd)
				x.op.Compare, x.op.CompareMask = words[i]^differ&where, operand(k.rnd)
				if x.op.Kind == FetchAdd {
					words[i] = modelFetchAdd(words[i], x.op.Val, x.op.ValMask)
				} else {
					words[i] = modelCmpSwap(words[i], x.op.Val, x.op.ValMask, x.op.Compare, x.op.CompareMask)
				}
				oldAt += 8
			case Read:
				x.data, x.at = peer.src.mem[off:off+size], sinkAt
				x.op.RemoteSTag, x.op.RemoteTO = peer.src.stag, peer.src.base+uint64(off)
				x.op.SGL = []SGE{own.sink.sge(sinkAt, size)}
				sinkAt += size
			}
			if x.op.Kind == Send || x.op.Kind == Write {
				if size > 0 && size < 300 && k.rnd.IntN(2) == 0 {
					x.op.Inline = x.data
				} else {
					x.op.SGL = k.split(own.src, off, size)
				}
			}
			e.post(x.op)
			exp = append(exp, x)
		}
	}
	return exp
}

// check compares what happened with what was expected.
func (k *traffic) check(exp []*expectation) {
	k.t.Helper()
	var sent, reads, recvs, imms [2][]uint64
	for _, x := range exp {
		own, peer := &k.side[x.from], &k.side[1-x.from]
		sent[x.from] = append(sent[x.from], x.op.ID)
		switch x.op.Kind {
		case Send:
			recvs[1-x.from] = append(recvs[1-x.from], x.recvID)
			same(k.t, x.data, peer.recv.mem[x.recvAt:x.recvAt+len(x.data)], "received by Send")
		case Write:
			same(k.t, x.data, peer.dst.mem[x.at:x.at+len(x.data)], "written")
			if x.op.WithImm {
				recvs[1-x.from] = append(recvs[1-x.from], x.recvID)
				imms[1-x.from] = append(imms[1-x.from], x.op.Imm, uint64(len(x.data)))
			}
		case Immediate:
			recvs[1-x.from] = append(recvs[1-x.from], x.recvID)
			imms[1-x.from] = append(imms[1-x.from], x.op.Imm, 0)
		case FetchAdd, CompareSwap:
			reads[x.from] = append(reads[x.from], x.op.ID)
			require.Equal(k.t, x.old, word(own.olds, x.at), "the value before")
		case Read:
			reads[x.from] = append(reads[x.from], x.op.ID)
			same(k.t, x.data, own.sink.mem[x.at:x.at+len(x.data)], "read")
		}
	}
	for i, e := range k.ends {
		require.NoError(k.t, e.rxErr)
		require.Empty(k.t, e.txErrs)
		require.Equal(k.t, sent[i], e.sent, "operations leave in order")
		e.sent = nil
		var gotReads, gotRecvs, gotImms []uint64
		for _, ev := range e.drained() {
			switch ev.Kind {
			case RecvDone:
				gotRecvs = append(gotRecvs, ev.ID)
				if ev.Immediate {
					gotImms = append(gotImms, ev.Imm, uint64(ev.Len))
				}
			case ReadDone:
				gotReads = append(gotReads, ev.ID)
			}
		}
		require.Equal(k.t, reads[i], gotReads, "RDM-15 reads complete in order")
		require.Equal(k.t, recvs[i], gotRecvs, "RDM-37 receives complete in order")
		require.Len(k.t, gotImms, len(imms[i]))
		for j := range gotImms {
			// An Immediate of its own has the length of a Write if one happens to
			// stand before it.
			if j%2 == 0 || imms[i][j] != 0 {
				require.Equal(k.t, imms[i][j], gotImms[j])
			}
		}
		require.Zero(k.t, e.OutstandingReads())
		for _, g := range []*region{k.side[i].src, k.side[i].dst, k.side[i].sink, k.side[i].recv, k.side[i].words, k.side[i].olds} {
			g.intact(k.t)
		}
	}
}
