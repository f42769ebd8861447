package crc32c

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
)

// times returns v*x^n mod P by the definition: P is that of RFC 3720, Section
// 12.1, and nothing is reflected.
func times(v uint32, n int) uint32 {
	const p = 0x11edc6f41
	w := uint64(v)
	for range n {
		if w <<= 1; w>>32 != 0 {
			w ^= p
		}
	}
	return uint32(w)
}

// Each constant is x^n mod P, bit-reflected, for an n that may be negative: that
// is tried by multiplying.
func TestConstants(t *testing.T) {
	check := func(name string, c uint64, n int) {
		const up = 97
		require.Zero(t, c>>32, "%s", name)
		require.Equal(t, times(1, n+up), times(bits.Reverse32(uint32(c)), up), "%s is not x^%d", name, n)
	}
	checkFolding := func(name string, f folding, n int) {
		check(name+" low", f.low, n+64-33)
		check(name+" high", f.high, n-33)
	}
	checkFolding("foldNext512", foldNext512, 1024)
	checkFolding("foldNext128", foldNext128, 256)
	for i, n := range []int{896, 768, 640, 512, 384, 256, 128, 0} {
		checkFolding("foldLast", foldLast[i], n)
	}
	for i, c := range shift {
		check("shift", c, 64*i-97)
	}
	for i, w := range frontMask {
		require.Equal(t, i >= 4, w == ^uint64(0))
		require.Equal(t, i < 4, w == 0)
	}
}
