package iwarp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestManyAtOnce posts more in one call than is completed at once.
func TestManyAtOnce(t *testing.T) {
	const n = verbs.DefaultQPDepth
	write := func(p *pair, id uint64, size int, f verbs.SendFlags) verbs.SendWR {
		return verbs.SendWR{ID: id, Op: verbs.OpWrite, Flags: f, SGL: []verbs.SGE{p.mine.mr.SGE(0, size)}, Remote: p.theirs.remote.Slice(0, size)}
	}
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		t.Run("VRB-34 VRB-35 small and large Writes and Reads complete in posting order", func(t *testing.T) {
			p := l.connect(t, arena, nil)
			var wrs []verbs.SendWR
			var want []uint64
			for i := range uint64(n) {
				size, f := 8, verbs.SendSignaled
				switch {
				case i%7 == 3:
					f = 0
				case i%10 == 5:
					size = 20000
				}
				wr := write(&p, i, size, f)
				if i%16 == 12 { // away from the Writes
					wr.Op, wr.SGL[0], wr.Remote = verbs.OpRead, p.mine.mr.SGE(arena/2, size), p.theirs.remote.Slice(arena/2, size)
				}
				wrs = append(wrs, wr)
				if f != 0 {
					want = append(want, i)
				}
			}
			p.mine.send(t, wrs...)
			wcs := p.mine.wait(t, len(want))
			require.Equal(t, want, ids(wcs))
			for i, wc := range wcs {
				require.NoError(t, wc.Err())
				require.NotZero(t, wc.Time)
				require.True(t, i == 0 || wc.Time >= wcs[i-1].Time, "completions are stamped in order")
			}
			p.mine.quiet(t)
		})
	})
	for _, c := range []struct {
		name string
		make func(e *end, good verbs.SendWR) verbs.SendWR
		want verbs.WCStatus
	}{
		{"a key that may not be invalidated", func(e *end, good verbs.SendWR) verbs.SendWR {
			return verbs.SendWR{ID: good.ID, Op: verbs.OpLocalInv, Flags: good.Flags, Inv: e.mr.Key()}
		}, verbs.WCLocProtErr},
		{"a Read where none is allowed", func(_ *end, good verbs.SendWR) verbs.SendWR {
			good.Op = verbs.OpRead
			return good
		}, verbs.WCLocQPOpErr},
	} {
		for _, bad := range []int{0, 1, 31, 32, 33, 63} {
			t.Run(fmt.Sprintf("VRB-17 what was sent before has completed, what follows is flushed: request %d is %s", bad, c.name), func(t *testing.T) {
				forBackends(t, iwarp.Protocol{ClientServer: true}, func(t *testing.T, l link) {
					p := zeroPair(t, l)
					var wrs []verbs.SendWR
					var want []verbs.WCStatus
					var order []uint64
					for i := range n {
						wr, st := write(&p, uint64(i), 8, verbs.SendSignaled), verbs.WCSuccess
						switch {
						case i == bad:
							wr, st = c.make(&p.mine, wr), c.want
						case i > bad:
							st = verbs.WCWRFlushErr
						}
						wrs, want, order = append(wrs, wr), append(want, st), append(order, uint64(i))
					}
					p.mine.send(t, wrs...)
					got := p.mine.wait(t, n)
					require.Equal(t, want, statuses(got))
					require.Equal(t, order, ids(got))
				})
			})
		}
	}
}
