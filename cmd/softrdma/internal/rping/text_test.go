package rping

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(size, n int) string {
	b := make([]byte, size)
	Text(b, n)
	return string(b)
}

func TestText(t *testing.T) {
	// From a capture of two rpings with -S 100.
	require.Equal(t, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ[\\\x00", text(100, 0))
	require.Equal(t, "rdma-ping-2: CDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^\x00", text(100, 2))
	// The characters go round after 'z', the start of the line as well.
	require.Equal(t, "rdma-ping-57: zABCDEFGHIJ\x00", text(26, 57))
	require.Equal(t, "rdma-ping-58: ABCDEFGHIJK\x00", text(26, 58))
	require.Equal(t, "rdma-ping-2147483647: HIJ\x00", text(MinSize, 1<<31-1))
}

func TestTextLen(t *testing.T) {
	for _, size := range []int{MinSize, DefaultSize, 4096, MaxSize} {
		require.Equal(t, size, textLen([]byte(text(size, 3))))
	}
	require.Equal(t, 1, textLen(make([]byte, 100)))
	require.Equal(t, 100, textLen([]byte(strings.Repeat("x", 100))), "memory without a zero ends with its last octet")
}

func TestInfo(t *testing.T) {
	wire := "00007f1200001000" + "12345678" + "00000040"
	b, err := hex.DecodeString(wire)
	require.NoError(t, err)
	i, err := parseInfo(b)
	require.NoError(t, err)
	require.Equal(t, info{addr: 0x7f1200001000, key: 0x12345678, size: 64}, i)
	require.Equal(t, wire, hex.EncodeToString(i.append(nil)))

	for n := range infoLen {
		_, err := parseInfo(b[:n])
		require.Error(t, err, "%d octets", n)
	}
	_, err = parseInfo(append(b, 0))
	require.ErrorContains(t, err, "sent 17 octets")
}

func FuzzInfo(f *testing.F) {
	f.Add(make([]byte, infoLen))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if i, err := parseInfo(b); err == nil {
			require.Equal(t, b, i.append(nil))
		}
	})
}
