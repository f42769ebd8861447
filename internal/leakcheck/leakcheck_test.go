package leakcheck

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/mempool"
)

func TestMain(m *testing.M) { Main(m) }

// fakeTB is a test whose verdict can be looked at.
type fakeTB struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (f *fakeTB) Helper()          {}
func (f *fakeTB) Name() string     { return "TestFake" }
func (f *fakeTB) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *fakeTB) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

func (f *fakeTB) end() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

// The waiting for a count to come to zero takes no time inside a bubble.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := mempool.New(mempool.Config{Count: 2, Size: 8})
		require.NoError(t, err)
		tb := &fakeTB{TB: t}
		require.Equal(t, p, Pool(tb, p))
		b := p.Get()
		tb.Cleanup(b.Release)
		tb.end()
		require.Empty(t, tb.errors, "a later cleanup has released it")

		tb = &fakeTB{TB: t}
		Pool(tb, p)
		b = p.Get()
		tb.end()
		require.Equal(t, []string{"leakcheck: 1 buffers of the pool are still out"}, tb.errors)
		require.Contains(t, strings.Join(leaks(), "\n"), "TestFake: 1 buffers still out")

		tb = &fakeTB{TB: t}
		Pool(tb, p)
		go b.Release()
		tb.end()
		require.Empty(t, tb.errors, "it came back in time")
		require.NotContains(t, strings.Join(leaks(), "\n"), "TestFake")
	})
}

func TestGoroutines(t *testing.T) {
	require.Empty(t, leaks())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		<-stop
		close(stopped)
	}()
	require.Contains(t, strings.Join(leaks(), "\n"), "leakcheck.TestGoroutines")
	close(stop)
	<-stopped
	require.Empty(t, leaks())
}

func TestMappings(t *testing.T) {
	require.Empty(t, leaks())
	r, err := mempool.NewRegion(mempool.RegionConfig{Size: 4096})
	require.NoError(t, err)
	require.Contains(t, strings.Join(leaks(), "\n"), "4096 octets in pools or regions that nobody has closed")
	require.NoError(t, r.Close())
	require.Empty(t, leaks())
}
