package main

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// pings is what `softrdma ping --json` prints, as far as it matters here.
type pings struct {
	Schema   string  `json:"schema"`
	Received int     `json:"received"`
	Wrong    int     `json:"wrong"`
	Min      float64 `json:"min_usec"`
	Avg      float64 `json:"avg_usec"`
	Max      float64 `json:"max_usec"`
	Error    string  `json:"error"`
	Pings    []struct {
		Seq  int     `json:"seq"`
		Usec float64 `json:"usec"`
	} `json:"pings"`
}

func (d *pings) check(count int) error {
	switch {
	case d.Schema != "softrdma.ping/v1":
		return fmt.Errorf("schema %q", d.Schema)
	case d.Error != "":
		return fmt.Errorf("error %q", d.Error)
	case d.Received != count || d.Wrong != 0 || len(d.Pings) != count:
		return fmt.Errorf("%d of %d pings came back, %d wrong, %d are listed", d.Received, count, d.Wrong, len(d.Pings))
	case !(0 < d.Min && d.Min <= d.Avg && d.Avg <= d.Max):
		return fmt.Errorf("min %v, avg %v, max %v us", d.Min, d.Avg, d.Max)
	}
	return nil
}

// ping returns the mean time in microseconds.
func (h *host) ping(ctx context.Context) (float64, error) {
	var d pings
	err := h.client(ctx, &d, "ping", h.address(), "--json", "-C", strconv.Itoa(h.pings), "-i", "0")
	if err == nil {
		err = d.check(h.pings)
	}
	return d.Avg, err
}

// report is what `softrdma perf --json` prints, as far as it matters here.
type report struct {
	Schema  string `json:"schema"`
	Backend string `json:"backend"`
	MTU     int    `json:"mtu"`
	Test    struct {
		Op     string `json:"op"`
		Kind   string `json:"kind"`
		Verify bool   `json:"verify"`
	} `json:"test"`
	Results []struct {
		Size      int     `json:"MsgSize"`
		N         uint64  `json:"n_iterations"`
		Seconds   float64 `json:"seconds"`
		Bandwidth float64 `json:"BW_average"`
		Min       float64 `json:"t_min"`
		P50       float64 `json:"p50"`
		Max       float64 `json:"t_max"`
		Wrong     uint64  `json:"wrong_octets"`
	} `json:"results"`
	Interrupted bool   `json:"interrupted"`
	Error       string `json:"error"`
}

// check returns the figure of the report, if it is one of a test of at least d.
func (r *report) check(t test, d time.Duration) (float64, error) {
	switch {
	case r.Schema != "softrdma.perf/v1":
		return 0, fmt.Errorf("schema %q", r.Schema)
	case r.Error != "" || r.Interrupted:
		return 0, fmt.Errorf("error %q, interrupted: %v", r.Error, r.Interrupted)
	case r.Test.Op != t.op || r.Test.Kind != t.kind || !r.Test.Verify:
		return 0, fmt.Errorf("it is about %s %s, verified: %v", r.Test.Op, r.Test.Kind, r.Test.Verify)
	case len(r.Results) != 1:
		return 0, fmt.Errorf("%d results", len(r.Results))
	}
	x := r.Results[0]
	switch {
	case x.Wrong > 0:
		return 0, fmt.Errorf("%d octets are WRONG", x.Wrong)
	case x.N == 0 || x.Size == 0 || x.Seconds < 0.9*d.Seconds():
		return 0, fmt.Errorf("%d messages of %d octets in %v s", x.N, x.Size, x.Seconds)
	case t.kind == "bw":
		if want := float64(x.N) * float64(x.Size) / x.Seconds / (1 << 20); x.Bandwidth < 0.99*want || x.Bandwidth > 1.01*want {
			return 0, fmt.Errorf("%v MiB/s are not %d messages of %d octets in %v s", x.Bandwidth, x.N, x.Size, x.Seconds)
		}
		return x.Bandwidth, nil
	case !(0 < x.Min && x.Min <= x.P50 && x.P50 <= x.Max):
		return 0, fmt.Errorf("min %v, median %v, max %v us", x.Min, x.P50, x.Max)
	}
	return x.P50, nil
}

// perf returns MiB/s or the median in microseconds.
func (h *host) perf(ctx context.Context, t test) (float64, error) {
	var r report
	err := h.client(ctx, &r, "perf", t.op, t.kind, h.address(), "--json", "--verify", "-D", h.duration.String(), "--warmup", "100ms")
	if err != nil {
		return 0, err
	}
	if err := h.taken(r.Backend); err != nil {
		return 0, err
	}
	if h.backend != "kernel" && r.MTU != h.mtu {
		return 0, fmt.Errorf("it says that the MTU is %d", r.MTU)
	}
	return r.check(t, h.duration)
}
