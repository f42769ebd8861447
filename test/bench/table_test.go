package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSummaries(t *testing.T) {
	nan := math.NaN()
	require.Equal(t, summary{3, 2, 1, 9}, summarize([]float64{9, 1, 2}))
	require.Equal(t, summary{4, 2.5, 1, 9}, summarize([]float64{9, 1, 2, 3}))
	require.Equal(t, summary{2, 3, 2, 4}, summarize([]float64{nan, 4, nan, 2}))
	require.Equal(t, summary{}, summarize([]float64{nan}))
	require.Equal(t, summary{}, summarize(nil))
	require.Equal(t, []float64{2, 3}, ratios([]float64{4, 9}, []float64{2, 3}))
	require.Equal(t, 0, summarize(ratios([]float64{4, nan}, []float64{nan, 3})).N)

	sorted := []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	require.EqualValues(t, 5, percentile(sorted, 50))
	require.EqualValues(t, 10, percentile(sorted, 99))
	require.EqualValues(t, 1, percentile(sorted, 0))
	require.EqualValues(t, 0, percentile(nil, 50))
}

// nothing is a runner of tests, which run nothing.
type nothing struct{ name string }

func (nothing) measure(context.Context, *stage, time.Duration) (sample, error) { return nil, nil }
func (n nothing) program() string                                              { return n.name }

// sampleBench has measured two cells over three rounds and knows of a third that is not there.
func sampleBench() *bench {
	cells := []cell{
		{"ours", clean, nothing{}}, {"theirs", clean, nothing{}}, {"theirs big", clean, nothing{}},
		{"absent", clean, nothing{"no_such_program"}}, {"broken", clean, nothing{}},
	}
	figures := []figure{
		{id: 1, name: "latency", than: "theirs", ours: on(p50, "ours"), other: on(p50, "theirs"), floor: 2.5, aim: 1},
		{id: 2, name: "throughput", than: "theirs", ours: on(rate, "ours"), other: on(rate, "theirs", "theirs big"), floor: 1.5, aim: 2},
		{id: 3, name: "absolute", ours: on(msgs, "ours"), floor: 1, aim: 5},
		{id: 4, name: "latency", than: "absent", ours: on(p50, "ours"), other: on(p50, "absent"), floor: 1, aim: 0.5},
		{id: 5, name: "latency", than: "broken", ours: on(p50, "ours"), other: on(p50, "broken"), floor: 1, aim: 0.5},
		{id: 6, name: "one way", than: "theirs", ours: on(p50, "ours"), other: on(p50, "theirs"), scale: 0.5},
	}
	return &bench{
		options: &options{rounds: 3},
		plan:    makePlan(figures, cells, nil),
		missing: leftOut{"no_such_program": "no_such_program is not installed"},
		data: measured{
			values: map[string][]sample{
				"ours":       {{p50: 20, rate: 3, msgs: 6}, {p50: 30, rate: 2, msgs: 5.5}, {p50: 22, rate: 2.8, msgs: 7}},
				"theirs":     {{p50: 10, rate: 1}, {p50: 10, rate: 1}, {p50: 12, rate: 1.5}},
				"theirs big": {{rate: 2}, {rate: 2}, nil},
				"broken":     {nil, nil, nil},
			},
			failed: map[string][]string{"theirs big": {"round 3: connection reset"}, "broken": {"round 1: no route", "round 2: no route", "round 3: no route"}},
			rounds: []conditions{{Wire: "clean wire", Round: 1}, {Wire: "clean wire", Round: 2, NotQuiet: []string{"3.0 % of the processors' time stolen"}}},
		},
	}
}

func TestRows(t *testing.T) {
	tab := sampleBench().tabulate()
	r := tab.rows
	require.InDelta(t, 2.2, r[0].Ratio, 1e-9, "22 over 10: medians, not the median of ratios")
	require.Equal(t, &summary{3, 2, 22.0 / 12, 3}, r[0].Spread)
	require.Equal(t, floorMet, r[0].Verdict)
	require.Equal(t, "theirs big", r[1].OtherFrom, "the better one counts")
	require.InDelta(t, 1.4, r[1].Ratio, 1e-9)
	require.Equal(t, 2, r[1].Spread.N, "one round failed")
	require.Equal(t, missed, r[1].Verdict)
	require.Equal(t, aimMet, r[2].Verdict)
	require.Nil(t, r[2].Other)
	require.Equal(t, notThere, r[3].Verdict)
	require.Contains(t, r[3].Why, "not installed")
	require.Equal(t, broken, r[4].Verdict)
	require.Contains(t, r[4].Why, "no route")
	require.Empty(t, r[5].Verdict, "without a floor")
	require.InDelta(t, 11, r[5].Ours.Median, 1e-9)
	require.InDelta(t, r[0].Ratio, r[5].Ratio, 1e-9)
	require.Equal(t, 5, tab.held)
	require.Equal(t, 1, tab.missed)
}

// The whole text, once.
func TestText(t *testing.T) {
	b := sampleBench()
	got := b.tabulate().text(b)
	require.Equal(t, recorded(t, "table.txt"), got)
	require.Contains(t, got, "NOT QUIET in 1 of 2 rounds")
	for line := range strings.Lines(got) {
		require.Equal(t, strings.TrimRight(line, " \n")+"\n", line, "no blanks at the end")
	}
}

func TestReport(t *testing.T) {
	b := sampleBench()
	name := filepath.Join(t.TempDir(), "x.json")
	require.NoError(t, b.report(facts{Kernel: "6.1"}, b.tabulate()).write(name))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	var r report
	dec := json.NewDecoder(bytes.NewReader(text))
	require.NoError(t, dec.Decode(&r))
	require.Equal(t, reportSchema, r.Schema)
	require.False(t, r.Quiet)
	require.Len(t, r.Rows, 6)
	big := r.Measurements[2]
	require.Equal(t, "theirs big", big.Name)
	require.Nil(t, big.Values["gb_per_s"][2], "a round that failed")
	require.InDelta(t, 2, *big.Values["gb_per_s"][1], 1e-9)
	require.Equal(t, 2, big.Summary["gb_per_s"].N)
	require.NoError(t, (&report{}).write(""), "without a name nothing is written")
}

// Each metric has a name in the report.
func TestMetricNames(t *testing.T) {
	for _, f := range figures() {
		require.NotEmpty(t, metricNames[f.ours.metric])
		require.NotEmpty(t, f.ours.metric.unit())
	}
}
