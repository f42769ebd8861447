package iwarp_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestDepthsAreTold: the application sees what the peer wrote before it answers, each
// number on the side where it counts.
func TestDepthsAreTold(t *testing.T) {
	for _, c := range []struct{ theirIRD, theirORD int }{{3, 70}, {70, 3}, {0, 9}, {9, 0}, {0x3fff, 5}, {5, 0x3ffe}} {
		t.Run(fmt.Sprintf("MPA-36 a Request with IRD %d and ORD %d", c.theirIRD, c.theirORD), func(t *testing.T) {
			_, req := asked(t, iwarp.Protocol{}, wiretest.Startup{
				Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2,
				Private: wiretest.Block(wiretest.BlockA|uint16(c.theirIRD), wiretest.BlockD|uint16(c.theirORD), []byte("hello")...),
			})
			ird, ord := req.ReadDepths()
			require.Equal(t, c.theirORD, ird, "the reads that come in here are those that the peer has under way")
			require.Equal(t, c.theirIRD, ord, "the reads that go out of here are those that the peer takes")
			require.Equal(t, "hello", string(req.PrivateData()), "without the block")
			require.NoError(t, req.Reject(within(t, 10*time.Second), nil))
		})
	}
	t.Run("MPA-36 a Request of revision 1 says nothing of them", func(t *testing.T) {
		_, req := asked(t, iwarp.Protocol{}, wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: []byte("hello")})
		ird, ord := req.ReadDepths()
		require.Equal(t, []int{-1, -1}, []int{ird, ord})
		require.Equal(t, "hello", string(req.PrivateData()))
		require.NoError(t, req.Reject(within(t, 10*time.Second), nil))
	})
}

// TestAgreedORD: what was agreed counts on the wire, not what was wished for.
func TestAgreedORD(t *testing.T) {
	t.Run("MPA-37 IOP-38 an initiator that wants 16 Reads under way, and a Reply that takes 3", func(t *testing.T) {
		o := agree(t, 1, 0, 16, plain(3, 1))
		_, ord := o.e.ReadDepths()
		require.Equal(t, 3, ord)
		reads(t, o, 3)
	})
	t.Run("MPA-37 IOP-38 a responder that wants 16 Reads under way, and a Request that takes 3", func(t *testing.T) {
		i := call(t, iwarp.Protocol{ORD: 16, DrainTimeout: time.Second}, 1, nil)
		i.Initiate(plain(3, 1))
		require.NoError(t, <-i.accepted)
		_, ord := i.e.ReadDepths()
		require.Equal(t, 3, ord)
		i.Send(send(1, "you may speak"))
		require.NoError(t, i.e.wait(t, 1)[0].Err())
		reads(t, &outgoing{Peer: i.Peer, e: i.e}, 3)
	})
}

// TestRoomForAtomics: like TestDepthsAreNotRounded, where a Read whose answer is more
// than TCP holds has atomic operations behind it.
func TestRoomForAtomics(t *testing.T) {
	const size = 8 << 20
	for _, kinds := range []string{"RAAA", "RARA", "RAAAA", "RAAAR", "RRAAA"} { // Read, atomic
		name := "IOP-38 IRD 3 takes 4 Reads and atomic operations, "
		if len(kinds) > 4 {
			name = "IOP-38 IRD 3 takes no fifth Read or atomic operation, "
		}
		t.Run(name+kinds, func(t *testing.T) {
			i := call(t, iwarp.Protocol{IRD: 3, DrainTimeout: time.Second}, 1, nil)
			i.Initiate(plain(3, 3))
			require.NoError(t, <-i.accepted)
			ird, _ := i.e.ReadDepths()
			require.Equal(t, 3, ird)
			mr, err := i.e.pd.AllocMR(size, verbs.AccessRemoteRead)
			require.NoError(t, err)
			var asks [][]byte
			for k, kind := range kinds {
				if msn := uint32(k + 1); kind == 'R' {
					asks = append(asks, wiretest.ReadRequest(msn, 100+msn, 0, size, uint32(mr.Key()), mr.Remote().Addr))
				} else {
					asks = append(asks, wiretest.Atomic{
						Code: wiretest.AtomicFetchAdd, Ident: msn, STag: uint32(i.e.remote.RKey), TO: i.e.remote.Addr,
						Val: 1, CompareMask: 1<<64 - 1,
					}.Segment(msn))
				}
			}
			i.Send(asks...)
			if len(kinds) > 4 {
				i.e.ended(t)
				u := i.Next()
				for ; u[0]&0x80 != 0; u = i.Next() { // what was under way
				}
				require.Equal(t, wiretest.Hex("12 03"), u[18:20], "the fifth is one too many")
				require.Equal(t, make([]byte, 8), i.e.mr.Bytes()[:8], "no atomic operation was carried out")
				return
			}
			done := uint64(0)
			for k, kind := range kinds {
				if msn := uint32(k + 1); kind == 'R' {
					require.Len(t, stretch(t, i.Peer, 2, 100+msn, 0), size)
				} else {
					i.Expect(wiretest.AtomicResponse(uint32(done+1), msn, done))
					done++
				}
			}
		})
	}
}
