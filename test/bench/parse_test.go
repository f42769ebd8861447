package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// recorded is what a program printed once.
func recorded(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return string(b)
}

func TestPerf(t *testing.T) {
	t.Run("half a round trip is doubled", func(t *testing.T) {
		d, err := parsePerf(recorded(t, "perf-write-lat.json"))
		require.NoError(t, err)
		r := perfRun{backend: "packet", op: "write", kind: "lat", size: small}
		require.NoError(t, d.took(r))
		v, err := d.sample("softrdma", &outcome{})
		require.NoError(t, err)
		require.InDelta(t, 2*d.Results[0].P50, v[p50], 1e-9)
		require.InDelta(t, 2*d.Results[0].P99, v[p99], 1e-9)
		require.InDelta(t, 2*d.Results[0].P999, v[p999], 1e-9)
		require.InDelta(t, 2*d.Results[0].Average, v[mean], 1e-9)
		require.Positive(t, v[p50])
	})
	t.Run("a whole one is not", func(t *testing.T) {
		d, err := parsePerf(recorded(t, "perf-read-lat.json"))
		require.NoError(t, err)
		v, err := d.sample("softrdma", nil)
		require.NoError(t, err)
		require.InDelta(t, d.Results[0].P50, v[p50], 1e-9)
	})
	t.Run("throughput and processor time", func(t *testing.T) {
		d, err := parsePerf(recorded(t, "perf-write-bw.json"))
		require.NoError(t, err)
		d.Results[0].N, d.Results[0].Seconds = 4000, 2
		v, err := d.sample("softrdma", &outcome{client: 3 * time.Second, server: time.Second, hostBusy: 5 * time.Second})
		require.NoError(t, err)
		const gb = 4000 * 1.048576e-3
		require.InDelta(t, gb/2, v[rate], 1e-9)
		require.InDelta(t, 0.002, v[msgs], 1e-9)
		require.InDelta(t, 4/gb, v[cpu], 1e-9)
		require.InDelta(t, 5/gb, v[hostCPU], 1e-9)
	})
	t.Run("TCP alone", func(t *testing.T) {
		d, err := parsePerf(recorded(t, "perf-tcp-lat.json"))
		require.NoError(t, err)
		v, err := d.sample("tcp-spinning", nil)
		require.NoError(t, err)
		require.InDelta(t, 2*d.Results[0].P50, v[p50], 1e-9)
		_, err = d.sample("tcp-blocking", nil)
		require.Error(t, err, "another transport")
	})
}

// What is not what was asked for, or went wrong, is no result.
func TestPerfRefused(t *testing.T) {
	text := recorded(t, "perf-write-lat.json")
	for name, change := range map[string][2]string{
		"schema":      {"softrdma.perf/v1", "softrdma.perf/v2"},
		"interrupted": {`"results"`, `"interrupted": true, "results"`},
		"error":       {`"results"`, `"error": "broken", "results"`},
		"no result":   {`"results": [`, `"results": [], "other": [`},
		"nothing":     {`"n_iterations": `, `"n_iterations": 0, "other": `},
		"cut":         {"}\n", ""},
	} {
		_, err := parsePerf(strings.Replace(text, change[0], change[1], 1))
		if name == "cut" {
			_, err = parsePerf(text[:len(text)/2])
		}
		require.Error(t, err, name)
	}
	asked := perfRun{backend: "packet", op: "write", kind: "lat", size: small}
	for name, change := range map[string][2]string{
		"backend":      {`"backend": "packet:`, `"backend": "kernel:`},
		"op":           {`"op": "write"`, `"op": "send"`},
		"kind":         {`"kind": "lat"`, `"kind": "bw"`},
		"verify":       {`"verify": false`, `"verify": true`},
		"wrong octets": {`"transport"`, `"wrong_octets": 1, "transport"`},
	} {
		d, err := parsePerf(strings.Replace(text, change[0], change[1], 1))
		require.NoError(t, err, name)
		require.Error(t, d.took(asked), name)
	}
	d, err := parsePerf(text)
	require.NoError(t, err)
	asked.backend = "xdp-native"
	require.ErrorContains(t, d.took(asked), "xdp-native")
}

func TestUCX(t *testing.T) {
	v, err := parseUCX(recorded(t, "ucx-tag_lat.txt"), false)
	require.NoError(t, err)
	require.Equal(t, sample{p50: 2 * 6.561, mean: 2 * 160.812}, v)
	v, err = parseUCX(recorded(t, "ucx-ucp_put_lat.txt"), false)
	require.NoError(t, err)
	require.InDelta(t, 2*11.556, v[p50], 1e-9)
	v, err = parseUCX(recorded(t, "ucx-tag_bw.txt"), true)
	require.NoError(t, err)
	require.InDelta(t, 688.78*1.048576/1000, v[rate], 1e-9)
	for _, text := range []string{"", "usage: ucx_perftest", "1 2 3 4 5 6 7 x", "[vm] connect failed: Connection refused"} {
		_, err := parseUCX(text, false)
		require.Error(t, err, text)
	}
}

func TestFabric(t *testing.T) {
	v, err := parseFabric(recorded(t, "fi_pingpong.txt"))
	require.NoError(t, err)
	require.Equal(t, sample{mean: 2 * 85.56}, v)
	for _, text := range []string{"", "fi_getinfo: -61", "bytes usec/xfer\n64", "bytes usec/xfer\n64 zero"} {
		_, err := parseFabric(text)
		require.Error(t, err, text)
	}
}

func TestOwnEnds(t *testing.T) {
	v, err := parseTimes("1000 rounds, p50 4200 p99 5000 p99.9 60000 ns\n")
	require.NoError(t, err)
	require.Equal(t, sample{p50: 4.2, p99: 5, p999: 60}, v)
	_, err = parseTimes("no rounds")
	require.Error(t, err)
	n, took, err := parseCount("3200 messages in 1000000 ns\n")
	require.NoError(t, err)
	require.EqualValues(t, 3200, n)
	require.Equal(t, time.Millisecond, took)
	for _, text := range []string{"", "0 messages in 5 ns", "7 messages in 0 ns"} {
		_, _, err = parseCount(text)
		require.Error(t, err, text)
	}
}

func TestLosses(t *testing.T) {
	d, err := parseLosses(recorded(t, "lab-status.txt"))
	require.NoError(t, err)
	require.Equal(t, []direction{{"a to b", 203, 2}, {"b to a", 203, 0}}, d)
	_, err = parseLosses("the wire passes every frame on\n")
	require.Error(t, err)
}

func TestListens(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.True(t, listens(os.Getpid(), port))
	require.NoError(t, l.Close())
	require.False(t, listens(os.Getpid(), port))

	const table = "  sl  local_address rem_address   st\n   0: 0100007F:1C08 00000000:0000 0A x\n   1: 0100007F:1C09 0100007F:1000 01 x\n"
	require.True(t, listensIn(table, 0x1c08))
	require.False(t, listensIn(table, 0x1c09), "connected")
	require.False(t, listensIn(table, 0x1000), "somebody else's")
}
