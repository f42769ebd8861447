package ddp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// soon fails the test if f, which may wait for a use of memory, does not return.
func soon(t testing.TB, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("it waits for a use that nobody ends")
		return nil
	}
}

// uses is how many uses of the memory of s are counted.
func (s *scene) uses(g STag) int64 {
	n := s.shard(g).find(g).users.Load()
	if n < 0 {
		n -= dead
	}
	return n
}

func TestLeaseChecksEveryTime(t *testing.T) {
	const rights = RemoteWrite | RemoteRead
	for _, c := range []struct {
		name string
		by   StreamID
		off  uint64
		n    uint64
		need Access
		want FaultKind
	}{
		{"all of it", on(1, 5), 16, 32, rights, 0},
		{"nothing", on(1, 5), 48, 0, 0, 0},
		{"the last octet", on(1, 5), 47, 1, RemoteWrite, 0},
		{"one octet before", on(1, 5), 15, 1, RemoteWrite, FaultBounds},
		{"one octet behind", on(1, 5), 47, 2, RemoteWrite, FaultBounds},
		{"far behind", on(1, 5), 1 << 40, 1, RemoteWrite, FaultBounds},
		{"too much", on(1, 5), 16, 1 << 63, RemoteWrite, FaultBounds},
		{"a range that wraps", on(1, 5), 16, ^uint64(0), RemoteWrite, FaultWrap},
		{"another queue pair", on(1, 6), 16, 1, RemoteWrite, FaultPD},
		{"another domain", on(2, 5), 16, 1, RemoteWrite, FaultPD},
		{"no right", on(1, 5), 16, 1, RemoteAtomic, FaultAccess},
		{"one right of two", on(1, 5), 16, 1, RemoteAtomic | RemoteRead, FaultAccess},
	} {
		t.Run("DDP-56 "+c.name, func(t *testing.T) {
			s := newScene(t)
			require.NoError(t, s.Bind(s.show(s.two, rights), s.by))
			var l Lease
			_, err := l.Check(s.Table, s.two, s.by, s.base+20, 4, rights)
			require.NoError(t, err)
			mem, err := l.Check(s.Table, s.two, c.by, s.base+c.off, c.n, c.need)
			require.Equal(t, c.want, fault(t, err))
			require.Equal(t, fault(t, s.check(s.two, c.by, c.off, c.n, c.need)), fault(t, err), "as without a lease")
			if c.want != 0 {
				require.Zero(t, s.uses(s.two), "nothing is held")
				return
			}
			require.EqualValues(t, 1, s.uses(s.two), "one use, however often it was asked for")
			require.Len(t, mem, int(c.n))
			require.Equal(t, int(c.n), cap(mem))
			if c.n > 0 {
				require.Same(t, &s.mem[c.off], &mem[0])
			}
			l.End()
			require.Zero(t, s.uses(s.two))
			l.End()
			require.Zero(t, s.uses(s.two), "a second End changes nothing")
		})
	}
	t.Run("it changes over to what is asked for", func(t *testing.T) {
		s := newScene(t)
		require.NoError(t, s.Bind(s.show(s.one, rights), s.by))
		require.NoError(t, s.Bind(s.show(s.two, rights), s.by))
		var l Lease
		for range 2 {
			for _, w := range []STag{s.one, s.two} {
				_, err := l.Check(s.Table, w, s.by, s.base+16, 4, RemoteWrite)
				require.NoError(t, err)
				require.EqualValues(t, 1, s.uses(w))
				require.Zero(t, s.uses(s.one^s.two^w))
			}
		}
		_, err := l.Check(s.Table, incKey(s.two), s.by, s.base+16, 4, RemoteWrite)
		require.Equal(t, FaultSTag, fault(t, err), "another key")
		other := NewTable()
		require.NoError(t, other.RegisterBase(make([]byte, 64), 1, rights, s.base, s.one))
		_, err = l.Check(s.Table, s.one, s.by, s.base+16, 4, RemoteWrite)
		require.NoError(t, err)
		mem, err := l.Check(other, s.one, s.by, s.base, 4, RemoteWrite)
		require.NoError(t, err, "another table")
		require.NotSame(t, &s.mem[0], &mem[0])
		require.Zero(t, s.uses(s.one))
		l.End()
	})
}

