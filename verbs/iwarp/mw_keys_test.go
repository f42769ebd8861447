package iwarp_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestKeysOfRegions are rows about regions without windows.
func TestKeysOfRegions(t *testing.T) {
	t.Run("VRB-42 SEC-12 keys are no key 0, and one for both sides", func(t *testing.T) {
		l := pipe(t, iwarp.PipeConfig{})
		p := l.connect(t, 4096, nil)
		seen := map[verbs.Key]bool{}
		for range 1000 {
			m, err := p.mine.pd.AllocMR(8, rights|verbs.AccessLocalWrite)
			require.NoError(t, err)
			require.NotZero(t, m.Key()>>8)
			require.False(t, seen[m.Key()>>8], "an index comes twice")
			seen[m.Key()>>8] = true
			require.Equal(t, m.Key(), m.Remote().RKey)
			require.NoError(t, m.Close())
		}
	})
	t.Run("VRB-44 a ZERO_BASED region is addressed from 0", func(t *testing.T) {
		p, e := victim(t, 1)
		mr, err := e.pd.AllocMR(64, rights|verbs.AccessLocalWrite|verbs.AccessZeroBased)
		require.NoError(t, err)
		r := verbs.RemoteBuf{RKey: mr.Key()}
		p.Send(writeTo(r, 0, "a"), writeTo(r, 63, "z"), readFrom(1, r, 0, 64))
		want := append([]byte{'a'}, append(make([]byte, 62), 'z')...)
		p.Expect(wiretest.Tagged(2, true, 0x01020304, 0x100, want))
		p.Send(writeTo(r, 64, "x"))
		p.ExpectTerminate(0x1101)
	})
	t.Run("VRB-44 another one from its address", func(t *testing.T) {
		p, e := victim(t, 1)
		p.Send(writeTo(verbs.RemoteBuf{RKey: e.mr.Key()}, 0, "x"))
		p.ExpectTerminate(0x1101)
	})
	for _, c := range []struct {
		name string
		say  func(m *verbs.MR) []byte
		term uint16
	}{
		{"VRB-45 the answer to a Read needs LOCAL_WRITE alone", func(m *verbs.MR) []byte {
			return wiretest.Tagged(2, true, uint32(m.Key()), m.Remote().Addr+8, []byte("answered"))
		}, 0},
		{"VRB-46 VRB-45 SEC-17 an RDMA Write to the sink of an outstanding Read", func(m *verbs.MR) []byte {
			return wiretest.Tagged(0, true, uint32(m.Key()), m.Remote().Addr+8, []byte("answered"))
		}, 0x1102},
		{"SEC-17 an answer to a part of the region that was not asked for", func(m *verbs.MR) []byte {
			return wiretest.Tagged(2, true, uint32(m.Key()), m.Remote().Addr, []byte("answered"))
		}, 0x1101},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, e := victim(t, 1)
			p.Send(send(1, "go"))
			require.NoError(t, e.wait(t, 1)[0].Err())
			m, err := e.pd.AllocMR(64, verbs.AccessLocalWrite)
			require.NoError(t, err)
			e.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{m.SGE(8, 8)}, Remote: verbs.RemoteBuf{RKey: 5, Addr: 64}})
			p.Expect(wiretest.ReadRequest(1, uint32(m.Key()), m.Remote().Addr+8, 8, 5, 64))
			p.Send(c.say(m))
			want := make([]byte, 64)
			if c.term == 0 {
				copy(want[8:], "answered")
				require.NoError(t, e.wait(t, 1)[0].Err())
			} else {
				p.ExpectTerminate(c.term)
				require.Error(t, e.wait(t, 1)[0].Err())
			}
			require.Equal(t, want, m.Bytes())
		})
	}
	t.Run("SEC-17 RDM-31 the answer to a Read, once more with other octets", func(t *testing.T) {
		p, e := victim(t, 1)
		p.Send(send(1, "go"))
		require.NoError(t, e.wait(t, 1)[0].Err())
		m, err := e.pd.AllocMR(64, verbs.AccessLocalWrite)
		require.NoError(t, err)
		e.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{m.SGE(8, 8)}, Remote: verbs.RemoteBuf{RKey: 5, Addr: 64}})
		p.Next()
		p.Send(wiretest.Tagged(2, true, uint32(m.Key()), m.Remote().Addr+8, []byte("answered")))
		require.NoError(t, e.wait(t, 1)[0].Err())
		want := append(make([]byte, 8), append([]byte("answered"), make([]byte, 48)...)...)
		require.Equal(t, want, m.Bytes())
		p.Send(wiretest.Tagged(2, true, uint32(m.Key()), m.Remote().Addr+8, []byte("tampered")))
		p.ExpectTerminate(0x0206)
		require.Equal(t, want, m.Bytes())
	})
	t.Run("SEC-54 what one device has made does not serve another", func(t *testing.T) {
		l := pipe(t, iwarp.PipeConfig{})
		p := l.connect(t, 4096, nil)
		theirs := p.theirs.mr.SGE(0, 8)
		for _, wr := range []verbs.SendWR{
			{Op: verbs.OpSend, SGL: []verbs.SGE{theirs}},
			{Op: verbs.OpWrite, SGL: []verbs.SGE{theirs}, Remote: p.theirs.remote},
			{Op: verbs.OpRead, SGL: []verbs.SGE{theirs}, Remote: p.theirs.remote},
			{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{theirs}, Remote: p.theirs.remote},
		} {
			_, err := p.mine.PostSend([]verbs.SendWR{wr})
			require.ErrorIs(t, err, syscall.EINVAL, "%v", wr.Op)
		}
		_, err := p.mine.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{theirs}}})
		require.ErrorIs(t, err, syscall.EINVAL)
		_, err = p.mine.pd.CreateQP(verbs.QPConfig{SendCQ: p.theirs.cq})
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("SEC-55 a local key of another domain", func(t *testing.T) {
		l := pipe(t, iwarp.PipeConfig{})
		p := l.connect(t, 4096, nil)
		foreign := newEnd(t, l.a, 64)
		for _, wr := range []verbs.SendWR{
			{Op: verbs.OpSend, SGL: []verbs.SGE{foreign.mr.SGE(0, 8)}},
			{Op: verbs.OpSend, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8), foreign.mr.SGE(0, 8)}},
			{Op: verbs.OpWrite, SGL: []verbs.SGE{foreign.mr.SGE(0, 8)}, Remote: p.theirs.remote},
			{Op: verbs.OpRead, SGL: []verbs.SGE{foreign.mr.SGE(0, 8)}, Remote: p.theirs.remote},
			{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{foreign.mr.SGE(0, 8)}, Remote: p.theirs.remote},
			{Op: verbs.OpCompareSwap, SGL: []verbs.SGE{foreign.mr.SGE(0, 8)}, Remote: p.theirs.remote},
		} {
			_, err := p.mine.PostSend([]verbs.SendWR{wr})
			require.ErrorIs(t, err, syscall.EINVAL, "%v", wr.Op)
			require.ErrorContains(t, err, "another protection domain", "%v", wr.Op)
		}
		srq, err := p.mine.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4})
		require.NoError(t, err)
		for name, post := range map[string]func([]verbs.RecvWR) (int, error){"queue pair": p.mine.PostRecv, "shared queue": srq.PostRecv} {
			for _, sgl := range [][]verbs.SGE{{foreign.mr.SGE(0, 8)}, {p.mine.mr.SGE(0, 8), foreign.mr.SGE(0, 8)}} {
				n, err := post([]verbs.RecvWR{{SGL: sgl}})
				require.Zero(t, n, name)
				require.ErrorIs(t, err, syscall.EINVAL, name)
				require.ErrorContains(t, err, "another protection domain", name)
			}
		}
	})
	t.Run("VRB-57 a region is not registered anew under its key", func(t *testing.T) {
		// There is no call for it. What there is gives the memory another key.
		_, e := victim(t, 0)
		k := newKeys(t, &e)
		_, err := e.PostSend([]verbs.SendWR{{Op: verbs.OpRegMR, MR: k.mr, Access: rights | verbs.AccessLocalWrite}})
		require.ErrorIs(t, err, syscall.EINVAL)
		require.False(t, errors.Is(err, verbs.ErrClosed))
		require.Equal(t, bindable, k.mr.Access())
	})
}
