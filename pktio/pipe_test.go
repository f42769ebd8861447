package pktio

import (
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func newPipe(t testing.TB, c PipeConfig) (a, b *Pipe) {
	t.Helper()
	a, b, err := NewPipe(c)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, p := range []*Pipe{a, b} {
			require.NoError(t, p.Close())
			_, err := p.Recv(nil, 0)
			require.ErrorIs(t, err, net.ErrClosed)
		}
		for _, p := range []*Pipe{a, b} {
			require.NoError(t, p.Pool().Close(), "every frame buffer comes back")
		}
	})
	return a, b
}

func TestPipeConfig(t *testing.T) {
	for _, c := range []PipeConfig{{MTU: 67}, {MTU: 65536}, {MTU: -1}, {Depth: -1}, {Buffers: -1}, {Buffers: 1 << 20}} {
		_, _, err := NewPipe(c)
		require.Error(t, err, "%+v", c)
	}
	a, b := newPipe(t, PipeConfig{})
	require.Equal(t, Link{MTU: 1500, Addr: [6]byte{2, 0, 0, 0, 0, 0xa}, MaxFrame: 1514, Name: "pipe-a"}, a.Link())
	require.Equal(t, Link{MTU: 1500, Addr: [6]byte{2, 0, 0, 0, 0, 0xb}, MaxFrame: 1514, Name: "pipe-b"}, b.Link())
	a, _ = newPipe(t, PipeConfig{MTU: 9000, GSO: true, Depth: 8})
	require.Equal(t, Link{MTU: 9000, Addr: [6]byte{2, 0, 0, 0, 0, 0xa}, MaxFrame: 65549, GSO: true, Checksum: true, Name: "pipe-a"}, a.Link())
	a, _ = newPipe(t, PipeConfig{Checksum: true})
	require.True(t, a.Link().Checksum)
	require.False(t, a.Link().GSO)
}

func TestFrame(t *testing.T) {
	f := Frame{Data: [][]byte{{1, 2}, {}, {3}, nil, {4, 5, 6}}}
	require.Equal(t, 6, f.Len())
	b := make([]byte, 8)
	require.Equal(t, 6, f.CopyTo(b))
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 0, 0}, b)
	require.Equal(t, 4, f.CopyTo(b[:4]))
	require.Zero(t, (&Frame{}).Len())
}

func TestPipeCarriesFramesInOrder(t *testing.T) {
	a, b := newPipe(t, PipeConfig{Checksum: true})
	x := rawFrame(b.link.Addr, a.link.Addr, 60)
	y := rawFrame(b.link.Addr, a.link.Addr, 1514)
	n, err := a.Send([]Frame{
		{Data: [][]byte{x[:14], x[14:14], x[14:]}, Offload: Offload{CsumValid: true}},
		{Data: [][]byte{y}, Offload: Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 16}},
	})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	clear(x[14:])
	batch := make([]Frame, 3)
	n, err = b.Recv(batch, -1)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, rawFrame(b.link.Addr, a.link.Addr, 60), octets(&batch[0]), "copied at Send")
	require.Equal(t, Offload{}, batch[0].Offload, "CsumValid is the receiver's to find out")
	require.Equal(t, y, octets(&batch[1]))
	require.Equal(t, Offload{NeedsCsum: true, CsumStart: 34, CsumOffset: 16}, batch[1].Offload)
	n, err = b.Recv(batch, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, PipeStats{TxFrames: 2, TxOctets: 1574}, a.Stats())
	require.Equal(t, PipeStats{RxFrames: 2, RxOctets: 1574}, b.Stats())
	n, err = a.Recv(batch, 0)
	require.NoError(t, err)
	require.Zero(t, n, "nothing comes back to the sender")
}

