package verbs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newDevice(t *testing.T, attr DeviceAttr) (*fake, *Device, *PD) {
	t.Helper()
	f := newFake()
	d := NewDevice(f.provider(attr))
	t.Cleanup(func() { d.Close() })
	pd, err := d.AllocPD()
	require.NoError(t, err)
	return f, d, pd
}

func TestDeviceAttr(t *testing.T) {
	_, d, _ := newDevice(t, DeviceAttr{Name: "fake0", NodeType: NodeRNIC, Transport: TransportIWARP, MaxQP: 7})
	a := d.Attr()
	t.Run("VRB-02 node type RNIC, transport iWARP", func(t *testing.T) {
		require.Equal(t, NodeRNIC, a.NodeType)
		require.Equal(t, TransportIWARP, a.Transport)
	})
	t.Run("VRB-07 limits are reported", func(t *testing.T) {
		require.Equal(t, 7, a.MaxQP, "the provider's own stay")
		require.Equal(t, 32768, a.MaxQPWR)
		require.GreaterOrEqual(t, a.MaxSGE, 4)
		require.Equal(t, 1, a.MaxSGERd)
		require.Positive(t, a.MaxCQE)
		require.Positive(t, a.MaxMR)
		require.Zero(t, a.MaxMW, "what is not there stays 0")
		require.Zero(t, a.MaxSRQ)
		require.Equal(t, AtomicNone, a.AtomicCap)
		s := a.String()
		for _, want := range []string{"hca_id: fake0\n", "transport: iWARP\n", "node_type: RNIC\n", "max_qp: 7\n", "atomic_cap: NONE\n"} {
			require.Contains(t, s, want)
		}
	})
	require.Equal(t, "fake0", d.String())
	require.Panics(t, func() { NewDevice(Provider{}) })
}

func TestClose(t *testing.T) {
	t.Run("VRB-01 Device.Close closes everything, queue pairs first", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		pd2, err := r.dev.AllocPD()
		require.NoError(t, err)
		_, err = pd2.AllocMR(8, 0)
		require.NoError(t, err)
		_, err = r.a.PostRecv([]RecvWR{{ID: 5}})
		require.NoError(t, err)
		require.NoError(t, r.dev.Close())
		require.Equal(t, []string{"qp", "qp", "dereg", "dereg", "close"}, r.f.log)
		require.Equal(t, []WC{{ID: 5, Status: WCWRFlushErr, QP: r.a.Num()}}, poll(t, r.cq), "VRB-14 what was flushed can be polled")
		_, err = r.cq.Poll(make([]WC, 1))
		require.ErrorIs(t, err, ErrClosed)
		s := r.dev.Stats()
		require.Zero(t, s.PDs+s.MRs+s.CQs+s.QPs)
		require.Equal(t, uint64(1), s.RecvsPosted, "counters outlive their objects")
		require.Equal(t, uint64(1), s.Completions)

		for _, c := range []interface{ Close() error }{r.dev, r.pd, r.mr, r.cq, r.a} {
			require.NoError(t, c.Close(), "the second Close is nil")
		}
		_, err = r.dev.AllocPD()
		require.ErrorIs(t, err, ErrClosed)
		_, err = r.dev.CreateCQ(CQConfig{})
		require.ErrorIs(t, err, ErrClosed)
		_, err = r.pd.AllocMR(8, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = r.pd.CreateQP(QPConfig{})
		require.ErrorIs(t, err, ErrClosed)
		require.Len(t, r.f.log, 5)
	})
	t.Run("VRB-01 PD.Close closes its own children alone", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		pd2, err := r.dev.AllocPD()
		require.NoError(t, err)
		q, err := pd2.CreateQP(QPConfig{})
		require.NoError(t, err)
		require.NoError(t, r.pd.Close())
		require.Equal(t, []string{"qp", "qp", "dereg"}, r.f.log)
		_, err = r.pd.AllocMR(8, 0)
		require.ErrorIs(t, err, ErrClosed)
		_, err = q.PostRecv(make([]RecvWR, 1))
		require.NoError(t, err)
		require.Equal(t, 1, r.dev.Stats().QPs)
	})
	t.Run("VRB-01 a CQ with queue pairs is busy and nothing changes", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		q, err := r.pd.CreateQP(QPConfig{SendCQ: r.cq, RecvCQ: r.rcq})
		require.NoError(t, err)
		var busy *BusyError
		require.ErrorAs(t, r.cq.Close(), &busy)
		require.ErrorIs(t, busy, syscall.EBUSY)
		require.Equal(t, &BusyError{Object: r.cq.String(), Users: []string{r.a.String(), q.String()}}, busy)
		require.EqualError(t, busy, fmt.Sprintf("cq %d is in use by qp %d, qp %d", r.cq.Num(), r.a.Num(), q.Num()))
		_, err = r.a.PostSend([]SendWR{{Op: OpWrite, Flags: SendSignaled}})
		require.NoError(t, err)
		require.Len(t, poll(t, r.cq), 1)
		require.NoError(t, q.Close())
		require.NoError(t, r.a.Close())
		require.NoError(t, r.cq.Close())
		require.NoError(t, r.cq.Close())
	})
	t.Run("errors are joined and closing goes on", func(t *testing.T) {
		f := newFake()
		d := NewDevice(f.provider(DeviceAttr{Name: "x"}))
		pd, err := d.AllocPD()
		require.NoError(t, err)
		_, err = pd.AllocMR(8, 0)
		require.NoError(t, err)
		f.deregErr, f.closeErr = syscall.EBUSY, syscall.EIO
		err = d.Close()
		require.ErrorIs(t, err, syscall.EBUSY)
		require.ErrorIs(t, err, syscall.EIO)
		require.Equal(t, []string{"close"}, f.log)
	})
	t.Run("objects being made while the device closes do not stay behind", func(t *testing.T) {
		for range 30 {
			f := newFake()
			d := NewDevice(f.provider(DeviceAttr{}))
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					for {
						pd, err := d.AllocPD()
						if err != nil {
							return
						}
						_, err = pd.CreateQP(QPConfig{MaxSendWR: 1, MaxRecvWR: 1})
						if err == nil {
							_, err = pd.AllocMR(8, 0)
						}
						if err != nil && !errors.Is(err, ErrClosed) {
							panic(err)
						}
					}
				})
			}
			runtime.Gosched()
			require.NoError(t, d.Close())
			wg.Wait()
			s := d.Stats()
			require.Zero(t, s.PDs+s.MRs+s.CQs+s.QPs)
			require.Empty(t, f.mrs)
			require.Equal(t, "close", f.log[len(f.log)-1])
		}
	})
}

