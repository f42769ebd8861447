package netstack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// TestClock holds our reading of the clock against what gVisor makes of a duration.
func TestClock(t *testing.T) {
	c := newClock()
	for _, back := range []time.Duration{0, time.Nanosecond, time.Second, 1000 * time.Hour} {
		c.base = time.Now().Add(-back)
		least := time.Since(c.base)
		got := c.NowMonotonic()
		most := time.Since(c.base)
		require.False(t, got.Before(tcpip.MonotonicTime{}.Add(least)), back)
		require.False(t, got.After(tcpip.MonotonicTime{}.Add(most)), back)
		require.Equal(t, got.Sub(tcpip.MonotonicTime{}).Milliseconds(), got.Milliseconds())
	}
	was := c.NowMonotonic()
	for range 1000 {
		now := c.NowMonotonic()
		require.False(t, now.Before(was))
		was = now
	}
	fired := make(chan struct{})
	c.AfterFunc(time.Millisecond, func() { close(fired) })
	<-fired
}
