package iwarp_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestDeviceLimits(t *testing.T) {
	enomem := func(t *testing.T, err error) { t.Helper(); require.ErrorIs(t, err, syscall.ENOMEM) }
	t.Run("SEC-35 everything at its maximum ends in an error, not in the end of the process", func(t *testing.T) {
		h := newHost(t, iwarp.Config{})
		pd, err := h.AllocPD()
		require.NoError(t, err)
		a := h.Attr()
		made := 0
		for err = nil; err == nil && made < 1<<16; made++ { // about 50 MiB each, were they touched
			_, err = pd.CreateQP(verbs.QPConfig{MaxSendWR: a.MaxQPWR, MaxRecvWR: a.MaxQPWR, MaxSendSGE: a.MaxSGE, MaxRecvSGE: a.MaxSGE, MaxInline: a.MaxInline})
			if s := h.Stats(); err == nil && s.QueueBytes > 256<<20 {
				break // so far it can be had; the rest is for a smaller limit, below
			}
		}
		_, err = pd.AllocMR(1<<40, 0)
		enomem(t, err)
		require.Positive(t, h.Stats().Refused)
		require.NoError(t, pd.Close())
	})
	t.Run("SEC-35 a connection's queues are counted when it is made", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Limits: iwarp.Limits{QueueBytes: 1 << 20}})
		p, e := h.accept(t, request, 1)
		for _, c := range []verbs.QPConfig{{MaxSendWR: 32768}, {MaxRecvWR: 32768}, {SendCQ: e.cq, MaxSendWR: 4096, MaxInline: 1024}} {
			before := heap()
			_, err := e.pd.CreateQP(c)
			enomem(t, err)
			require.Less(t, heap(), before+1<<20, "nothing was allocated for it")
		}
		p.Send(send(1, "goes on"))
		require.NoError(t, e.wait(t, 1)[0].Err())
	})
	t.Run("SEC-36 each quota: one past it is ENOMEM and the others go on", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Limits: iwarp.Limits{QPs: 3, CQs: 3, SRQs: 2, PDs: 3, MRs: 3, MWs: 2}})
		p, e := h.accept(t, request, 1)
		for name, make := range map[string]func() error{
			"QPs":  func() error { _, err := e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq}); return err },
			"CQs":  func() error { _, err := h.CreateCQ(verbs.CQConfig{}); return err },
			"SRQs": func() error { _, err := e.pd.CreateSRQ(verbs.SRQConfig{}); return err },
			"PDs":  func() error { _, err := h.AllocPD(); return err },
			"MWs":  func() error { _, err := e.pd.AllocMW(verbs.MWType2); return err },
			"MRs":  func() error { _, err := e.pd.AllocMR(8, 0); return err },
		} {
			var err error
			for n := 0; err == nil; n++ {
				require.Less(t, n, 4, name)
				err = make()
			}
			enomem(t, err)
		}
		require.GreaterOrEqual(t, h.Stats().Refused, uint64(6))
		p.Send(send(1, "goes on"))
		require.NoError(t, e.wait(t, 1)[0].Err())
	})
	t.Run("SEC-36 octets in memory regions", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Limits: iwarp.Limits{MRBytes: 1 << 20}})
		p, e := h.accept(t, request, 1) // has 4096
		rest, err := e.pd.AllocMR(1<<20-4096, 0)
		require.NoError(t, err, "at the limit")
		_, err = e.pd.RegMR(make([]byte, 1), 0)
		enomem(t, err)
		require.ErrorContains(t, err, "the device allows 1048576 octets in memory regions")
		p.Send(send(1, "goes on"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		require.NoError(t, rest.Close())
		_, err = e.pd.RegMR(make([]byte, 1), 0)
		require.NoError(t, err)
	})
	t.Run("SEC-36 inbound reads of all connections together", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{IRD: 4}, Limits: iwarp.Limits{ReadSlots: 10}})
		pa, a := h.accept(t, request, 1)
		_, _ = h.accept(t, request, 0) // 8 are taken
		p := wiretest.DialPeer(t, h.lis.Addr().String())
		p.Write(request.Octets())
		req, err := h.lis.Accept(within(t, 10*time.Second))
		require.NoError(t, err)
		_, err = req.Accept(within(t, 10*time.Second), rdmacm.AcceptConfig{Easy: small})
		enomem(t, err)
		require.ErrorContains(t, err, "inbound reads")
		require.Equal(t, byte(wiretest.FlagR), p.Startup().Flags&wiretest.FlagR, "the peer is told")
		require.EqualValues(t, 1, h.counter("cm.no_read_slots"))
		pa.Send(send(1, "goes on"))
		require.NoError(t, a.wait(t, 1)[0].Err())
		pa.CloseWrite()
		stopped(t, &a)
		require.NoError(t, pa.Conn().Close())
		require.Eventually(t, func() bool { return h.counter("tcp.open") == 1 }, 10*time.Second, time.Millisecond)
		_, c := h.accept(t, request, 0) // what ended has made room
		ird, _ := c.ReadDepths()
		require.Equal(t, 4, ird)
	})
	t.Run("SEC-36 SEC-32 a connection that still ends counts as a queue pair", func(t *testing.T) {
		h := newHost(t, iwarp.Config{Protocol: iwarp.Protocol{DrainTimeout: time.Second}, Limits: iwarp.Limits{QPs: 2}})
		for range 2 {
			p, e := h.accept(t, request, 0)
			p.Send(send(1, "no receive")) // and no FIN: it stays until its time is over
			p.ExpectTerminate(0x1202)
			require.NoError(t, e.QP.Close())
		}
		require.Zero(t, h.Stats().QPs)
		pd, err := h.AllocPD()
		require.NoError(t, err)
		_, err = pd.CreateQP(verbs.QPConfig{})
		enomem(t, err)
		require.ErrorContains(t, err, "connections of 2 that are closed still end")
		require.Eventually(t, func() bool {
			q, err := pd.CreateQP(verbs.QPConfig{})
			return err == nil && q.Close() == nil
		}, 10*time.Second, 20*time.Millisecond)
	})
	t.Run("SEC-36 a limit below 0 is refused", func(t *testing.T) {
		for _, l := range []iwarp.Limits{{QPs: -1}, {MRBytes: -1}, {QueueBytes: -1}, {ReadSlots: -1}} {
			_, err := iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Limits: l})
			require.ErrorContains(t, err, "a limit is not negative", fmt.Sprintf("%+v", l))
		}
		_, err := iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Limits: iwarp.Limits{MRs: 1 << 23}})
		require.ErrorContains(t, err, "keys for 8388608 regions and windows")
	})
}
