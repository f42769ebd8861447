package rdmap

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// bench is a pair that does one operation after the other, driven by one
// goroutine, without a log.
type bench struct {
	a, b *end
	op   Op
	buf  RecvBuf
}

func newBench(t testing.TB, kind Kind, size int) *bench {
	tab := ddp.NewTable()
	cfg := Config{Table: tab, IRD: 16, ORD: 16}
	a, b := newPair(t, 65000, 1<<20, cfg, cfg)
	mem := newRegion(t, tab, size, testPD, remoteRights)
	peer := newRegion(t, tab, size, testPD, remoteRights)
	k := &bench{a: a, b: b, op: Op{
		Kind: kind, SGL: []SGE{mem.sge(0, size)}, RemoteSTag: peer.stag, RemoteTO: peer.base,
	}}
	k.buf = RecvBuf{SGL: []SGE{peer.sge(0, size)}}
	if kind == Send {
		k.op.RemoteSTag, k.op.RemoteTO = 0, 0
	}
	k.run(1)
	return k
}

// run does n operations, up to ten in a batch.
func (k *bench) run(n int) {
	for posted, completed := 0, 0; completed < n; {
		for posted < n && posted-completed < 10 {
			ok, err := k.a.Submit(&k.op)
			if err != nil {
				panic(err)
			}
			if ok {
				posted++
			}
			p, err := k.a.Pump()
			if err != nil {
				panic(err)
			}
			if p.Sent && !k.op.Kind.answered() {
				completed++
			}
			if !ok || p.Blocked {
				break
			}
		}
		for _, e := range [2]*end{k.b, k.a} {
			if err := e.Flush(); err != nil {
				panic(err)
			}
			for {
				ev, ok, err := e.Receive()
				if err != nil {
					panic(err)
				}
				if !ok {
					break
				}
				switch ev.Kind {
				case NeedRecv:
					e.Give(k.buf)
				case ReadDone:
					completed++
				}
			}
			for {
				p, err := e.Pump()
				if err != nil {
					panic(err)
				}
				if p.Sent && !k.op.Kind.answered() {
					completed++
				}
				if p.Blocked || !p.More && !p.Sent {
					break
				}
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for kind := Send; kind <= CompareSwap; kind++ {
		for _, size := range []int{0, 8, 64, 4096, 200000} {
			if size != 8 && (kind == Immediate || kind.atomic()) {
				continue
			}
			t.Run(fmt.Sprintf("kind %d %d octets", kind, size), func(t *testing.T) {
				k := newBench(t, kind, max(size, 1))
				k.op.SGL[0].Len = uint32(size)
				k.op.WithImm = kind == Write
				k.run(20)
				n := 10
				if size > 100000 {
					n = 2
				}
				require.Zero(t, testing.AllocsPerRun(20, func() { k.run(n) }))
			})
		}
	}
}

func BenchmarkRDMA(b *testing.B) {
	for _, c := range []struct {
		name string
		kind Kind
	}{{"Immediate", Immediate}, {"FetchAdd", FetchAdd}, {"CompareSwap", CompareSwap}} {
		b.Run(c.name, func(b *testing.B) {
			k := newBench(b, c.kind, 8)
			b.ReportAllocs()
			b.ResetTimer()
			k.run(b.N)
		})
	}
	for _, c := range []struct {
		name string
		kind Kind
	}{{"Write", Write}, {"Send", Send}, {"Read", Read}} {
		for _, s := range []struct {
			name string
			size int
		}{{"64B", 64}, {"4KiB", 4 << 10}, {"1MiB", 1 << 20}} {
			b.Run(c.name+"/"+s.name, func(b *testing.B) {
				k := newBench(b, c.kind, s.size)
				b.SetBytes(int64(s.size))
				b.ReportAllocs()
				b.ResetTimer()
				k.run(b.N)
			})
		}
	}
}
