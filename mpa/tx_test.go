package mpa

import (
	"bytes"
	"io"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mempool"
)

func TestWriteVectors(t *testing.T) {
	for _, v := range wiretest.FPDUs() {
		t.Run(v.Name, func(t *testing.T) {
			c, near, far := openConn(t, Params{CRC: true})
			u := v.ULPDU()
			require.NoError(t, c.Write(u[:14], [][]byte{u[14:14], u[14:min(16, len(u))], u[min(16, len(u)):]}))
			require.Equal(t, len(v.Octets), c.Pending())
			require.Empty(t, read(far), "nothing before Flush")
			require.NoError(t, c.Flush())
			require.Equal(t, v.Octets, read(far))
			require.Zero(t, c.Pending())
			_, calls := near.Written()
			require.Equal(t, 1, calls)
			require.Equal(t, Stats{FPDUsOut: 1, OctetsOut: uint64(len(v.Octets))}, c.Stats())
			require.NoError(t, c.Flush(), "nothing to do")
			_, calls = near.Written()
			require.Equal(t, 1, calls)
		})
	}
	t.Run("MPA-25 CRC off: zeros", func(t *testing.T) {
		c, _, far := openConn(t, Params{})
		for _, v := range wiretest.FPDUs() {
			require.NoError(t, c.Write(v.ULPDU(), nil))
			require.NoError(t, c.Flush())
			want := bytes.Clone(v.Octets)
			clear(want[len(want)-crcLen:])
			require.Equal(t, want, read(far))
		}
	})
	t.Run("MPA-73 MPA-71 whole FPDUs in one write", func(t *testing.T) {
		c, near, far := openConn(t, Params{CRC: true})
		stream, ulpdus := vectorStream()
		for _, u := range ulpdus {
			require.NoError(t, c.Write(u, nil))
		}
		require.NoError(t, c.Flush())
		require.Equal(t, stream, read(far))
		_, calls := near.Written()
		require.Equal(t, 1, calls)
	})
	t.Run("MPA-53 SEC-21 pad and CRC field never show old octets", func(t *testing.T) {
		c, _, far := openWide(t, Params{})
		require.NoError(t, c.Write(bytes.Repeat([]byte{0xff}, 4000), nil))
		require.NoError(t, c.Flush())
		read(far)
		for n := range 9 {
			require.NoError(t, c.Write(bytes.Repeat([]byte{0xee}, n), nil))
		}
		require.NoError(t, c.Flush())
		got := read(far)
		for n := range 9 {
			require.Equal(t, wiretest.Frame(bytes.Repeat([]byte{0xee}, n), false), got[:FPDUSize(n)])
			got = got[FPDUSize(n):]
		}
		require.Empty(t, got)
	})
	t.Run("MPA-54 up to 64768 octets, not more", func(t *testing.T) {
		c, _, far := openWide(t, Params{CRC: true})
		require.NoError(t, c.Write(count(18), [][]byte{count(MaxULPDU - 18)}))
		require.NoError(t, c.Flush())
		require.Equal(t, wiretest.Frame(append(count(18), count(MaxULPDU-18)...), true), read(far))
		require.PanicsWithValue(t, "mpa: Write of 64769 octets, the maximum is 64768", func() { _ = c.Write(nil, [][]byte{count(MaxULPDU + 1)}) })
	})
}

func TestFPDUSize(t *testing.T) {
	for n := range 65536 {
		size := FPDUSize(n)
		require.Zero(t, size%4)
		require.GreaterOrEqual(t, size, 2+n+4)
		require.Less(t, size, 2+n+4+4)
	}
	require.Equal(t, 65544, FPDUSize(65535), "MPA-77")
}

func TestMULPDU(t *testing.T) {
	t.Run("MPA-69 the table of sizes, and EMSS changes", func(t *testing.T) {
		c, near, _ := openConn(t, Params{})
		for _, tc := range [][2]int{
			{536, 530}, {1220, 1214}, {1440, 1434}, {1448, 1442}, {1460, 1454}, {1461, 1454}, {8948, 8942}, {8960, 8954},
			{65483, 64768}, {64776, 64768}, {64775, 64766}, {134, 128}, {133, 128}, {100, 128}, {0, 128},
		} {
			near.SetMSS(tc[0])
			require.Equal(t, tc[1], c.MULPDU(), "EMSS %d", tc[0])
		}
	})
	t.Run("MPA-71 the largest FPDU fits the segment", func(t *testing.T) {
		for mss := 136; mss <= 65536; mss++ {
			n := mulpduFor(mss)
			require.LessOrEqual(t, FPDUSize(n), mss)
			if n < MaxULPDU {
				require.Greater(t, FPDUSize(n+1), mss-mss%4)
			}
		}
	})
	t.Run("MPA-69 a ULPDU cut before still goes", func(t *testing.T) {
		c, near, far := openConn(t, Params{CRC: true})
		n := c.MULPDU()
		near.SetMSS(536)
		require.NoError(t, c.Write(count(n), nil))
		require.NoError(t, c.Flush())
		require.Equal(t, wiretest.Frame(count(n), true), read(far))
	})
	t.Run("MPA-74 FPDUs larger than the EMSS when agreed", func(t *testing.T) {
		c, _, _ := openConn(t, Params{LargeFPDUs: true})
		require.Equal(t, MaxULPDU, c.MULPDU())
	})
}

