package lab

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParsePercent(t *testing.T) {
	for s, want := range map[string]float64{
		"1%": 0.01, "0.1%": 0.001, "0.01": 0.01, "0": 0, "0%": 0, "100%": 1, " 5 % ": 0.05, "1e-3%": 0.00001, ".5": 0.5,
	} {
		got, err := ParsePercent(s)
		require.NoError(t, err)
		require.InDelta(t, want, got, 1e-15, "%q", s)
	}
	for _, s := range []string{"", "%", "x", "1%%", "1", "1.0", "5", "101%", "-1%", "-0.1", "NaN", "NaN%", "Inf%", "1 in 100"} {
		_, err := ParsePercent(s)
		require.Error(t, err, "%q", s)
	}
	_, err := ParsePercent("1")
	require.EqualError(t, err, `"1" may be a percentage or all of the frames`)
}

func TestPercent(t *testing.T) {
	for v, want := range map[float64]string{0.01: "1%", 0.001: "0.1%", 0.07: "7%", 1: "100%", 0: "0%", 0.29: "29%", 1e-6: "0.0001%"} {
		require.Equal(t, want, percent(v))
		again, err := ParsePercent(percent(v))
		require.NoError(t, err)
		require.InDelta(t, v, again, 1e-15)
	}
}

func TestDescribe(t *testing.T) {
	for _, test := range []struct {
		plan Plan
		want []string
	}{
		{Plan{}, nil},
		{Plan{WireFrames: true}, []string{"the interfaces' offloads are off: super-frames are cut up before they leave"}},
		{Plan{Impair: &Impairment{}}, []string{"the wire passes every frame on"}},
		{Plan{Impair: &Impairment{Loss: 0.01, Seed: 7}}, []string{
			"the wire loses 1% of the frames, in each direction (seed 7)",
			"a frame is what the kernel passes along, for TCP a super-frame of up to 64 KiB that stands for as many as 46 frames on a wire: " +
				"1% of these is not 1% of wire frames. --wire-frames cuts them up first",
		}},
		{Plan{MTU: 9000, WireFrames: true, Impair: &Impairment{Loss: 0.01, Duplicate: 0.001, Reorder: 0.02, Seed: 7}}, []string{
			"the wire loses 1% of the frames, doubles 0.1% of the frames and reorders 2% of the frames, in each direction (seed 7)",
			"a frame is what a wire would carry, at most 9000 octets of IP: the offloads of the interfaces are off",
		}},
		{Plan{Impair: &Impairment{Delay: time.Millisecond}}, []string{"the wire holds every frame up for 1ms, in each direction (seed 0)"}},
		{Plan{Impair: &Impairment{Delay: time.Millisecond, Jitter: 500 * time.Microsecond}}, []string{
			"the wire holds every frame up for 1ms to 1.5ms, in each direction (seed 0)",
		}},
	} {
		require.Equal(t, test.want, test.plan.Describe())
	}
}

func TestSuperFrame(t *testing.T) {
	require.Equal(t, 46, superFrame(1500))
	require.Equal(t, 8, superFrame(9000))
	require.Equal(t, 1, superFrame(65535))
}

// The two directions must not lose the same frames.
func TestSeedsDiffer(t *testing.T) {
	i := Impairment{Seed: 5}
	require.NotEqual(t, i.seeds()[0], i.seeds()[1])
}

func TestDrawIsUniform(t *testing.T) {
	for _, p := range []float64{0, 0.001, 0.01, 0.5, 1} {
		const n = 200_000
		lost := 0
		for k := range uint64(n) {
			if draw(99, k) < threshold(p) {
				lost++
			}
		}
		requireShare(t, lost, n, p)
	}
	require.NotEqual(t, draw(1, 0), draw(2, 0))
}
