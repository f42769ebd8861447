package wiretest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Prefixes calls parse with every strict prefix of a good input. parse reports whether
// it took the input for whole; no prefix may be taken, and none may panic.
func Prefixes(t testing.TB, good []byte, parse func([]byte) bool) {
	t.Helper()
	require.True(t, parse(bytes.Clone(good)), "the whole input, % x", good)
	for n := range good {
		// A clone of exact size, so that a read past its end panics.
		require.False(t, parse(bytes.Clone(good[:n:n])), "the first %d of %d octets of % x were taken for whole", n, len(good), good)
	}
}

// RoundTrip checks that taking octets apart and building them again changes nothing.
func RoundTrip(t testing.TB, octets []byte, again func([]byte) ([]byte, error)) {
	t.Helper()
	got, err := again(bytes.Clone(octets))
	require.NoError(t, err)
	require.True(t, bytes.Equal(octets, got), "built again:\n% x\noriginal:\n% x", got, octets)
}

// Chunks cuts b into pieces of 1 to limit octets, the same for the same seed.
func Chunks(b []byte, limit int, seed uint64) [][]byte {
	rnd := rand.New(rand.NewPCG(seed, 0x6d7061))
	var out [][]byte
	for len(b) > 0 {
		n := min(1+rnd.IntN(limit), len(b))
		out = append(out, b[:n:n])
		b = b[n:]
	}
	return out
}
