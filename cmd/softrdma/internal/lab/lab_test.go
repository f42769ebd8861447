package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func lines(cmds []Command) string {
	var b strings.Builder
	for _, c := range cmds {
		b.WriteString(c.String() + "\n")
	}
	return b.String()
}

func TestUpPlan(t *testing.T) {
	cmds, err := Default().Up(Plan{MTU: 9000})
	require.NoError(t, err)
	require.Equal(t, `ip netns add softrdma-a
ip netns add softrdma-b
ip link add sr-a netns softrdma-a type veth peer name sr-b netns softrdma-b
ip -n softrdma-a link set sr-a mtu 9000
ip -n softrdma-a link set sr-a addrgenmode none
ip -n softrdma-a addr add 10.78.0.1/24 dev sr-a
ip -n softrdma-a addr add fd78::1/64 dev sr-a nodad
ip -n softrdma-a link set lo up
ip -n softrdma-a link set sr-a up
ip -n softrdma-b link set sr-b mtu 9000
ip -n softrdma-b link set sr-b addrgenmode none
ip -n softrdma-b addr add 10.78.0.2/24 dev sr-b
ip -n softrdma-b addr add fd78::2/64 dev sr-b nodad
ip -n softrdma-b link set lo up
ip -n softrdma-b link set sr-b up
`, lines(cmds))
}

func TestUpPlanNeverGivesTheKernelOurAddresses(t *testing.T) {
	cmds, err := Default().Up(Plan{})
	require.NoError(t, err)
	require.NotContains(t, lines(cmds), "10.77.")
	require.NotContains(t, lines(cmds), "fd77:")
	require.NotContains(t, lines(cmds), "mtu")
}

func TestUpPlanWithoutIPv6(t *testing.T) {
	cmds, err := Default().Up(Plan{NoIPv6: true})
	require.NoError(t, err)
	require.NotContains(t, lines(cmds), "fd78")
	require.NotContains(t, lines(cmds), "addrgenmode")
	require.Contains(t, lines(cmds), "10.78.0.2/24")
}

func TestUpPlanMTU(t *testing.T) {
	for mtu, ok := range map[int]bool{-1: false, 67: false, 1279: false, 1280: true, 1500: true, 65535: true, 65536: false} {
		_, err := Default().Up(Plan{MTU: mtu})
		require.Equal(t, ok, err == nil, "MTU %d: %v", mtu, err)
	}
	_, err := Default().Up(Plan{MTU: 68, NoIPv6: true})
	require.NoError(t, err)
}

func TestDownPlan(t *testing.T) {
	l := Default()
	for name, test := range map[string]struct {
		exists, links string
		want          string
	}{
		"all":              {"ab", "ab", "ip -n softrdma-a link del sr-a\nip netns del softrdma-a\nip netns del softrdma-b\n"},
		"nothing":          {"", "", ""},
		"half":             {"b", "b", "ip -n softrdma-b link del sr-b\nip netns del softrdma-b\n"},
		"without the link": {"ab", "", "ip netns del softrdma-a\nip netns del softrdma-b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			in := func(set string) func(Side) bool {
				return func(s Side) bool { return strings.Contains(set, strings.TrimPrefix(s.Namespace, "softrdma-")) }
			}
			require.Equal(t, test.want, lines(l.Down(in(test.exists), in(test.links))))
		})
	}
}

func TestEnviron(t *testing.T) {
	b, err := Default().Side("b")
	require.NoError(t, err)
	require.Equal(t, []string{
		"SOFTRDMA_BACKEND=packet", "SOFTRDMA_DEV=sr-b", "SOFTRDMA_IP=10.77.0.2/24", "SOFTRDMA_GW=", "SOFTRDMA_MTU=",
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