func TestLeaseRemembersNothingInvalid(t *testing.T) {
	t.Run("a region that is gone", func(t *testing.T) {
		s := newScene(t)
		var l Lease
		_, err := l.local(s.Table, s.r, 1, 0, 64, 0)
		require.NoError(t, err)
		l.End()
		require.NoError(t, soon(t, func() error { return s.Deregister(s.r) }))
		require.Equal(t, FaultSTag, l.find(s.Table, s.r).look(s.r, 1, 0, 64, 0))
		_, err = l.local(s.Table, s.r, 1, 0, 64, 0)
		require.Equal(t, FaultSTag, fault(t, err))
		require.Zero(t, s.uses(s.r))
	})
	t.Run("VRB-48 a fast region that was registered again under the same key", func(t *testing.T) {
		s := newScene(t)
		g, _, err := s.AllocFast(make([]byte, 64), 1)
		require.NoError(t, err)
		var l Lease
		for range 3 {
			require.NoError(t, s.Renew(g, s.by, LocalWrite))
			require.Zero(t, l.find(s.Table, g).look(g, 1, 0, 64, LocalWrite))
			_, err = l.local(s.Table, g, 1, 0, 64, LocalWrite)
			require.NoError(t, err)
			l.End()
			require.NoError(t, soon(t, func() error { return s.InvalidateLocal(g, s.by) }))
			require.Equal(t, FaultSTag, l.find(s.Table, g).look(g, 1, 0, 64, LocalWrite))
		}
	})
	t.Run("VRB-54 a window that was bound again under the same key", func(t *testing.T) {
		s := newScene(t)
		require.NoError(t, s.Bind(s.show(s.one, RemoteWrite), s.by))
		var l Lease
		_, err := l.Check(s.Table, s.one, s.by, s.base+16, 32, RemoteWrite)
		require.NoError(t, err)
		l.End()
		require.NoError(t, soon(t, func() error {
			return s.Bind(Binding{Window: s.one, Region: s.r, Off: 8, Len: 16, Access: RemoteRead}, s.by)
		}))
		_, err = l.Check(s.Table, s.one, s.by, s.base+16, 32, RemoteWrite)
		require.Equal(t, FaultBounds, fault(t, err))
		_, err = l.Check(s.Table, s.one, s.by, s.base+16, 8, RemoteWrite)
		require.Equal(t, FaultAccess, fault(t, err))
		mem, err := l.Check(s.Table, s.one, s.by, s.base+8, 16, RemoteRead)
		require.NoError(t, err)
		require.Same(t, &s.mem[8], &mem[0])
		l.End()
		require.NoError(t, soon(t, func() error { return s.Bind(Binding{Window: s.one}, s.by) }))
		_, err = l.Check(s.Table, s.one, s.by, s.base+8, 16, RemoteRead)
		require.Equal(t, FaultSTag, fault(t, err))
	})
}

// TestLeaseEnds takes an STag back in every way while somebody has a lease of it.
func TestLeaseEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *scene, w STag) error
		one  bool
	}{
		{"Deregister", func(s *scene, w STag) error { return s.Deregister(w) }, false},
		{"InvalidateLocal", func(s *scene, w STag) error { return s.InvalidateLocal(w, s.by) }, false},
		{"Invalidate", func(s *scene, w STag) error { return s.Invalidate(w, s.by) }, false},
		{"the end of the queue pair", func(s *scene, w STag) error { s.Unbind(5); return nil }, false},
		{"another bind", func(s *scene, w STag) error { return s.Bind(s.show(w^1, RemoteWrite), s.by) }, true},
		{"an unbind", func(s *scene, w STag) error { return s.Bind(Binding{Window: w ^ 1}, s.by) }, true},
	} {
		t.Run("DDP-55 SEC-07 SEC-10 "+c.name+" makes the next check fail and waits for no more", func(t *testing.T) {
			s := newScene(t)
			w := s.two
			if c.one {
				w = s.one
			}
			require.NoError(t, s.Bind(s.show(w, RemoteWrite), s.by))
			var l Lease
			mem, err := l.Check(s.Table, w, s.by, s.base+16, 8, RemoteWrite)
			require.NoError(t, err)
			var over atomic.Bool
			done := make(chan error, 1)
			go func() {
				err := c.end(s, w)
				over.Store(true)
				done <- err
			}()
			for s.Valid(w) { // until it has begun
				runtime.Gosched()
			}
			require.False(t, over.Load(), "a use is in progress")
			mem[0]++
			_, err = l.Check(s.Table, w, s.by, s.base+16, 8, RemoteWrite)
			require.Equal(t, FaultSTag, fault(t, err))
			require.NoError(t, soon(t, func() error { return <-done }))
			_, err = l.Check(s.Table, w, s.by, s.base+16, 8, RemoteWrite)
			require.Equal(t, FaultSTag, fault(t, err))
			l.End()
		})
	}
}

