package main

import (
	"fmt"
	"io"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/demo"
	"github.com/softrdma/softrdma/cmd/softrdma/internal/perf"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// perfDocument is what perf --json prints. The names of results are those of
// perftest, with their units: BW in MiB a second, MsgRate in millions a second,
// t in microseconds.
type perfDocument struct {
	Schema      string    `json:"schema"`
	Time        time.Time `json:"time"`
	Test        perfTest  `json:"test"`
	Host        perf.Host `json:"host"`
	Version     string    `json:"version"`
	Revision    string    `json:"revision,omitempty"`
	Device      string    `json:"dev"`
	Backend     string    `json:"backend"`
	Threads     string    `json:"threads"` // of this side
	MTU         int       `json:"mtu"`
	Peer        string    `json:"peer"`
	Results     []perfRow `json:"results"`
	Interrupted bool      `json:"interrupted,omitempty"`
	Error       string    `json:"error,omitempty"`
}

type perfTest struct {
	Op         string  `json:"op"`
	AtomicType string  `json:"atomic_type,omitempty"`
	Kind       string  `json:"kind"`
	Latency    string  `json:"latency,omitempty"` // what counts as it
	Depth      int     `json:"tx_depth"`
	QPs        int     `json:"qps"`
	Iterations int     `json:"iterations,omitempty"`
	Seconds    float64 `json:"seconds,omitempty"`
	Warmup     float64 `json:"warmup_seconds"`
	Verify     bool    `json:"verify"`
	Rounds     int     `json:"rounds"`
}

// perfRow is one size on one carrier.
type perfRow struct {
	Transport string  `json:"transport"`
	Size      int     `json:"MsgSize"`
	N         uint64  `json:"n_iterations"`
	Seconds   float64 `json:"seconds"`
	*bwRow
	*latRow
	CPU     float64 `json:"cpu_client"` // processors that this process kept busy; 1 is one of them all the time
	PeerCPU float64 `json:"cpu_server,omitempty"`
	Wrong   uint64  `json:"wrong_octets,omitempty"`
	WrongAt string  `json:"wrong_at,omitempty"`
	VsTCP   float64 `json:"vs_tcp_blocking,omitempty"` // this bandwidth, or p50, divided by TCP's
	VsSpin  float64 `json:"vs_tcp_spinning,omitempty"`
}

type bwRow struct {
	Peak    float64 `json:"BW_peak,omitempty"`
	Average float64 `json:"BW_average"`
	MsgRate float64 `json:"MsgRate"`
	Gbps    float64 `json:"gbits_per_second"`
}

type latRow struct {
	Min     float64 `json:"t_min"`
	Max     float64 `json:"t_max"`
	Typical float64 `json:"t_typical"`
	Avg     float64 `json:"t_avg"`
	Stdev   float64 `json:"t_stdev"`
	Perc99  float64 `json:"percentile_99"`
	Perc999 float64 `json:"percentile_99.9"`
	P50     float64 `json:"p50"`
	P90     float64 `json:"p90"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99.9"`
	P9999   float64 `json:"p99.99"`
}

func newPerfDocument(dev *verbs.Device, pl *plan, threads iwarp.Threads) *perfDocument {
	b, t, attr := readBuild(), &pl.tests[0], dev.Attr()
	d := &perfDocument{
		Schema: "softrdma.perf/v1", Time: time.Now().UTC().Truncate(time.Second),
		Test: perfTest{
			Op: t.Op.String(), AtomicType: t.Op.AtomicType(), Kind: t.Kind.String(), Depth: t.Depth, QPs: t.QPs, Iterations: t.Iterations,
			Seconds: t.Duration.Seconds(), Warmup: t.Warmup.Seconds(), Verify: t.Verify, Rounds: pl.rounds,
		},
		Host: perf.ReadHost(), Version: b.Version, Revision: b.Revision,
		Device: attr.Name, Backend: iwarp.Explain(dev), Threads: threads.String(), MTU: attr.MTU, Peer: pl.addr, Results: []perfRow{},
	}
	if t.Kind == perf.Latency {
		d.Test.Latency = "half the round trip"
		if t.Op.Answered() {
			d.Test.Latency = "the whole round trip"
		}
	}
	return d
}

// add takes the results of one size and returns their rows.
func (d *perfDocument) add(results map[string]*perf.Result, carriers []string) []perfRow {
	first := len(d.Results)
	for _, c := range carriers {
		if r := results[c]; r != nil && r.Messages > 0 {
			d.Results = append(d.Results, newPerfRow(c, r))
		}
	}
	rows := d.Results[first:]
	if len(rows) > 0 && rows[0].Transport == ours {
		for _, r := range rows[1:] {
			switch r.Transport {
			case tcpBlocking:
				rows[0].VsTCP = rows[0].figure() / r.figure()
			case tcpSpinning:
				rows[0].VsSpin = rows[0].figure() / r.figure()
			}
		}
	}
	return rows
}

// figure is what carriers are compared by.
func (r *perfRow) figure() float64 {
	if r.latRow != nil {
		return r.P50
	}
	return r.Average
}

func newPerfRow(carrier string, r *perf.Result) perfRow {
	row := perfRow{
		Transport: carrier, Size: r.Test.Size, N: r.Messages, Seconds: r.Elapsed.Seconds(),
		CPU: r.CPU.Seconds() / r.Elapsed.Seconds(), PeerCPU: r.PeerCPU.Seconds() / r.Elapsed.Seconds(),
		Wrong: r.Wrong, WrongAt: r.WrongAt,
	}
	if r.Test.Kind == perf.Bandwidth {
		row.bwRow = &bwRow{
			Peak: r.Peak / (1 << 20), Average: r.OctetsPerSecond() / (1 << 20),
			MsgRate: r.MessagesPerSecond() / 1e6, Gbps: r.OctetsPerSecond() * 8 / 1e9,
		}
		return row
	}
	at := func(p float64) float64 { return r.Latency(p) / 1e3 }
	row.latRow = &latRow{
		Min: at(0), Max: at(100), Typical: at(50), Avg: r.Mean() / 1e3, Stdev: r.Stdev() / 1e3, Perc99: at(99), Perc999: at(99.9),
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), P9999: at(99.99),
	}
	return row
}

