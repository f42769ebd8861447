package main

import (
	"fmt"
	"regexp"
	"slices"
)

// plan is what is going to be measured.
type plan struct {
	figures []figure
	cells   []cell // those that the figures need
}

func newPlan(o *options) *plan { return makePlan(figures(), cells(), o.rows) }

// makePlan takes the figures that rows matches, all if it is nil, and their cells.
func makePlan(figures []figure, cells []cell, rows *regexp.Regexp) *plan {
	p := &plan{}
	needed := make(map[string]bool)
	for _, f := range figures {
		if rows != nil && !rows.MatchString(f.title()) {
			continue
		}
		p.figures = append(p.figures, f)
		for _, name := range slices.Concat(f.ours.cells, f.other.cells) {
			needed[name] = true
		}
	}
	for _, c := range cells {
		if needed[c.name] {
			p.cells = append(p.cells, c)
		}
	}
	return p
}

// title is what -figures looks at.
func (f *figure) title() string {
	s := fmt.Sprintf("%d %s", f.id, f.name)
	if f.than != "" {
		s += " / " + f.than
	}
	return s
}

// on returns the cells of a wire.
func (p *plan) on(w wire) (list []cell) {
	for _, c := range p.cells {
		if c.wire == w {
			list = append(list, c)
		}
	}
	return list
}

// order is that of a round, counted from 0: every second one goes backwards.
func order(cells []cell, round int) []cell {
	list := slices.Clone(cells)
	if round%2 == 1 {
		slices.Reverse(list)
	}
	return list
}

// checks are the runs that compare all data, one for each kind of softrdma's
// measurements on the wire.
func (p *plan) checks(w wire) (list []perfRun) {
	for _, c := range p.on(w) {
		if r, ok := c.run.(perfRun); ok {
			r.verify = true
			if !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
	}
	return list
}
