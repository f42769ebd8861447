package main

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestModels(t *testing.T) {
	o, err := parseOptions([]string{"-models", "c3,c1"}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"c3", "c1"}, o.models)
	o, err = parseOptions([]string{"-models", "all"}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"adaptive", "c1", "c2", "c3", "c3-copy"}, o.models)
	for _, m := range o.models {
		require.NotEmpty(t, modelNames[m])
	}
	o, err = parseOptions(nil, nil)
	require.NoError(t, err)
	require.Empty(t, o.models)
	for _, bad := range []string{"c4", "c1,", "c1,c1"} {
		_, err := parseOptions([]string{"-models", bad}, nil)
		require.ErrorContains(t, err, "-models: ")
	}

	o, err = parseOptions([]string{"-figures", "none", "-models", "c2"}, nil)
	require.NoError(t, err)
	require.Empty(t, newPlan(o).figures, "the models alone")

	count := map[string]int{}
	for _, r := range modelRuns() {
		count[r.kind]++
		p := r.under("c2").pair("softrdma", time.Second)
		for _, argv := range [][]string{p.server, p.client} {
			require.Equal(t, "c2", argv[slices.Index(argv, "--threads")+1], "both sides")
		}
	}
	require.Equal(t, map[string]int{"lat": 11, "bw": 15}, count, "64 octets to 64 KiB, and to 1 MiB")
	require.NotContains(t, perfRun{backend: "packet"}.pair("softrdma", time.Second).client, "--threads")
	less := modelRun{"bw", large}.under("c3-copy").pair("softrdma", time.Second)
	for _, argv := range [][]string{less.server, less.client} {
		require.Equal(t, "c3", argv[slices.Index(argv, "--threads")+1])
		require.Contains(t, argv, "--one-copy")
	}
	require.NotContains(t, modelRun{"bw", large}.under("c3").pair("softrdma", time.Second).client, "--one-copy")

	d := &perfDocument{Backend: "packet: own", Threads: "c1", Results: []perfRow{{}}}
	d.Test.Op, d.Test.Kind = "write", "lat"
	require.NoError(t, d.took(modelRun{"lat", small}.under("c1")))
	require.ErrorContains(t, d.took(modelRun{"lat", small}.under("c2")), `asked for threads c2, got "c1"`)
}

func TestModelsText(t *testing.T) {
	require.Empty(t, modelsText(nil))
	text := modelsText([]curve{
		{"c1, a", "lat", []point{{64, 12.345}, {128, 20}}}, {"c1, a", "bw", []point{{64, 0.5}}},
		{"c3, b", "lat", []point{{64, 9}, {128, 10}}}, {"c3, b", "bw", []point{{64, 0.25}}},
	})
	require.Regexp(t, `(?s)round trip.*c1 +c3.*64 B +12\.35 +9\n? .*128 B +20 +10.*GB/s.*c1 +c3.*64 B +0\.5 +0\.25`, text)
}
