package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizeFlag(t *testing.T) {
	for in, want := range map[string]int{
		"0": 0, "4096": 4096, "64K": 65536, "64k": 65536, "64KiB": 65536, "64KB": 65536, "1M": 1 << 20, "2G": 2 << 30, "-1": -1,
	} {
		var f sizeFlag
		require.NoError(t, f.Set(in), in)
		require.EqualValues(t, want, f, in)
	}
	for _, in := range []string{"", "K", "1.5K", "64X", "8B", "8i", "9999999999G", "1 K"} {
		var f sizeFlag
		require.Error(t, f.Set(in), in)
	}
}
