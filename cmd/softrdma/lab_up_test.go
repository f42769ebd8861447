package main

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/lab"
)

func TestImpairFlags(t *testing.T) {
	parse := func(args ...string) (lab.Plan, error) {
		var f impairFlags
		c := new(cobra.Command)
		f.register(c)
		require.NoError(t, c.ParseFlags(args))
		return f.plan(c.Flags().Changed)
	}
	for _, test := range []struct {
		args []string
		want lab.Plan
	}{
		{nil, lab.Plan{}},
		{[]string{"--wire-frames"}, lab.Plan{WireFrames: true}},
		{[]string{"--loss", "1%", "--seed", "7"}, lab.Plan{Impair: &lab.Impairment{Loss: 0.01, Seed: 7}}},
		{[]string{"--loss", "0", "--seed", "0"}, lab.Plan{Impair: &lab.Impairment{}}},
		{[]string{"--delay", "0s", "--seed", "7"}, lab.Plan{Impair: &lab.Impairment{Seed: 7, Process: true}}},
		{
			[]string{"--loss", "0.1%", "--delay", "1ms", "--jitter", "500us", "--reorder", "0.02", "--duplicate", "3%", "--seed", "7", "--wire-frames"},
			lab.Plan{WireFrames: true, Impair: &lab.Impairment{
				Loss: 0.001, Duplicate: 0.03, Reorder: 0.02, Delay: time.Millisecond, Jitter: 500 * time.Microsecond, Seed: 7, Process: true,
			}},
		},
	} {
		p, err := parse(test.args...)
		require.NoError(t, err)
		require.Equal(t, test.want, p, "%v", test.args)
		require.NoError(t, p.Check())
	}
	one, err := parse("--loss", "1%")
	require.NoError(t, err)
	two, err := parse("--loss", "1%")
	require.NoError(t, err)
	require.NotEqual(t, one.Impair.Seed, two.Impair.Seed, "another seed each time (but once in four billion)")

	for _, args := range [][]string{
		{"--seed", "1"}, {"--loss", "1"}, {"--loss", ""}, {"--reorder", "200%"}, {"--duplicate", "nan"},
		{"--delay", "-1s"}, {"--jitter", "-1s"},
	} {
		_, err := parse(args...)
		var e *exitError
		require.ErrorAs(t, err, &e, "%v", args)
		require.Equal(t, exitUsage, e.code)
		require.NotEmpty(t, e.next)
	}
}
