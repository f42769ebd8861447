package rdmap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
)

// TestTurn moves a message of several turns: each half says when others may
// have one, and goes on where it stood.
func TestTurn(t *testing.T) {
	const size = 2*maxTurn + maxTurn/2
	tab := ddp.NewTable()
	cfg := Config{Table: tab, IRD: 1, ORD: 1}
	a, b := newPair(t, 1448, 2*size, cfg, cfg)
	src := newRegion(t, tab, size, testPD, 0)
	dst := newRegion(t, tab, size, testPD, remoteRights)
	copy(src.mem, pattern(size, 1))

	ok, err := a.Submit(&Op{Kind: Write, ID: 7, RemoteSTag: dst.stag, RemoteTO: dst.base, SGL: []SGE{src.sge(0, size)}})
	require.NoError(t, err)
	require.True(t, ok)
	for range 2 {
		p, err := a.Pump()
		require.NoError(t, err)
		require.Equal(t, Progress{Next: Next{Turn: true}}, p, "the send half suggests a turn")
		_, room := a.ddp.Room()
		require.False(t, room, "what is staged leaves as a whole frame")
	}
	p, err := a.Pump()
	require.NoError(t, err)
	require.Equal(t, Progress{Sent: true, SentID: 7, Next: Next{WantOp: true}}, p)
	require.NoError(t, a.Flush())

	var turns int
	for {
		ev, ok, err := b.Receive()
		require.NoError(t, err)
		if !ok {
			break
		}
		if ev.Kind == Turn {
			turns++
		}
	}
	require.Equal(t, 2, turns, "turns the receive half suggests")
	same(t, src.mem, dst.mem, "the Write")
}
