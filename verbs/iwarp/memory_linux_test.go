package iwarp_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs/iwarp"
)

func TestMemoryOfAPacketRing(t *testing.T) {
	wire(t)
	d, err := packet("sr-v0", "10.77.0.1/24")
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	list := iwarp.Memory(d)
	require.Len(t, list, 2)
	m := list[1]
	require.Contains(t, m.Purpose, "receive ring")
	require.GreaterOrEqual(t, m.Count, 256)
	require.GreaterOrEqual(t, m.Size, 1514)
	require.GreaterOrEqual(t, m.Octets, m.Count*m.Size)
	require.Equal(t, []any{m.Octets, true, os.Getpagesize(), "plain"}, []any{m.Resident, m.Locked, m.PageSize, m.Pages})
}
