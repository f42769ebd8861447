package ddp

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInvalidationWaits holds a use while the STag is taken back in every way.
func TestInvalidationWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(s *scene, w STag) error
		one  bool
	}{
		{"Deregister", func(s *scene, w STag) error { return s.Deregister(w) }, false},
		{"InvalidateLocal", func(s *scene, w STag) error { return s.InvalidateLocal(w, s.by) }, false},
		{"Invalidate", func(s *scene, w STag) error { return s.Invalidate(w, s.by) }, false},
		{"the end of the queue pair", func(s *scene, w STag) error { s.Unbind(5); return nil }, false},
		{"another bind", func(s *scene, w STag) error { return s.Bind(s.show(w^1, RemoteRead), s.by) }, true},
		{"an unbind", func(s *scene, w STag) error { return s.Bind(Binding{Window: w ^ 1}, s.by) }, true},
	} {
		t.Run("DDP-55 SEC-07 SEC-10 "+c.name+" waits for a use in progress", func(t *testing.T) {
			s := newScene(t)
			w := s.two
			if c.one {
				w = s.one
			}
			require.NoError(t, s.Bind(s.show(w, RemoteWrite), s.by))
			g, err := s.Check(w, s.by, s.base+16, 8, RemoteWrite)
			require.NoError(t, err)
			done := make(chan error)
			var over atomic.Bool
			go func() {
				err := c.end(s, w)
				over.Store(true)
				done <- err
			}()
			for s.check(w, s.by, 16, 8, RemoteWrite) == nil { // until it has begun
				runtime.Gosched()
			}
			require.False(t, over.Load(), "a use is in progress")
			require.ErrorIs(t, s.Deregister(s.r), ErrBound, "so the region must stay")
			g.Bytes()[0]++
			g.Release()
			require.NoError(t, <-done)
			require.Equal(t, FaultSTag, fault(t, s.check(w, s.by, 16, 8, RemoteWrite)))
		})
	}
}

// TestWindowStorm binds, invalidates and frees under users of the memory: what was
// copied when an invalidation has returned stays.
func TestWindowStorm(t *testing.T) {
	t.Run("SEC-07 SEC-10 SEC-56 DDP-55 nothing is written through a window that was taken back", func(t *testing.T) {
		old := runtime.GOMAXPROCS(4)
		defer runtime.GOMAXPROCS(old)
		tab := NewTable()
		mem := make([]byte, 64)
		r, base, err := tab.Register(mem, 1, bindable)
		require.NoError(t, err)
		var current atomic.Uint32
		var stop atomic.Bool
		var hits atomic.Uint64
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				for !stop.Load() {
					g, err := tab.Check(STag(current.Load()), on(1, 5), base+16, 32, RemoteWrite)
					if err != nil {
						runtime.Gosched()
						continue
					}
					for n := range 8 { // octets of its own: only a late write is a race
						g.Bytes()[i*8+n]++
					}
					g.Release()
					hits.Add(1)
				}
			})
		}
		for round := range 96 {
			w, err := tab.AllocWindow(1, 1+round%2)
			require.NoError(t, err)
			b := Binding{Window: w, Region: r, Off: 16, Len: 32, Access: RemoteWrite}
			require.NoError(t, tab.Bind(b, on(1, 5)))
			current.Store(uint32(w))
			for seen := hits.Load(); hits.Load() == seen; {
				runtime.Gosched()
			}
			switch round % 6 {
			case 0, 4:
				require.NoError(t, tab.Bind(Binding{Window: incKey(w)}, on(1, 5)))
			case 1:
				require.NoError(t, tab.InvalidateLocal(w, on(1, 5)))
			case 3:
				require.NoError(t, tab.Invalidate(w, on(1, 5)))
			case 5:
				tab.Unbind(5)
			case 2:
				require.NoError(t, tab.Deregister(w))
			}
			was := bytes.Clone(mem) // a late write is a race, or shows here
			runtime.Gosched()
			require.Equal(t, was, mem)
			if round%6 != 2 {
				require.NoError(t, tab.Deregister(w))
			}
		}
		stop.Store(true)
		wg.Wait()
		require.NoError(t, tab.Deregister(r), "every window has been taken from it")
		require.Zero(t, tab.Len())
		require.Empty(t, tab.bound)
	})
	t.Run("VRB-47 binds and the end of their region, at once", func(t *testing.T) {
		old := runtime.GOMAXPROCS(4)
		defer runtime.GOMAXPROCS(old)
		tab := NewTable()
		for range 60 {
			r, _, err := tab.Register(make([]byte, 64), 1, bindable)
			require.NoError(t, err)
			var wg sync.WaitGroup
			windows := make([]STag, 3)
			for i := range windows {
				windows[i], err = tab.AllocWindow(1, 1)
				require.NoError(t, err)
				wg.Go(func() {
					for k := range 20 {
						w := windows[i]&^0xff | STag(k)
						bound := tab.Bind(Binding{Window: w, Region: r, Len: 64, Access: RemoteRead}, on(1, 5)) == nil
						if bound != tab.Valid(w) {
							panic("a window is valid that could not be bound, or the other way round")
						}
						if err := tab.Bind(Binding{Window: w}, on(1, 5)); err != nil {
							panic(err)
						}
					}
				})
			}
			for tab.Deregister(r) != nil {
				runtime.Gosched()
			}
			wg.Wait()
			for _, w := range windows {
				require.NoError(t, tab.Deregister(w))
			}
		}
		require.Zero(t, tab.Len())
	})
}
