package main

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStat(t *testing.T) {
	c, err := parseStat("cpu  100 20 30 1000 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
	require.NoError(t, err)
	require.Equal(t, cpuStat{100, 20, 30, 1000, 5, 6, 7, 8}, c)
	require.Equal(t, 1630*time.Millisecond, c.busy())
	require.EqualValues(t, 1176, c.all())
	_, err = parseStat("intr 5")
	require.Error(t, err)
}

func TestBetween(t *testing.T) {
	start := time.Unix(1000, 0)
	before := moment{at: start, load: 0.1}
	// In ten seconds two processors have a thousand ticks each.
	quiet := moment{at: start.Add(10 * time.Second), load: 2, ours: 9*time.Second + 900*time.Millisecond,
		stat: cpuStat{user: 600, system: 360, softirq: 40, idle: 990, steal: 10}}
	c := between(before, quiet, true)
	require.InDelta(t, 0.5, c.Steal, 1e-9)
	require.InDelta(t, 1, c.Others, 1e-9, "0.1 s in ten, and the rest is ours")
	require.Empty(t, c.NotQuiet)
	require.NotContains(t, c.String(), "NOT QUIET")
	quiet.list = 3 << 19
	require.Contains(t, between(before, quiet, true).String(), "2 MiB in lists of free pages")

	stolen := quiet
	stolen.stat.steal, stolen.stat.idle = 100, 900
	require.Len(t, between(before, stolen, true).NotQuiet, 1)
	shared := quiet
	shared.ours -= time.Second
	c = between(before, shared, true)
	require.InDelta(t, 11, c.Others, 1e-9)
	require.Contains(t, c.String(), "NOT QUIET")
	before.load = 0.9
	require.Len(t, between(before, quiet, true).NotQuiet, 1)
	require.Empty(t, between(before, quiet, false).NotQuiet, "it was we who made the load")
}

func TestPageLists(t *testing.T) {
	const text = "Node 0, zone   Normal\n  pages free     12\n  pagesets\n    cpu: 0\n              count: 264224\n              high:  264867\n" +
		"    cpu: 1\n              count: 2917\n"
	require.EqualValues(t, 264224+2917, pageLists(text))
	require.Zero(t, pageLists(""))
}

// This host's own figures can be read.
func TestNow(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("LEFT OUT: /proc/stat is Linux's")
	}
	m, err := now()
	require.NoError(t, err)
	require.Positive(t, m.stat.all())
	require.Positive(t, m.ours)
	require.GreaterOrEqual(t, m.load, 0.0)
}
