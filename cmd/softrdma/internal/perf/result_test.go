package perf

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func latencies(op Op, us ...int) *Result {
	r := &Result{Test: Test{Op: op, Kind: Latency, Size: 8}, Times: NewTimes(), Elapsed: time.Second}
	for _, v := range us {
		r.Times.Record(time.Duration(v) * time.Microsecond)
		r.Messages++
	}
	return r
}

func TestLatencyIsHalfTheRoundTrip(t *testing.T) {
	for _, op := range []Op{Send, Write} {
		r := latencies(op, 10, 20, 30, 40, 1000)
		require.InDelta(t, 5e3, r.Latency(0), 0)
		require.InDelta(t, 15e3, r.Latency(50), 15)
		require.InDelta(t, 500e3, r.Latency(100), 0)
		require.InDelta(t, 110e3, r.Mean(), 0)
	}
	r := latencies(Read, 10, 20, 30)
	require.InDelta(t, 20e3, r.Latency(50), 20)
	require.InDelta(t, 20e3, r.Mean(), 0)
}

func TestPercentiles(t *testing.T) {
	r := &Result{Test: Test{Op: Read, Kind: Latency}, Times: NewTimes()}
	for i := 1; i <= 10000; i++ {
		r.Times.Record(time.Duration(i) * time.Microsecond)
	}
	for p, want := range map[float64]float64{50: 5000e3, 90: 9000e3, 99: 9900e3, 99.9: 9990e3, 99.99: 9999e3} {
		require.InEpsilon(t, want, r.Latency(p), 0.001, "%g", p)
	}
	require.InEpsilon(t, 2886.75e3, r.Stdev(), 0.001)
	require.InDelta(t, 10000e3, r.Latency(100), 0, "the largest is exact")
}

func TestTimesOutOfRange(t *testing.T) {
	times := NewTimes()
	times.Record(0)
	times.Record(-time.Second)
	times.Record(2 * time.Minute)
	require.InDelta(t, 1, times.at(0), 0)
	require.InDelta(t, 120e9, times.at(100), 0)
	require.Equal(t, int64(3), times.Histogram().TotalCount())
	require.Zero(t, (&Result{Times: NewTimes()}).Latency(50))
	require.Zero(t, (&Result{Times: NewTimes()}).Mean())
}

func TestBandwidth(t *testing.T) {
	r := &Result{Test: Test{Op: Write, Kind: Bandwidth, Size: 1000}, Messages: 5000, Elapsed: 2 * time.Second}
	require.InDelta(t, 2.5e6, r.OctetsPerSecond(), 0)
	require.InDelta(t, 2500, r.MessagesPerSecond(), 0)
	require.Zero(t, (&Result{Test: r.Test, Messages: 1}).OctetsPerSecond(), "no time, no rate")
}

func TestAdd(t *testing.T) {
	r := latencies(Send, 10, 20)
	r.CPU, r.PeerCPU = time.Second, 2*time.Second
	o := latencies(Send, 30, 40)
	o.CPU, o.Wrong, o.WrongAt, o.Peak, o.Interrupted = time.Second, 3, "here", 7, true
	r.Add(o)
	require.EqualValues(t, 4, r.Messages)
	require.Equal(t, 2*time.Second, r.Elapsed)
	require.Equal(t, 2*time.Second, r.CPU)
	require.InDelta(t, 12.5e3, r.Mean(), 0)
	require.InDelta(t, 5e3, r.Latency(0), 0)
	require.InDelta(t, 20e3, r.Latency(100), 0)
	require.EqualValues(t, 3, r.Wrong)
	require.Equal(t, "here", r.WrongAt)
	require.InDelta(t, 7, r.Peak, 0)
	require.True(t, r.Interrupted)
}

func TestCheckFillsIn(t *testing.T) {
	test := Test{Op: Write, Kind: Bandwidth}
	require.NoError(t, test.Check())
	require.Equal(t, Test{Op: Write, Kind: Bandwidth, Size: 65536, Duration: 5 * time.Second, QPs: 1, Depth: 128}, test)
	test = Test{Op: Read, Kind: Latency, Iterations: 7}
	require.NoError(t, test.Check())
	require.Equal(t, Test{Op: Read, Kind: Latency, Size: 8, Iterations: 7, QPs: 1, Depth: 1}, test)

	for name, bad := range map[string]Test{
		"operation":   {Op: 9, Kind: Latency},
		"measurement": {Op: Send, Kind: 9},
		"size":        {Op: Send, Kind: Latency, Size: MaxSize + 1},
		"below":       {Op: Send, Kind: Latency, Size: -1},
		"depth":       {Op: Send, Kind: Bandwidth, Depth: MaxDepth + 1},
		"connections": {Op: Send, Kind: Bandwidth, QPs: MaxQPs + 1},
		"lat depth":   {Op: Send, Kind: Latency, Depth: 2},
		"lat qps":     {Op: Send, Kind: Latency, QPs: 2},
		"time":        {Op: Send, Kind: Latency, Duration: -1},
	} {
		require.Error(t, bad.Check(), name)
	}
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		t    Test
		want layout
	}{
		{"short messages spread over a page", Test{Op: Write, Kind: Bandwidth, Size: 64, Depth: 128}, layout{slots: 64, stride: 64}},
		{"long ones share a place", Test{Op: Write, Kind: Bandwidth, Size: 65536, Depth: 128}, layout{slots: 1, stride: 65536}},
		{"to verify, each has its own", Test{Op: Write, Kind: Bandwidth, Size: 65536, Depth: 128, Verify: true}, layout{slots: 128, stride: 65536}},
		{"but not more than memory allows", Test{Op: Read, Kind: Bandwidth, Size: 8 << 20, Depth: 128, Verify: true}, layout{slots: 2, stride: 8 << 20}},
		{"Sends meet receives", Test{Op: Send, Kind: Bandwidth, Size: 64, Depth: 128}, layout{slots: 64, stride: 64, receives: 512, step: 128}},
		{"with a place each, to verify", Test{Op: Send, Kind: Bandwidth, Size: 1 << 20, Depth: 128, Verify: true}, layout{slots: 16, stride: 1 << 20, receives: 16, step: 4}},
		{"even the longest", Test{Op: Send, Kind: Bandwidth, Size: 64 << 20, Depth: 128, Verify: true}, layout{slots: 2, stride: 64 << 20, receives: 2, step: 1}},
		{"latency ends with a word", Test{Op: Write, Kind: Latency, Size: 3, Depth: 1}, layout{slots: 2, stride: 8, receives: 1}},
		{"and has receives for Sends", Test{Op: Send, Kind: Latency, Size: 8, Depth: 1}, layout{slots: 2, stride: 8, receives: latReceives}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := c.t.layout()
			require.Equal(t, c.want, l)
			require.Zero(t, l.size()%8)
			require.GreaterOrEqual(t, l.size(), l.slots*l.stride)
		})
	}
}

func TestCPUModel(t *testing.T) {
	require.Equal(t, "Some CPU @ 2.00GHz", cpuModel("processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu\n"))
	require.Empty(t, cpuModel("processor\t: 0\n"))
}
