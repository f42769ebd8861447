//go:build !softrdma_handoff

package netstack

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
)

// TCP that has room again in the midst of a Commit gets what it did not take at first. What is kept is in front of all
// that follows, FIN too.
func TestRoomThatComesDuringACommit(t *testing.T) {
	var st Stack
	o := outbox{pool: &st.spare}
	refusals, got, released := 1, "", 0
	o.tcp = sender{
		write: func(parts [][]byte, n int) (int, error) {
			for _, p := range parts {
				got += string(p)
			}
			return n, nil
		},
		give: func(chunk *buffer.View) (bool, error) {
			require.True(t, o.owing.Load(), "Poll, if it is told now, has to know that something is left")
			if refusals > 0 {
				if refusals--; refusals == 0 {
					o.writable.Store(true)
				}
				return false, nil
			}
			got += string(chunk.AsSlice())
			chunk.Release()
			return true, nil
		},
		finish:  func() error { got += "FIN"; return nil },
		release: func() { released++ },
	}
	o.open()
	commit := func(text string) error { return o.commit(buffer.NewViewWithData([]byte(text))) }
	require.NoError(t, commit("a"))
	require.Equal(t, "a", got)
	require.False(t, o.owing.Load())
	require.Equal(t, 0, refusals)

	refusals = 100
	require.NoError(t, commit("b"))
	require.Equal(t, "a", got)
	require.Zero(t, o.room())
	require.Equal(t, ErrNoRoom, commit("x"))
	require.Equal(t, ErrNoRoom, o.writev([][]byte{[]byte("x")}))
	require.Equal(t, 99, refusals, "TCP is not asked before it says that it has room")
	o.writable.Store(true)
	o.serve()
	require.Equal(t, 98, refusals)
	refusals = 0
	o.writable.Store(true)
	require.Equal(t, writeMax, o.room(), "whoever asks passes it on")
	require.Equal(t, "ab", got)
	require.NoError(t, o.writev([][]byte{[]byte("c")}))

	refusals = 100
	require.NoError(t, commit("d"))
	require.NoError(t, o.closeWrite())
	require.False(t, o.let())
	require.True(t, o.leaving())
	require.Equal(t, "abc", got)
	refusals = 0
	o.serve()
	require.Equal(t, "abc", got, "TCP has said nothing")
	o.writable.Store(true)
	o.serve()
	require.Equal(t, "abcdFIN", got)
	require.Equal(t, 1, released)
	require.False(t, o.leaving())
}

// An error from TCP ends the send side, and what was kept with it.
func TestChunkThatTCPRefuses(t *testing.T) {
	var st Stack
	o := outbox{pool: &st.spare, tcp: sender{give: func(*buffer.View) (bool, error) { return false, syscall.ECONNRESET }}}
	o.open()
	v := uncleared()
	refs := refsOf(v)
	require.Equal(t, syscall.ECONNRESET, o.commit(v))
	require.Zero(t, refs.count())
	require.False(t, o.owing.Load())
	require.Equal(t, syscall.ECONNRESET, o.why())
}
