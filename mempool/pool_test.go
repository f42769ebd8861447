package mempool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// children are what a test may have run in a process of its own, by name. The name is in the environment.
var children = map[string]func() error{}

const childVariable = "MEMPOOL_TEST_CHILD"

func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := Mapped(); code == 0 && n != 0 {
			fmt.Fprintf(os.Stderr, "%d octets are in regions that no test has closed\n", n)
			code = 1
		}
		os.Exit(code)
	}))
}

func newPool(t testing.TB, c Config) *Pool {
	t.Helper()
	p, err := New(c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestNewRefusesWhatMakesNoPool(t *testing.T) {
	for _, c := range []Config{
		{},
		{Count: 1},
		{Size: 1},
		{Count: -1, Size: 1},
		{Count: 1, Size: -1},
		{Count: 1, Size: 1, Headroom: -1},
		{Count: 1 << 20, Size: 1},
		{Count: 1, Size: 1 << 40},
		{Count: 1<<20 - 1, Size: 1 << 20},
		{Count: 1, Size: 1<<63 - 1},
		{Count: 1, Size: 1, Headroom: 1<<63 - 1},
		{Count: 1<<10 + 1, Size: 1<<29 + 1, PowerOfTwo: true},
		{Count: 1, Size: 1, Pages: Huge + 1},
	} {
		_, err := New(c)
		require.Error(t, err, "%+v", c)
	}
}

func TestGetRunsEmptyAndCounts(t *testing.T) {
	p := newPool(t, Config{Count: 3, Size: 10, Headroom: 4})
	require.Equal(t, Config{Count: 3, Size: 10, Headroom: 4}, p.Config())
	var out []*Buf
	for i := range 3 {
		b := p.Get()
		require.NotNil(t, b)
		require.Equal(t, []int{0, 10, 4}, []int{b.Len(), b.Cap(), b.Headroom()})
		out = append(out, b)
		require.Equal(t, i+1, p.Out())
	}
	require.Nil(t, p.Get())
	require.Nil(t, p.Get())
	require.Equal(t, Stats{Count: 3, Out: 3, Empty: 2}, p.Stats())
	for _, b := range out {
		b.Release()
	}
	require.Zero(t, p.Out())
	require.NotSame(t, out[0], out[1])
	b := p.Get()
	require.Same(t, out[2], b, "the buffer released last is warm and comes first")
	b.Release()
}

func TestBuffersDoNotOverlap(t *testing.T) {
	p := newPool(t, Config{Count: 8, Size: 61, Headroom: 3})
	var out []*Buf
	for i := range 8 {
		b := p.Get()
		b.Prepend(3)
		b.SetLen(b.Cap())
		require.Equal(t, 64, b.Len())
		for j := range b.Bytes() {
			b.Bytes()[j] = byte(i)
		}
		out = append(out, b)
	}
	for i, b := range out {
		for _, o := range b.Bytes() {
			require.Equal(t, byte(i), o)
		}
		require.Equal(t, 64, cap(b.Bytes()), "nobody can append into the neighbour")
		b.Release()
	}
}

func TestBounds(t *testing.T) {
	p := newPool(t, Config{Count: 1, Size: 8, Headroom: 6})
	b := p.Get()
	b.Append([]byte("data"))
	copy(b.Prepend(2), "ip")
	copy(b.Prepend(3), "eth")
	require.Equal(t, "ethipdata", string(b.Bytes()))
	require.Equal(t, []int{9, 13, 1}, []int{b.Len(), b.Cap(), b.Headroom()})
	b.SetLen(5)
	require.Equal(t, "ethip", string(b.Bytes()))
	b.Append([]byte("DATAMORE"))
	require.Equal(t, "ethipDATAMORE", string(b.Bytes()))
	require.Empty(t, b.Prepend(0))

	require.PanicsWithValue(t, "mempool: 2 octets put in front with 1 of headroom left", func() { b.Prepend(2) })
	require.Panics(t, func() { b.Prepend(-1) })
	require.PanicsWithValue(t, "mempool: 1 octets appended with room for 0", func() { b.Append([]byte{1}) })
	require.PanicsWithValue(t, "mempool: length 14 in a buffer with room for 13", func() { b.SetLen(14) })
	require.Panics(t, func() { b.SetLen(-1) })
	require.Equal(t, "ethipDATAMORE", string(b.Bytes()), "a refused call changes nothing")
	b.Release()

	b = p.Get()
	require.Equal(t, []int{0, 8, 6}, []int{b.Len(), b.Cap(), b.Headroom()}, "a buffer comes back fresh")
	b.Release()
}

func TestReferences(t *testing.T) {
	p := newPool(t, Config{Count: 1, Size: 1})
	b := p.Get()
	b.Retain()
	b.Retain()
	b.Release()
	b.Release()
	require.Equal(t, 1, p.Out())
	b.Release()
	require.Equal(t, 0, p.Out())

	require.PanicsWithValue(t, "mempool: buffer released once too often", b.Release)
	q := newPool(t, Config{Count: 1, Size: 1})
	b = q.Get()
	b.Release()
	for name, use := range map[string]func(){
		"Bytes": func() { b.Bytes() }, "Len": func() { b.Len() }, "Cap": func() { b.Cap() }, "SetLen": func() { b.SetLen(0) },
		"Append": func() { b.Append(nil) }, "Prepend": func() { b.Prepend(0) }, "Headroom": func() { b.Headroom() },
	} {
		require.PanicsWithValue(t, "mempool: use of a released buffer", use, name)
	}
	require.PanicsWithValue(t, "mempool: Retain of a released buffer", b.Retain)
}

func TestClose(t *testing.T) {
	p, err := New(Config{Count: 4, Size: 1})
	require.NoError(t, err)
	a, b := p.Get(), p.Get()
	require.EqualError(t, p.Close(), "mempool: closed with 2 of 4 buffers still out: release them first")
	require.Nil(t, p.Get())
	_, err = p.Wait(t.Context())
	require.ErrorIs(t, err, ErrClosed)
	a.Append([]byte{1})
	a.Release()
	require.ErrorContains(t, p.Close(), "1 of 4")
	b.Release()
	require.NoError(t, p.Close())
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Count: 2, Size: 1})
		require.NoError(t, err)
		b1, err := p.Wait(t.Context())
		require.NoError(t, err)
		b2 := p.Get()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		var got atomic.Int32
		for range 2 {
			go func() {
				b, err := p.Wait(t.Context())
				if err == nil {
					got.Add(1)
					b.Release()
				}
			}()
		}
		synctest.Wait()
		require.Zero(t, got.Load())
		require.EqualValues(t, 3, p.Stats().Waits)
		b1.Release() // one buffer serves both: each gives it back
		synctest.Wait()
		require.EqualValues(t, 2, got.Load())

		b1 = p.Get()
		fail := make(chan error)
		go func() {
			_, err := p.Wait(t.Context())
			fail <- err
		}()
		synctest.Wait()
		require.Error(t, p.Close())
		require.ErrorIs(t, <-fail, ErrClosed)
		b1.Release()
		b2.Release()
		require.NoError(t, p.Close())
	})
}

