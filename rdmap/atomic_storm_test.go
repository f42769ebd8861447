package rdmap

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// TestAtomicStorm has 64 goroutines add through four connections to one word,
// while the application adds to it, too.
func TestAtomicStorm(t *testing.T) {
	t.Run("RDM-72 RDM-76 every addition counts once and sees a value of its own", func(t *testing.T) {
		const streams, posters, each = 4, 64, 100_000/slow/64 + 1
		const local = 20_000 / slow
		tab := ddp.NewTable() // of the device that owns the word
		target := newRegion(t, tab, 8, testPD, ddp.RemoteAtomic)
		setWord(target, 0, 0)
		seen := make([]atomic.Bool, posters*each+local)
		var wg, done sync.WaitGroup
		stop := make(chan struct{})
		var sides []*side
		fail := make(chan string, posters)
		for i := range streams {
			own := ddp.NewTable()
			cfg := Config{IRD: 16, ORD: 16}
			ca, cb := cfg, cfg
			ca.Table, cb.Table = own, tab
			a, b := newPair(t, 1448, 32<<10, ca, cb)
			var queue = make(chan *Op, posters)
			var answered [posters]chan struct{}
			sa := newSide(a, func() *Op {
				select {
				case op := <-queue:
					return op
				default:
					return nil
				}
			}, nil)
			sa.onRead = func(ev *Event) { answered[ev.ID] <- struct{}{} }
			sb := newSide(b, func() *Op { return nil }, nil)
			sides = append(sides, sa, sb)
			for p := i; p < posters; p += streams {
				old := newRegion(t, own, 8, testPD, ddp.LocalWrite)
				answered[p] = make(chan struct{}, 1)
				op := &Op{
					Kind: FetchAdd, ID: uint64(p), RemoteSTag: target.stag, RemoteTO: target.base, SGL: []SGE{old.sge(0, 8)}, Val: 1,
				}
				if p%3 == 0 {
					op.ValMask = 1 << 63 // another way to the same sum
				}
				done.Add(1)
				go func() {
					defer done.Done()
					for range each {
						queue <- op
						poke(sa.kick)
						select {
						case <-answered[p]:
						case <-stop:
							return
						}
						if v := word(old, 0); v >= uint64(len(seen)) || seen[v].Swap(true) {
							fail <- "a value was seen twice, or is too large"
							return
						}
					}
				}()
			}
		}
		for _, s := range sides {
			s.run(&wg, stop)
		}
		done.Add(1)
		go func() {
			defer done.Done()
			v := (*atomic.Uint64)(unsafe.Pointer(&target.mem[0]))
			for range local {
				if old := v.Add(1) - 1; seen[old].Swap(true) {
					fail <- "a value was seen twice by the application"
					return
				}
			}
		}()
		all := make(chan struct{})
		go func() { done.Wait(); close(all) }()
		select {
		case <-all:
		case <-time.After(8 * time.Minute):
			t.Error("the additions do not come to an end")
		}
		close(stop)
		wg.Wait()
		for _, s := range sides {
			require.Empty(t, s.failed)
		}
		require.Empty(t, fail)
		require.Equal(t, uint64(posters*each+local), binary.NativeEndian.Uint64(target.mem))
		target.intact(t)
	})
}

// TestSwap is without all that slows the operations down, so that they meet.
func TestSwap(t *testing.T) {
	t.Run("RDM-76 each operation is one step", func(t *testing.T) {
		const workers, each = 8, 500_000 / slow
		var v atomic.Uint64
		var wg sync.WaitGroup
		for i := range workers {
			mask := uint64(i%2) << 63
			q := atomicRequest(atomicReq(1, codeFetchAdd, 0, 0, 0, 1, mask)[18:])
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range each {
					if i < 6 {
						swap(&v, q)
					} else {
						v.Add(1) // the application
					}
				}
			}()
		}
		wg.Wait()
		require.Equal(t, uint64(workers*each), v.Load())
	})
	t.Run("RDM-76 a compare and swap that is told to have won has", func(t *testing.T) {
		const workers, each = 8, 200_000 / slow
		var v, won atomic.Uint64
		var wg sync.WaitGroup
		for i := range workers {
			wg.Go(func() {
				for range each {
					if i >= 6 {
						v.Add(1) // the application
						won.Add(1)
						continue
					}
					was := v.Load()
					q := atomicRequest(atomicReq(1, codeCompareSwap, 0, 0, 0, was+1, ^uint64(0), was, ^uint64(0))[18:])
					if swap(&v, q) == was {
						won.Add(1)
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, won.Load(), v.Load())
	})
}
