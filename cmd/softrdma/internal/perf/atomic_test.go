package perf

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs/iwarp"
)

// TestAtomics has the values that each atomic fetches, and those that are left.
func TestAtomics(t *testing.T) {
	rounds, messages := 300, 2500
	if testing.Short() {
		rounds, messages = 30, 500
	}
	for _, op := range []Op{FetchAdd, CompareSwap} {
		for _, c := range []Test{
			{Kind: Latency, Iterations: rounds, Warmup: time.Millisecond, Verify: true},
			{Kind: Latency, Iterations: rounds},
			{Kind: Bandwidth, Iterations: messages, Depth: 16, Warmup: time.Millisecond, Verify: true},
			{Kind: Bandwidth, Iterations: messages, Depth: 300, QPs: 3, Verify: true},
			{Kind: Bandwidth, Iterations: messages, Depth: 1, Verify: true},
			{Kind: Bandwidth, Iterations: messages},
		} {
			c.Op = op
			t.Run(c.String(), func(t *testing.T) {
				p := newPair(t, &Server{}, iwarp.PipeConfig{})
				r, err := p.client.Run(t.Context(), c)
				require.NoError(t, err)
				require.EqualValues(t, c.Iterations, r.Messages)
				require.Equal(t, AtomicSize, r.Test.Size)
				require.Zero(t, r.Wrong, r.WrongAt)
				require.NoError(t, p.report(t).Err)
				require.Zero(t, p.report(t).Wrong)
			})
		}
	}
	t.Run("a size of its own", func(t *testing.T) {
		c := Test{Op: FetchAdd, Kind: Latency, Size: 16}
		require.EqualError(t, c.Check(), "an atomic works on 8 octets, not on 16")
	})
	t.Run("names", func(t *testing.T) {
		for _, o := range []Op{FetchAdd, CompareSwap} {
			got, err := ParseAtomic(o.AtomicType())
			require.NoError(t, err)
			require.Equal(t, o, got)
		}
		_, err := ParseAtomic("SWAP")
		require.ErrorContains(t, err, "take FETCH_AND_ADD or CMP_AND_SWAP")
	})
}

// A server that does other than it was asked must be found out, on both sides.
func TestAtomicsFindWrongWords(t *testing.T) {
	for _, op := range []Op{FetchAdd, CompareSwap} {
		t.Run(op.AtomicType(), func(t *testing.T) {
			p := newPair(t, &Server{}, iwarp.PipeConfig{})
			r := &run{client: &p.client, test: Test{Op: op, Kind: Bandwidth, Iterations: 100, Depth: 4, Verify: true}}
			require.NoError(t, r.test.Check())
			require.NoError(t, r.setup(t.Context()))
			r.lanes[0].seed++ // the client's words are others than the server's
			res, err := r.measure(t.Context())
			r.close()
			require.NoError(t, err)
			require.Positive(t, res.Wrong)
			require.Contains(t, res.WrongAt, "atomic 0 of connection 0: ")
			require.Positive(t, p.report(t).Wrong, "the server has found it too")
		})
	}
}
