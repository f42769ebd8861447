package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEnviron(t *testing.T) {
	b, err := Default().Side("b")
	require.NoError(t, err)
	require.Equal(t, []string{
		"SOFTRDMA_BACKEND=packet", "SOFTRDMA_DEV=sr-b", "SOFTRDMA_IP=10.77.0.2/24,fd77::2/64", "SOFTRDMA_GW=", "SOFTRDMA_MTU=",
	}, b.Environ())
	require.Equal(t, "ip netns exec softrdma-b ping -c 1 10.78.0.1", b.Exec([]string{"ping", "-c", "1", "10.78.0.1"}).String())

	_, err = Default().Side("c")
	require.ErrorContains(t, err, `"c"`)
}

func TestKernelAddr(t *testing.T) {
	for own, want := range map[string]string{"10.77.0.1": "10.78.0.1", "fd77::2": "fd78::2", "::ffff:10.77.0.2": "10.78.0.2"} {
		got, ok := KernelAddr(netip.MustParseAddr(own))
		require.True(t, ok)
		require.Equal(t, want, got.String())
	}
	for _, other := range []string{"10.77.0.3", "192.0.2.1", "10.78.0.1"} {
		_, ok := KernelAddr(netip.MustParseAddr(other))
		require.False(t, ok, other)
	}
}

func TestCommandString(t *testing.T) {
	require.Equal(t, `sh -c 'echo '\''hi'\'' > f' ''`, Command{"sh", "-c", "echo 'hi' > f", ""}.String())
}

func TestHasRights(t *testing.T) {
	status := func(line string) string {
		path := filepath.Join(t.TempDir(), "status")
		require.NoError(t, os.WriteFile(path, []byte("Name:\tx\nCapInh:\t0000000000000000\n"+line), 0o600))
		return path
	}
	require.True(t, hasRights(status("CapEff:\t000001ffffffffff\n")))
	require.False(t, hasRights(status("CapEff:\t0000000000000000\n")))
	require.False(t, hasRights(status("CapEff:\t0000000000001000\n")), "NET_ADMIN alone is not enough")
	require.False(t, hasRights(status("CapEff:\tgarbage\n")))
	require.False(t, hasRights(status("")))
}
