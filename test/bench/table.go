package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// row is a figure with what was measured.
type row struct {
	ID        int      `json:"id"`
	Name      string   `json:"name"`
	Than      string   `json:"compared_with,omitempty"`
	Unit      string   `json:"unit"`
	Ours      summary  `json:"ours"`
	OursFrom  string   `json:"ours_from"` // the measurement
	Other     *summary `json:"other,omitempty"`
	OtherFrom string   `json:"other_from,omitempty"`
	Ratio     float64  `json:"ratio,omitempty"` // of the medians
	Spread    *summary `json:"ratios_of_rounds,omitempty"`
	Floor     float64  `json:"floor,omitempty"`
	Aim       float64  `json:"aim,omitempty"`
	Higher    bool     `json:"higher_is_better"`
	Verdict   string   `json:"verdict"`
	Why       string   `json:"why,omitempty"` // nothing was measured

	choices int // of the other
}

// Verdicts. A figure without a floor has none.
const (
	aimMet   = "aim met"
	floorMet = "floor met"
	missed   = "MISSED"
	notThere = "LEFT OUT"
	broken   = "FAILED"
)

// table is all rows, and how many have a floor and miss it.
type table struct {
	rows         []row
	held, missed int
}

func (b *bench) tabulate() *table {
	t := &table{}
	for i := range b.plan.figures {
		r := b.row(&b.plan.figures[i])
		t.rows = append(t.rows, r)
		if r.Floor != 0 {
			t.held++
		}
		if r.Verdict == missed {
			t.missed++
		}
	}
	return t
}

// best returns the cell of a side whose median is the best, and its values.
func (b *bench) best(s side, scale float64) (name string, values []float64, sum summary) {
	for _, c := range s.cells {
		v := scaled(b.data.series(c, s.metric), scale)
		now := summarize(v)
		if now.N == 0 {
			continue
		}
		better := now.Median < sum.Median
		if s.metric.higherIsBetter() {
			better = now.Median > sum.Median
		}
		if name == "" || better {
			name, values, sum = c, v, now
		}
	}
	return name, values, sum
}

func (b *bench) row(f *figure) row {
	scale := f.scale
	if scale == 0 {
		scale = 1
	}
	r := row{ID: f.id, Name: f.name, Than: f.than, Unit: f.ours.metric.unit(), Floor: f.floor, Aim: f.aim, Higher: f.higherIsBetter(), choices: len(f.other.cells)}
	var ours, other []float64
	r.OursFrom, ours, r.Ours = b.best(f.ours, scale)
	if r.OursFrom == "" {
		r.Verdict, r.Why = b.absent(f.ours)
		return r
	}
	value := r.Ours.Median
	if f.than != "" {
		name, values, sum := b.best(f.other, scale)
		if name == "" {
			r.Verdict, r.Why = b.absent(f.other)
			return r
		}
		other = values
		r.OtherFrom, r.Other = name, &sum
		spread := summarize(ratios(ours, other))
		value = r.Ours.Median / sum.Median
		r.Ratio, r.Spread = value, &spread
	}
	switch {
	case f.floor == 0:
	case f.reaches(value, f.aim):
		r.Verdict = aimMet
	case f.reaches(value, f.floor):
		r.Verdict = floorMet
	default:
		r.Verdict = missed
	}
	return r
}

// absent tells why a side has no value.
func (b *bench) absent(s side) (verdict, why string) {
	for _, c := range b.plan.cells {
		if reason, out := b.missing[c.run.program()]; out && c.name == s.cells[0] {
			return notThere, reason
		}
	}
	for _, c := range s.cells {
		if f := b.data.failed[c]; len(f) > 0 {
			return broken, c + ", " + f[0]
		}
	}
	return broken, "nothing was measured"
}

// number prints three digits that count.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func (s *summary) span() string {
	if s == nil {
		return ""
	}
	return number(s.Min) + ".." + number(s.Max)
}

// limit prints a floor or an aim.
func (r *row) limit(v float64) string {
	switch {
	case v == 0:
		return "-"
	case r.Higher:
		return ">= " + number(v)
	}
	return "<= " + number(v)
}

// cells of the printed row.
func (r *row) cells() []string {
	c := []string{fmt.Sprint(r.ID), r.Name, r.Unit, "-", "", r.Than, "", "", "-", "", r.limit(r.Floor), r.limit(r.Aim), r.Verdict}
	if r.OursFrom != "" {
		c[3], c[4] = number(r.Ours.Median), r.Ours.span()
	}
	if r.Other != nil {
		c[6], c[7] = number(r.Other.Median), r.Other.span()
		c[8], c[9] = number(r.Ratio), r.Spread.span()
	}
	return c
}

var headings = []string{"#", "figure", "", "ours", "min..max", "compared with", "other", "min..max", "ratio", "by round", "floor", "aim", "verdict"}

// grid prints the rows in columns.
func (t *table) grid() string {
	var s strings.Builder
	w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(headings, "\t"))
	for i := range t.rows {
		fmt.Fprintln(w, strings.Join(t.rows[i].cells(), "\t"))
	}
	_ = w.Flush() // a Builder takes everything
	var out strings.Builder
	for line := range strings.Lines(s.String()) {
		out.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return out.String()
}
