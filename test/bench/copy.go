package main

import (
	"context"
	"time"
)

// copyRun copies one buffer to another in memory, in Go on one processor: what no
// transport with a copy can exceed.
type copyRun struct{ size int }

func (copyRun) program() string { return "" }

func (r copyRun) measure(ctx context.Context, _ *stage, each time.Duration) (sample, error) {
	from, to := make([]byte, r.size), make([]byte, r.size)
	for i := range from {
		from[i] = byte(i)
	}
	copy(to, from) // the pages are there
	octets := 0
	start := time.Now()
	for time.Since(start) < each && ctx.Err() == nil {
		octets += copy(to, from)
	}
	return sample{rate: float64(octets) / time.Since(start).Seconds() / 1e9}, ctx.Err()
}
