package pktio

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// wakes tells whether Go's poller would be woken for p now.
func wakes(t *testing.T, p *Packet) bool {
	t.Helper()
	var n int
	var err error
	require.NoError(t, p.wait.Control(func(fd uintptr) {
		n, err = unix.EpollWait(int(fd), make([]unix.EpollEvent, 4), 0)
	}))
	require.NoError(t, err)
	return n > 0
}

// Who keeps polling is not woken by what he is about to find, and who sends not by what has left. A wait ends as ever.
func TestPacketDeaf(t *testing.T) {
	x, y := vethPair(t, 1500)
	lx, ly := x.Link(), y.Link()
	tx, rx := one(rawFrame(ly.Addr, lx.Addr, 100)), make([]Frame, 4)
	send := func() {
		t.Helper()
		n, err := x.Send(tx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	// On a veth a frame may be on its way for a moment.
	arrives := func(what func() bool) {
		t.Helper()
		require.Eventually(t, what, 5*time.Second, time.Millisecond)
	}
	poll := func() bool {
		n, err := y.Recv(rx, 0)
		require.NoError(t, err)
		return n == 1
	}
	for round := range 3 {
		send()
		arrives(func() bool { return wakes(t, y) })
		require.False(t, wakes(t, x), "its sender has nothing to receive")
		arrives(poll)
		for range 2 * deafAfter {
			require.False(t, poll())
		}
		send()
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
			require.False(t, wakes(t, y), "round %d", round)
		}
		arrives(poll)

		// A wait finds what came while it was deaf, and what comes later.
		send()
		n, err := y.Recv(rx, 10*time.Second)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		sent := make(chan struct{})
		time.AfterFunc(20*time.Millisecond, func() {
			defer close(sent)
			_, _ = x.Send(tx)
		})
		n, err = y.Recv(rx, 10*time.Second)
		<-sent // the frame is here before its Send has returned
		require.NoError(t, err)
		require.Equal(t, 1, n, "woken")
	}
}