// perfTable prints rows as they come.
type perfTable struct {
	w      io.Writer
	doc    *perfDocument
	headed bool
}

func newPerfTable(w io.Writer, d *perfDocument) *perfTable { return &perfTable{w: w, doc: d} }

func (t *perfTable) head() {
	test := &t.doc.Test
	fmt.Fprintf(t.w, "%s %s to %s", test.Op, test.Kind, t.doc.Peer)
	if test.AtomicType != "" {
		fmt.Fprintf(t.w, ", %s", test.AtomicType)
	}
	if test.Latency != "" {
		fmt.Fprintf(t.w, ", the latency is %s", test.Latency)
	} else {
		fmt.Fprintf(t.w, ", depth %d, %d connection(s)", test.Depth, test.QPs)
	}
	if test.Verify {
		fmt.Fprint(t.w, ", all data verified")
	}
	fmt.Fprintln(t.w)
	if test.Latency != "" {
		fmt.Fprintf(t.w, "%-13s %9s %11s %9s %9s %9s %9s %9s %9s %9s\n",
			"", "size", "rounds", "min[us]", "p50[us]", "avg[us]", "p90[us]", "p99[us]", "p99.9[us]", "max[us]")
		return
	}
	fmt.Fprintf(t.w, "%-13s %9s %11s %11s %11s %9s %10s %9s %9s\n",
		"", "size", "messages", "peak[MiB/s]", "avg[MiB/s]", "[Gbit/s]", "[Mmsg/s]", "cpu here", "cpu there")
}

// row prints a row, and the head before the first: what could not even begin has none.
func (t *perfTable) row(r perfRow) {
	if !t.headed {
		t.headed = true
		t.head()
	}
	s := fmt.Sprintf("%-13s %9s %11d ", r.Transport, demo.Size(r.Size), r.N)
	if r.latRow != nil {
		s += fmt.Sprintf("%9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f", r.Min, r.P50, r.Avg, r.P90, r.P99, r.P999, r.Max)
	} else {
		s += fmt.Sprintf("%11s %11.1f %9.3f %10.6f %9.2f %9s",
			orDash(r.Peak, "%.1f"), r.Average, r.Gbps, r.MsgRate, r.CPU, orDash(r.PeerCPU, "%.2f"))
	}
	if r.VsTCP > 0 {
		s += fmt.Sprintf("  %.2f of blocking TCP", r.VsTCP)
	}
	if r.VsSpin > 0 {
		s += fmt.Sprintf(", %.2f of spinning", r.VsSpin)
	}
	fmt.Fprintln(t.w, s)
}

func orDash(v float64, format string) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
