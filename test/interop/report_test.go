package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestColumns(t *testing.T) {
	require.True(t, strings.HasPrefix(header, "guest"))
	var b strings.Builder
	printResult(&b, Row{Kind: "siw"}, Result{Err: errors.New("one\ntwo"), Kept: "/runs/x"})
	require.Contains(t, b.String(), "FAILED\n    one\n    two\n    captures and logs: /runs/x\n")
	require.Equal(t, 4, strings.Count(b.String(), "\n"))
}

func TestReport(t *testing.T) {
	var done []Outcome
	for _, r := range rows(20) {
		done = append(done, Outcome{Row: r, Result: Result{FPDUs: 10, Seen: r.Backend}})
	}
	done[3].Err = errors.New("first\nsecond")
	done[5].Repeated = 1
	var b strings.Builder
	writeReport(&b, done, Versions{Guest: map[string]string{"kernel": "6.1.0-1-amd64 6.1.9-1", "linux-source-6.1": "6.1.9-1", "rdmacm-utils": "44.0-2"},
		Host: "Linux 6.18", Machine: "QEMU 7.2", Revision: "abc"}, Options{Accel: "tcg"}, time.Unix(0, 0))
	text := b.String()
	require.Contains(t, text, "| date | 1970-01-01 |")
	require.Contains(t, text, fmt.Sprintf("**%d runs: %d passed, 1 failed.**", len(done), len(done)-1))
	require.Contains(t, text, "- "+done[3].name()+": first; second\n")
	require.Contains(t, text, "- "+done[5].name()+": the guest's kernel broke 1 times")
	require.Contains(t, text, "linux-source-6.1 6.1.9-1")
	require.Contains(t, text, "**1 of 2**, 20 FPDUs")
	require.Contains(t, text, "server (held)")
	require.NotContains(t, text, "None.")
	// All lines of a table have as many cells.
	for _, section := range strings.Split(text, "\n## ")[1:3] {
		var pipes []int
		for _, line := range strings.Split(section, "\n") {
			if strings.HasPrefix(line, "|") {
				pipes = append(pipes, strings.Count(line, "|"))
			}
		}
		require.Greater(t, len(pipes), 10)
		require.Len(t, slices.Compact(pipes), 1)
	}
}