func TestCanWrite(t *testing.T) {
	near, far := streamPair(testMSS, 1000)
	c := NewConn(near, newPool(t, poolConfig))
	require.False(t, c.CanWrite(0), "MPA-12 not before FPDU mode")
	c.advance(stateRequestSent)
	c.enterFPDU(Params{CRC: true})
	require.True(t, c.CanWrite(994))
	require.False(t, c.CanWrite(995))
	require.NoError(t, c.Write(count(494), nil)) // 500 octets
	require.True(t, c.CanWrite(494))
	require.False(t, c.CanWrite(495), "staged octets count")
	require.NoError(t, c.Flush())
	require.True(t, c.CanWrite(494))
	require.NoError(t, c.Write(count(494), nil))
	require.False(t, c.CanWrite(0))
	require.NoError(t, c.Flush())
	require.False(t, c.CanWrite(0))
	require.Len(t, read(far), 1000)
	require.True(t, c.CanWrite(994), "room is looked up again")
	require.NoError(t, c.Write(count(10), nil))
	require.NoError(t, c.Flush())
	require.False(t, c.CanWrite(994))
	read(far)
	require.True(t, c.CanWrite(494))
	require.NoError(t, c.Write(count(494), nil))
	require.True(t, c.CanWrite(494), "and while something is staged")
	c.Drop()
}

func TestFlushBySize(t *testing.T) {
	near, far := streamPair(testMSS, testBuffer)
	pool := newPool(t, mempool.Config{Count: 1, Size: 1000})
	c := open(NewConn(near, pool), Params{CRC: true})
	var want []byte
	for range 5 {
		require.NoError(t, c.Write(count(394), nil)) // 400 octets
		want = append(want, wiretest.Frame(count(394), true)...)
	}
	require.Equal(t, want[:1600], read(far))
	require.Equal(t, 400, c.Pending())
	require.Equal(t, 1, pool.Out())
	require.NoError(t, c.Flush())
	require.Equal(t, want[1600:], read(far))
	require.Zero(t, pool.Out(), "given back with Flush")
	require.EqualValues(t, 5, c.Stats().FPDUsOut)
	require.NoError(t, c.Write(count(994), nil))
	require.NoError(t, c.Flush())
	require.Panics(t, func() { _ = c.Write(count(995), nil) }, "no buffer is large enough")
	c.Drop()
}

func TestWriteErrors(t *testing.T) {
	t.Run("MPA-84 a reset sticks to the send half", func(t *testing.T) {
		c, near, far := openConn(t, Params{CRC: true})
		require.NoError(t, c.Write(count(20), nil))
		far.Abort()
		err := c.Flush()
		require.Equal(t, CodeClosed, code(t, err))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.True(t, c.CanWrite(MaxULPDU), "so that Write is called and tells")
		require.Equal(t, err, c.Write(count(20), nil))
		require.Equal(t, err, c.Flush())
		require.Equal(t, err, c.CloseWrite())
		require.Zero(t, c.Pending())
		require.Zero(t, c.Stats().FPDUsOut)
		octets, _ := near.Written()
		require.Zero(t, octets)
	})
	t.Run("a write that does not fit", func(t *testing.T) {
		near, _ := streamPair(testMSS, 100)
		c := open(NewConn(near, newPool(t, poolConfig)), Params{})
		require.NoError(t, c.Write(count(100), nil))
		require.ErrorIs(t, c.Flush(), syscall.ENOBUFS)
	})
	t.Run("after CloseWrite", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		require.NoError(t, c.Write(wiretest.FPDUs()[0].ULPDU(), nil))
		require.NoError(t, c.CloseWrite())
		require.Equal(t, helloFPDU, readEnd(t, far, io.EOF))
		require.NoError(t, c.Write(count(20), nil))
		require.ErrorIs(t, c.Flush(), syscall.EPIPE)
	})
	t.Run("CloseWrite on a dead stream", func(t *testing.T) {
		c, _, far := openConn(t, Params{})
		far.Abort()
		require.Equal(t, CodeClosed, code(t, c.CloseWrite()))
	})
	t.Run("Drop forgets what is staged", func(t *testing.T) {
		c, _, far := openConn(t, Params{})
		require.NoError(t, c.Write(count(20), nil))
		c.Drop()
		require.Zero(t, c.Pending())
		require.NoError(t, c.Flush())
		require.Empty(t, read(far))
	})
	t.Run("a closed pool", func(t *testing.T) {
		near, _ := streamPair(testMSS, testBuffer)
		pool := newPool(t, poolConfig)
		require.NoError(t, pool.Close())
		c := open(NewConn(near, pool), Params{})
		err := c.Write(count(20), nil)
		require.ErrorIs(t, err, mempool.ErrClosed)
		require.Equal(t, err, c.Write(count(20), nil))
	})
	t.Run("an empty pool makes the writer wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			near, _ := streamPair(testMSS, testBuffer)
			pool := newPool(t, mempool.Config{Count: 1, Size: 1000})
			c := open(NewConn(near, pool), Params{})
			b := pool.Get()
			done := false
			go func() {
				_ = c.Write(count(20), nil)
				_ = c.Flush()
				done = true
			}()
			synctest.Wait()
			require.False(t, done)
			b.Release()
			synctest.Wait()
			require.True(t, done)
		})
	})
}