func TestLeaseStorm(t *testing.T) {
	t.Run("SEC-07 DDP-55 nothing is written after Deregister, under a storm of leases", func(t *testing.T) {
		old := runtime.GOMAXPROCS(4)
		defer runtime.GOMAXPROCS(old)
		tab := NewTable()
		const writers = 3
		var current atomic.Uint32
		var stop atomic.Bool
		var hits atomic.Uint64
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				var l Lease
				defer l.End()
				for n := 0; !stop.Load(); n++ {
					mem, err := l.local(tab, STag(current.Load()), 1, 0, 64, LocalWrite)
					if err != nil {
						runtime.Gosched()
						continue
					}
					mem[w*8]++ // an octet of its own: only a late write is a race
					hits.Add(1)
					if n%100 == 0 {
						l.End() // as at the end of a turn
						runtime.Gosched()
					}
				}
			})
		}
		for range 100 {
			mem := make([]byte, 64)
			s, _, err := tab.Register(mem, 1, LocalWrite)
			require.NoError(t, err)
			current.Store(uint32(s))
			for seen := hits.Load(); hits.Load() < seen+writers; {
				runtime.Gosched()
			}
			require.NoError(t, soon(t, func() error { return tab.Deregister(s) }))
			for i := range mem { // ours alone again
				mem[i] = 0xff
			}
		}
		stop.Store(true)
		wg.Wait()
		require.Zero(t, tab.Len())
	})
}

func TestCursorLease(t *testing.T) {
	s := newScene(t)
	mem := make([]byte, 64)
	g, _, err := s.Register(mem, 1, 0)
	require.NoError(t, err)
	var c Cursor
	c.Reset(s.Table, 1, []SGE{{STag: s.r, Len: 30}, {STag: g, Off: 4, Len: 0}, {STag: g, Off: 5, Len: 20}})
	take := func(n int, uses, others int64, parts ...[]byte) {
		t.Helper()
		got, err := c.Take(n, 0)
		require.NoError(t, err)
		require.Len(t, got, len(parts))
		for i, p := range parts {
			require.Len(t, got[i], len(p))
			require.Same(t, &p[0], &got[i][0])
		}
		require.Equal(t, uses, s.uses(s.r))
		require.Equal(t, others, s.uses(g))
	}
	take(10, 1, 0, s.mem[:10])
	take(10, 1, 0, s.mem[10:20])
	take(12, 2, 1, s.mem[20:30], mem[5:7]) // both pieces, and the lease
	take(3, 0, 1, mem[7:10])
	done := make(chan error, 1)
	go func() { done <- s.Deregister(g) }()
	for s.Valid(g) {
		runtime.Gosched()
	}
	_, err = c.Take(3, 0)
	require.Equal(t, FaultSTag, fault(t, err), "it went away between two pieces")
	require.NoError(t, soon(t, func() error { return <-done }), "and nothing holds it")
	c.Reset(s.Table, 1, []SGE{{STag: s.r, Len: 30}})
	take(10, 1, 0, s.mem[:10])
	c.Release()
	require.Zero(t, s.uses(s.r))
}

func TestPause(t *testing.T) {
	l := newLink(t, 1448, 1<<16)
	g := newGuarded(4000)
	s, base, err := l.table.Register(g.mem, 1, RemoteWrite|LocalWrite)
	require.NoError(t, err)
	data := pattern(4000, 3)
	l.a.StartTagged(0x40, s, base, 4000)
	push(t, l.a, data)
	users := func() int64 { return l.table.shard(s).find(s).users.Load() }
	for n := range uint64(3) {
		require.NoError(t, l.b.PlaceTagged(pull(t, l.b), RemoteWrite))
		require.EqualValues(t, 1, users())
		require.Equal(t, n+1, l.b.Received())
	}
	l.b.Pause()
	require.Zero(t, users())
	require.EqualValues(t, 3, l.b.Received())
	st := l.b.Stats()
	require.EqualValues(t, 3, st.SegmentsIn)
	require.EqualValues(t, 4000, st.OctetsIn)
	require.EqualValues(t, 3, l.a.Stats().SegmentsOut)
	require.EqualValues(t, 4000, l.a.Stats().OctetsOut)
	require.NoError(t, soon(t, func() error { return l.table.Deregister(s) }))
	require.Equal(t, data, g.mem)
	g.intact(t)
}

func TestLeaseDoesNotAllocate(t *testing.T) {
	s := newScene(t)
	var l Lease
	var c Cursor
	sgl := []SGE{{STag: s.r, Len: 40}, {STag: s.r, Off: 40, Len: 24}}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := l.Check(s.Table, s.r, s.by, s.base, 8, LocalWrite); err != nil {
			panic(err)
		}
		c.Reset(s.Table, 1, sgl)
		for _, n := range []int{8, 40, 16} {
			if _, err := c.Take(n, LocalWrite); err != nil {
				panic(err)
			}
		}
		c.Release()
		l.End()
	}))
}

// BenchmarkLease is BenchmarkCheck for what follows in the same region.
func BenchmarkLease(b *testing.B) {
	s := newScene(b)
	var l Lease
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Check(s.Table, s.r, s.by, s.base, 8, LocalWrite); err != nil {
			b.Fatal(err)
		}
	}
	l.End()
}
