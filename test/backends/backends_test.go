package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCells(t *testing.T) {
	all, err := cells(backends, "")
	require.NoError(t, err)
	require.Len(t, all, 24)
	seen := map[cell]bool{}
	for _, c := range all {
		require.False(t, seen[c])
		seen[c] = true
		require.False(t, c.v6 && c.mtu < 1280, "IPv6 needs 1280")
	}
	some, err := cells([]string{"kernel"}, "IPv6")
	require.NoError(t, err)
	require.Equal(t, []cell{{"kernel", true, 1280}, {"kernel", true, 1500}, {"kernel", true, 9000}}, some)
	_, err = cells(backends, "IPv5")
	require.ErrorContains(t, err, "no cell")
	_, err = cells([]string{"dpdk"}, "")
	require.ErrorContains(t, err, "none of packet, xdp-native, xdp-generic, kernel")
}

func TestXDPMode(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`[{"ifname":"bk-1","mtu":1500}]`, "none"},
		{`[{"ifname":"bk-1","xdp":{"mode":1,"prog":{"id":742}}}]`, "native"},
		{`[{"ifname":"bk-1","xdp":{"mode":2,"prog":{"id":742}}}]`, "generic"},
		{`[{"ifname":"bk-1","xdp":{"mode":4}}]`, "mode 4"},
	} {
		got, err := parseXDPMode([]byte(c.text))
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	for _, text := range []string{"", "[]", "[{},{}]", "{"} {
		_, err := parseXDPMode([]byte(text))
		require.Error(t, err, text)
	}
}

func TestTaken(t *testing.T) {
	h := host{cell: cell{"xdp-native", false, 1500}}
	require.NoError(t, h.taken("xdp: own TCP/IP stack on bk-1 with 10.77.0.1/24 (native, copy, 1 queue, asked for)\nping: listening"))
	require.Error(t, h.taken("xdp: own TCP/IP stack on bk-1 with 10.77.0.1/24 (generic, copy, 1 queue, asked for)\nnative"))
	require.Error(t, h.taken("packet: own TCP/IP stack on bk-1 with 10.77.0.1/24 (asked for)"))
	require.Error(t, h.taken(""))
}

// What a report may have wrong is noticed.
func TestReport(t *testing.T) {
	const bw = `{"schema":"softrdma.perf/v1","test":{"op":"write","kind":"bw","verify":true},
		"results":[{"MsgSize":1048576,"n_iterations":100,"seconds":0.5,"BW_average":200}]}`
	const lat = `{"schema":"softrdma.perf/v1","test":{"op":"read","kind":"lat","verify":true},
		"results":[{"MsgSize":8,"n_iterations":100,"seconds":0.5,"t_min":5,"p50":7.5,"t_max":9}]}`
	parse := func(text string) *report {
		var r report
		require.NoError(t, json.Unmarshal([]byte(text), &r))
		return &r
	}
	v, err := parse(bw).check(test{"write", "bw"}, 500*time.Millisecond)
	require.NoError(t, err)
	require.InDelta(t, 200, v, 0)
	v, err = parse(lat).check(test{"read", "lat"}, 500*time.Millisecond)
	require.NoError(t, err)
	require.InDelta(t, 7.5, v, 0)

	for name, spoil := range map[string]func(r *report){
		"schema":       func(r *report) { r.Schema = "softrdma.perf/v2" },
		"error":        func(r *report) { r.Error = "broken" },
		"interrupted":  func(r *report) { r.Interrupted = true },
		"another op":   func(r *report) { r.Test.Op = "send" },
		"not verified": func(r *report) { r.Test.Verify = false },
		"no result":    func(r *report) { r.Results = nil },
		"wrong octets": func(r *report) { r.Results[0].Wrong = 1 },
		"nothing done": func(r *report) { r.Results[0].N = 0 },
		"too short":    func(r *report) { r.Results[0].Seconds = 0.1 },
		"made up":      func(r *report) { r.Results[0].Bandwidth = 300 },
	} {
		r := parse(bw)
		spoil(r)
		_, err := r.check(test{"write", "bw"}, 500*time.Millisecond)
		require.Error(t, err, name)
	}
	r := parse(lat)
	r.Results[0].P50 = 10
	_, err = r.check(test{"read", "lat"}, 500*time.Millisecond)
	require.ErrorContains(t, err, "median 10")
}

func TestPings(t *testing.T) {
	const text = `{"schema":"softrdma.ping/v1","received":2,"wrong":0,"min_usec":1,"avg_usec":2,"max_usec":3,"pings":[{"seq":0,"usec":1},{"seq":1,"usec":3}]}`
	var d pings
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.NoError(t, d.check(2))
	require.Error(t, d.check(3))
	d.Wrong = 1
	require.Error(t, d.check(2))
}
