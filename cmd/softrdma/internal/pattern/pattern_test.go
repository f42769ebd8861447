package pattern

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFillThenCheck(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := make([]byte, rapid.IntRange(0, 100).Draw(t, "size"))
		seed := rapid.Uint64().Draw(t, "seed")
		Fill(b, seed)
		require.True(t, Check(b, seed).OK())
		for i := range b {
			require.Equal(t, At(seed, i), b[i])
		}
		if len(b) == 0 {
			return
		}
		at := rapid.IntRange(0, len(b)-1).Draw(t, "at")
		b[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		d := Check(b, seed)
		require.Equal(t, 1, d.Wrong)
		require.Equal(t, at, d.Offset)
		require.Equal(t, []int{at}, d.Offsets)
		require.Equal(t, At(seed, at), d.Want)
		require.Equal(t, b[at], d.Got)
	})
}

func TestDiffNamesOctets(t *testing.T) {
	b := make([]byte, 32)
	Fill(b, 7)
	require.Equal(t, "all 32 octets are right", Check(b, 7).String())
	for i := 3; i < 20; i++ {
		b[i]++
	}
	require.Contains(t, Check(b, 7).String(), "17 of 32 octets differ, at offset 3 4 5 6 7 8 9 10, ...: the first is 0x")
}

func TestMessagesDiffer(t *testing.T) {
	a, b := make([]byte, 4096), make([]byte, 4096)
	Fill(a, Seed(1, 0))
	Fill(b, Seed(1, 1))
	same := 0
	for i := range a {
		if a[i] == b[i] {
			same++
		}
	}
	require.Less(t, same, 60, "two messages must not agree in more octets than chance makes them")
	require.NotEqual(t, Seed(1, 0), Seed(2, 0))
}

func TestCheckByte(t *testing.T) {
	b := []byte{0xee, 0xee, 0, 0xee}
	d := CheckByte(b, 0xee)
	require.Equal(t, Diff{Wrong: 1, Of: 4, Offset: 2, Want: 0xee, Offsets: []int{2}}, d)
}

func BenchmarkCheck(b *testing.B) {
	buf := make([]byte, 1<<20)
	Fill(buf, 1)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		if !Check(buf, 1).OK() {
			b.Fatal("wrong")
		}
	}
}
