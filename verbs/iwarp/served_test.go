package iwarp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestQueuedWorkIsServed has applications that poll, stop polling, sleep until a
// completion comes and go away for a while, at both ends and in any mixture: what
// a queue pair has to send is sent, whoever is there to do it.
func TestQueuedWorkIsServed(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		const pairs, rounds, half = 4, 60, 96 << 10
		var wg sync.WaitGroup
		for i := range pairs {
			p := l.connect(t, 4*half, nil)
			fill(p.mine.mr.Bytes(), uint64(i))
			fill(p.theirs.mr.Bytes(), uint64(i)+100)
			// Their application goes away at once: what mine reads is sent without it. In half of the pairs it reads, too.
			ends := []*end{&p.mine}
			if i%2 == 1 {
				ends = append(ends, &p.theirs)
			}
			for k, e := range ends {
				peer := []*end{&p.theirs, &p.mine}[k]
				wg.Go(func() {
					if err := move(t, e, peer, rand.New(rand.NewPCG(uint64(i), uint64(k))), rounds, half); err != nil {
						t.Errorf("pair %d, end %d: %v", i, k, err)
					}
				})
			}
		}
		wg.Wait()
	})
}

// move reads and writes pieces of the peer's memory, and waits for them in ever
// other ways. It reads the first of four parts, into the second one, and writes
// the last.
func move(t *testing.T, e, peer *end, r *rand.Rand, rounds, half int) error {
	ctx := within(t, time.Minute)
	wcs := make([]verbs.WC, 16)
	for round := range rounds {
		n := 1 + r.IntN(4)
		size := []int{8, 1000, 40_000, half / 2}[r.IntN(4)]
		wrs := make([]verbs.SendWR, n)
		for i := range wrs {
			wr := &wrs[i]
			wr.ID, wr.Flags, wr.Op = uint64(i), verbs.SendSignaled, verbs.OpRead
			at := i * size % (half - size + 1)
			if r.IntN(3) == 0 { // to where nobody reads
				wr.Op = verbs.OpWrite
				wr.SGL, wr.Remote = []verbs.SGE{e.mr.SGE(0, size)}, peer.remote.Slice(3*half, size)
				continue
			}
			wr.SGL, wr.Remote = []verbs.SGE{e.mr.SGE(half+at, size)}, peer.remote.Slice(at, size)
		}
		if _, err := e.PostSend(wrs); err != nil {
			return err
		}
		for got := 0; got < n; {
			var k int
			var err error
			switch r.IntN(3) {
			case 0:
				for end := time.Now().Add(time.Duration(r.IntN(2000)) * time.Microsecond); k == 0 && err == nil && time.Now().Before(end); {
					k, err = e.cq.Poll(wcs)
				}
			case 1:
				k, err = e.cq.Wait(ctx, wcs)
			default: // away, without a word
				time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return fmt.Errorf("round %d, %d of %d completions: %w", round, got, n, err)
			}
			for _, wc := range wcs[:k] {
				if wc.Err() != nil {
					return fmt.Errorf("round %d: %w", round, wc.Err())
				}
			}
			got += k
		}
		if w := &wrs[0]; w.Op == verbs.OpRead && !bytes.Equal(e.mr.Bytes()[half:half+size], peer.mr.Bytes()[:size]) {
			return fmt.Errorf("round %d: other octets than the peer has", round)
		}
	}
	return nil
}
