package netstack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// throughCut sends both ways while cut is true for d, and checks every octet. It returns how long after the cut the
// first octets arrived.
func (p *pair) throughCut(d time.Duration, cut func(bool)) (first time.Duration) {
	p.t.Helper()
	ca, cb, _ := p.connect()
	there, back := checker{}, checker{stream: 1}
	sent, returned := 0, 0
	traffic := func() {
		if sent-there.at < 200_000 {
			sent += send(p.t, ca, 0, sent, 50_000)
		}
		if returned-back.at < 200_000 {
			returned += send(p.t, cb, 1, returned, 50_000)
		}
		require.NoError(p.t, there.receive(p.t, cb))
		require.NoError(p.t, back.receive(p.t, ca))
	}
	p.until("traffic", func() bool { traffic(); return there.at > 1<<20 && back.at > 1<<20 })
	cut(true)
	for end := time.Now().Add(d); time.Now().Before(end); {
		p.a.poll(time.Millisecond)
		p.b.poll(time.Millisecond)
		traffic()
	}
	before := [2]int{there.at, back.at}
	cut(false)
	start := time.Now()
	p.until("traffic after the cut", func() bool {
		traffic()
		if first == 0 && (there.at > before[0] || back.at > before[1]) {
			first = time.Since(start)
		}
		return there.at > before[0]+2<<20 && back.at > before[1]+2<<20
	})
	return first
}

// A link that is cut for some seconds is in use again about a second after it came back, however long it was away.
func TestLinkIsCut(t *testing.T) {
	t.Parallel()
	bothFamilies(t, func(t *testing.T, fam family) {
		t.Parallel()
		for _, d := range []time.Duration{time.Second, 6 * time.Second} {
			t.Run(d.String(), func(t *testing.T) {
				t.Parallel()
				p := newUserPairOf(t, fam, pktio.PipeConfig{GSO: true}, Config{})
				first := p.throughCut(d, p.portA.Cut)
				t.Logf("in use again after %v", first.Round(time.Millisecond))
				require.Less(t, first, 10*time.Second)
			})
		}
	})
}
