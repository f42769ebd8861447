//go:build !softrdma_handoff

package netstack

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/softrdma/softrdma/pktio"
)

// chunkRefs are the references to a chunk: 0 once it is back in the pool, if nobody has taken it out again.
type chunkRefs struct{ n *int64 }

// refsOf returns those of the chunk of v.
func refsOf(v *buffer.View) chunkRefs {
	return chunkRefs{(*int64)((*viewFields)(unsafe.Pointer(v)).chunk)}
}

func (r chunkRefs) count() int64 { return atomic.LoadInt64(r.n) }

// stage commits n octets of stream from at on, put together in memory that is full of other octets, and returns the
// references to it.
func stage(t testing.TB, c *Conn, stream, at, n int) (chunkRefs, error) {
	t.Helper()
	b := c.Stage()
	require.Len(t, b, StageSize)
	for i := range b {
		b[i] = 0xee
	}
	pattern(b[:n], stream, at)
	refs := refsOf(c.user.stage)
	require.EqualValues(t, 1, refs.count())
	return refs, c.Commit(n)
}

// boundarySizes are around where Commit changes its ways, and where the payload of a segment ends.
var boundarySizes = []int{1, 2, 1448, 4096, StageSize/2 - 1, StageSize / 2, StageSize/2 + 1, 65483, StageSize - 1, StageSize}

// Octets that were staged arrive whole and in order, between those of Writev, whatever their number.
func TestStagedOctets(t *testing.T) {
	const total = 2 << 20
	for _, pipe := range []struct {
		name string
		pktio.PipeConfig
	}{{"1500", pipe1500}, {"GSO", pipeGSO}} {
		bothWays(t, Config{SendBuffer: MinBuffer}, func(t *testing.T, c Config) {
			bothFamilies(t, func(t *testing.T, fam family) {
				t.Run(pipe.name, func(t *testing.T) {
					p := newUserPairOf(t, fam, pipe.PipeConfig, c)
					ca, cb, _ := p.connect()
					r := rand.New(rand.NewPCG(1, 2))
					k, sent := checker{}, 0
					var end error
					p.until("the octets", func() bool {
						for sent < total && ca.Room() > 0 {
							n := min(boundarySizes[r.IntN(len(boundarySizes))], total-sent)
							if r.IntN(3) == 0 {
								n = send(t, ca, 0, sent, n)
							} else {
								_, err := stage(t, ca, 0, sent, n)
								require.NoError(t, err)
							}
							if sent += n; sent == total {
								require.NoError(t, ca.CloseWrite())
							}
						}
						end = k.receive(t, cb)
						return end != nil
					})
					require.Equal(t, io.EOF, end)
					require.Equal(t, total, k.at)
				})
			})
		})
	}
}

// Each size alone is sent at once, and its memory kept as long as it has to be: not at all where octets are few.
func TestStagedSizes(t *testing.T) {
	s := newSpoken(t, inet4, Config{MinRTO: 5 * time.Second})
	at := 0
	for _, n := range boundarySizes {
		refs, err := stage(t, s.c, 0, at, n)
		require.NoError(t, err)
		if n < StageSize/2 {
			require.Zero(t, refs.count(), "%d octets hold 64 KiB", n)
		} else {
			require.Positive(t, refs.count(), "%d octets that nobody has acknowledged", n)
		}
		got, _ := s.drink(0, at, at+n, false)
		require.Equal(t, at+n, got)
		at = got
		until(t, "the memory", func() bool { return refs.count() == 0 }, s.h)
	}
}

// drink is the peer reading octets of stream, of which it has had at, until it has n and, if fin is set, FIN. Each
// segment is acknowledged.
func (s *spoken) drink(stream, at, n int, fin bool) (got int, ended bool) {
	s.t.Helper()
	k := checker{stream: stream, at: at}
	for k.at < n || fin && !ended {
		_, seg := s.recvTCP(fmt.Sprintf("octet %d of %d", k.at, n), func(seg header.TCP) bool {
			return seg.SequenceNumber() == s.una && (len(seg.Payload()) > 0 || seg.Flags().Contains(flagFIN&^flagACK))
		})
		require.NoError(s.t, k.check(seg.Payload()))
		s.una += uint32(len(seg.Payload()))
		if seg.Flags().Contains(flagFIN &^ flagACK) {
			s.una++
			ended = true
			require.Equal(s.t, n, k.at, "FIN comes behind all octets")
		}
		s.say(header.TCPFlagAck, s.seq, s.una)
	}
	return k.at, ended
}

