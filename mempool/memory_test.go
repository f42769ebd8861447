package mempool

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func forPages(t *testing.T, test func(t *testing.T, pages Pages)) {
	for _, pages := range []Pages{Heap, Plain, Transparent, Huge} {
		t.Run(pages.String(), func(t *testing.T) { test(t, pages) })
	}
}

func TestPoolInAnyMemory(t *testing.T) {
	forPages(t, func(t *testing.T, pages Pages) {
		before := Mapped()
		p, err := New(Config{Count: 100, Size: 65000, Headroom: 500, Pages: pages})
		require.NoError(t, err)
		m := p.Memory()
		require.Equal(t, 100*65536, m.Size, "a multiple of 64 octets for each")
		require.LessOrEqual(t, m.Pages, pages)
		switch {
		case pages == Heap:
			require.Equal(t, Info{Pages: Heap, PageSize: os.Getpagesize(), Size: m.Size, Resident: -1}, m)
			require.Equal(t, before, Mapped())
		case raceEnabled:
			require.Equal(t, Heap, m.Pages)
			require.Contains(t, m.Why, "race detector")
			require.Equal(t, before, Mapped())
		default:
			require.Equal(t, before+int64(m.Size), Mapped())
		}
		var out []*Buf
		for i := range 100 {
			b := p.Get()
			b.SetLen(b.Cap())
			data := b.Bytes()
			require.Equal(t, len(data), bytes.Count(data, []byte{0}), "memory is zeroed at first")
			for j := range data {
				data[j] = byte(i)
			}
			out = append(out, b)
		}
		for i, b := range out {
			require.Equal(t, b.Len(), bytes.Count(b.Bytes(), []byte{byte(i)}))
			b.Release()
		}
		if m = p.Memory(); m.Resident >= 0 {
			require.GreaterOrEqual(t, m.Resident, 100*65000, "%v", m)
		}
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
		require.Equal(t, before, Mapped())
	})
}

func TestBuffersAtPowersOfTwo(t *testing.T) {
	page := uintptr(os.Getpagesize())
	forPages(t, func(t *testing.T, pages Pages) {
		for _, test := range []struct {
			size, headroom int
			distance       uintptr
		}{
			{1, 0, 64}, {64, 0, 64}, {65, 0, 128}, {1500, 256, 2048}, {2048, 0, 2048}, {2048, 1, 4096},
			{4096, 0, 4096}, {65549, 0, 1 << 17}, {256 << 10, 0, 256 << 10},
		} {
			p, err := New(Config{Count: 9, Size: test.size, Headroom: test.headroom, PowerOfTwo: true, Pages: pages})
			require.NoError(t, err)
			require.Equal(t, 9*int(test.distance), p.Memory().Size)
			var out []*Buf
			for range 9 {
				b := p.Get()
				b.Prepend(test.headroom)
				b.SetLen(test.headroom + test.size)
				first := addressOf(b.Bytes())
				require.Zero(t, first%min(test.distance, page), "%+v", test)
				if test.distance <= page {
					require.Equal(t, first/page, (first+uintptr(b.Len())-1)/page, "%+v: across two pages", test)
				}
				out = append(out, b)
			}
			for _, b := range out {
				b.Release()
			}
			require.NoError(t, p.Close())
		}
	})
}

// Whoever has a buffer keeps it, whatever happens to the pool.
func TestMemoryStaysUntilTheLastRelease(t *testing.T) {
	forPages(t, func(t *testing.T, pages Pages) {
		before := Mapped()
		p, err := New(Config{Count: 4, Size: 4096, Pages: pages})
		require.NoError(t, err)
		held := Mapped()
		a, b := p.Get(), p.Get()
		a.Append([]byte("mine"))
		b.Retain()
		require.EqualError(t, p.Close(), "mempool: closed with 2 of 4 buffers still out: release them first")
		require.Nil(t, p.Get())
		require.Equal(t, "mine", string(a.Bytes()))
		a.Release()
		b.Release()
		require.Error(t, p.Close())
		b.Append([]byte("still here"))
		require.Equal(t, "still here", string(b.Bytes()))
		require.Equal(t, held, Mapped())
		b.Release()
		require.Equal(t, before, Mapped(), "the last release gave the memory back")

		for _, gone := range []*Buf{a, b} {
			require.PanicsWithValue(t, "mempool: use of a released buffer", func() { gone.Bytes() })
			require.PanicsWithValue(t, "mempool: use of a released buffer", func() { gone.Append([]byte{1}) })
		}
		require.Nil(t, p.Get())
		require.NoError(t, p.Close())
		require.LessOrEqual(t, p.Memory().Resident, 0)
		require.Equal(t, Stats{Count: 4, Empty: 2}, p.Stats())
	})
}

