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