// TestBothHalves runs the receive half and the send half at the same time, both
// ways, over pieces of every size.
func TestBothHalves(t *testing.T) {
	x, y := streamPair(testMSS, 20000)
	x.Rechunk(1, 3000)
	pool := newPool(t, poolConfig)
	const rounds = 2000
	size := func(i int) int { return i * 7919 % 1500 }
	a, b := NewConn(x, pool), NewConn(y, pool)
	require.NoError(t, a.Request(Config{}, nil))
	_, ok, err := b.RecvRequest(Config{})
	require.NoError(t, err)
	require.True(t, ok)
	_, err = b.Accept(Config{}, nil)
	require.NoError(t, err)
	_, ok, err = a.RecvReply()
	for !ok && err == nil {
		_, ok, err = a.RecvReply()
	}
	require.NoError(t, err)

	wait := func(c chan struct{}) bool { // false: the other half has failed
		late := time.NewTimer(patience)
		defer late.Stop()
		select {
		case <-c:
			return true
		case <-late.C:
			t.Error("nothing happens any more")
			return false
		}
	}
	var wg sync.WaitGroup
	for _, end := range []struct {
		c *Conn
		s *simnet.Stream
	}{{a, x}, {b, y}} {
		// One goroutine takes the signal for both halves, as a device does.
		rx, tx, stop := make(chan struct{}, 1), make(chan struct{}, 1), make(chan struct{})
		go func() {
			for {
				select {
				case <-end.s.Notify():
				case <-stop:
					return
				}
				for _, c := range []chan struct{}{rx, tx} {
					select {
					case c <- struct{}{}:
					default:
					}
				}
			}
		}()
		var halves sync.WaitGroup
		halves.Go(func() {
			data := count(1500)
			for i := 0; i < rounds; {
				if !end.c.CanWrite(size(i)) {
					if end.c.Pending() > 0 {
						if err := end.c.Flush(); err != nil {
							t.Error(err)
							return
						}
						continue
					}
					if !wait(tx) {
						return
					}
					continue
				}
				if err := end.c.Write(data[:min(14, size(i))], [][]byte{data[min(14, size(i)):size(i)]}); err != nil {
					t.Error(err)
					return
				}
				i++
			}
			if err := end.c.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		halves.Go(func() {
			got := make([]byte, 1500)
			for i := 0; ; {
				u, ok, err := end.c.Next()
				switch {
				case err == io.EOF:
					if i != rounds {
						t.Errorf("%d ULPDUs of %d", i, rounds)
					}
					return
				case err != nil:
					t.Error(err)
					return
				case !ok:
					if !wait(rx) {
						return
					}
				default:
					if n := u.CopyTo(got, 0); n != size(i) || !bytes.Equal(got[:n], count(1500)[:n]) {
						t.Errorf("ULPDU %d: %d octets", i, n)
						return
					}
					i++
				}
			}
		})
		wg.Go(func() {
			halves.Wait()
			close(stop)
		})
	}
	wg.Wait()
}

// TestWriteNext is the round trip of any ULPDU.
func TestWriteNext(t *testing.T) {
	pool := newPool(t, poolConfig)
	rapid.Check(t, func(t *rapid.T) {
		x, y := streamPair(testMSS, wideBuffer)
		p := Params{CRC: rapid.Bool().Draw(t, "CRC")}
		a, b := NewConn(x, pool), NewConn(y, pool)
		open(a, p)
		open(b, p)
		var want [][]byte
		for range rapid.IntRange(1, 20).Draw(t, "ULPDUs") {
			head := rapid.SliceOfN(rapid.Byte(), 0, 70).Draw(t, "head")
			payload := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 200), 0, 4).Draw(t, "payload")
			require.NoError(t, a.Write(head, payload))
			want = append(want, append(bytes.Clone(head), bytes.Join(payload, nil)...))
		}
		require.NoError(t, a.Flush())
		for _, w := range want {
			u, ok, err := b.Next()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, len(w), u.Len())
			require.True(t, bytes.Equal(w[:min(len(w), MaxHead)], u.Head(MaxHead)))
			got := make([]byte, u.Len())
			u.CopyTo(got, 0)
			require.True(t, bytes.Equal(w, got))
		}
	})
}
