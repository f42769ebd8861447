package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProcessors(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(was) })
	none := func(string) string { return "" }
	have := func() int { return runtime.GOMAXPROCS(0) }

	runtime.GOMAXPROCS(2)
	p := newProcessors(none)
	p.widen()()
	require.Equal(t, 2, have(), "a process without our own stack")
	p.narrow()
	require.Equal(t, 1, have())
	first, second := p.widen(), p.widen()
	require.Equal(t, 2, have())
	first()
	require.Equal(t, 2, have(), "another baseline still runs")
	second()
	require.Equal(t, 1, have())

	for _, n := range []int{1, 3, 4} {
		runtime.GOMAXPROCS(n)
		p = newProcessors(none)
		p.narrow()
		p.widen()()
		require.Equal(t, n, have())
	}

	runtime.GOMAXPROCS(2)
	p = newProcessors(func(name string) string {
		require.Equal(t, "GOMAXPROCS", name)
		return "2"
	})
	p.narrow()
	require.Equal(t, 2, have(), "the user has said so")

	p = nil
	p.narrow()
	p.widen()()
	require.Equal(t, 2, have())
}
