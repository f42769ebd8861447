package iwarp_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestOldInitiators(t *testing.T) {
	t.Run("IOP-15 MPA-06 revision 0 is not answered", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 1, nil)
		i.Write(wiretest.Startup{Rev: 0}.Octets())
		i.ExpectClosed()
	})
	t.Run("IOP-18 cxgb4 of revision 1 opens by a Read of nothing, with IRD 0", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 1, func(a *rdmacm.AcceptConfig) { a.IRD, a.ORD = -1, -1 })
		i.Initiate(wiretest.Startup{Flags: wiretest.FlagC, Rev: 1})
		require.NoError(t, <-i.accepted)
		ird, ord := i.e.ReadDepths()
		require.Zero(t, ird+ord)
		i.Send(wiretest.ReadRequest(1, 1, 1, 0, 1, 1))
		i.Expect(wiretest.Tagged(2, true, 1, 1, nil))
		i.Send(send(1, "hello"))
		require.NoError(t, i.e.wait(t, 1)[0].Err())
		i.e.send(t, verbs.SendWR{Op: verbs.OpSend, Inline: []byte("hi")})
		i.Expect(send(1, "hi"))
	})
	t.Run("IOP-17 cxgb4 that asks for no Reads opens by one", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 1, func(a *rdmacm.AcceptConfig) { a.IRD, a.ORD = -1, -1 })
		rep := i.Initiate(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(wiretest.BlockA, wiretest.BlockD)})
		require.EqualValues(t, wiretest.BlockA|1, binary.BigEndian.Uint16(rep.Private), "IRD 1")
		require.EqualValues(t, wiretest.BlockD, binary.BigEndian.Uint16(rep.Private[2:]))
		i.Send(wiretest.ReadRequest(1, 1, 1, 0, 1, 1))
		i.Expect(wiretest.Tagged(2, true, 1, 1, nil))
		require.NoError(t, <-i.accepted)
	})
	for _, offer := range []uint16{wiretest.BlockD, wiretest.BlockC, wiretest.BlockC | wiretest.BlockD} {
		t.Run(fmt.Sprintf("IOP-16 one of the offered messages is chosen: %04x", offer), func(t *testing.T) {
			i := call(t, iwarp.Protocol{}, 1, nil)
			rep := i.Initiate(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(wiretest.BlockA|1, offer|1)})
			chosen := binary.BigEndian.Uint16(rep.Private[2:]) & 0xc000
			require.Contains(t, []uint16{wiretest.BlockC, wiretest.BlockD}, chosen)
			require.Equal(t, chosen, chosen&offer)
			require.Zero(t, binary.BigEndian.Uint16(rep.Private)&wiretest.BlockB)
			i.Reset()
			require.Error(t, <-i.accepted)
		})
	}
}

func TestOldResponders(t *testing.T) {
	t.Run("IOP-19 cxgb4 of revision 1 waits for a Read of nothing", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{Rev1: true, LegacyRTR: true}, 1, nil)
		o.Respond(wiretest.Startup{Flags: wiretest.FlagC, Rev: 1})
		o.Expect(wiretest.ReadRequest(1, 1, 0, 0, 1, 0))
		require.NoError(t, <-o.dialed)
		o.Send(wiretest.Tagged(2, true, 1, 0, nil), send(1, "ready"))
		require.NoError(t, o.e.wait(t, 1)[0].Err())
		o.e.quiet(t)
		o.e.send(t, o.e.readOf(8))
		require.EqualValues(t, 2, binary.BigEndian.Uint32(meant(o.Peer)[10:]), "the opening Read was number 1")
	})
	t.Run("IOP-19 others need none", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{Rev1: true}, 1, nil)
		o.Respond(wiretest.Startup{Flags: wiretest.FlagC, Rev: 1})
		require.NoError(t, <-o.dialed)
		o.ExpectSilence(50 * time.Millisecond)
	})
	t.Run("IOP-20 no more Reads under way than cxgb4 takes", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{MaxORD: 32, ClientServer: true}, 1, func(d *rdmacm.Dialer) { d.ORD = 100 })
		req := o.Startup()
		require.EqualValues(t, 32, binary.BigEndian.Uint16(req.Private[2:])&0x3fff)
		rep := plain(128, 1)
		rep.Reply = true
		o.Write(rep.Octets())
		require.NoError(t, <-o.dialed)
		reads(t, o, 32)
	})
	t.Run("IOP-12 MPA-29 private data that no known peer takes is refused here", func(t *testing.T) {
		for n := mpa.MaxPrivateInterop; n <= mpa.MaxPrivateInterop+1; n++ {
			data := make([]byte, n)
			fill(data, 1)
			d := kernel(t, iwarp.Protocol{PrivateLimit: mpa.MaxPrivateInterop}).a
			if n > mpa.MaxPrivateInterop {
				_, err := (&rdmacm.Dialer{Device: d, PrivateData: data}).Dial(within(t, 10*time.Second), silentHost(t))
				require.ErrorContains(t, err, "251")
				continue
			}
			o := meet(t, iwarp.Protocol{PrivateLimit: mpa.MaxPrivateInterop}, 1, func(d *rdmacm.Dialer) { d.PrivateData = data })
			require.Equal(t, data, o.Startup().Private[4:])
		}
	})
}

