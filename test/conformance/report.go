package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// row is one requirement and what was found about it.
type row struct {
	requirement
	tests  []evidence
	result result
}

// judge makes the rows, in the list's order, and tells what is wrong with the tests'
// names or the list.
func judge(list []requirement, found map[string][]evidence) (rows []row, wrong []string) {
	known := map[string]bool{}
	for _, q := range list {
		known[q.id] = true
		r := row{requirement: q, tests: found[q.id]}
		for _, e := range r.tests {
			switch {
			case e.result == failed:
				r.result = failed
			case e.result == passed && r.result == open:
				r.result = passed
			}
		}
		switch {
		case q.waived != "" && len(r.tests) > 0:
			wrong = append(wrong, fmt.Sprintf("%s is said not to apply, and %s tests it: take the reason out of the list", q.id, r.tests[0].test))
		case q.waived != "":
			r.result = waived
		}
		rows = append(rows, r)
	}
	for id, tests := range found {
		if !known[id] {
			wrong = append(wrong, fmt.Sprintf("%s names %s, which the list does not have", tests[0].test, id))
		}
	}
	slices.Sort(wrong)
	return rows, wrong
}

// tally counts rows by result.
func tally(rows []row) (n [len(resultNames)]int) {
	for _, r := range rows {
		n[r.result]++
	}
	return n
}

// summaryLine is the last line of the report.
func summaryLine(rows []row) string {
	n := tally(rows)
	return fmt.Sprintf("conformance: %d passed, %d failed, %d not applicable, %d open of %d", n[passed], n[failed], n[waived], n[open], len(rows))
}

// member returns the rows of a family.
func member(rows []row, family string) (out []row) {
	for _, r := range rows {
		if r.family() == family {
			out = append(out, r)
		}
	}
	return out
}

const reportHead = `# Conformance

Written by ` + "`make conformance`" + `; do not edit. Each requirement of testdata/conformance/requirements.tsv with the tests that have its number in
their name. It is *passed* if at least one of them passed and none failed, *open* if there is none or all of them were left out.
A level that ends in p is a rule of our own where the source leaves the choice.
`

// writeReport writes the report; about says what was tested, and when.
func writeReport(w io.Writer, rows []row, about string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n\n| | passed | failed | not applicable | open | all |\n|---|---|---|---|---|---|\n", reportHead, about)
	for _, f := range families {
		in := member(rows, f.name)
		n := tally(in)
		fmt.Fprintf(&b, "| %s %s | %d | %d | %d | %d | %d |\n", f.name, f.title, n[passed], n[failed], n[waived], n[open], len(in))
	}
	n := tally(rows)
	fmt.Fprintf(&b, "| **all** | **%d** | **%d** | **%d** | **%d** | **%d** |\n", n[passed], n[failed], n[waived], n[open], len(rows))
	for _, f := range families {
		fmt.Fprintf(&b, "\n## %s: %s\n\n| requirement | level | source | tests | result |\n|---|---|---|---|---|\n", f.name, f.title)
		for _, r := range member(rows, f.name) {
			tests := r.waived
			for i, e := range r.tests {
				if i > 0 {
					tests += "<br>"
				}
				tests += "`" + e.test + "`"
				if e.result != r.result {
					tests += " (" + outcome(e.result) + ")"
				}
			}
			fmt.Fprintf(&b, "| **%s** %s | %s | %s | %s | %s |\n", r.id, cell(r.text), r.level, r.source, cell(tests), r.result)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", summaryLine(rows))
	_, err := io.WriteString(w, b.String())
	return err
}

// outcome says in one word what became of a single test.
func outcome(r result) string {
	if r == open {
		return "left out"
	}
	return r.String()
}

// cell makes text fit for a table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<br>", "<br>", "<", "&lt;").Replace(s)
}