func TestPipeRefusesWhatTheLinkDoesNotTake(t *testing.T) {
	plain, _ := newPipe(t, PipeConfig{})
	gso, _ := newPipe(t, PipeConfig{GSO: true, Depth: 4})
	for _, c := range []struct {
		name string
		p    *Pipe
		n    int
		o    Offload
		err  error
	}{
		{"no Ethernet header", plain, 13, Offload{}, ErrBadFrame},
		{"nothing", plain, 0, Offload{}, ErrBadFrame},
		{"shortest", plain, 14, Offload{}, nil},
		{"longest", plain, 1514, Offload{}, nil},
		{"too long", plain, 1515, Offload{}, ErrTooLong},
		{"checksum to finish", plain, 100, Offload{NeedsCsum: true}, ErrBadFrame},
		{"super-frame", plain, 100, Offload{GSO: GSOTCPv4}, ErrBadFrame},
		{"too long and no super-frame", gso, 1515, Offload{}, ErrTooLong},
		{"longest super-frame", gso, 65549, Offload{GSO: GSOTCPv4, NeedsCsum: true}, nil},
		{"too long a super-frame", gso, 65550, Offload{GSO: GSOTCPv4}, ErrTooLong},
	} {
		good := rawFrame([6]byte{}, [6]byte{}, 60)
		n, err := c.p.Send([]Frame{{Data: [][]byte{good}}, {Data: [][]byte{make([]byte, c.n)}, Offload: c.o}})
		require.ErrorIs(t, err, c.err, c.name)
		if c.err != nil {
			require.Equal(t, 1, n, "%s: the frames before it are taken", c.name)
		} else {
			require.Equal(t, 2, n, c.name)
		}
	}
	require.ErrorIs(t, ErrTooLong, syscall.EMSGSIZE)
	require.ErrorIs(t, ErrBadFrame, syscall.EINVAL)
}

func TestPipeDropsWhenFull(t *testing.T) {
	f := rawFrame([6]byte{}, [6]byte{}, 60)
	send := func(p *Pipe, n int) int {
		var batch []Frame
		for range n {
			batch = append(batch, Frame{Data: [][]byte{f}})
		}
		n, err := p.Send(batch)
		require.NoError(t, err)
		return n
	}
	a, _ := newPipe(t, PipeConfig{Depth: 3})
	require.Equal(t, 3, send(a, 5))
	require.Equal(t, 0, send(a, 1))
	require.Equal(t, PipeStats{TxFrames: 3, TxOctets: 180, QueueFull: 3}, a.Stats())

	a, b := newPipe(t, PipeConfig{Depth: 3, Buffers: 2})
	require.Equal(t, 2, send(a, 3))
	require.EqualValues(t, 1, a.Stats().NoBuffer)
	batch := make([]Frame, 8)
	n, err := b.Recv(batch, 0)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Equal(t, 0, send(a, 1), "lent frames keep their buffers")
	n, err = b.Recv(batch, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, 2, send(a, 2), "the next Recv gives them back")
	require.Equal(t, 2, send(b, 3), "the other direction has buffers of its own")
}

func TestPipeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(t, PipeConfig{Depth: 4})
		batch := make([]Frame, 4)
		for range 2 {
			start := time.Now()
			n, err := b.Recv(batch, time.Second)
			require.NoError(t, err)
			require.Zero(t, n)
			require.Equal(t, time.Second, time.Since(start))
		}
		for _, wait := range []time.Duration{time.Hour, -1} {
			start := time.Now()
			time.AfterFunc(time.Minute, func() {
				_, err := a.Send([]Frame{one(make([]byte, 60))[0], one(make([]byte, 61))[0]})
				if err != nil {
					t.Error(err)
				}
			})
			n, err := b.Recv(batch, wait)
			require.NoError(t, err)
			require.Equal(t, time.Minute, time.Since(start))
			require.Equal(t, 60, batch[0].Len())
			if n == 1 { // the second one came just after the receiver woke
				_, err = b.Recv(batch, -1)
				require.NoError(t, err)
			}
		}
		n, err := b.Recv(nil, -1)
		require.NoError(t, err)
		require.Zero(t, n, "an empty batch does not wait")
	})
}

func TestPipeClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newPipe(t, PipeConfig{Depth: 4})
		f := make([]byte, 60)
		failed := make(chan error)
		go func() {
			_, err := b.Recv(make([]Frame, 1), -1)
			failed <- err
		}()
		synctest.Wait()
		require.NoError(t, b.Close())
		require.ErrorIs(t, <-failed, net.ErrClosed)
		require.NoError(t, b.Close(), "idempotent")
		_, err := b.Send(one(f))
		require.ErrorIs(t, err, net.ErrClosed)

		n, err := a.Send(one(f))
		require.NoError(t, err, "an end does not learn that the other is closed")
		require.Equal(t, 1, n)
		require.EqualValues(t, 1, a.Stats().NoPeer)
		require.Zero(t, a.Stats().TxFrames)
		require.Zero(t, a.Pool().Out())
		n, err = a.Recv(make([]Frame, 1), time.Second)
		require.NoError(t, err)
		require.Zero(t, n)
	})
}

func TestPipeKeepsLentFramesAcrossClose(t *testing.T) {
	a, b := newPipe(t, PipeConfig{Depth: 4})
	f := rawFrame([6]byte{}, [6]byte{}, 100)
	for range 3 {
		_, err := a.Send(one(f))
		require.NoError(t, err)
	}
	batch := make([]Frame, 2)
	n, err := b.Recv(batch, -1)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.NoError(t, b.Close())
	require.Equal(t, 2, a.Pool().Out(), "what nobody received is dropped, what is lent is not")
	require.Equal(t, f, octets(&batch[1]))
	_, err = b.Recv(batch, -1)
	require.ErrorIs(t, err, net.ErrClosed)
	require.Zero(t, a.Pool().Out())
}

// Senders, a receiver and Close at once: every frame is received whole or dropped, and no buffer stays out.
func TestPipeConcurrently(t *testing.T) {
	for round := range 20 {
		a, b := newPipe(t, PipeConfig{Depth: 16, Buffers: 20})
		var wg sync.WaitGroup
		for s := range 2 {
			wg.Go(func() {
				f := rawFrame([6]byte{byte(s)}, [6]byte{byte(s)}, 200)
				for {
					if _, err := a.Send([]Frame{{Data: [][]byte{f}}, {Data: [][]byte{f[:50], f[50:]}}}); err != nil {
						return
					}
				}
			})
		}
		wg.Go(func() {
			batch := make([]Frame, 5)
			for got := 0; ; {
				n, err := b.Recv(batch, -1)
				if err != nil {
					return
				}
				for i := range batch[:n] {
					d := octets(&batch[i])
					if len(d) != 200 || d[0] != d[6] || d[199] != 199 {
						t.Error("a frame was damaged")
					}
				}
				if got += n; got > 200 && round%2 == 0 {
					_ = b.Close()
				} else if got > 200 {
					_ = a.Close()
					_ = b.Close()
				}
			}
		})
		go func() {
			time.Sleep(20 * time.Millisecond)
			_ = b.Close()
			_ = a.Close()
		}()
		wg.Wait()
		require.Zero(t, a.Pool().Out())
	}
}

func TestPipeTwoReceiversPanic(t *testing.T) {
	_, b := newPipe(t, PipeConfig{})
	b.receiving.Store(true)
	require.PanicsWithValue(t, "pktio: two goroutines in Recv", func() { _, _ = b.Recv(nil, 0) })
	b.receiving.Store(false)
}

func TestPipeDoesNotAllocate(t *testing.T) {
	for _, c := range []PipeConfig{{}, {GSO: true}} {
		a, b := newPipe(t, c)
		tx := one(make([]byte, 14), make([]byte, 100))
		rx := make([]Frame, 4)
		var p Port = b
		run := func(wait time.Duration) func() {
			return func() {
				_, _ = p.Recv(rx, 0)
				if n, _ := a.Send(tx); n != 1 {
					t.Error("not sent")
				}
				if n, _ := p.Recv(rx, wait); n != 1 {
					t.Error("not received")
				}
			}
		}
		for _, wait := range []time.Duration{0, time.Minute, -1} {
			require.Zero(t, testing.AllocsPerRun(100, run(wait)), "wait %v", wait)
		}
		run(time.Nanosecond)()
		require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = p.Recv(rx, time.Nanosecond) }), "time over")
	}
}
