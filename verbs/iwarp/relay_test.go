package iwarp_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// relayed is a link over kernel TCP with a relay in between that cuts and joins.
func relayed(t *testing.T, proto iwarp.Protocol, seed uint64) (pair, *wiretest.Relay) {
	l := kernel(t, proto)
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, netip.AddrPortFrom(l.addr, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	r := wiretest.NewRelay(t, lis.Addr().String(), seed)
	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	p := pair{newEnd(t, l.a, 64), newEnd(t, l.b, 64)}
	for _, e := range []*end{&p.mine, &p.theirs} {
		require.NoError(t, e.mr.Close())
		e.mr, err = e.pd.AllocMR(arena, all)
		require.NoError(t, err)
		e.remote = e.mr.Remote()
	}
	private := make([]byte, 500) // so that the frames are worth cutting
	fill(private, seed)
	accepted := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			p.theirs.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: p.theirs.pd, QP: p.theirs.qp(), PrivateData: req.PrivateData()})
		}
		accepted <- err
	}()
	d := rdmacm.Dialer{Device: l.a, PD: p.mine.pd, QP: p.mine.qp(), PrivateData: private}
	p.mine.Conn, err = d.Dial(ctx, r.Addr)
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	require.Equal(t, private, p.mine.PrivateData())
	return p, r
}

// TestRelayed runs whole sessions, start to end, through a relay.
func TestRelayed(t *testing.T) {
	for name, proto := range map[string]iwarp.Protocol{
		"the defaults":                {},
		"without CRC":                 {NoCRC: true},
		"with markers":                {Markers: true},
		"revision 1":                  {Rev1: true},
		"FPDUs larger than a segment": {LargeFPDUs: true},
	} {
		if proto.Rev1 {
			proto.PrivateLimit = 0
		}
		for seed := uint64(1); seed <= 3; seed++ {
			t.Run(fmt.Sprintf("MPA-72 MPA-08 MPA-76 IOP-13 %s, seed %d", name, seed), func(t *testing.T) {
				p, r := relayed(t, proto, seed)
				if !proto.Rev1 {
					p.mine.exchange(t, &p.theirs, seed)
					p.theirs.exchange(t, &p.mine, seed+1)
				} else { // the initiator speaks first
					p.mine.exchange(t, &p.theirs, seed)
				}
				require.Greater(t, r.Pieces(), uint64(300))
				p.mine.recv(t, verbs.RecvWR{ID: 90})
				require.NoError(t, p.mine.Disconnect(within(t, 5*time.Second)))
				p.over(t)
				require.NoError(t, p.mine.Err())
				require.NoError(t, p.theirs.Err())
				require.Equal(t, flushed(1), statuses(p.mine.wait(t, 1)))
			})
		}
	}
	t.Run("MPA-72 a fault is told through it", func(t *testing.T) {
		p, _ := relayed(t, iwarp.Protocol{}, 9)
		bad := p.theirs.remote
		bad.RKey ^= 0x100
		p.mine.send(t, verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{p.mine.mr.SGE(0, 5000)}, Remote: bad})
		p.over(t)
		var term *verbs.TerminateError
		require.ErrorAs(t, p.mine.Err(), &term)
		require.EqualValues(t, 0x1100, term.Value())
	})
}

// exchange does each operation towards the other end and compares every octet.
func (e *end) exchange(t *testing.T, peer *end, seed uint64) {
	t.Helper()
	mine, theirs := e.mr.Bytes(), peer.mr.Bytes()
	one := func(wr verbs.SendWR) verbs.WC {
		wr.Flags |= verbs.SendSignaled
		e.send(t, wr)
		wc := e.wait(t, 1)[0]
		require.NoError(t, wc.Err(), "%v", wr.Op)
		return wc
	}
	for i, n := range []int{0, 1, 3, 17, 1428, 1429, 9000, 70000} {
		fill(mine[:n], seed+uint64(i))
		one(verbs.SendWR{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{e.mr.SGE(0, n)}, Remote: peer.remote.Slice(100, n)})
		peer.recv(t, verbs.RecvWR{ID: 2, SGL: []verbs.SGE{peer.mr.SGE(arena/2, n)}})
		one(verbs.SendWR{ID: 3, Op: verbs.OpSend, SGL: []verbs.SGE{e.mr.SGE(0, n)}})
		wc := peer.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.EqualValues(t, n, wc.ByteLen)
		require.True(t, bytes.Equal(mine[:n], theirs[100:100+n]), "Write of %d", n)
		require.True(t, bytes.Equal(mine[:n], theirs[arena/2:arena/2+n]), "Send of %d", n)
		one(verbs.SendWR{ID: 4, Op: verbs.OpRead, SGL: []verbs.SGE{e.mr.SGE(arena/2, n)}, Remote: peer.remote.Slice(100, n)})
		require.True(t, bytes.Equal(mine[:n], mine[arena/2:arena/2+n]), "Read of %d", n)

		peer.recv(t, verbs.RecvWR{ID: 5})
		one(verbs.SendWR{ID: 6, Op: verbs.OpWriteWithImm, Imm: uint64(n), SGL: []verbs.SGE{e.mr.SGE(0, n)}, Remote: peer.remote.Slice(200, n)})
		wc = peer.wait(t, 1)[0]
		require.NoError(t, wc.Err())
		require.EqualValues(t, n, wc.Imm)
		require.True(t, bytes.Equal(mine[:n], theirs[200:200+n]), "Write with Immediate of %d", n)
	}
	word, old := peer.mr.Uint64(8), e.mr.Uint64(16)
	word.Store(40)
	one(verbs.SendWR{ID: 7, Op: verbs.OpFetchAdd, Val: 2, SGL: []verbs.SGE{e.mr.SGE(16, 8)}, Remote: peer.remote.Slice(8, 8)})
	require.EqualValues(t, 40, old.Load())
	one(verbs.SendWR{ID: 8, Op: verbs.OpCompareSwap, Compare: 42, Val: 7, SGL: []verbs.SGE{e.mr.SGE(16, 8)}, Remote: peer.remote.Slice(8, 8)})
	require.EqualValues(t, 42, old.Load())
	require.EqualValues(t, 7, word.Load())
}
