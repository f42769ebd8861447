package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// elements counts the elements of a picture, which must be well-formed, and returns its
// texts.
func elements(t *testing.T, svg string) (count map[string]int, texts []string) {
	t.Helper()
	count = make(map[string]int)
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count, texts
		}
		require.NoError(t, err)
		switch tok := tok.(type) {
		case xml.StartElement:
			count[tok.Name.Local]++
			for _, a := range tok.Attr {
				require.NotContains(t, a.Value, "%!", "a format without its value")
				require.NotContains(t, a.Value, "NaN")
				require.NotContains(t, a.Value, "Inf")
			}
		case xml.CharData:
			if s := strings.TrimSpace(string(tok)); s != "" {
				texts = append(texts, s)
			}
		}
	}
}

func TestPlot(t *testing.T) {
	curves := []curve{
		{"ours & <us>", "lat", []point{{2, 10}, {64, 20}, {8 << 20, 5000}}},
		{"theirs", "lat", []point{{2, 8}, {64, 15}, {8 << 20, 9000}}},
	}
	count, texts := elements(t, plot("A title", "microseconds", "a caption", curves, true))
	require.Equal(t, 2, count["polyline"])
	require.Equal(t, 1+3, count["circle"], "marks of the first, one in the legend")
	require.Contains(t, texts, "ours & <us>")
	for _, s := range []string{"A title", "microseconds", "message size", "a caption", "2 B", "8 MiB", "10", "10000"} {
		require.Contains(t, texts, s)
	}
	elements(t, plot("A title", "GB/s", "", []curve{{"one", "bw", []point{{64, 1}}}}, false))
	_, texts = elements(t, plot("A title", "GB/s", "", []curve{{"ours", "bw", []point{{1024, 3.4}, {2048, 1}}}}, false))
	require.Contains(t, texts, "0")
	require.Contains(t, texts, "2 KiB")
}

// Places on the axes.
func TestAxes(t *testing.T) {
	a := axesOf([]curve{{Points: []point{{2, 10}, {32, 1000}}}}, true)
	require.InDelta(t, plotLeft, a.x(2), 1e-6)
	require.InDelta(t, plotWidth-plotRight, a.x(32), 1e-6)
	require.InDelta(t, (plotLeft+plotWidth-plotRight)/2.0, a.x(8), 1e-6, "logarithmic")
	require.InDelta(t, plotHeight-plotBottom, a.y(10), 1e-6)
	require.InDelta(t, plotTop, a.y(1000), 1e-6)
	require.Equal(t, []float64{10, 20, 50, 100, 200, 500, 1000}, rounded(a.ticksY()))

	a = axesOf([]curve{{Points: []point{{2, 0.3}, {32, 2.3}}}}, false)
	require.Equal(t, []float64{0, 0.5, 1, 1.5, 2, 2.5}, rounded(a.ticksY()))
	require.InDelta(t, plotHeight-plotBottom, a.y(0), 1e-6)
	for v, want := range map[float64]float64{0.3: 0.5, 0.11: 0.2, 1: 1, 7: 10, 0: 1} {
		require.InDelta(t, want, niceStep(v), 1e-9, "%g", v)
	}
}

func rounded(v []float64) []float64 {
	for i := range v {
		v[i] = math.Round(v[i]*1e6) / 1e6
	}
	return v
}

func TestWritePlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	curves := []curve{
		{"ours", "lat", points(map[int][]float64{64: {3, 1, 2}, 2: {5}})}, {"ours", "bw", []point{{64, 1}, {128, 2}}},
	}
	require.Equal(t, []point{{2, 5}, {64, 2}}, curves[0].Points)
	f := facts{CPU: "A processor", CPUs: 2, Time: time.Unix(0, 0)}
	require.NoError(t, writePlots(dir, curves, curves, f, false))
	for _, name := range []string{"latency.svg", "throughput.svg", "models-latency.svg", "models-throughput.svg"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		count, texts := elements(t, string(b))
		require.Equal(t, 1, count["polyline"], name)
		require.Contains(t, strings.Join(texts, "\n"), "NOT QUIET")
	}
	require.NoError(t, writePlots("", curves, nil, f, true), "without a directory nothing is written")
	dir = t.TempDir()
	require.NoError(t, writePlots(dir, curves, nil, f, true))
	require.NoFileExists(t, filepath.Join(dir, "models-latency.svg"), "nor is what was not measured")
}
