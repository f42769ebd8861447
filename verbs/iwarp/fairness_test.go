package iwarp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestFairness lets a queue pair move a large message while another on the same
// devices reads a few octets at a time: SEC-25 and SEC-26, nobody's transfer
// keeps the receive or the transmit goroutine to itself.
func TestFairness(t *testing.T) {
	const (
		large  = 64 << 20
		enough = 18 // answers during one transfer; a handful came while it ran to its end first
		tries  = 4  // the machine may be busy with other things
	)
	for name, op := range map[string]verbs.Opcode{"SEC-25 Reads": verbs.OpRead, "SEC-26 Writes": verbs.OpWrite} {
		t.Run(name, func(t *testing.T) {
			forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
				hog, p := l.connect(t, large, nil), l.connect(t, 4096, nil)
				best := 0
				for range tries {
					if best = max(best, answers(t, &hog, &p, op)); best >= enough {
						break
					}
				}
				require.GreaterOrEqual(t, best, enough, "answers during one transfer")
			})
		})
	}
}

// answers counts the Reads of p that are answered while hog moves all of its
// region.
func answers(t *testing.T, hog, p *pair, op verbs.Opcode) (n int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := hog.mine.PostSend([]verbs.SendWR{{Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{hog.mine.mr.SGE(0, hog.mine.mr.Len())}, Remote: hog.theirs.remote}})
		if err == nil {
			var wc [1]verbs.WC
			_, err = hog.mine.cq.Wait(t.Context(), wc[:])
		}
		if err != nil {
			t.Errorf("large transfer: %v", err)
		}
	}()
	for ; ; n++ {
		p.mine.send(t, verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled,
			SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: p.theirs.remote.Slice(0, 8)})
		require.NoError(t, p.mine.wait(t, 1)[0].Err())
		select {
		case <-done:
			return n
		default:
		}
	}
}
