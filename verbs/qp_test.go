package verbs

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCreateQP(t *testing.T) {
	f, d, pd := newDevice(t, DeviceAttr{MaxQPWR: 128, MaxSGE: 6, MaxInline: 200, MaxQP: 3, MaxCQE: 512})
	t.Run("VRB-05 the zero config gives a queue pair with a queue for its completions", func(t *testing.T) {
		q, err := pd.CreateQP(QPConfig{})
		require.NoError(t, err)
		c := q.Config()
		require.Equal(t, []int{64, 64, 4, 4}, []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE})
		require.Equal(t, QPTRC, c.Type)
		require.Same(t, q.SendCQ(), q.RecvCQ())
		require.GreaterOrEqual(t, q.SendCQ().Cap(), q.SendCQ().Demand())
		require.Equal(t, 128, q.SendCQ().Demand())
		require.False(t, f.setups[len(f.setups)-1].MayOverrun)
		var busy *BusyError
		require.ErrorAs(t, q.SendCQ().Close(), &busy)
		require.NoError(t, q.Close())
		require.Zero(t, d.Stats().CQs, "its own queue went with it")
		_, err = q.SendCQ().Poll(make([]WC, 1))
		require.ErrorIs(t, err, ErrClosed)
	})
	t.Run("VRB-03 caps are minimums and hold", func(t *testing.T) {
		cq, err := d.CreateCQ(CQConfig{Depth: 8})
		require.NoError(t, err)
		defer cq.Close()
		q, err := pd.CreateQP(QPConfig{SendCQ: cq, MaxSendWR: 5, MaxRecvWR: 100, MaxSendSGE: 6, MaxRecvSGE: 1, MaxInline: 150})
		require.NoError(t, err)
		defer q.Close()
		c := q.Config()
		require.Equal(t, []int{8, 128, 6, 1}, []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE})
		require.GreaterOrEqual(t, c.MaxInline, 150)
		require.Same(t, cq, q.RecvCQ(), "RecvCQ follows SendCQ")
		s := f.setups[len(f.setups)-1]
		require.True(t, s.MayOverrun, "SEC-30 136 work requests on 8 entries")
		require.Equal(t, []uint32{q.Num(), pd.Num(), cq.Num(), cq.Num()}, []uint32{s.Num, s.PD, s.SendCQNum, s.RecvCQNum})
		require.Nil(t, s.Config.SendCQ)
		require.Equal(t, 8, s.SQ.Cap())
	})
	other := NewDevice(newFake().provider(DeviceAttr{}))
	defer other.Close()
	foreign, err := other.CreateCQ(CQConfig{})
	require.NoError(t, err)
	shut, err := d.CreateCQ(CQConfig{})
	require.NoError(t, err)
	require.NoError(t, shut.Close())
	for _, c := range []struct {
		name string
		cfg  QPConfig
		want error
	}{
		{"VRB-02 UC", QPConfig{Type: QPTUC}, errors.ErrUnsupported},
		{"VRB-02 UD", QPConfig{Type: QPTUD}, errors.ErrUnsupported},
		{"VRB-03 send depth", QPConfig{MaxSendWR: 129}, syscall.EINVAL},
		{"VRB-03 receive depth", QPConfig{MaxRecvWR: 129}, syscall.EINVAL},
		{"VRB-03 send SGEs", QPConfig{MaxSendSGE: 7}, syscall.EINVAL},
		{"VRB-03 receive SGEs", QPConfig{MaxRecvSGE: 7}, syscall.EINVAL},
		{"VRB-03 inline", QPConfig{MaxInline: 201}, syscall.EINVAL},
		{"VRB-03 negative", QPConfig{MaxSendWR: -1}, syscall.EINVAL},
		{"VRB-05 CQ of another device", QPConfig{SendCQ: foreign}, syscall.EINVAL},
		{"VRB-05 receive CQ of another device", QPConfig{RecvCQ: foreign}, syscall.EINVAL},
		{"closed CQ", QPConfig{SendCQ: shut}, ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := pd.CreateQP(c.cfg)
			require.ErrorIs(t, err, c.want)
			require.Zero(t, d.Stats().QPs)
			require.Zero(t, d.Stats().CQs, "nothing is left behind")
		})
	}
	t.Run("the provider refuses", func(t *testing.T) {
		f.createErr = syscall.ENOMEM
		_, err := pd.CreateQP(QPConfig{})
		f.createErr = nil
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.Zero(t, d.Stats().QPs)
		require.Zero(t, d.Stats().CQs)
	})
	t.Run("VRB-03 too many are ENOMEM", func(t *testing.T) {
		var qs []*QP
		for range 3 {
			q, err := pd.CreateQP(QPConfig{})
			require.NoError(t, err)
			qs = append(qs, q)
		}
		_, err := pd.CreateQP(QPConfig{})
		require.ErrorIs(t, err, syscall.ENOMEM)
		for _, q := range qs {
			require.NoError(t, q.Close())
		}
	})
	t.Run("a provider without shared receive queues", func(t *testing.T) {
		_, err := pd.CreateSRQ(SRQConfig{MaxWR: 4})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.EqualError(t, err, "create srq pd 1: a shared receive queue is not supported")
	})
	t.Run("VRB-04 numbers are unique and do not come back soon", func(t *testing.T) {
		seen := map[uint32]bool{}
		for range 1000 {
			q, err := pd.CreateQP(QPConfig{MaxSendWR: 1, MaxRecvWR: 1})
			require.NoError(t, err)
			require.False(t, seen[q.Num()])
			require.Greater(t, q.Num(), uint32(1))
			seen[q.Num()] = true
			require.NoError(t, q.Close())
		}
		d.d.numQP = maxQPNum - 1 // over the end of 24 bits, around those in use
		a, err := pd.CreateQP(QPConfig{})
		require.NoError(t, err)
		b, err := pd.CreateQP(QPConfig{})
		require.NoError(t, err)
		d.d.numQP = maxQPNum
		c, err := pd.CreateQP(QPConfig{})
		require.NoError(t, err)
		require.Equal(t, []uint32{maxQPNum, 2, 3}, []uint32{a.Num(), b.Num(), c.Num()})
	})
}

