package netstack

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TCP may find room again while a write is not yet through with what TCP did not take. Poll, which is told, finds no
// rest to pass on then; no second notice follows. The write that leaves the rest has to look itself, even if nothing
// is written after it.
func TestRoomThatComesDuringAWrite(t *testing.T) {
	const text = "what TCP takes at once, and what it leaves"
	for _, again := range []int{1, 2, 3} { // how often it takes a part and has room again at once
		var st Stack
		o := outbox{pool: &st.spare}
		got, calls, finished := "", 0, false
		o.tcp = sender{
			write: func(parts [][]byte, n int) (int, error) {
				took := n
				if calls++; calls <= again {
					took = 5
					o.writable.Store(true)
					if !o.owing.Load() {
						o.serve() // Poll, on another goroutine, in the midst of the call
					}
				}
				left := took
				for _, p := range parts {
					p = p[:min(left, len(p))]
					got += string(p)
					left -= len(p)
				}
				return took, nil
			},
			finish: func() error { finished = true; return nil },
		}
		o.open()
		require.NoError(t, o.writev([][]byte{[]byte(text[:10]), []byte(text[10:])}))
		for range again - 1 {
			o.serve() // there was a rest by then: that Poll waited for the write to end
		}
		require.Equal(t, text, got)
		require.False(t, o.owing.Load())
		require.NoError(t, o.closeWrite())
		require.True(t, finished)
	}
}
