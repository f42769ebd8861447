package cacheline

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// No octet changes, wherever a line begins.
func TestFlushKeepsOctets(t *testing.T) {
	b := make([]byte, 16*Size)
	for from := range 2 * Size {
		for _, n := range []int{0, 1, Size - 1, Size, Size + 1, 5*Size + 3} {
			for i := range b {
				b[i] = byte(i + from + n)
			}
			Flush(b[from : from+n])
			for i := range b {
				require.Equal(t, byte(i+from+n), b[i])
			}
		}
	}
	Flush(nil)
}

// What was flushed comes from memory, all of it, and what is beside it does not.
func TestFlushReachesMemory(t *testing.T) {
	if !CanFlush {
		t.Skip("LEFT OUT: this processor does not do it")
	}
	b := make([]byte, 3*Span)
	quarter := func(flush []byte) time.Duration {
		var all []time.Duration
		for range 301 {
			for i := range b {
				b[i]++
			}
			Flush(flush)
			time.Sleep(time.Microsecond) // it is not waited for
			all = append(all, Distance(b[Span:2*Span]))
		}
		slices.Sort(all)
		return all[len(all)/4]
	}
	hot, cold, beside := quarter(nil), quarter(b[Span:2*Span]), quarter(b[:Span])
	t.Logf("in the cache %v a line, flushed %v, beside what is flushed %v", hot, cold, beside)
	require.Greater(t, cold, 2*hot)
	require.Greater(t, cold, 2*beside)
}

func TestDistanceOfTooLittle(t *testing.T) {
	require.Zero(t, Distance(nil))
	require.Zero(t, Distance(make([]byte, Span-1)))
	b := make([]byte, Span)
	require.GreaterOrEqual(t, Distance(b), time.Duration(0))
	require.Equal(t, make([]byte, Span), b)
}

func TestNoAllocation(t *testing.T) {
	b := make([]byte, 2*Span)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		Distance(b)
		Flush(b)
	}))
}

func BenchmarkFlush(b *testing.B) {
	buf := make([]byte, 64<<10)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		for i := 0; i < len(buf); i += Size {
			buf[i]++
		}
		Flush(buf)
	}
}
