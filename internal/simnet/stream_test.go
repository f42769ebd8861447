package simnet_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/mpa"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

var _ mpa.ByteStream = (*simnet.Stream)(nil)

func flat(pieces [][]byte) []byte { return bytes.Join(pieces, nil) }

func send(t *testing.T, s *simnet.Stream, parts ...string) {
	t.Helper()
	var b [][]byte
	for _, p := range parts {
		b = append(b, []byte(p))
	}
	require.NoError(t, s.Writev(b))
}

func expect(t *testing.T, s *simnet.Stream, want string, end error) {
	t.Helper()
	pieces, err := s.Peek()
	require.Equal(t, want, string(flat(pieces)))
	if end == nil {
		require.NoError(t, err)
	} else {
		require.ErrorIs(t, err, end)
	}
}

func TestStreamCarriesOctets(t *testing.T) {
	a, b := simnet.StreamPair(1448, 10)
	expect(t, b, "", nil)
	pieces, _ := b.Peek()
	require.Nil(t, pieces)
	send(t, a, "abc", "", "de")
	expect(t, b, "abcde", nil)
	expect(t, b, "abcde", nil)
	expect(t, a, "", nil)
	b.Discard(2)
	expect(t, b, "cde", nil)
	require.Equal(t, 7, a.Room())
	send(t, a, "fghijkl") // around the end of the ring
	expect(t, b, "cdefghijkl", nil)
	require.Zero(t, a.Room())
	require.Equal(t, 10, b.Room(), "the other direction is its own")
	require.Equal(t, 10, b.Buffered())
	require.Panics(t, func() { b.Discard(11) })
	b.Discard(10)
	require.Panics(t, func() { b.Discard(1) }, "peeked at before")
	octets, calls := a.Written()
	require.EqualValues(t, 12, octets)
	require.Equal(t, 2, calls)
}

func TestStreamIsBounded(t *testing.T) {
	a, b := simnet.StreamPair(1448, 4)
	send(t, a, "abc")
	require.ErrorIs(t, a.Writev([][]byte{[]byte("d"), []byte("e")}), syscall.ENOBUFS)
	expect(t, b, "abc", nil)
	send(t, a, "d")
	expect(t, b, "abcd", nil)
}

func TestStreamPoisonsDiscarded(t *testing.T) {
	a, b := simnet.StreamPair(1448, 10)
	send(t, a, "abcdef")
	pieces, _ := b.Peek()
	first := pieces[0]
	b.Discard(3)
	require.Equal(t, "\xdd\xdd\xddd", string(first[:4]))
	require.Empty(t, pieces[0], "the slice of pieces is the stream's")
}

func TestStreamMSS(t *testing.T) {
	a, b := simnet.StreamPair(1448, 10)
	a.SetMSS(536)
	require.Equal(t, 536, a.MSS())
	require.Equal(t, 1448, b.MSS())
}

func TestStreamFIN(t *testing.T) {
	a, b := simnet.StreamPair(1448, 10)
	send(t, a, "abc")
	require.NoError(t, a.CloseWrite())
	require.NoError(t, a.CloseWrite())
	expect(t, b, "abc", io.EOF)
	b.Discard(3)
	expect(t, b, "", io.EOF)
	require.ErrorIs(t, a.Writev([][]byte{{1}}), syscall.EPIPE)
	require.Zero(t, a.Room())
	send(t, b, "still")
	expect(t, a, "still", nil)
	require.NoError(t, b.CloseWrite())
	a.Discard(5)
	expect(t, a, "", io.EOF)
	// Both directions have ended: nothing is left to reset.
	a.Abort()
	expect(t, b, "", io.EOF)
}

func TestStreamReset(t *testing.T) {
	a, b := simnet.StreamPair(1448, 10)
	send(t, a, "abc")
	send(t, b, "lost")
	a.Abort()
	a.Abort()
	require.True(t, a.Aborted())
	require.False(t, b.Aborted())
	expect(t, b, "abc", syscall.ECONNRESET)
	b.Discard(3)
	expect(t, b, "", syscall.ECONNRESET)
	require.ErrorIs(t, b.Writev([][]byte{{1}}), syscall.ECONNRESET)
	require.ErrorIs(t, b.CloseWrite(), syscall.ECONNRESET)
	require.Zero(t, b.Room())
	expect(t, a, "", net.ErrClosed)
	require.ErrorIs(t, a.Writev([][]byte{{1}}), net.ErrClosed)
	require.ErrorIs(t, a.CloseWrite(), net.ErrClosed)
	b.Abort()
	expect(t, b, "", net.ErrClosed)
}

