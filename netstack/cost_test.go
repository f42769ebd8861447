package netstack

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHotPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		const n = 200_000
		require.Equal(t, n, send(t, ca, 0, 0, n))
		p.until("the octets", func() bool { pieces, _ := cb.Peek(); return length(pieces) > n/2 })
		require.Zero(t, testing.AllocsPerRun(100, func() {
			pieces, err := cb.Peek()
			if len(pieces) == 0 || err != nil {
				t.Fatal(len(pieces), err)
			}
			cb.Discard(100)
		}), "Peek and Discard")
		ev := make([]Event, 4)
		for p.b.Poll(ev, 10*time.Millisecond) > 0 {
		}
		require.Zero(t, testing.AllocsPerRun(100, func() { p.b.Poll(ev, 0) }), "Poll")
		require.Zero(t, testing.AllocsPerRun(100, func() { ca.Room() }), "Room")
		require.Zero(t, testing.AllocsPerRun(100, func() { ca.MSS() }), "MSS")
		part := [][]byte{make([]byte, 64)}
		require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
			if err := ca.Writev(part); err != nil {
				t.Fatal(err)
			}
		}), 8.0, "Writev: gVisor's bookkeeping, at both ends")
	})
}

// Stacks with open connections and nothing to do use no CPU.
func TestIdle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes waking up dear")
	}
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, _, _ := p.connect()
		a, b := startEngine(t, p, p.a.Stack, nil), startEngine(t, p, p.b.Stack, nil)
		require.Equal(t, 100, send(t, ca, 0, 0, 100))
		// What the octets set off, and the garbage collector, may take a while on a busy machine.
		const span = 50 * time.Millisecond
		used := span
		for try := 0; used > span/10 && try < 20; try++ {
			before := cpuTime(t)
			time.Sleep(span)
			used = cpuTime(t) - before
		}
		require.LessOrEqual(t, used, span/10)
		a.end()
		b.end()
	})
}

func cpuTime(t *testing.T) time.Duration {
	var ru syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