// Two releases may leave a single token: both waiters must still get their buffer.
func TestWaitersShareOneToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(Config{Count: 8, Size: 1})
		require.NoError(t, err)
		var out []*Buf
		for range 8 {
			out = append(out, p.Get())
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, err := p.Wait(t.Context())
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		for _, b := range out {
			b.Release()
		}
		wg.Wait()
		require.Equal(t, 8, p.Out())
		for _, b := range out {
			b.Release()
		}
	})
}

func TestManyGoroutinesNeverShareABuffer(t *testing.T) {
	for _, pages := range []Pages{Heap, Plain} {
		t.Run(pages.String(), func(t *testing.T) { neverShared(t, newPool(t, Config{Count: 5, Size: 8, Pages: pages})) })
	}
}

func neverShared(t *testing.T, p *Pool) {
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 3000 {
				var b *Buf
				if r.IntN(2) == 0 {
					b = p.Get()
				} else {
					b, _ = p.Wait(t.Context())
				}
				if b == nil {
					continue
				}
				// The race detector sees two holders; so does this check without it.
				b.SetLen(1)
				b.Bytes()[0] = byte(g)
				if r.IntN(2) == 0 {
					b.Retain()
					b.Release()
				}
				if b.Bytes()[0] != byte(g) {
					t.Error("two goroutines hold one buffer")
				}
				b.Release()
			}
		})
	}
	wg.Wait()
	require.Zero(t, p.Out())
	seen := map[*Buf]bool{}
	for range 5 {
		b := p.Get()
		require.False(t, seen[b])
		seen[b] = true
	}
	require.Nil(t, p.Get(), "the free list neither grew nor shrank")
	for b := range seen {
		b.Release()
	}
}

func TestNoAllocation(t *testing.T) {
	p := newPool(t, Config{Count: 4, Size: 64, Headroom: 16})
	data := make([]byte, 32)
	ctx := t.Context()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b := p.Get()
		b.Append(data)
		b.Prepend(8)
		b.Retain()
		b.Release()
		b.Release()
		b, _ = p.Wait(ctx)
		b.Release()
	}))
}

func BenchmarkGetRelease(b *testing.B) {
	p := newPool(b, Config{Count: 64, Size: 2048})
	b.ReportAllocs()
	for b.Loop() {
		p.Get().Release()
	}
}

func BenchmarkGetReleaseParallel(b *testing.B) {
	p := newPool(b, Config{Count: 64, Size: 2048})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if buf := p.Get(); buf != nil {
				buf.Release()
			}
		}
	})
}