// fill commits until there is no room: TCP has its buffer full then, and the last chunk waits in front of it.
func (s *spoken) fill(stream int) (octets int, chunks []chunkRefs) {
	s.t.Helper()
	for s.c.Room() > 0 {
		require.LessOrEqual(s.t, octets, s.h.user.conf.SendBuffer+StageSize, "there is a bound")
		refs, err := stage(s.t, s.c, stream, octets, StageSize)
		require.NoError(s.t, err)
		chunks = append(chunks, refs)
		octets += StageSize
	}
	require.NotNil(s.t, s.c.out.chunk)
	require.GreaterOrEqual(s.t, octets, s.h.user.conf.SendBuffer)
	return octets, chunks
}

func free(chunks []chunkRefs) bool {
	for _, r := range chunks {
		if r.count() != 0 {
			return false
		}
	}
	return true
}

var smallSend = Config{SendBuffer: MinBuffer, MinRTO: 5 * time.Second}

// A peer that does not read: Room says so, nothing more is taken, and an event tells of room when it reads again.
func TestStagedWithoutRoom(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, smallSend)
		octets, chunks := s.fill(0)
		for _, n := range []int{1, StageSize} {
			refs, err := stage(t, s.c, 0, 0, n)
			require.Equal(t, ErrNoRoom, err)
			require.Zero(t, refs.count(), "what is not taken does not stay")
			require.Equal(t, ErrNoRoom, s.c.Writev([][]byte{make([]byte, n)}))
		}
		require.NotNil(t, s.c.Stage())
		require.NoError(t, s.c.Commit(0), "to give memory back there is always room")
		for s.h.poll(0) > 0 {
		}
		events := s.h.seen[s.c]
		got, _ := s.drink(0, 0, octets, false)
		require.Equal(t, octets, got)
		until(t, "room", func() bool { return s.h.seen[s.c] > events && s.c.Room() > 0 && free(chunks) }, s.h)
		_, err := stage(t, s.c, 0, octets, 100)
		require.NoError(t, err)
		s.drink(0, octets, octets+100, false)
	})
}

// The kept chunk goes to TCP as soon as Poll hears of room, though nobody asks.
func TestStagedIsPassedOn(t *testing.T) {
	s := newSpoken(t, inet4, smallSend)
	octets, chunks := s.fill(0)
	s.drink(0, 0, octets, false)
	until(t, "the memory", func() bool { return free(chunks) }, s.h)
}

// However a connection ends with a chunk kept, FIN comes behind it or not at all, and no memory stays.
func TestStagedEnds(t *testing.T) {
	for _, e := range []struct {
		name string
		do   func(s *spoken)
		fin  bool // in order
		gone bool // the connection is let go of
	}{
		{"CloseWrite", func(s *spoken) { require.NoError(s.t, s.c.CloseWrite()) }, true, false},
		{"Close", func(s *spoken) { s.c.Close() }, true, true},
		{"CloseWrite, Close", func(s *spoken) { require.NoError(s.t, s.c.CloseWrite()); s.c.Close() }, true, true},
		{"Abort", func(s *spoken) { s.c.Abort() }, false, true},
		{"CloseWrite, Abort", func(s *spoken) { require.NoError(s.t, s.c.CloseWrite()); s.c.Abort() }, false, true},
		{"RST", func(s *spoken) {
			s.burst(s.frame(flagRST, 0, 0))
			until(s.t, "the end", func() bool { _, err := s.c.Peek(); return err != nil }, s.h)
			for _, n := range []int{1, StageSize} {
				refs, err := stage(s.t, s.c, 0, 0, n)
				require.ErrorIs(s.t, err, syscall.ECONNRESET)
				require.Zero(s.t, refs.count())
			}
			s.c.Close()
		}, false, true},
		{"RST that nobody looks at", func(s *spoken) { s.burst(s.frame(flagRST, 0, 0)) }, false, false},
		{"Close, RST", func(s *spoken) { s.c.Close(); s.burst(s.frame(flagRST, 0, 0)) }, false, true},
		{"the end of the stack", func(s *spoken) { require.NoError(s.t, s.h.Close()) }, false, true},
	} {
		t.Run(e.name, func(t *testing.T) {
			bothWays(t, smallSend, func(t *testing.T, c Config) {
				s := newSpoken(t, inet4, c)
				octets, chunks := s.fill(0)
				e.do(s)
				if e.fin {
					require.NotNil(t, s.c.out.chunk, "there is still no room")
					if !e.gone {
						require.Zero(t, s.c.Room())
					}
					got, _ := s.drink(0, 0, octets, true)
					require.Equal(t, octets, got)
				}
				until(t, "the memory", func() bool {
					if !e.gone {
						_ = s.c.Room()
					}
					return free(chunks)
				}, s.h)
				if e.gone {
					until(t, "the connection", func() bool { return s.h.Stats().Conns == 0 }, s.h)
				}
			})
		})
	}
}