func TestEvents(t *testing.T) {
	f, d, _ := newDevice(t, DeviceAttr{})
	want := []AsyncEvent{{Type: EventQPFatal, QP: 3, Err: errors.New("x")}, {Type: EventCQErr, CQ: 2}}
	for _, e := range want {
		f.events <- e
	}
	var got []AsyncEvent
	for e, err := range d.Events(t.Context()) {
		require.NoError(t, err)
		if got = append(got, e); len(got) == 2 {
			break
		}
	}
	require.Equal(t, want, got)
	require.Equal(t, "QP_FATAL qp 3: x", want[0].String())
	require.Equal(t, "CQ_ERR cq 2", want[1].String())

	last := func(ctx context.Context) (n int, last error) {
		for _, err := range d.Events(ctx) {
			n, last = n+1, err
		}
		return n, last
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := last(ctx)
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, context.Canceled)
	soon(t, "Events after Close", func() {
		time.AfterFunc(time.Millisecond, func() { d.Close() })
		_, err = last(context.Background())
	})
	require.ErrorIs(t, err, ErrClosed)
}

func TestStats(t *testing.T) {
	r := newRig(t, QPConfig{SignalAll: true})
	_, err := r.a.PostSend(make([]SendWR, 3))
	require.NoError(t, err)
	s := r.dev.Stats()
	require.Equal(t, []int{1, 1, 2, 2}, []int{s.PDs, s.MRs, s.CQs, s.QPs})
	require.Equal(t, []uint64{3, 0, 3, 0}, []uint64{s.SendsPosted, s.RecvsPosted, s.Completions, s.CompletionsLost})
	require.Equal(t, uint64(7), s.Counter("fake.bells"))
	require.Zero(t, s.Counter("none"))
}

// A dropped handle is reported once, with its stack where asked for, and frees
// nothing; a closed one is not reported.
func TestLeakReports(t *testing.T) {
	f := newFake()
	p := f.provider(DeviceAttr{})
	leaks := make(chan Leak, 16)
	p.Leaked = func(l Leak) { leaks <- l }
	p.TraceLeaks = true
	d := NewDevice(p)
	defer d.Close()
	pd, err := d.AllocPD()
	require.NoError(t, err)
	func() {
		for _, drop := range []bool{true, false} {
			q, err := pd.CreateQP(QPConfig{})
			require.NoError(t, err)
			m, err := pd.AllocMR(8, 0)
			require.NoError(t, err)
			c, err := d.CreateCQ(CQConfig{})
			require.NoError(t, err)
			if !drop {
				require.NoError(t, q.Close())
				require.NoError(t, m.Close())
				require.NoError(t, c.Close())
			}
		}
	}()
	got := map[string]Leak{}
	soon(t, "leak reports", func() {
		for len(got) < 3 {
			runtime.GC()
			select {
			case l := <-leaks:
				got[l.Kind] = l
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	require.Contains(t, got, "qp")
	require.Contains(t, got, "cq")
	require.Contains(t, got["mr"].String(), "was dropped without Close; created at:\n")
	require.Contains(t, got["mr"].Stack, "TestLeakReports")
	s := d.Stats()
	require.Equal(t, uint64(3), s.Leaks)
	require.Equal(t, []int{1, 2, 1}, []int{s.QPs, s.CQs, s.MRs}, "nothing was freed")
	runtime.KeepAlive(pd)
	require.NoError(t, d.Close())
	require.Equal(t, []string{"qp", "dereg"}, f.log[len(f.log)-3:len(f.log)-1], "Close still finds them")
	require.Empty(t, leaks)
}
