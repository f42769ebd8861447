package netstack

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// TestLinger ends a connection from both sides at once, while octets are under way.
func TestLinger(t *testing.T) {
	const n = 200_000
	meet := func(t *testing.T) (p *pair, ca, cb *Conn) {
		p = newUserPair(t, pktio.PipeConfig{}, Config{})
		ca, cb, _ = p.connect()
		p.portA.SetFaults(pktio.Faults{Delay: 30 * time.Millisecond})
		require.Equal(t, n, send(t, ca, 1, 0, n))
		require.NoError(t, ca.CloseWrite())
		require.NoError(t, cb.CloseWrite())
		k := checker{}
		var end error
		until(t, "the end at a", func() bool { end = k.receive(t, ca); return end != nil }, p.a)
		require.Equal(t, io.EOF, end)
		ca.Close()
		return p, ca, cb
	}
	t.Run("DDP-58 what is under way arrives though this side is closed at once", func(t *testing.T) {
		p, _, cb := meet(t)
		p.a.Linger(patience)
		require.False(t, p.a.user.unacknowledged())
		require.NoError(t, p.a.Close())
		k := checker{stream: 1}
		var end error
		until(t, "the end at b", func() bool { end = k.receive(t, cb); return end != nil }, p.b)
		require.Equal(t, io.EOF, end)
		require.Equal(t, n, k.at)
	})
	t.Run("it takes no longer than it may, and nothing where nothing is under way", func(t *testing.T) {
		p, _, _ := meet(t)
		start := time.Now()
		p.b.Linger(0)
		p.portA.SetFaults(pktio.Faults{Loss: 1})
		p.a.Linger(50 * time.Millisecond)
		took := time.Since(start)
		require.GreaterOrEqual(t, took, 50*time.Millisecond)
		require.Less(t, took, patience)

		idle := newUserPair(t, pktio.PipeConfig{}, Config{})
		idle.connect()
		idle.a.Linger(time.Hour)
	})
}