// Commit fails as Writev does, and keeps nothing.
func TestCommitErrors(t *testing.T) {
	same := func(t *testing.T, c *Conn, target error) {
		t.Helper()
		for _, n := range []int{1, StageSize / 2, StageSize} {
			want := c.Writev([][]byte{{1}})
			require.ErrorIs(t, want, target)
			refs, err := stage(t, c, 0, 0, n)
			require.Equal(t, want, err)
			require.Zero(t, refs.count())
		}
		require.NotNil(t, c.Stage())
		require.NoError(t, c.Commit(0))
	}
	t.Run("before it is established, and after that failed", func(t *testing.T) {
		w := newWire(t, Config{})
		c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(addrB, 1))
		require.NoError(t, err)
		same(t, c, errNotConnected)
		c.Abort()
		same(t, c, net.ErrClosed)
	})
	for _, e := range []struct {
		name string
		do   func(s *spoken)
		err  error
	}{
		{"after CloseWrite", func(s *spoken) { require.NoError(s.t, s.c.CloseWrite()) }, errFIN},
		{"after Close", func(s *spoken) { s.c.Close() }, net.ErrClosed},
		{"after Abort", func(s *spoken) { s.c.Abort() }, net.ErrClosed},
		{"after a reset", func(s *spoken) {
			s.burst(s.frame(flagRST, 0, 0))
			until(s.t, "the end", func() bool { _, err := s.c.Peek(); return err != nil }, s.h)
		}, syscall.ECONNRESET},
		{"after a reset nobody looked at", func(s *spoken) {
			s.burst(s.frame(flagRST, 0, 0))
			until(s.t, "the end", func() bool { return s.c.user.state() == tcp.StateError }, s.h)
			refs, err := stage(s.t, s.c, 0, 0, StageSize)
			require.ErrorIs(s.t, err, syscall.ECONNRESET)
			require.Zero(s.t, refs.count())
		}, syscall.ECONNRESET},
	} {
		t.Run(e.name, func(t *testing.T) {
			s := newSpoken(t, inet4, smallSend)
			e.do(s)
			same(t, s.c, e.err)
		})
	}
}

// Stage lends the same memory until Commit, which sends nothing for nothing.
func TestStageTwice(t *testing.T) {
	s := newSpoken(t, inet4, smallSend)
	b := s.c.Stage()
	refs := refsOf(s.c.user.stage)
	require.Same(t, &b[0], &s.c.Stage()[0])
	pattern(b, 0, 0)
	require.NoError(t, s.c.Commit(0))
	require.Zero(t, refs.count())
	require.Zero(t, s.c.user.flow.sent.Load())
	for _, n := range []int{0, 1, -1} {
		require.Panics(t, func() { _ = s.c.Commit(n) }, "%d octets of nothing", n)
	}
	for _, n := range []int{-1, StageSize + 1} {
		require.NotNil(t, s.c.Stage())
		require.Panics(t, func() { _ = s.c.Commit(n) }, "%d octets", n)
		require.NoError(t, s.c.Commit(0))
	}
	_, err := stage(t, s.c, 0, 0, 10)
	require.NoError(t, err)
	s.drink(0, 0, 10, false)
}

// The same chunks serve again and again.
func TestStagingDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("LEFT OUT: the race detector makes pools forget")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // so does a collection
	pool := &chunkPools[len(chunkPools)-1]
	usual, made := pool.New, atomic.Int64{}
	pool.New = func() any { made.Add(1); return usual() }
	t.Cleanup(func() { pool.New = usual }) // when the stacks are gone
	p := newUserPair(t, pipe1500, Config{SendBuffer: MinBuffer})
	ca, cb, _ := p.connect()
	k, sent := checker{}, 0
	const total = 1000 * StageSize
	p.until("the octets", func() bool {
		for sent < total && ca.Room() > 0 {
			_, err := stage(t, ca, 0, sent, StageSize)
			require.NoError(t, err)
			sent += StageSize
		}
		require.NoError(t, k.receive(t, cb))
		return k.at == total
	})
	require.Less(t, made.Load(), int64(100), "chunks for a buffer of four")

	b := [][]byte{nil}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b[0] = ca.Stage()
		_ = ca.Commit(0)
	}))
}
