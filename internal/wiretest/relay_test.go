package wiretest

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// through returns both ends of a connection through a relay.
func through(t *testing.T, seed uint64) (a, b *Peer, r *Relay) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	r = NewRelay(t, lis.Addr().String(), seed)
	a = DialPeer(t, r.Addr)
	c, err := lis.Accept()
	require.NoError(t, err)
	return a, NewPeer(t, c), r
}

func TestRelay(t *testing.T) {
	a, b, r := through(t, 1)
	data := make([]byte, 300<<10)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	for _, dir := range [][2]*Peer{{a, b}, {b, a}} {
		got := make(chan []byte, 1)
		go func() {
			x, _ := io.ReadAll(io.LimitReader(dir[1].Conn(), int64(len(data))))
			got <- x
		}()
		before := r.Pieces()
		dir[0].Write(data)
		require.True(t, bytes.Equal(data, <-got), "the same octets")
		require.Greater(t, r.Pieces()-before, uint64(300), "in many pieces")
	}
	a.CloseWrite()
	b.ExpectEOF()
	b.Send([]byte("the other direction stays open"))
	a.Expect([]byte("the other direction stays open"))
	b.Reset()
	a.ExpectReset()
}

func TestRelayEnds(t *testing.T) {
	a, b, _ := through(t, 2)
	a.Reset()
	b.ExpectReset()
	r := NewRelay(t, "127.0.0.1:1", 3) // where nothing listens
	DialPeer(t, r.Addr).ExpectClosed()
	_, still, _ := through(t, 4) // open at the end of the test
	still.ExpectSilence(time.Millisecond)
}
