package main

import (
	"encoding/json"
	"math"
	"os"
)

const reportSchema = "softrdma.bench/v1"

// report is what -json writes.
type report struct {
	Schema       string              `json:"schema"`
	Facts        facts               `json:"host"`
	Rounds       int                 `json:"rounds"`
	Seconds      float64             `json:"seconds"` // of a measurement
	Conditions   []conditions        `json:"conditions"`
	Quiet        bool                `json:"quiet"`
	Verified     []string            `json:"verified"` // runs with all data compared, without a wrong octet
	LeftOut      map[string]string   `json:"left_out,omitempty"`
	Failed       map[string][]string `json:"failed,omitempty"`
	Lost         []direction         `json:"lost,omitempty"` // by the bad wire
	Measurements []measurement       `json:"measurements"`
	Rows         []row               `json:"figures"`
	Curves       []curve             `json:"curves,omitempty"`
	Models       []curve             `json:"threading_models,omitempty"`
}

// measurement is one cell: by metric, a value a round, null for one that failed.
type measurement struct {
	Name    string                `json:"name"`
	Wire    string                `json:"wire"`
	Values  map[string][]*float64 `json:"values"`
	Summary map[string]summary    `json:"summary"`
}

func (b *bench) report(f facts, t *table) *report {
	r := &report{
		Schema: reportSchema, Facts: f, Rounds: b.options.rounds, Seconds: b.options.each.Seconds(),
		Conditions: b.data.rounds, Quiet: true, Verified: b.data.checked, LeftOut: b.missing, Failed: b.data.failed,
		Lost: b.data.lost, Rows: t.rows, Curves: b.curves, Models: b.models,
	}
	for _, c := range b.data.rounds {
		r.Quiet = r.Quiet && len(c.NotQuiet) == 0
	}
	for _, c := range b.plan.cells {
		m := measurement{Name: c.name, Wire: c.wire.String(), Values: make(map[string][]*float64), Summary: make(map[string]summary)}
		for k := range metricNames {
			values := b.data.series(c.name, k)
			if s := summarize(values); s.N > 0 {
				m.Summary[metricNames[k]], m.Values[metricNames[k]] = s, pointers(values)
			}
		}
		r.Measurements = append(r.Measurements, m)
	}
	return r
}

// pointers make null of what is not a number, which JSON does not have.
func pointers(values []float64) []*float64 {
	list := make([]*float64, len(values))
	for i, v := range values {
		if !math.IsNaN(v) {
			list[i] = &v
		}
	}
	return list
}

// write does nothing without a name.
func (r *report) write(name string) error {
	if name == "" {
		return nil
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