// reads posts more Reads than may be under way and checks that exactly n are, until one
// is answered.
func reads(t *testing.T, o *outgoing, n int) {
	t.Helper()
	for range n + 8 {
		o.e.send(t, o.e.readOf(8))
	}
	for i := range n {
		require.EqualValues(t, i+1, binary.BigEndian.Uint32(o.Next()[10:]), "the number of the Read")
	}
	o.ExpectSilence(100 * time.Millisecond)
	o.Send(wiretest.Tagged(2, true, uint32(o.e.remote.RKey), o.e.remote.Addr+4096, make([]byte, 8)))
	require.NoError(t, o.e.wait(t, 1)[0].Err())
	require.EqualValues(t, n+1, binary.BigEndian.Uint32(o.Next()[10:]))
	o.ExpectSilence(50 * time.Millisecond)
}

// TestDepthsAreNotRounded: siw rounds both depths up to a power of two. Room is kept for
// that, and no use made of it.
func TestDepthsAreNotRounded(t *testing.T) {
	t.Run("IOP-38 own ORD 3 is 3", func(t *testing.T) {
		o := agree(t, 1, 0, 3, plain(3, 1))
		reads(t, o, 3)
	})
	t.Run("IOP-38 IRD 3 takes 4 Reads, and no fifth", func(t *testing.T) {
		// The answers are more than TCP holds, so that none is done before all have come.
		const size = 8 << 20
		for _, n := range []uint32{4, 5} {
			i := call(t, iwarp.Protocol{IRD: 3, DrainTimeout: time.Second}, 1, nil)
			i.Initiate(wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(3, 3)})
			require.NoError(t, <-i.accepted)
			ird, _ := i.e.ReadDepths()
			require.Equal(t, 3, ird)
			mr, err := i.e.pd.AllocMR(size, verbs.AccessRemoteRead)
			require.NoError(t, err)
			var asks [][]byte
			for msn := range n {
				asks = append(asks, wiretest.ReadRequest(msn+1, 100+msn, 0, size, uint32(mr.Key()), mr.Remote().Addr))
			}
			i.Send(asks...)
			if n == 4 {
				for msn := range n {
					require.Len(t, stretch(t, i.Peer, 2, 100+msn, 0), size)
				}
				continue
			}
			i.e.ended(t)
			u := i.Next()
			for ; u[0]&0x80 != 0; u = i.Next() { // what was under way
			}
			require.Equal(t, wiretest.Hex("12 03"), u[18:20], "the fifth is one too many")
		}
	})
}

// TestMarkersOfIrdma: an adapter that takes segments out of order asks for markers.
func TestMarkersOfIrdma(t *testing.T) {
	k := known(t, "irdma-ooo")
	t.Run("IOP-23 MPA-20 MPA-21 in its Reply", func(t *testing.T) {
		o := meet(t, iwarp.Protocol{}, 4, nil)
		rep := k.Answer(t, o.Startup(), 1, 1)
		o.Write(rep.Octets())
		m := &wiretest.Marks{CRC: true}
		require.Equal(t, wiretest.ReadRequest(1, 1, 0, 0, 1, 0), o.NextMarked(m))
		o.Send(wiretest.Tagged(2, true, 1, 0, nil)) // we asked for none
		require.NoError(t, <-o.dialed)
		marked(t, o.Peer, o.e, m)
	})
	t.Run("IOP-23 MPA-20 MPA-21 in its Request", func(t *testing.T) {
		i := call(t, iwarp.Protocol{}, 4, nil)
		rep := i.Initiate(k.Ask(1, 1))
		require.Zero(t, rep.Flags&(wiretest.FlagM|wiretest.FlagR))
		i.Send(wiretest.Tagged(0, true, 1, 0, nil))
		require.NoError(t, <-i.accepted)
		marked(t, i.Peer, i.e, &wiretest.Marks{CRC: true})
	})
	t.Run("IOP-23 MPA-27 or is refused cleanly", func(t *testing.T) {
		i := call(t, iwarp.Protocol{RefuseMarkers: true}, 1, nil)
		i.Write(k.Ask(1, 1).Octets())
		rep := i.Startup()
		require.NotZero(t, rep.Flags&wiretest.FlagR)
		require.Zero(t, rep.Flags&wiretest.FlagM)
		i.ExpectEOF()

		o := meet(t, iwarp.Protocol{RefuseMarkers: true}, 1, nil)
		o.Write(k.Answer(t, o.Startup(), 1, 1).Octets())
		require.ErrorContains(t, <-o.dialed, "marker")
		o.ExpectClosed()
	})
}

// marked sends enough for many markers and checks each.
func marked(t *testing.T, p *wiretest.Peer, e *end, m *wiretest.Marks) {
	t.Helper()
	data := e.mr.Bytes()[arena/2:]
	fill(data[:20000], 5)
	e.send(t, verbs.SendWR{ID: 50, Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(arena/2, 20000)},
		Remote: verbs.RemoteBuf{Addr: 16, RKey: 77, Len: 20000}})
	var got []byte
	for len(got) < 20000 {
		u := p.NextMarked(m)
		if len(u) == 14 { // woken up
			continue
		}
		got = append(got, u[14:]...)
	}
	require.Equal(t, data[:20000], got)
	require.NoError(t, e.wait(t, 1)[0].Err())
	p.Send(send(1, "plain"))
	require.NoError(t, e.wait(t, 1)[0].Err())
}
