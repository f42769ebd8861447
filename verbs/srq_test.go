package verbs

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
)

// sharing is a device whose provider has shared receive queues.
type sharing struct {
	*Device
	f      *fake
	setups []SRQSetup
	limits []int // as Modify was given them
	closed int
	refuse error
}

func newSharing(t *testing.T, attr DeviceAttr) *sharing {
	s := &sharing{f: newFake()}
	p := s.f.provider(attr)
	p.CreateSRQ = func(u SRQSetup) (SRQOps, error) {
		if s.refuse != nil {
			return SRQOps{}, s.refuse
		}
		s.setups = append(s.setups, u)
		return SRQOps{
			Modify: func(n int) error { s.limits = append(s.limits, n); return nil },
			Close:  func() error { s.closed++; return nil },
		}, nil
	}
	s.Device = NewDevice(p)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func (s *sharing) pd(t *testing.T) *PD {
	pd, err := s.AllocPD()
	require.NoError(t, err)
	return pd
}

func TestSRQ(t *testing.T) {
	d := newSharing(t, DeviceAttr{MaxSRQ: 2, MaxQPWR: 64, MaxSGE: 6})
	pd, other := d.pd(t), d.pd(t)
	require.Equal(t, []int{2, 64, 6}, []int{d.Attr().MaxSRQ, d.Attr().MaxSRQWR, d.Attr().MaxSRQSGE})
	mr, err := pd.AllocMR(64, AccessLocalWrite)
	require.NoError(t, err)
	s, err := pd.CreateSRQ(SRQConfig{MaxWR: 5, MaxSGE: 2, Limit: 3})
	require.NoError(t, err)
	require.Equal(t, SRQConfig{MaxWR: 8, MaxSGE: 2, Limit: 3}, s.Config())
	require.Equal(t, []uint32{s.Num(), pd.Num()}, []uint32{d.setups[0].Num, d.setups[0].PD})
	require.Equal(t, 1, d.Stats().SRQs)
	require.Same(t, pd, s.PD())

	t.Run("VRB-05 a queue pair with an SRQ has no receive queue; posting to it is EINVAL", func(t *testing.T) {
		q, err := pd.CreateQP(QPConfig{SRQ: s, MaxRecvWR: 1 << 20, MaxRecvSGE: 99})
		require.NoError(t, err, "the receive caps are ignored")
		defer q.Close()
		c := q.Config()
		require.Equal(t, []int{0, 0}, []int{c.MaxRecvWR, c.MaxRecvSGE})
		require.Same(t, s, c.SRQ)
		u := d.f.setups[len(d.f.setups)-1]
		require.Equal(t, s.Num(), u.SRQ)
		require.Nil(t, u.RQ)
		n, err := q.PostRecv([]RecvWR{{ID: 1}})
		require.Zero(t, n)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "SRQ.PostRecv")
		require.Zero(t, s.Len(), "nor did it get into the shared one")
	})
	t.Run("VRB-67 queue pairs of any protection domain attach", func(t *testing.T) {
		a, err := pd.CreateQP(QPConfig{SRQ: s})
		require.NoError(t, err)
		b, err := other.CreateQP(QPConfig{SRQ: s})
		require.NoError(t, err)
		var busy *BusyError
		require.ErrorAs(t, s.Close(), &busy, "VRB-01")
		require.Equal(t, []string{a.String(), b.String()}, busy.Users)
		require.ErrorIs(t, s.Close(), syscall.EBUSY)
		require.ErrorAs(t, pd.Close(), &busy, "the other domain's queue pair uses it")
		require.Equal(t, []string{b.String()}, busy.Users)
		require.NoError(t, s.Modify(1), "nothing has changed")
		require.NotEqual(t, QPSErr, a.State(), "nothing has changed")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	t.Run("SEC-16 VRB-67 the keys of its receives are those of its own domain", func(t *testing.T) {
		n, err := s.PostRecv([]RecvWR{{ID: 1, SGL: []SGE{mr.SGE(0, 8)}}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		foreign, err := other.AllocMR(64, AccessLocalWrite)
		require.NoError(t, err)
		defer foreign.Close()
		n, err = s.PostRecv([]RecvWR{{ID: 2, SGL: []SGE{mr.SGE(8, 8)}}, {ID: 3, SGL: []SGE{foreign.SGE(0, 8)}}})
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "another protection domain")
		require.Equal(t, 1, n, "those before the bad one are in")
		require.Equal(t, 2, s.Len())
	})
	t.Run("posting", func(t *testing.T) {
		n, err := s.PostRecv(make([]RecvWR, 9))
		require.ErrorIs(t, err, ErrQueueFull)
		require.Equal(t, 6, n)
		r := d.setups[0].RQ
		require.Equal(t, uint64(1), ring.WQE(r.Record(r.Head())).ID(), "VRB-67 oldest first")
		r.Release(r.Tail())
		for _, wr := range []RecvWR{
			{SGL: []SGE{mr.SGE(0, 1), mr.SGE(1, 1), mr.SGE(2, 1)}},
			{SGL: []SGE{mr.SGE(60, 5)}},
		} {
			_, err := s.PostRecv([]RecvWR{wr})
			require.ErrorIs(t, err, syscall.EINVAL)
		}
		n, err = s.PostRecv(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, uint64(8), d.Stats().RecvsPosted)
	})
	t.Run("VRB-68 a limit above the size is EINVAL", func(t *testing.T) {
		for _, n := range []int{-1, 9} {
			require.ErrorIs(t, s.Modify(n), syscall.EINVAL)
		}
		d.limits = nil
		require.NoError(t, s.Modify(8))
		require.NoError(t, s.Modify(0))
		require.Equal(t, []int{8, 0}, d.limits)
		_, err := pd.CreateSRQ(SRQConfig{MaxWR: 4, Limit: 5})
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("VRB-03 above the device's limits is EINVAL, one too many ENOMEM", func(t *testing.T) {
		for _, c := range []SRQConfig{{MaxWR: 65}, {MaxSGE: 7}, {MaxWR: -1}, {MaxSGE: -1}, {Limit: -1}} {
			_, err := pd.CreateSRQ(c)
			require.ErrorIs(t, err, syscall.EINVAL, "%+v", c)
		}
		second, err := pd.CreateSRQ(SRQConfig{})
		require.NoError(t, err)
		_, err = pd.CreateSRQ(SRQConfig{})
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.NoError(t, second.Close())
		d.refuse = syscall.EIO
		before := d.Stats()
		_, err = pd.CreateSRQ(SRQConfig{})
		d.refuse = nil
		require.ErrorIs(t, err, syscall.EIO)
		require.Equal(t, before.SRQs, d.Stats().SRQs)
		require.Equal(t, before.QueueBytes, d.Stats().QueueBytes)
	})
	t.Run("SEC-54 an SRQ of another device", func(t *testing.T) {
		far := newSharing(t, DeviceAttr{MaxSRQ: 1})
		fs, err := far.pd(t).CreateSRQ(SRQConfig{})
		require.NoError(t, err)
		_, err = pd.CreateQP(QPConfig{SRQ: fs})
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("SEC-30 a completion queue has to hold each shared queue once", func(t *testing.T) {
		cq, err := d.CreateCQ(CQConfig{Depth: 16})
		require.NoError(t, err)
		defer cq.Close()
		for i, want := range []bool{false, false, true} { // 4+8, 4+4+8, 4+4+4+8
			q, err := pd.CreateQP(QPConfig{SendCQ: cq, SRQ: s, MaxSendWR: 4})
			require.NoError(t, err)
			defer q.Close()
			require.Equal(t, 4*(i+1)+8, cq.Demand())
			require.Equal(t, want, d.f.setups[len(d.f.setups)-1].MayOverrun)
		}
		own, err := pd.CreateQP(QPConfig{SRQ: s, MaxSendWR: 4})
		require.NoError(t, err)
		require.GreaterOrEqual(t, own.SendCQ().Cap(), 12, "its own has room for all of the SRQ")
		require.NoError(t, own.Close())
	})
	t.Run("Close", func(t *testing.T) {
		require.NoError(t, s.Close())
		require.NoError(t, s.Close(), "the second Close is nil")
		require.Equal(t, 2, d.closed)
		_, err := s.PostRecv(make([]RecvWR, 1))
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, s.Modify(1), ErrClosed)
		_, err = pd.CreateQP(QPConfig{SRQ: s})
		require.ErrorIs(t, err, ErrClosed)
		require.Zero(t, d.Stats().SRQs)
		last, err := pd.CreateSRQ(SRQConfig{})
		require.NoError(t, err)
		q, err := pd.CreateQP(QPConfig{SRQ: last})
		require.NoError(t, err)
		require.NoError(t, pd.Close(), "its own queue pairs go first")
		require.Equal(t, QPSErr, q.State())
		require.Zero(t, d.Stats().SRQs)
		require.Zero(t, d.Stats().QueueBytes)
		_, err = pd.CreateSRQ(SRQConfig{})
		require.ErrorIs(t, err, ErrClosed)
	})
}

// TestSRQConcurrent posts to one queue from many goroutines while one takes.
func TestSRQConcurrent(t *testing.T) {
	d := newSharing(t, DeviceAttr{MaxSRQ: 1})
	s, err := d.pd(t).CreateSRQ(SRQConfig{MaxWR: 64})
	require.NoError(t, err)
	const posters, each = 8, 2000
	var work sync.WaitGroup
	for p := range posters {
		work.Go(func() {
			for i := 0; i < each; {
				n, _ := s.PostRecv([]RecvWR{{ID: uint64(p*each + i)}})
				i += n
			}
		})
	}
	seen, last := 0, map[uint64]uint64{}
	for r := d.setups[0].RQ; seen < posters*each; {
		if r.Head() == r.Tail() {
			continue
		}
		id := ring.WQE(r.Record(r.Head())).ID()
		r.Release(r.Head() + 1)
		if p := id / each; last[p] != id%each {
			t.Fatalf("poster %d: receive %d came, %d is next", p, id%each, last[p])
		}
		last[id/each]++
		seen++
	}
	work.Wait()
	require.Zero(t, s.Len())
}

func TestQuotas(t *testing.T) {
	full := func(t *testing.T, err error) { t.Helper(); require.ErrorIs(t, err, syscall.ENOMEM) }
	t.Run("SEC-36 octets in memory regions", func(t *testing.T) {
		_, d, pd := newDevice(t, DeviceAttr{MaxMRBytes: 1000})
		a, err := pd.AllocMR(600, 0)
		require.NoError(t, err)
		b, err := pd.RegMR(make([]byte, 400), 0)
		require.NoError(t, err, "at the limit")
		_, err = pd.RegMR(make([]byte, 1), 0)
		full(t, err)
		require.ErrorContains(t, err, "1000 are taken")
		require.Equal(t, int64(1000), d.Stats().MRBytes)
		require.NoError(t, a.Close())
		c, err := pd.AllocMR(600, 0)
		require.NoError(t, err, "what is closed makes room")
		require.NoError(t, b.Close())
		require.NoError(t, c.Close())
	})
	t.Run("SEC-35 a region larger than the host's memory is an error, not the end of the process", func(t *testing.T) {
		_, _, pd := newDevice(t, DeviceAttr{MaxMRBytes: 1 << 30})
		_, err := pd.AllocMR(1<<40, 0)
		full(t, err)
	})
	t.Run("SEC-35 SEC-36 octets in queues", func(t *testing.T) {
		d := newSharing(t, DeviceAttr{MaxSRQ: 9, MaxQueueBytes: 1 << 20})
		pd := d.pd(t)
		q, err := pd.CreateQP(QPConfig{})
		require.NoError(t, err)
		used := d.Stats().QueueBytes
		require.Greater(t, used, int64(64*128*2))
		for name, make := range map[string]func() error{
			"queue pair":           func() error { _, err := pd.CreateQP(QPConfig{MaxSendWR: 32768}); return err },
			"its receive queue":    func() error { _, err := pd.CreateQP(QPConfig{MaxRecvWR: 32768}); return err },
			"shared receive queue": func() error { _, err := pd.CreateSRQ(SRQConfig{MaxWR: 32768}); return err },
			"completion queue":     func() error { _, err := d.CreateCQ(CQConfig{Depth: 1 << 22}); return err },
		} {
			full(t, make())
			require.Equal(t, used, d.Stats().QueueBytes, "%s: nothing is left of the attempt", name)
		}
		another, err := pd.CreateQP(QPConfig{})
		require.NoError(t, err, "others go on")
		require.NoError(t, another.Close())
		require.NoError(t, q.Close())
		require.Zero(t, d.Stats().QueueBytes)
	})
	t.Run("SEC-36 queue pairs, completion queues, regions, domains and shared receive queues", func(t *testing.T) {
		d := newSharing(t, DeviceAttr{MaxQP: 2, MaxCQ: 2, MaxMR: 2, MaxPD: 2, MaxSRQ: 2})
		pd := d.pd(t)
		cq, err := d.CreateCQ(CQConfig{})
		require.NoError(t, err)
		for name, make := range map[string]func() error{
			"queue pairs":           func() error { _, err := pd.CreateQP(QPConfig{SendCQ: cq}); return err },
			"completion queues":     func() error { _, err := d.CreateCQ(CQConfig{}); return err },
			"memory regions":        func() error { _, err := pd.AllocMR(8, 0); return err },
			"protection domains":    func() error { _, err := d.AllocPD(); return err },
			"shared receive queues": func() error { _, err := pd.CreateSRQ(SRQConfig{}); return err },
		} {
			made := 0
			for err = make(); err == nil && made < 9; err = make() {
				made++
			}
			full(t, err)
			require.ErrorContains(t, err, fmt.Sprintf("no more %s: the device allows 2", name))
			require.LessOrEqual(t, made, 2)
			require.Positive(t, made)
		}
	})
}
