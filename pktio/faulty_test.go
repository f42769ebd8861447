package pktio

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// newFaulty makes a pipe with a Faulty on its first end.
func newFaulty(t testing.TB, c PipeConfig, f Faults) (*Faulty, *Pipe) {
	t.Helper()
	a, b := newPipe(t, c)
	y := NewFaulty(a, f)
	t.Cleanup(func() {
		require.NoError(t, y.Close())
		require.NoError(t, y.Close())
		_, err := y.Send(one(make([]byte, 60)))
		require.ErrorIs(t, err, net.ErrClosed)
		if y.pool != nil {
			require.NoError(t, y.pool.Close(), "every held frame comes back")
		}
	})
	return y, b
}

// number makes a frame that carries i.
func number(i int) []byte {
	b := rawFrame([6]byte{}, [6]byte{}, 60)
	b[14], b[15] = byte(i>>8), byte(i)
	return b
}

// sendNumbers sends frames from to to-1, one at a time.
func sendNumbers(t testing.TB, p Port, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		n, err := p.Send(one(number(i)))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
}

// numbers receives what is there.
func numbers(t testing.TB, p Port) []int {
	t.Helper()
	var got []int
	batch := make([]Frame, 16)
	for {
		n, err := p.Recv(batch, 0)
		require.NoError(t, err)
		if n == 0 {
			return got
		}
		for i := range batch[:n] {
			b := octets(&batch[i])
			got = append(got, int(b[14])<<8|int(b[15]))
		}
	}
}

func count(from, to int) []int {
	var s []int
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}

func TestFaultyPassesAllByDefault(t *testing.T) {
	y, b := newFaulty(t, PipeConfig{}, Faults{})
	require.Equal(t, "pipe-a", y.Link().Name)
	sendNumbers(t, y, 0, 100)
	require.Equal(t, count(0, 100), numbers(t, b))
	sendNumbers(t, b, 0, 10)
	require.Equal(t, count(0, 10), numbers(t, y))
	require.Equal(t, FaultyStats{Sent: 100}, y.Stats())
	require.Nil(t, y.done, "no goroutine while nothing waits")

	tx, rx := one(number(1)), make([]Frame, 2)
	require.Zero(t, testing.AllocsPerRun(50, func() { _, _ = y.Send(tx); _, _ = b.Recv(rx, 0) }))
	y.SetFaults(Faults{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1})
	tx = []Frame{tcpFrame(t, pattern(100), tcpOpts{})}
	for range 200 {
		_, _ = y.Send(tx)
		_, _ = b.Recv(rx, 0)
	}
	require.Zero(t, testing.AllocsPerRun(200, func() { _, _ = y.Send(tx); _, _ = b.Recv(rx, 0) }))
}

func TestFaultyLoses(t *testing.T) {
	run := func(f Faults) ([]int, FaultyStats) {
		y, b := newFaulty(t, PipeConfig{Depth: 2100}, f)
		sendNumbers(t, y, 0, 2000)
		return numbers(t, b), y.Stats()
	}
	first, st := run(Faults{Seed: 7, Loss: 0.1})
	require.InDelta(t, 1800, len(first), 60)
	require.Equal(t, FaultyStats{Sent: uint64(len(first)), Lost: uint64(2000 - len(first))}, st)
	again, _ := run(Faults{Seed: 7, Loss: 0.1})
	require.Equal(t, first, again, "the same seed makes the same faults")
	other, _ := run(Faults{Seed: 8, Loss: 0.1})
	require.NotEqual(t, first, other)
	more, st := run(Faults{Seed: 7, Loss: 0.1, Duplicate: 0.2})
	require.NotZero(t, st.Duplicated)
	require.EqualValues(t, len(more), st.Sent)
	require.Equal(t, first, slices.Compact(more), "another fault does not move the losses")
	all, st := run(Faults{Loss: 1})
	require.Empty(t, all)
	require.Equal(t, FaultyStats{Lost: 2000}, st)
}

