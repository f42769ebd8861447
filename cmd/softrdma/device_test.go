package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

func parseDevice(t *testing.T, vars map[string]string, args ...string) (iwarp.Config, error) {
	t.Helper()
	var f deviceFlags
	set := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.register(set)
	require.NoError(t, set.Parse(args))
	return f.config(env(vars))
}

func TestDeviceFromTheEnvironment(t *testing.T) {
	lab := map[string]string{
		"SOFTRDMA_BACKEND": "packet", "SOFTRDMA_DEV": "sr-a", "SOFTRDMA_IP": "10.77.0.1/24, fd77::1/64",
		"SOFTRDMA_GW": "10.77.0.254, fe80::fe%sr-a", "SOFTRDMA_MTU": "9000",
	}
	c, err := parseDevice(t, lab)
	require.NoError(t, err)
	require.Equal(t, iwarp.Config{
		Backend: iwarp.Packet, Interface: "sr-a", MTU: 9000,
		Gateways: []netip.Addr{netip.MustParseAddr("10.77.0.254"), netip.MustParseAddr("fe80::fe%sr-a")},
		Addrs:    []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("fd77::1/64")},
	}, c)

	c, err = parseDevice(t, lab, "--ip", "10.77.0.9/24", "--mtu", "1500", "--dev", "eth1", "--backend", "auto",
		"--gw", "10.77.0.1", "--gw=fd77::1,10.77.0.2", "--keepalive", "5s")
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, c.Keepalive)
	require.Equal(t, iwarp.Auto, c.Backend)
	require.Equal(t, "eth1", c.Interface)
	require.Equal(t, 1500, c.MTU)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.77.0.9/24")}, c.Addrs)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr("fd77::1"), netip.MustParseAddr("10.77.0.2")}, c.Gateways)
}

func TestXDPMode(t *testing.T) {
	for name, want := range map[string]pktio.XDPMode{"auto": pktio.XDPAuto, "native": pktio.XDPNative, "generic": pktio.XDPGeneric} {
		c, err := parseDevice(t, map[string]string{"SOFTRDMA_XDP_MODE": name}, "--backend", "xdp")
		require.NoError(t, err)
		require.Equal(t, iwarp.XDP, c.Backend)
		require.Equal(t, want, c.XDPMode)
		c, err = parseDevice(t, map[string]string{"SOFTRDMA_XDP_MODE": "generic"}, "--xdp-mode", name)
		require.NoError(t, err)
		require.Equal(t, want, c.XDPMode, "the flag goes before the environment")
	}
	_, err := parseDevice(t, nil, "--xdp-mode", "fast")
	require.ErrorContains(t, err, `no mode "fast"`)
}

func TestOneCopy(t *testing.T) {
	c, err := parseDevice(t, nil)
	require.NoError(t, err)
	require.False(t, c.OneCopy)
	c, err = parseDevice(t, nil, "--one-copy")
	require.NoError(t, err)
	require.True(t, c.OneCopy)
}

func TestThreads(t *testing.T) {
	for name, want := range map[string]iwarp.Threads{
		"adaptive": iwarp.ThreadsAdaptive, "c1": iwarp.ThreadsIO, "c2": iwarp.ThreadsRunToCompletion, "c3": iwarp.ThreadsSplit,
	} {
		c, err := parseDevice(t, map[string]string{"SOFTRDMA_THREADS": name})
		require.NoError(t, err)
		require.Equal(t, want, c.Threads)
		c, err = parseDevice(t, map[string]string{"SOFTRDMA_THREADS": "c1"}, "--threads", name)
		require.NoError(t, err)
		require.Equal(t, want, c.Threads, "the flag goes before the environment")
	}
	_, err := parseDevice(t, nil, "--threads", "c4")
	require.ErrorContains(t, err, `--threads: unknown threading model "c4": take adaptive, c1, c2 or c3`)
	_, err = parseDevice(t, map[string]string{"SOFTRDMA_THREADS": "two"})
	require.ErrorContains(t, err, `SOFTRDMA_THREADS: unknown threading model "two"`)
}

func TestKernelHasAddressesOfItsOwn(t *testing.T) {
	lab := map[string]string{"SOFTRDMA_BACKEND": "packet", "SOFTRDMA_IP": "10.77.0.1/24"}
	c, err := parseDevice(t, lab, "--backend", "kernel")
	require.NoError(t, err)
	require.Empty(t, c.Addrs)

	c, err = parseDevice(t, lab, "--backend", "kernel", "--ip", "10.78.0.1")
	require.NoError(t, err)
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.78.0.1/32")}, c.Addrs)
}

func TestPerfPlan(t *testing.T) {
	for s, want := range map[string]string{"5": "5s", "0.5": "500ms", "250ms": "250ms"} {
		d, err := parseSeconds(s)
		require.NoError(t, err)
		require.Equal(t, want, d.String())
	}
	for _, s := range []string{"", "0", "-1", "x", "2h", "1e300", "NaN"} {
		_, err := parseSeconds(s)
		require.Error(t, err, "%q", s)
	}
}

func TestBaselineAddress(t *testing.T) {
	for _, test := range []struct {
		given, host, dev string
		backend          iwarp.Backend
		want             string
	}{
		{"", "10.77.0.1", "sr-b", iwarp.Packet, "10.78.0.1:7176"},
		{"", "fd77::1", "sr-b", iwarp.Packet, "[fd78::1]:7176"},
		{"", "10.77.0.1", "eth0", iwarp.Packet, ""},
		{"", "192.0.2.7", "", iwarp.Kernel, "192.0.2.7:7176"},
		{"192.0.2.1", "10.77.0.1", "eth0", iwarp.Packet, "192.0.2.1:7176"},
		{"192.0.2.1:99", "10.77.0.1", "eth0", iwarp.Packet, "192.0.2.1:99"},
		{"fd00::1", "10.77.0.1", "eth0", iwarp.Packet, "[fd00::1]:7176"},
	} {
		p := perfFlags{port: 7175, baselineAddr: test.given}
		got, err := p.baselineAddress(test.host, &iwarp.Config{Backend: test.backend, Interface: test.dev})
		require.Equal(t, test.want, got, "%+v", test)
		require.Equal(t, test.want == "", err != nil, "%+v", test)
	}
}
