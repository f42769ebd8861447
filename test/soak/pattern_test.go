package main

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMixIsUndone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		v := r.Uint64()
		require.Equal(t, v, unmix(mix(v)))
	}
}

// However a message is cut, its pieces have the octets of the whole.
func TestFillInPieces(t *testing.T) {
	p, m := pattern{77}, mark{markData, 1, 3, 5, 99}
	whole := make([]byte, 1000)
	p.fill(whole, m, 0)
	r := rand.New(rand.NewPCG(2, 2))
	for range 1000 {
		from := r.IntN(len(whole))
		n := r.IntN(len(whole) - from + 1)
		b := make([]byte, n)
		p.fill(b, m, from)
		require.Equal(t, whole[from:from+n], b)
		require.Equal(t, n, p.check(b, m, from))
	}
}

func TestCheckFindsTheFirstWrongOctet(t *testing.T) {
	p, m := pattern{77}, mark{markExport, 0, 255, 1023, maxSeq - 1}
	for _, from := range []int{0, 1, 7, 8, 13} {
		b := make([]byte, 100)
		for at := range b {
			p.fill(b, m, from)
			b[at] ^= 0x10
			require.Equal(t, at, p.check(b, m, from), "from %d", from)
		}
	}
}

func TestNameTellsWhatOctetsAre(t *testing.T) {
	p, m := pattern{123456}, mark{markData, 1, 3, 5, 2*maxOps + 7}
	b := make([]byte, 300)
	p.fill(b[3:], m, 501)
	require.Equal(t, "octet 501 of the payload of round 2, operation 7 of end b, lane 3, generation 5", p.name(b, 3, 16))
	require.Equal(t, "octet 550 of the payload of round 2, operation 7 of end b, lane 3, generation 5", p.name(b, 52, 16))
	require.Equal(t, "zeros", p.name(make([]byte, 20), 0, 16))
	require.Contains(t, p.name([]byte("what has nothing to do with us"), 0, 16), "nothing known: 77 68")
}

// Octets of any two places differ, or a mix-up would not show.
func TestWordsDiffer(t *testing.T) {
	p := pattern{9}
	seen := map[uint64]mark{}
	for side := range 2 {
		for lane := range 4 {
			for gen := range uint32(4) {
				for seq := range uint32(16) {
					m := mark{markData, side, lane, gen, seq}
					for i := range uint64(32) {
						w := p.word(m, i)
						_, double := seen[w]
						require.False(t, double)
						seen[w] = m
						got, at, ok := p.decode(w, 4)
						require.True(t, ok)
						require.Equal(t, m, got)
						require.Equal(t, i, at)
					}
				}
			}
		}
	}
}
