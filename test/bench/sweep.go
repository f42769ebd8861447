package main

import (
	"context"
	"slices"
	"time"
)

// curve is one line of a plot: what a measurement yields by message size.
type curve struct {
	Name   string  `json:"name"`
	Kind   string  `json:"kind"` // lat or bw
	Points []point `json:"points"`
}

// point is the median of the passes.
type point struct {
	Size  int     `json:"size"`
	Value float64 `json:"value"` // microseconds of a round trip, or GB/s
}

const (
	// maxPasses of all sizes on all carriers; there are 23 sizes.
	maxPasses = 3
	// A size gets an eighth of a measurement's time, and no less than this.
	sizeTime = 50 * time.Millisecond
)

// sweepRuns are what the plots show. Small messages are posted, and gathered, in the
// same batches.
func sweepRuns() []sweepRun {
	var list []sweepRun
	for _, kind := range []string{"lat", "bw"} {
		depth := 0
		if kind == "bw" {
			depth = smallBatch
		}
		list = append(list,
			sweepRun{"softrdma WRITE, packet backend", kind, perfRun{backend: "packet", op: "write", kind: kind, depth: depth, all: true}.pair, "softrdma"},
			sweepRun{"kernel TCP from Go, blocking", kind, tcpRun{carrier: "tcp-blocking", kind: kind, depth: depth, all: true}.pair, "tcp-blocking"},
			sweepRun{"kernel TCP from Go, spinning", kind, tcpRun{carrier: "tcp-spinning", kind: kind, depth: depth, all: true}.pair, "tcp-spinning"})
	}
	return list
}

// sweepRun measures all sizes on one carrier.
type sweepRun struct {
	name, kind string
	pair       func(binary string, each time.Duration) pair
	transport  string
}

// sweep makes the curves.
func (b *bench) sweep(ctx context.Context) ([]curve, error) {
	each := max(sizeTime, b.options.each/8)
	if err := b.stage.setBuffers(0); err != nil {
		return nil, err
	}
	runs := sweepRuns()
	values := make([]map[int][]float64, len(runs))
	for range min(maxPasses, b.options.rounds) {
		for i, r := range runs {
			p := r.pair(b.stage.binary, each)
			p.limit = 5 * time.Minute
			o, err := b.stage.pair(ctx, p)
			if err != nil {
				return nil, err
			}
			d, err := parsePerf(o.out)
			if err != nil {
				return nil, err
			}
			if values[i] == nil {
				values[i] = make(map[int][]float64)
			}
			for n := range d.Results {
				row := &d.Results[n]
				if row.Transport != r.transport {
					continue
				}
				m := rate
				if r.kind == "lat" {
					m = p50
				}
				values[i][row.Size] = append(values[i][row.Size], row.sample(d, nil)[m])
			}
		}
	}
	curves := make([]curve, len(runs))
	for i, r := range runs {
		curves[i] = curve{Name: r.name, Kind: r.kind, Points: points(values[i])}
	}
	return curves, nil
}

// points takes the medians, by size.
func points(values map[int][]float64) (list []point) {
	for size, v := range values {
		list = append(list, point{size, summarize(v).Median})
	}
	slices.SortFunc(list, func(a, b point) int { return a.Size - b.Size })
	return list
}