func TestFaultyDuplicates(t *testing.T) {
	y, b := newFaulty(t, PipeConfig{}, Faults{Duplicate: 1})
	sendNumbers(t, y, 0, 3)
	require.Equal(t, []int{0, 0, 1, 1, 2, 2}, numbers(t, b))
	require.Equal(t, FaultyStats{Sent: 6, Duplicated: 3}, y.Stats())
}

func TestFaultyReorders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, b := newFaulty(t, PipeConfig{Depth: 1000}, Faults{Seed: 3, Reorder: 0.1})
		sendNumbers(t, y, 0, 500)
		time.Sleep(2 * reorderLimit) // for what is held back last
		synctest.Wait()
		got := numbers(t, b)
		require.NotEqual(t, count(0, 500), got)
		for at, i := range got {
			require.LessOrEqual(t, at-i, 2*reorderSpan, "frame %d is late", i)
		}
		moved := 0
		for i := 1; i < len(got); i++ {
			if got[i] < got[i-1] {
				moved++
			}
		}
		require.NotZero(t, moved)
		st := y.Stats()
		require.InDelta(t, 50, st.Reordered, 20)
		require.EqualValues(t, 500, st.Sent)
		slices.Sort(got)
		require.Equal(t, count(0, 500), got, "none is lost or doubled")

		y.SetFaults(Faults{Reorder: 1})
		sendNumbers(t, y, 0, 1)
		require.Empty(t, numbers(t, b))
		n, err := b.Recv(make([]Frame, 1), 2*reorderLimit)
		require.NoError(t, err)
		require.Equal(t, 1, n, "not held for ever when nothing follows")
		require.NoError(t, y.Close())
	})
}

func TestFaultyDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, b := newFaulty(t, PipeConfig{}, Faults{Delay: 10 * time.Millisecond})
		start := time.Now()
		batch := make([]Frame, 8)
		sendNumbers(t, y, 0, 2)
		time.Sleep(4 * time.Millisecond)
		sendNumbers(t, y, 2, 3)
		n, err := b.Recv(batch[:1], -1)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 10*time.Millisecond, time.Since(start))
		synctest.Wait()
		require.Equal(t, []int{1}, numbers(t, b))
		_, err = b.Recv(batch, -1)
		require.NoError(t, err)
		require.Equal(t, 14*time.Millisecond, time.Since(start))
		synctest.Wait()
		require.Equal(t, FaultyStats{Sent: 3, Delayed: 3}, y.Stats())

		// Jitter: each within its bounds, not all in order.
		y.SetFaults(Faults{Seed: 1, Delay: 10 * time.Millisecond, Jitter: 5 * time.Millisecond})
		start = time.Now()
		sendNumbers(t, y, 0, 50)
		var got []int
		for len(got) < 50 {
			_, err = b.Recv(nil, 0)
			require.NoError(t, err)
			n, err := b.Recv(batch[:1], -1)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)
			require.LessOrEqual(t, time.Since(start), 15*time.Millisecond)
			got = append(got, int(octets(&batch[0])[15]))
		}
		require.NotEqual(t, count(0, 50), got)
		slices.Sort(got)
		require.Equal(t, count(0, 50), got)

		// Delay off again: what waits still comes.
		sendNumbers(t, y, 0, 1)
		y.SetFaults(Faults{})
		sendNumbers(t, y, 1, 2)
		require.Equal(t, []int{1}, numbers(t, b))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []int{0}, numbers(t, b))

		// Close drops what waits and ends the goroutine, or this bubble would not end.
		y.SetFaults(Faults{Delay: time.Hour, Reorder: 0.5})
		sendNumbers(t, y, 0, 20)
		require.NotZero(t, y.pool.Out())
		require.NoError(t, y.Close())
		require.Zero(t, y.pool.Out())
	})
}

func TestFaultyQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, b := newFaulty(t, PipeConfig{Depth: 2}, Faults{Delay: time.Millisecond, Queue: 4})
		sendNumbers(t, y, 0, 7)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, []int{0, 1}, numbers(t, b))
		require.Equal(t, FaultyStats{Sent: 2, Delayed: 4, NoQueue: 3, NoRoom: 2}, y.Stats())

		y.SetFaults(Faults{Duplicate: 1})
		n, err := y.Send([]Frame{one(number(1))[0], one(number(2))[0]})
		require.NoError(t, err)
		require.Equal(t, 1, n, "a port without room takes no frame that is not held")
		require.Equal(t, []int{1, 1}, numbers(t, b))
		require.NoError(t, y.Close())
	})
}

func TestFaultyCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y, b := newFaulty(t, PipeConfig{}, Faults{})
		y.Cut(true)
		sendNumbers(t, y, 0, 5)
		sendNumbers(t, b, 0, 5)
		require.Empty(t, numbers(t, b))
		require.Empty(t, numbers(t, y))
		require.Equal(t, FaultyStats{CutTx: 5, CutRx: 5}, y.Stats())

		time.AfterFunc(time.Second, func() { _, _ = b.Send(one(number(1))) })
		time.AfterFunc(2*time.Second, func() { y.Cut(false); _, _ = b.Send(one(number(2))) })
		start := time.Now()
		batch := make([]Frame, 1)
		n, err := y.Recv(batch, -1)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 2*time.Second, time.Since(start), "a blocked Recv sleeps through the cut")
		sendNumbers(t, y, 5, 6)
		require.Equal(t, []int{5}, numbers(t, b))

		y.SetFaults(Faults{Delay: time.Second})
		sendNumbers(t, y, 6, 7)
		y.Cut(true)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Empty(t, numbers(t, b), "what comes due while the link is cut is lost")
		require.EqualValues(t, 6, y.Stats().CutTx)
		require.NoError(t, y.Close())
	})
}

func TestFaultyRefusesWhatTheLinkDoesNotTake(t *testing.T) {
	y, _ := newFaulty(t, PipeConfig{}, Faults{Corrupt: 1, Loss: 0.5})
	n, err := y.Send([]Frame{{Data: [][]byte{number(1)}}, {Data: [][]byte{make([]byte, 1515)}}})
	require.ErrorIs(t, err, ErrTooLong)
	require.Equal(t, 1, n)
}

// All faults at once, both ways, with the race detector looking on.
func TestFaultyConcurrently(t *testing.T) {
	a, b := newPipe(t, PipeConfig{})
	f := Faults{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1, Delay: 100 * time.Microsecond, Jitter: 100 * time.Microsecond}
	x, y := NewFaulty(a, f), NewFaulty(b, f)
	done := make(chan struct{})
	for _, p := range []*Faulty{x, y} {
		go func() {
			defer func() { done <- struct{}{} }()
			frame := tcpFrame(t, pattern(100), tcpOpts{})
			want := octets(&frame)
			batch := []Frame{frame, frame}
			for i := 0; ; i++ {
				if _, err := p.Send(batch); err != nil {
					break
				}
				p.Cut(i%100 == 99)
				if i%50 == 0 {
					p.SetFaults(f)
				}
				_ = p.Stats()
			}
			if !bytes.Equal(want, octets(&frame)) {
				t.Error("the sender's octets were touched")
			}
		}()
		go func() {
			defer func() { done <- struct{}{} }()
			rx := make([]Frame, 4)
			for {
				n, err := p.Recv(rx, -1)
				if err != nil {
					return
				}
				for i := range rx[:n] {
					if rx[i].Len() != 154 {
						t.Error("a frame of another length")
					}
				}
			}
		}()
	}
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	for range 4 {
		<-done
	}
	require.Zero(t, x.pool.Out())
	require.Zero(t, y.pool.Out())
}
