package mpa

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// fixed is a stream whose octets lie in pieces that stay as they are, however
// often somebody looks: waiting does not help.
type fixed struct {
	loop
	parts [][]byte
}

func (s *fixed) Peek() ([][]byte, error) { return s.parts, nil }

func (s *fixed) Discard(n int) {
	for n > 0 {
		m := min(n, len(s.parts[0]))
		s.parts[0], n = s.parts[0][m:], n-m
		if len(s.parts[0]) == 0 {
			s.parts = s.parts[1:]
		}
	}
}

// arrive adds pieces of b, each in memory of its own, cut at the places in cuts.
func (s *fixed) arrive(b []byte, cuts ...int) {
	at := 0
	for _, cut := range append(cuts, len(b)) {
		cut = min(cut, len(b))
		s.parts = append(s.parts, slices.Clip(slices.Clone(b[at:cut])))
		at = cut
	}
}

// TestFixedPieces cuts a stream of FPDUs at every place. Nothing but the one
// look at all that is there may be needed, wherever the cut is.
func TestFixedPieces(t *testing.T) {
	pool := newPool(t, poolConfig)
	for _, p := range []Params{{CRC: true}, {}, bothMarked, {MarkersIn: true}} {
		m := wiretest.Marks{CRC: p.CRC}
		frame := func(u []byte) []byte {
			if p.MarkersIn {
				return m.Frame(u)
			}
			return wiretest.Frame(u, p.CRC)
		}
		var stream []byte
		var want, frames [][]byte
		for _, n := range []int{18, 0, 1, 520, 30} { // with markers, two are in the long one or before it
			want = append(want, count(n))
			frames = append(frames, frame(count(n)))
			stream = append(stream, frames[len(frames)-1]...)
		}
		t.Run(fmt.Sprintf("MPA-72 an FPDU in two pieces is handed out at the first look, CRC %t, markers %t", p.CRC, p.MarkersIn), func(t *testing.T) {
			for i := range len(stream) + 1 {
				for _, cuts := range [][]int{{i}, {i, i}, {0, 0, i}, {i, i + 1, i + 1, i + 3}} {
					s := &fixed{}
					s.arrive(stream, cuts...)
					c := open(NewConn(s, pool), p)
					var got [][]byte
					var err error
					require.NoError(t, soon(func() {
						for ok := true; ok && err == nil && len(got) < len(want); {
							var u *ULPDU
							if u, ok, err = c.Next(); ok {
								var b []byte
								b, err = taken(u)
								got = append(got, b)
							}
						}
					}), "cut at %d", cuts)
					require.NoError(t, err, "cut at %d", cuts)
					require.Equal(t, want, got, "cut at %d", cuts)
				}
			}
		})
		t.Run(fmt.Sprintf("MPA-72 and with the rest when that comes as a piece of its own, CRC %t, markers %t", p.CRC, p.MarkersIn), func(t *testing.T) {
			for i := range len(stream) {
				whole, left := 0, i // FPDUs before the cut, and octets of the one behind them
				for left >= len(frames[whole]) {
					left -= len(frames[whole])
					whole++
				}
				s := &fixed{}
				s.arrive(stream[:i])
				c := open(NewConn(s, pool), p)
				got, err := drain(t, c)
				require.NoError(t, err, "cut at %d", i)
				require.Len(t, got, whole, "cut at %d", i)
				for range 2 {
					more, err := drain(t, c)
					require.NoError(t, err)
					require.Empty(t, more, "cut at %d", i)
				}
				s.arrive(stream[i:])
				more, err := drain(t, c)
				require.NoError(t, err, "cut at %d", i)
				require.Equal(t, want, append(got, more...), "cut at %d", i)
			}
		})
	}
}
