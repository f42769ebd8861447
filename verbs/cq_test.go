package verbs

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
)

func newTestCQ(t testing.TB, c CQConfig) (*CQ, *ring.CQ) {
	t.Helper()
	d := NewDevice(newFake().provider(DeviceAttr{}))
	t.Cleanup(func() { d.Close() })
	cq, err := d.CreateCQ(c)
	require.NoError(t, err)
	return cq, cq.c.ring
}

func TestCreateCQ(t *testing.T) {
	_, d, _ := newDevice(t, DeviceAttr{MaxCQ: 2, MaxCQE: 1000})
	for _, n := range []int{-1, 1001} {
		_, err := d.CreateCQ(CQConfig{Depth: n})
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	t.Run("VRB-59 capacity is at least what was asked for", func(t *testing.T) {
		for _, n := range []int{1, 2, 3, 100, 1000} {
			c, err := d.CreateCQ(CQConfig{Depth: n})
			require.NoError(t, err)
			require.GreaterOrEqual(t, c.Cap(), n)
			require.NoError(t, c.Close())
		}
		c, err := d.CreateCQ(CQConfig{})
		require.NoError(t, err)
		require.Equal(t, DefaultCQDepth, c.Cap())
		require.Same(t, d, c.Device())
	})
	_, err := d.CreateCQ(CQConfig{})
	require.NoError(t, err)
	_, err = d.CreateCQ(CQConfig{})
	require.ErrorIs(t, err, syscall.ENOMEM)
}

func TestPoll(t *testing.T) {
	c, r := newTestCQ(t, CQConfig{Depth: 8})
	n, err := c.Poll(make([]WC, 4))
	require.NoError(t, err)
	require.Zero(t, n)
	for i := range uint64(5) {
		r.Push(&ring.Completion{ID: i, Op: ring.WCRecvRDMAWithImm, Flags: ring.WCFlagWithImm, Imm: 1 << 40, ByteLen: 9, QP: 3})
	}
	n, err = c.Poll(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	var wcs [4]WC
	n, err = c.Poll(wcs[:])
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, WC{ID: 3, Op: OpRecvWithImm, Flags: WCWithImm, Imm: 1 << 40, ByteLen: 9, QP: 3}, wcs[3])
	require.NoError(t, wcs[3].Err())
	n, err = c.Wait(t.Context(), wcs[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, uint64(4), wcs[0].ID)
}

func TestOverrun(t *testing.T) {
	f := newFake()
	d := NewDevice(f.provider(DeviceAttr{}))
	defer d.Close()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	small, err := d.CreateCQ(CQConfig{Depth: 2})
	require.NoError(t, err)
	other, err := d.CreateCQ(CQConfig{})
	require.NoError(t, err)
	a, err := pd.CreateQP(QPConfig{SendCQ: small, SignalAll: true})
	require.NoError(t, err)
	b, err := pd.CreateQP(QPConfig{SendCQ: other, SignalAll: true})
	require.NoError(t, err)
	f.connect(a, a)
	f.connect(b, b)
	_, err = b.PostSend(make([]SendWR, 1))
	require.NoError(t, err)

	_, err = a.PostSend([]SendWR{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}, {ID: 5}})
	require.NoError(t, err)
	t.Run("VRB-63 overrun raises CQ_ERR and ends the queue pair; nothing is overwritten", func(t *testing.T) {
		require.Equal(t, AsyncEvent{Type: EventCQErr, CQ: small.Num()}, <-f.events)
		require.Equal(t, QPSErr, a.State())
		wcs := poll(t, small)
		require.Len(t, wcs, 2)
		require.Equal(t, []uint64{1, 2}, []uint64{wcs[0].ID, wcs[1].ID})
		_, err := small.Poll(make([]WC, 1))
		require.ErrorIs(t, err, ErrCQOverrun)
		_, err = small.Wait(t.Context(), make([]WC, 1))
		require.ErrorIs(t, err, ErrCQOverrun, "waiting would be for ever")
		require.NotZero(t, d.Stats().CompletionsLost)
	})
	t.Run("VRB-64 others are unaffected", func(t *testing.T) {
		require.Equal(t, QPSRTS, b.State())
		_, err := b.PostSend(make([]SendWR, 1))
		require.NoError(t, err)
		require.Len(t, poll(t, other), 2)
	})
}

func TestWait(t *testing.T) {
	t.Run("parked until a completion comes", func(t *testing.T) {
		c, r := newTestCQ(t, CQConfig{SpinFor: -1})
		soon(t, "Wait", func() {
			go func() {
				for c.c.sleepers.Load() == 0 {
					runtime.Gosched()
				}
				r.Push(&ring.Completion{ID: 4})
			}()
			var wcs [2]WC
			n, err := c.Wait(context.Background(), wcs[:])
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, uint64(4), wcs[0].ID)
		})
	})
	t.Run("ctx", func(t *testing.T) {
		c, _ := newTestCQ(t, CQConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := c.Wait(ctx, make([]WC, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = c.Wait(ctx, make([]WC, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("a completion comes before an ended ctx", func(t *testing.T) {
		c, r := newTestCQ(t, CQConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r.Push(&ring.Completion{ID: 4})
		n, err := c.Wait(ctx, make([]WC, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
	t.Run("no room", func(t *testing.T) {
		c, _ := newTestCQ(t, CQConfig{})
		_, err := c.Wait(t.Context(), nil)
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("Close and overrun wake all", func(t *testing.T) {
		for _, end := range []func(*CQ, *ring.CQ){
			func(c *CQ, _ *ring.CQ) { require.NoError(t, c.Close()) },
			func(_ *CQ, r *ring.CQ) {
				for r.Push(&ring.Completion{}) {
				}
			},
		} {
			c, r := newTestCQ(t, CQConfig{Depth: 1, SpinFor: -1})
			var wg sync.WaitGroup
			var failed atomic.Int32
			for range 3 {
				wg.Go(func() {
					for {
						if _, err := c.Wait(context.Background(), make([]WC, 1)); err != nil {
							failed.Add(1)
							return
						}
					}
				})
			}
			for c.c.sleepers.Load() < 3 {
				runtime.Gosched()
			}
			end(c, r)
			soon(t, "waiters", wg.Wait)
			require.Equal(t, int32(3), failed.Load())
		}
	})
	t.Run("several waiters: none sleeps while something is there", func(t *testing.T) {
		const waiters, total = 4, 20_000
		c, r := newTestCQ(t, CQConfig{Depth: 64, SpinFor: -1})
		var got atomic.Int64
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range waiters {
			wg.Go(func() {
				for {
					n, err := c.Wait(ctx, make([]WC, 3))
					if err != nil {
						return
					}
					if got.Add(int64(n)) == total {
						cancel()
					}
				}
			})
		}
		soon(t, "waiters", func() {
			for i := range total {
				for r.Len() > 60 {
					runtime.Gosched()
				}
				if !r.Push(&ring.Completion{}) {
					panic("overrun")
				}
				if i%100 == 0 { // let them fall asleep now and then
					for r.Len() > 0 {
						runtime.Gosched()
					}
				}
			}
			wg.Wait()
		})
		require.Equal(t, int64(total), got.Load())
	})
	t.Run("Progress is driven by who polls", func(t *testing.T) {
		f := newFake()
		p := f.provider(DeviceAttr{})
		var c *CQ
		calls := 0
		p.Progress = func() {
			if calls++; calls == 3 {
				c.c.ring.Push(&ring.Completion{ID: 6})
			}
		}
		d := NewDevice(p)
		defer d.Close()
		var err error
		c, err = d.CreateCQ(CQConfig{})
		require.NoError(t, err)
		wcs := make([]WC, 1)
		n, _ := c.Poll(wcs)
		require.Zero(t, n)
		n, err = c.Wait(t.Context(), wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, 3, calls)
	})
}

// Where time stands still while goroutines run the spin must end too.
func TestWaitInFrozenTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDevice(newFake().provider(DeviceAttr{}))
		c, err := d.CreateCQ(CQConfig{SpinFor: time.Millisecond})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = c.Wait(ctx, make([]WC, 1))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, d.Close())
	})
}

func TestNotify(t *testing.T) {
	took := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	t.Run("VRB-60 one event for the next completion after the call", func(t *testing.T) {
		c, r := newTestCQ(t, CQConfig{})
		r.Push(&ring.Completion{})
		ch := c.Notify(false)
		require.False(t, took(ch), "not for what was there before")
		r.Push(&ring.Completion{})
		r.Push(&ring.Completion{})
		require.True(t, took(ch))
		require.False(t, took(ch))
		r.Push(&ring.Completion{})
		require.False(t, took(ch), "not armed again")
	})
	t.Run("VRB-60 solicited only: a failed completion counts", func(t *testing.T) {
		c, r := newTestCQ(t, CQConfig{})
		ch := c.Notify(true)
		r.Push(&ring.Completion{})
		require.False(t, took(ch))
		r.Push(&ring.Completion{Status: uint8(WCWRFlushErr)})
		require.True(t, took(ch))
		c.Notify(true)
		r.Push(&ring.Completion{Solicited: true})
		require.True(t, took(ch))
	})
	t.Run("VRB-61 the wider wins", func(t *testing.T) {
		for _, order := range [][]bool{{true, false}, {false, true}} {
			c, r := newTestCQ(t, CQConfig{})
			for _, s := range order {
				c.Notify(s)
			}
			r.Push(&ring.Completion{})
			require.True(t, took(c.Notify(true)))
		}
	})
	t.Run("solicited sends reach it", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		_, err := r.b.PostRecv(make([]RecvWR, 2))
		require.NoError(t, err)
		ch := r.rcq.Notify(true)
		_, err = r.a.PostSend([]SendWR{{Op: OpSend}})
		require.NoError(t, err)
		require.False(t, took(ch))
		_, err = r.a.PostSend([]SendWR{{Op: OpSend, Flags: SendSolicited}})
		require.NoError(t, err)
		require.True(t, took(ch))
	})
	t.Run("Close wakes for good", func(t *testing.T) {
		c, _ := newTestCQ(t, CQConfig{})
		ch := c.Notify(false)
		require.NoError(t, c.Close())
		require.True(t, took(ch))
		require.True(t, took(c.Notify(true)))
	})
}

// VRB-60: arm, poll, wait, one completion a round. A lost wake-up hangs.
func TestNotifyRace(t *testing.T) {
	const rounds = 100_000
	c, r := newTestCQ(t, CQConfig{Depth: 4})
	soon(t, "VRB-60 notify race", func() {
		go func() {
			for i := range uint64(rounds) {
				for r.Len() > 0 {
					runtime.Gosched()
				}
				r.Push(&ring.Completion{ID: i, Solicited: true})
			}
		}()
		var wcs [1]WC
		for i := uint64(0); i < rounds; {
			ch := c.Notify(i%2 == 0)
			n, err := c.Poll(wcs[:])
			if err != nil {
				panic(err)
			}
			if n == 0 {
				<-ch
				continue
			}
			if wcs[0].ID != i {
				panic("order")
			}
			i++
		}
	})
}

func TestAll(t *testing.T) {
	c, r := newTestCQ(t, CQConfig{})
	for i := range uint64(4) {
		r.Push(&ring.Completion{ID: i})
	}
	var ids []uint64
	for wc, err := range c.All(t.Context()) {
		require.NoError(t, err)
		if ids = append(ids, wc.ID); len(ids) == 2 {
			break
		}
	}
	require.Equal(t, []uint64{0, 1}, ids)
	require.Equal(t, 2, r.Len(), "what was not yielded stays")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	n := 0
	for _, err := range c.All(ctx) {
		if n++; n == 2 {
			cancel()
		}
		last = err
	}
	require.Equal(t, 3, n)
	require.ErrorIs(t, last, context.Canceled)
	require.NoError(t, c.Close())
	for _, err := range c.All(context.Background()) {
		last = err
	}
	require.True(t, errors.Is(last, ErrClosed))
}

func BenchmarkPoll(b *testing.B) {
	c, r := newTestCQ(b, CQConfig{})
	var wcs [16]WC
	e := ring.Completion{ID: 1}
	b.ReportAllocs()
	for b.Loop() {
		r.Push(&e)
		if n, _ := c.Poll(wcs[:]); n != 1 {
			b.Fatal(n)
		}
	}
}