// Nobody comes by a buffer whose memory is gone, however close Get and Close are. (Touching one would end the test.)
func TestCloseAmongGetsAndReleases(t *testing.T) {
	before := Mapped()
	for round := range 300 {
		p, err := New(Config{Count: 3, Size: 64, Pages: Plain, NoLock: true})
		require.NoError(t, err)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(g)))
				<-start
				for range 200 {
					var b *Buf
					if r.IntN(4) == 0 {
						b, _ = p.Wait(t.Context())
					} else {
						b = p.Get()
					}
					if b == nil {
						continue
					}
					b.SetLen(64)
					b.Bytes()[r.IntN(64)] = byte(g)
					b.Release()
				}
			})
		}
		wg.Go(func() {
			<-start
			for range rand.IntN(200) {
				_ = p.Stats()
			}
			_ = p.Close() // says how many are out
		})
		close(start)
		wg.Wait()
		require.Zero(t, p.Out())
		require.Nil(t, p.Get())
		require.Equal(t, before, Mapped(), "without another Close")
		require.NoError(t, p.Close())
	}
}

func TestPrefault(t *testing.T) {
	forPages(t, func(t *testing.T, pages Pages) {
		p := newPool(t, Config{Count: 64, Size: 4096, Pages: pages, Prefault: true})
		m := p.Memory()
		if m.Pages == Heap { // of which nobody tells
			require.Equal(t, -1, m.Resident)
			return
		}
		require.GreaterOrEqual(t, m.Resident, 64*4096, "%v", m)
	})
}

func TestNewRegionRefuses(t *testing.T) {
	for _, c := range []RegionConfig{
		{},
		{Size: -1},
		{Size: maxRegion + 1},
		{Size: 1, Align: 3},
		{Size: 1, Align: os.Getpagesize() + 1},
		{Size: 1, Align: 2 * maxAlign},
		{Size: 1, Pages: Huge + 1},
	} {
		_, err := NewRegion(c)
		require.Error(t, err, "%+v", c)
	}
}

func TestRegion(t *testing.T) {
	before := Mapped()
	for _, c := range []RegionConfig{
		{Size: 1},
		{Size: 100, Align: 1},
		{Size: 5000, Align: 1 << 16, Prefault: true},
		{Size: 300 << 10, NoLock: true},
		{Size: 3 << 20, Align: 8 << 20},
		{Size: 2 << 20, Pages: Plain},
		{Size: 5<<20 + 1, Guard: true},
		{Size: 4 << 20, Pages: Transparent, Prefault: true},
	} {
		r, err := NewRegion(c)
		require.NoError(t, err, "%+v", c)
		b := r.Bytes()
		require.Equal(t, []int{c.Size, c.Size}, []int{len(b), cap(b)})
		require.Zero(t, addressOf(b)%uintptr(max(c.Align, os.Getpagesize())), "%+v", c)
		for _, at := range []int{0, c.Size / 2, c.Size - 1} {
			require.Zero(t, b[at])
		}
		b[0], b[c.Size-1] = 1, 1
		i := r.Info()
		require.Equal(t, c.Size, i.Size)
		if c.NoLock && i.Pages != Huge {
			require.False(t, i.Locked)
		}
		require.Equal(t, before+int64(c.Size), Mapped())
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		require.Nil(t, r.Bytes())
		require.Equal(t, before, Mapped())
	}
}

func TestInfoReads(t *testing.T) {
	for want, i := range map[string]Info{
		"8 MiB in huge pages of 2 MiB, locked, 8 MiB resident": {
			Pages: Huge, PageSize: 2 << 20, Locked: true, Size: 8 << 20, Resident: 8 << 20, InHuge: 8 << 20},
		"8 MiB in transparent huge pages of 2 MiB, 2 MiB resident (0 octets in huge pages) (none free)": {
			Pages: Transparent, PageSize: 2 << 20, Size: 8 << 20, Resident: 2 << 20, Why: "none free"},
		"3.5 MiB in plain pages of 64 KiB, locked, 0 octets resident (too small)": {
			Pages: Plain, PageSize: 64 << 10, Size: 7 << 19, Locked: true, Why: "too small"},
		"1500 octets of Go's heap": {Pages: Heap, PageSize: 4096, Size: 1500, Resident: -1},
		"2 GiB of Go's heap":       {Pages: Heap, PageSize: 4096, Size: 2 << 30, Resident: -1},
	} {
		require.Equal(t, want, i.String())
	}
	require.Equal(t, "Pages(9)", Pages(9).String())
}

// BenchmarkFill copies into buffers of a pool that does not fit into the nearer caches, as transmit buffers do.
func BenchmarkFill(b *testing.B) {
	for _, pages := range []Pages{Heap, Plain, Transparent, Huge} {
		b.Run(pages.String(), func(b *testing.B) {
			p := newPool(b, Config{Count: 32, Size: 256 << 10, Pages: pages, Prefault: true})
			data := make([]byte, 256<<10)
			var bufs [32]*Buf
			b.SetBytes(32 * 256 << 10)
			for b.Loop() {
				for i := range bufs {
					bufs[i] = p.Get()
					bufs[i].Append(data)
				}
				for _, buf := range bufs {
					buf.Release()
				}
			}
		})
	}
}
