package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/pktio"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// short are sizes that take no time.
var short = []int{1, 1000, 300_000}

func run(t *testing.T, c Config) *Report {
	t.Helper()
	var steps []Step
	c.OnStep = func(s Step) { steps = append(steps, s) }
	r := Run(t.Context(), c)
	require.Equal(t, r.Steps, steps, "each step is told when it is done")
	b, err := json.Marshal(r)
	require.NoError(t, err)
	require.True(t, json.Valid(b))
	// Beyond the limit two devices may wait for a peer that a damaged length field holds up.
	require.Less(t, r.Took, limit+30*time.Second)
	return r
}

func names(r *Report) (names []string) {
	for _, s := range r.Steps {
		names = append(names, s.Name)
	}
	return names
}

func TestDemo(t *testing.T) {
	for _, c := range []Config{{}, {MTU: 9000}, {MTU: 576}, {NoCRC: true}} {
		c.Sizes = short
		r := run(t, c)
		require.Equal(t, OK, r.Outcome, "%+v", r)
		require.Empty(t, r.Error)
		require.Zero(t, r.Flipped)
		require.Positive(t, r.FPDUs)
		require.Equal(t, []string{
			"link", "connect", "send", "write", "read", "send", "write", "read", "send", "write", "read",
			"atomic", "atomic", "close", "reject", "access", "access",
		}, names(r))
		for _, s := range r.Steps {
			require.True(t, s.OK, "%+v", s)
			require.Positive(t, s.Took)
		}
		add, swap := r.Steps[11], r.Steps[12]
		require.Equal(t, "Fetch and Add", add.What)
		require.Equal(t, "Compare and Swap", swap.What)
		require.Equal(t, []int{8, 8}, []int{add.Octets, swap.Octets})
		reject, read, write := r.Steps[14], r.Steps[15], r.Steps[16]
		require.Contains(t, reject.Detail, `it says "this one is turned away"`)
		require.Equal(t, "remote access error", read.Status)
		require.Equal(t, "0x0102", read.Code)
		require.Contains(t, read.Detail, "access rights violation")
		require.Equal(t, "0x1101", write.Code)
		require.Contains(t, write.Detail, "base or bounds violation")
	}
}

func TestDemoCaptures(t *testing.T) {
	var file bytes.Buffer
	r := run(t, Config{Sizes: []int{1000}, Tap: func(p pktio.Port) (pktio.Port, error) { return capture.NewTap(p, &file) }})
	require.Equal(t, OK, r.Outcome)
	require.Greater(t, file.Len(), 3000)
}

func TestFlipsAreNoticedByTheCRC(t *testing.T) {
	for seed := range uint64(5) {
		r := run(t, Config{Flip: 0.1, Seed: seed, Sizes: []int{300_000, 1 << 20, 8 << 20}})
		require.Equal(t, CRCError, r.Outcome, "%+v", r)
		require.Positive(t, r.Flipped)
		require.Contains(t, r.Error, "CRC mismatch (0x2002)")
		last := r.Steps[len(r.Steps)-1]
		require.Equal(t, "0x2002", last.Code)
		require.True(t, last.CRC)
		for _, s := range r.Steps {
			require.Zero(t, s.Wrong, "nothing wrong is delivered: %+v", s)
		}
	}
}

func TestFlipsGetThroughWithoutCRC(t *testing.T) {
	for seed := range uint64(5) {
		// A flip in a header may end the connection before any payload is hit:
		// long FPDUs make that rare.
		r := run(t, Config{Flip: 0.1, NoCRC: true, MTU: 65535, Seed: seed, Sizes: []int{4 << 20, 16 << 20}})
		require.Equal(t, WrongData, r.Outcome, "%+v", r)
		require.Contains(t, r.Error, "octets differ, at offset")
		wrong := 0
		for _, s := range r.Steps {
			wrong += s.Wrong
		}
		require.Positive(t, wrong)
	}
}

func TestDemoEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := Run(ctx, Config{Sizes: short, OnStep: func(s Step) {
		if s.Name == "write" {
			cancel()
		}
	}})
	require.Equal(t, Failed, r.Outcome)
	require.Contains(t, r.Error, "canceled")
}

func TestSize(t *testing.T) {
	for n, want := range map[int]string{1: "1 B", 1000: "1000 B", 1024: "1 KiB", 1500: "1500 B", 64 << 10: "64 KiB", 64 << 20: "64 MiB", 1 << 30: "1 GiB"} {
		require.Equal(t, want, Size(n))
	}
}
