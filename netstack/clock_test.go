package netstack

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// TestClock holds our reading of the clock against what gVisor makes of a duration.
func TestClock(t *testing.T) {
	for _, back := range []time.Duration{0, time.Nanosecond, time.Second, 1000 * time.Hour} {
		c := newClock()
		c.base = time.Now().Add(-back)
		least := time.Since(c.base)
		got := c.NowMonotonic()
		most := time.Since(c.base)
		require.False(t, got.Before(tcpip.MonotonicTime{}.Add(least)), back)
		require.False(t, got.After(tcpip.MonotonicTime{}.Add(most)), back)
		require.Equal(t, got.Sub(tcpip.MonotonicTime{}).Milliseconds(), got.Milliseconds())
	}
	c := newClock()
	was := c.NowMonotonic()
	for range 1000 {
		now := c.NowMonotonic()
		require.False(t, now.Before(was))
		was = now
	}
	// Whoever holds it or does not, it does not go back; and it stands still for as long as it is held.
	c.hold()
	was = c.NowMonotonic()
	time.Sleep(time.Millisecond)
	require.Equal(t, was, c.NowMonotonic())
	c.hold()
	require.True(t, c.NowMonotonic().After(was))
	c.release()
	c.release()
	last := make([]tcpip.MonotonicTime, 4)
	var g sync.WaitGroup
	for i := range last {
		g.Go(func() {
			for n := range 5000 {
				if n%3 == 0 {
					c.hold()
				}
				now := c.NowMonotonic()
				if now.Before(last[i]) {
					t.Errorf("the clock went back by %v", last[i].Sub(now))
				}
				last[i] = now
				if n%3 == 0 {
					c.release()
				}
			}
		})
	}
	g.Wait()
	fired := make(chan struct{})
	c.AfterFunc(time.Millisecond, func() { close(fired) })
	<-fired
}
