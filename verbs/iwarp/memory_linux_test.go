package iwarp_test

import (
	"net/netip"
	"os"
	"syscall"
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
	require.Len(t, list, 3)
	for i, want := range []struct{ count, size int }{{256, 1514}, {64, 65549}} {
		m := list[1+i]
		require.Contains(t, m.Purpose, "receive ring")
		require.GreaterOrEqual(t, m.Count, want.count)
		require.GreaterOrEqual(t, m.Size, want.size)
		require.Less(t, m.Size, want.size+256)
		require.GreaterOrEqual(t, m.Octets, m.Count*m.Size)
		require.Equal(t, []any{m.Octets, true, os.Getpagesize(), "plain"}, []any{m.Resident, m.Locked, m.PageSize, m.Pages})
	}
}

// What goes past the ring needs no ring of its own, if the kernel lets us have a long queue: in a user namespace it does not.
func TestMemoryWithOneCopy(t *testing.T) {
	wire(t)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	want := 2
	if syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUFFORCE, 1<<25) != nil {
		want = 3
	}
	d, err := iwarp.Open(t.Context(), iwarp.Config{
		Backend: iwarp.Packet, Interface: "sr-v0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}, OneCopy: true,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	require.Len(t, iwarp.Memory(d), want)
}
