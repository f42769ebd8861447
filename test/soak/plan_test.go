package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
)

// Rounds keep to what memory and queues have room for, and nothing overlaps that
// must not.
func TestRounds(t *testing.T) {
	kinds := map[opKind]int{}
	for _, size := range []int{1 << 20, 4096, 100} {
		o := &options{Seed: 5, MaxSize: size, Rounds: 50}
		for gen := range uint32(10) {
			g := planGen(o, int(gen)%7, gen)
			for num := range 20 {
				p := planRound(o, g, int(gen)%2, num)
				checkRound(t, o, p)
				for i := range p.ops {
					kinds[p.ops[i].kind]++
				}
			}
		}
	}
	for k := range opKinds {
		require.NotZero(t, kinds[opKind(k)], "there is no %s", opNames[k])
	}
}

func checkRound(t *testing.T, o *options, p *round) {
	var taken [areas][]piece
	batched := 0
	for _, k := range p.batches {
		batched += k
	}
	require.Equal(t, len(p.ops), batched)
	require.LessOrEqual(t, len(p.ops), maxOps)
	for i := range p.ops {
		x := &p.ops[i]
		require.Equal(t, x.n, total(x.local))
		require.LessOrEqual(t, x.n, o.MaxSize+extra)
		require.LessOrEqual(t, len(x.local), maxSGEs)
		require.LessOrEqual(t, len(x.recv), maxSGEs)
		switch x.kind {
		case opRead, opReadBack:
			taken[areaSink] = append(taken[areaSink], x.local...)
		case opSend, opWrite:
			taken[areaSource] = append(taken[areaSource], x.local...)
		}
		if x.kind.writes() {
			taken[areaTarget] = append(taken[areaTarget], piece{x.there, x.n})
		}
		if x.kind == opRead {
			require.LessOrEqual(t, x.there+x.n, o.MaxSize)
		}
		if x.kind.sends() {
			require.GreaterOrEqual(t, total(x.recv), x.n)
			taken[areaInbox] = append(taken[areaInbox], x.recv...)
		}
	}
	last := p.ops[len(p.ops)-1]
	require.True(t, last.kind.sends())
	require.NotZero(t, last.flags&verbs.SendSignaled)
	for area, list := range taken {
		slices.SortFunc(list, func(a, b piece) int { return a.off - b.off })
		end := 0
		for _, q := range list {
			if q.n > 0 {
				require.GreaterOrEqual(t, q.off, end, areaNames[area])
				end = q.off + q.n
			}
		}
		require.LessOrEqual(t, end, p.used[area])
		require.LessOrEqual(t, p.used[area], o.slot())
	}
}

func total(list []piece) (n int) {
	for _, p := range list {
		n += p.n
	}
	return n
}

// Both ends draw the same.
func TestPlansAreReproducible(t *testing.T) {
	o := &options{Seed: 5, MaxSize: 1 << 20, Rounds: 50}
	for gen := range uint32(5) {
		a, b := planGen(o, 3, gen), planGen(o, 3, gen)
		require.Equal(t, a, b)
		require.Equal(t, planRound(o, a, 1, 4), planRound(o, b, 1, 4))
		require.NotEqual(t, planRound(o, a, 1, 4), planRound(o, b, 0, 4))
	}
	require.NotEqual(t, fmt.Sprint(planGen(o, 3, 1)), fmt.Sprint(planGen(o, 3, 2)))
}