func TestStates(t *testing.T) {
	all := []QPState{QPSReset, QPSInit, QPSRTR, QPSRTS, QPSSQD, QPSSQE, QPSErr}
	names := []string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	allowed := map[QPState][]QPState{
		QPSReset: {QPSInit}, QPSInit: {QPSRTR}, QPSRTR: {QPSRTS}, QPSRTS: {QPSSQD, QPSSQE},
	}
	r := newRig(t, QPConfig{})
	for i, from := range all {
		require.Equal(t, names[i], from.String())
		for _, to := range all {
			want := to == QPSErr || to == QPSReset
			for _, s := range allowed[from] {
				want = want || s == to
			}
			t.Run(fmt.Sprintf("VRB-08 %v to %v", from, to), func(t *testing.T) {
				require.Equal(t, want, from.CanBecome(to))
				fq := r.f.qp(r.a)
				fq.state.Store(uint32(from))
				err := r.a.Modify(t.Context(), to)
				switch {
				case from == QPSRTS && to == QPSRTS: // VRB-09 a no-op
					require.NoError(t, err)
					require.Equal(t, QPSRTS, r.a.State())
				case want:
					require.NoError(t, err)
					require.Equal(t, to, r.a.State())
				default:
					require.ErrorIs(t, err, syscall.EINVAL)
					require.Equal(t, from, r.a.State())
				}
			})
		}
	}
	require.False(t, QPState(7).CanBecome(QPSErr))
	require.False(t, QPSRTS.CanBecome(7))
	require.Equal(t, "STATE(9)", QPState(9).String())
	r.f.qp(r.b).state.Store(uint32(QPSRTS))
	r.b.Ops().Modify = nil
	require.ErrorIs(t, r.b.Modify(t.Context(), QPSSQD), errors.ErrUnsupported)
}

func TestFlush(t *testing.T) {
	t.Run("VRB-16 VRB-17 one request fails, the others flush in order, sends then receives", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		r.f.setHold(true)
		_, err := r.a.PostRecv([]RecvWR{{ID: 100}, {ID: 101}})
		require.NoError(t, err)
		_, err = r.a.PostSend([]SendWR{
			{ID: 1, Op: OpWrite, SGL: []SGE{r.mr.SGE(0, 8)}, Remote: RemoteBuf{RKey: 0xdead, Len: 8}},
			{ID: 2, Op: OpWrite}, {ID: 3, Op: OpWrite, Flags: SendSignaled},
		})
		require.NoError(t, err)
		r.f.setHold(false)
		r.a.Ops().Doorbell()
		require.Equal(t, QPSErr, r.a.State())
		<-r.a.Done()
		num := r.a.Num()
		require.Equal(t, []WC{
			{ID: 1, Status: WCRemAccessErr, QP: num, VendorErr: 0x1234, Time: 42},
			{ID: 2, Status: WCWRFlushErr, QP: num},
			{ID: 3, Status: WCWRFlushErr, QP: num},
			{ID: 100, Status: WCWRFlushErr, QP: num},
			{ID: 101, Status: WCWRFlushErr, QP: num},
		}, poll(t, r.cq), "VRB-59 only ID, status, QP and vendor error hold")
	})
	t.Run("VRB-32 a region closed after the post is a protection error", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		r.f.setHold(true)
		m, err := r.pd.AllocMR(8, 0)
		require.NoError(t, err)
		_, err = r.a.PostSend([]SendWR{{Op: OpSend, SGL: []SGE{m.SGE(0, 8)}}})
		require.NoError(t, err)
		_, err = r.b.PostRecv([]RecvWR{{}})
		require.NoError(t, err)
		require.NoError(t, m.Close())
		r.f.setHold(false)
		r.a.Ops().Doorbell()
		wcs := poll(t, r.cq)
		require.Len(t, wcs, 1)
		require.ErrorIs(t, wcs[0].Err(), WCLocProtErr)
	})
}