func TestStreamRechunk(t *testing.T) {
	want := make([]byte, 1000)
	for i := range want {
		want[i] = byte(i)
	}
	run := func(seed uint64, largest int) (cuts []int) {
		a, b := simnet.StreamPair(1448, 1500)
		b.Rechunk(seed, largest)
		require.NoError(t, a.Writev([][]byte{want}))
		require.NoError(t, a.CloseWrite())
		rnd := rand.New(rand.NewPCG(seed, 1))
		var got []byte
		for {
			pieces, err := b.Peek()
			for _, p := range pieces {
				require.LessOrEqual(t, len(p), largest)
				cuts = append(cuts, len(p))
			}
			n := len(flat(pieces))
			if err != nil {
				require.Equal(t, io.EOF, err)
				require.Equal(t, len(want), len(got)+n, "the end comes behind the last octet")
			}
			if len(got)+n < len(want) {
				select {
				case <-b.Notify():
				default:
					t.Fatal("more is to come, but not announced")
				}
			}
			if n == 0 && err != nil {
				break
			}
			n = rnd.IntN(n + 1)
			got = append(got, flat(pieces)[:n]...)
			b.Discard(n)
		}
		require.Equal(t, want, got)
		return cuts
	}
	for seed := range uint64(20) {
		for _, largest := range []int{1, 2, 9, 500} {
			require.Equal(t, run(seed, largest), run(seed, largest), "the same seed does the same")
		}
	}
	require.NotEqual(t, run(1, 9), run(2, 9))
	require.Contains(t, run(1, 9), 0, "empty pieces occur")

	a, b := simnet.StreamPair(1448, 1500)
	b.Rechunk(1, 9)
	b.Rechunk(1, 0)
	require.NoError(t, a.Writev([][]byte{want}))
	expect(t, b, string(want), nil)
}

func TestStreamNotify(t *testing.T) {
	a, b := simnet.StreamPair(1448, 10)
	var calls atomic.Int32
	b.OnReady(func() { calls.Add(1) })
	ready := func(s *simnet.Stream) bool {
		select {
		case <-s.Notify():
			return true
		default:
			return false
		}
	}
	require.False(t, ready(b))
	send(t, a, "abc")
	require.True(t, ready(b))
	require.False(t, ready(b))
	require.False(t, ready(a))
	expect(t, b, "abc", nil)
	b.Discard(3)
	require.True(t, ready(a), "room")
	require.NoError(t, a.CloseWrite())
	require.True(t, ready(b), "FIN")
	b.Abort()
	require.True(t, ready(a), "reset")
	require.True(t, ready(b), "whoever else waits on the aborted end")
	require.EqualValues(t, 3, calls.Load())
}

// TestStreamConcurrent: one reader and one writer on each end, inside a bubble
// of fake time.
func TestStreamConcurrent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.StreamPair(1448, 100)
		b.Rechunk(7, 13)
		start := time.Now()
		const total = 20000
		var wg sync.WaitGroup
		for _, end := range []*simnet.Stream{a, b} {
			room, data, stop := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
			end.OnReady(func() {
				for _, c := range []chan struct{}{room, data} {
					select {
					case c <- struct{}{}:
					default:
					}
				}
			})
			wg.Go(func() {
				for sent := 0; sent < total; {
					n := min(end.Room(), 1+sent%37, total-sent)
					if n == 0 {
						<-room
						continue
					}
					p := make([]byte, n)
					for i := range p {
						p[i] = byte((sent + i) % 251)
					}
					if err := end.Writev([][]byte{p[:n/2], p[n/2:]}); err != nil {
						t.Error(err)
					}
					sent += n
				}
				if err := end.CloseWrite(); err != nil {
					t.Error(err)
				}
			})
			wg.Go(func() {
				defer close(stop)
				for got := 0; ; {
					pieces, err := end.Peek()
					n := 0
					for _, p := range pieces {
						for _, c := range p {
							if c != byte((got+n)%251) {
								t.Errorf("octet %d is %d", got+n, c)
								return
							}
							n++
						}
					}
					end.Discard(n)
					if got += n; err != nil {
						if err != io.EOF || got != total {
							t.Errorf("%d octets, then %v", got, err)
						}
						return
					}
					if n == 0 {
						<-data
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, start, time.Now(), "no time passed")
	})
}
