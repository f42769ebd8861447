package iwarp_test

import (
	"net/netip"
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

// With two copies on receive the ring has room for the longest frames.
func TestMemoryOfARingForAllFrames(t *testing.T) {
	wire(t)
	d, err := iwarp.Open(t.Context(), iwarp.Config{
		Backend: iwarp.Packet, Interface: "sr-v0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}, TwoCopies: true,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	require.GreaterOrEqual(t, iwarp.Memory(d)[1].Size, 65549)
}
