package ddp

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDeregisterWaits(t *testing.T) {
	t.Run("DDP-55 Deregister waits for uses", func(t *testing.T) {
		tab := NewTable()
		s, base, err := tab.Register(make([]byte, 8), 1, allRights)
		require.NoError(t, err)
		g1, err := tab.Check(s, in(1), base, 8, 0)
		require.NoError(t, err)
		g2, err := tab.Local(s, 1, 0, 8, 0)
		require.NoError(t, err)
		done := make(chan error)
		go func() { done <- tab.Deregister(s) }()
		for { // until the region is invalid, which precedes the wait
			g, err := tab.Check(s, in(1), base, 8, 0)
			if err != nil {
				break
			}
			g.Release()
			runtime.Gosched()
		}
		require.ErrorIs(t, tab.Deregister(s), ErrUnknownSTag, "once only")
		g1.Release()
		select {
		case <-done:
			t.Fatal("returned with a use left")
		case <-time.After(10 * time.Millisecond):
		}
		g2.Release()
		require.NoError(t, <-done)
	})
}

func TestDeregisterRace(t *testing.T) {
	t.Run("SEC-07 nothing is written after Deregister, under a storm", func(t *testing.T) {
		tab := NewTable()
		const writers = 2
		var current atomic.Uint32
		var stop atomic.Bool
		var hits atomic.Uint64
		var wg sync.WaitGroup
		for w := range writers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for !stop.Load() {
					g, err := tab.Local(STag(current.Load()), 1, 0, 64, LocalWrite)
					if err != nil {
						runtime.Gosched()
						continue
					}
					g.Bytes()[w*8]++ // an octet of its own: only a late write is a race
					g.Release()
					hits.Add(1)
				}
			}()
		}
		for range 100 {
			mem := make([]byte, 64)
			s, _, err := tab.Register(mem, 1, LocalWrite)
			require.NoError(t, err)
			current.Store(uint32(s))
			runtime.Gosched()
			require.NoError(t, tab.Deregister(s))
			for i := range mem { // ours alone again
				mem[i] = 0xff
			}
		}
		stop.Store(true)
		wg.Wait()
		t.Logf("%d uses", hits.Load())
	})
}

func TestManyRegions(t *testing.T) {
	tab := NewTable()
	mem := make([]byte, 8)
	const n = 50000
	stags := make([]STag, 0, n)
	seen := make(map[uint32]bool, n)
	for range n {
		s, _, err := tab.Register(mem, 1, ZeroBased)
		require.NoError(t, err)
		require.False(t, seen[s.index()])
		seen[s.index()] = true
		stags = append(stags, s)
	}
	require.Equal(t, n, tab.Len())
	for i, s := range stags {
		g, err := tab.Check(s, in(1), 0, 8, 0)
		require.NoError(t, err)
		g.Release()
		if i%2 == 0 {
			require.NoError(t, tab.Deregister(s))
		}
	}
	require.Equal(t, n/2, tab.Len())
	for i, s := range stags {
		g, err := tab.Check(s, in(1), 0, 8, 0)
		require.Equal(t, i%2 == 0, err != nil)
		g.Release()
	}
}

func TestRegistryIsSafeForAll(t *testing.T) {
	tab := NewTable()
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			mem := make([]byte, 8)
			for range 2000 {
				s, _, err := tab.Register(mem, 1, ZeroBased)
				if err != nil {
					panic(err)
				}
				g, err := tab.Check(s, in(1), 0, 8, 0)
				if err != nil {
					panic(err)
				}
				g.Release()
				if err := tab.Deregister(s); err != nil {
					panic(err)
				}
				if _, err := tab.Check(s, in(1), 0, 8, 0); err == nil {
					panic("freed region found")
				}
			}
		}()
	}
	wg.Wait()
	require.Zero(t, tab.Len())
}

func TestCheckDoesNotAllocate(t *testing.T) {
	tab := NewTable()
	s, _, err := tab.Register(make([]byte, 4096), 1, allRights|ZeroBased)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		g, err := tab.Check(s, in(1), 64, 128, RemoteWrite)
		if err != nil {
			panic(err)
		}
		g.Release()
	}))
}

func BenchmarkCheck(b *testing.B) {
	for _, n := range []int{1, 1000, 1000000} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			tab := NewTable()
			mem := make([]byte, 4096)
			stags := make([]STag, n)
			for i := range stags {
				stags[i], _, _ = tab.Register(mem, 1, allRights|ZeroBased)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				g, err := tab.Check(stags[i], in(1), 64, 128, RemoteWrite)
				if err != nil {
					b.Fatal(err)
				}
				g.Release()
				if i += 7919; i >= n {
					i %= n
				}
			}
		})
	}
}

func BenchmarkCheckParallel(b *testing.B) {
	tab := NewTable()
	b.RunParallel(func(pb *testing.PB) {
		s, _, err := tab.Register(make([]byte, 4096), 1, allRights|ZeroBased)
		if err != nil {
			b.Fatal(err)
		}
		for pb.Next() {
			g, err := tab.Check(s, in(1), 64, 128, RemoteWrite)
			if err != nil {
				b.Fatal(err)
			}
			g.Release()
		}
	})
}

func BenchmarkRegister(b *testing.B) {
	tab := NewTable()
	mem := make([]byte, 4096)
	for range 100000 {
		_, _, _ = tab.Register(mem, 1, allRights)
	}
	b.ReportAllocs()
	for b.Loop() {
		s, _, err := tab.Register(mem, 1, allRights)
		if err != nil {
			b.Fatal(err)
		}
		if err := tab.Deregister(s); err != nil {
			b.Fatal(err)
		}
	}
}
