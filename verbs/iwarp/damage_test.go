package iwarp_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestDamage sends over a link whose damage TCP cannot see.
func TestDamage(t *testing.T) {
	transfer := func(t *testing.T, crc bool, seed uint64) (wrong bool, p pair, flips uint64) {
		damaged := pktio.Faults{Seed: seed, Corrupt: 0.1, FixChecksum: true}
		var fa, fb *pktio.Faulty
		l := pipe(t, iwarp.PipeConfig{
			Protocol: iwarp.Protocol{NoCRC: !crc},
			Faulty:   func(a, b *pktio.Faulty) { fa, fb = a, b },
		})
		p = l.connect(t, arena, nil)
		fill(p.theirs.mr.Bytes(), 3)
		fa.SetFaults(damaged)
		fb.SetFaults(damaged)
		// Large Reads: nearly all octets on the wire are payload.
		for range 50 {
			_, err := p.mine.PostSend([]verbs.SendWR{{Op: verbs.OpRead, Flags: verbs.SendSignaled,
				SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote}})
			if err != nil {
				break
			}
			// Without CRC a damaged length may let both ends wait for ever.
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			var wc [1]verbs.WC
			_, err = p.mine.cq.Wait(ctx, wc[:])
			cancel()
			if err != nil {
				require.False(t, crc, "no completion came: %v", err)
				break
			}
			if wc[0].Err() != nil {
				break
			}
			if !bytes.Equal(p.mine.mr.Bytes(), p.theirs.mr.Bytes()) {
				wrong = true
			}
		}
		fa.SetFaults(pktio.Faults{})
		fb.SetFaults(pktio.Faults{})
		return wrong, p, fa.Stats().Corrupted + fb.Stats().Corrupted
	}
	t.Run("SEC-49 with CRC nothing wrong is delivered", func(t *testing.T) {
		wrong, p, flips := transfer(t, true, 1)
		require.False(t, wrong, "a completion reported success for wrong data")
		require.Positive(t, flips)
		p.over(t)
		var term *verbs.TerminateError
		require.ErrorAs(t, p.mine.Err(), &term)
		require.EqualValues(t, 0x2002, term.Value(), "MPA-59 %v", term)
	})
	t.Run("without CRC it is", func(t *testing.T) {
		// A flip may hit a header instead and end the connection: try again then.
		seen := false
		for seed := uint64(1); seed <= 10 && !seen; seed++ {
			seen, _, _ = transfer(t, false, seed)
		}
		require.True(t, seen, "no wrong octet was seen: the test could not see damage with CRC either")
	})
}

// TestLoss sends over links that lose, double and reorder frames: TCP makes it
// good.
func TestLoss(t *testing.T) {
	for name, f := range map[string]pktio.Faults{
		"loss":    {Seed: 2, Loss: 0.02},
		"double":  {Seed: 2, Duplicate: 0.02},
		"reorder": {Seed: 2, Reorder: 0.02},
		"flips":   {Seed: 2, Corrupt: 0.02}, // which TCP's checksum finds
	} {
		t.Run(name, func(t *testing.T) {
			l := pipe(t, iwarp.PipeConfig{Faults: f})
			p := l.connect(t, arena, nil)
			fill(p.theirs.mr.Bytes(), 4)
			for range 8 {
				clear(p.mine.mr.Bytes())
				p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled,
					SGL: []verbs.SGE{p.mine.mr.SGE(0, arena)}, Remote: p.theirs.remote})
				require.NoError(t, p.mine.wait(t, 1)[0].Err())
				require.True(t, bytes.Equal(p.mine.mr.Bytes(), p.theirs.mr.Bytes()))
			}
		})
	}
}
