package netstack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// It is a stream while octets come that nobody answers: not before there are many, nor once somebody has sent some, nor
// after a silence in which Poll slept.
func TestStream(t *testing.T) {
	w := newWire(t, Config{SpinFor: -1})
	l := w.h.user.link
	come := func(n uint64) { l.count.octetsIn.Add(n) }
	l.streams()
	come(streamFrom - 1)
	require.False(t, l.streams())
	come(1)
	require.True(t, l.streams())
	l.said.Add(1)
	require.False(t, l.streams(), "an answer")
	come(streamFrom)
	require.True(t, l.streams())
	w.h.Poll(make([]Event, 1), 5*time.Millisecond)
	require.False(t, l.streams(), "silence")
}

// A rest takes longer than an idle Poll spins. It is not the end of that, or Poll would sleep once for each; and when nothing
// comes after it Poll sleeps as ever.
func TestRestIsNoSleep(t *testing.T) {
	w := newWire(t, Config{SpinFor: 20 * time.Microsecond})
	l := w.h.user.link
	for range 50 { // somebody may take the processor after a rest
		w.h.Poll(make([]Event, 1), 0)
		w.sayAnew() // the pump waits for that, and then leaves the port to Poll
		require.Eventually(t, func() bool {
			free := l.rx.mu.TryLock()
			if free {
				l.rx.mu.Unlock()
			}
			return free
		}, 10*time.Second, time.Millisecond)
		l.streams()
		l.count.octetsIn.Add(streamFrom)
		require.True(t, l.streams())
		before := l.rx.looks.Load()
		w.h.Poll(make([]Event, 1), 5*time.Millisecond)
		require.False(t, l.streams(), "it has slept")
		if l.rx.looks.Load()-before > 5 {
			return
		}
	}
	require.Fail(t, "Poll never looks again after a rest")
}
