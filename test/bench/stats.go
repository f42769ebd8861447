package main

import (
	"math"
	"slices"
)

// summary is what is shown of several values.
type summary struct {
	N      int     `json:"n"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// summarize leaves out what is not a number: a round that failed.
func summarize(values []float64) (s summary) {
	v := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if s.N = len(v); s.N == 0 {
		return s
	}
	slices.Sort(v)
	s.Median, s.Min, s.Max = v[s.N/2], v[0], v[s.N-1]
	if s.N%2 == 0 {
		s.Median = (v[s.N/2-1] + v[s.N/2]) / 2
	}
	return s
}

// ratios divides round by round.
func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		r[i] = a[i] / b[i]
	}
	return r
}

// scaled multiplies each value.
func scaled(values []float64, by float64) []float64 {
	v := slices.Clone(values)
	for i := range v {
		v[i] *= by
	}
	return v
}

// percentile of sorted values, 0 to 100, by the nearest rank.
func percentile(sorted []int64, p float64) int64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(p/100*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
