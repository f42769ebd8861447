package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// backends are those of softrdma, xdp in both of its modes.
var backends = []string{"packet", "xdp-native", "xdp-generic", "kernel"}

// cell is one case of the matrix.
type cell struct {
	backend string
	v6      bool
	mtu     int
}

// cells lists those of the backends whose names have only in them. IPv6 goes down to
// an MTU of 1280; 4000 octets are more than a buffer of xdp holds and less than two.
func cells(list []string, only string) (all []cell, err error) {
	for _, b := range list {
		if !slices.Contains(backends, b) {
			return nil, fmt.Errorf("--backends: %q is none of %s", b, strings.Join(backends, ", "))
		}
		for _, c := range []cell{
			{b, false, 1500}, {b, false, 4000}, {b, false, 9000},
			{b, true, 1280}, {b, true, 1500}, {b, true, 9000},
		} {
			if strings.Contains(c.name(), only) {
				all = append(all, c)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("--only: no cell has %q in its name", only)
	}
	return all, nil
}

func (c cell) family() string {
	if c.v6 {
		return "IPv6"
	}
	return "IPv4"
}

func (c cell) name() string { return fmt.Sprintf("%s %s %d", c.backend, c.family(), c.mtu) }

// split returns the backend and its mode, if it has one.
func (c cell) split() (backend, mode string) {
	backend, mode, _ = strings.Cut(c.backend, "-")
	return backend, mode
}

// test is one of perf's.
type test struct{ op, kind string }

func (t test) String() string { return t.op + " " + t.kind }

var tests = []test{{"write", "bw"}, {"send", "bw"}, {"read", "bw"}, {"write", "lat"}, {"send", "lat"}, {"read", "lat"}}

// outcome is what came of a cell.
type outcome struct {
	cell
	ping    float64          // the mean, in microseconds
	figures map[test]float64 // MiB/s of bandwidths, half of them round trips in microseconds at the median
	took    time.Duration    // all together
	err     error            // all that was not as it should be
}

func header() string {
	h := []string{"backend", "", "MTU", "ping"}
	for _, t := range tests {
		h = append(h, t.String())
	}
	return row(append(h, "seconds", "result")) + "\n" + row([]string{"", "", "", "us", "MiB/s", "MiB/s", "MiB/s", "us", "us", "us", "", ""})
}

func (r *outcome) line() string {
	cells := []string{r.backend, r.family(), fmt.Sprint(r.mtu), figure(r.ping)}
	for _, t := range tests {
		cells = append(cells, figure(r.figures[t]))
	}
	verdict := "ok"
	if r.err != nil {
		verdict = "FAILED"
	}
	return row(append(cells, fmt.Sprintf("%.1f", r.took.Seconds()), verdict))
}

func figure(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

// row lays out one line; every line alike, so that they can be printed one by one.
func row(cells []string) string {
	widths := []int{-12, -5, 5, 8, 9, 9, 9, 9, 9, 9, 8, 0}
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "%*s ", widths[i], c)
	}
	return strings.TrimRight(b.String(), " ")
}
