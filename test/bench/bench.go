package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// bench is a run of this program.
type bench struct {
	options *options
	plan    *plan
	stage   stage
	out     io.Writer
	missing leftOut
	data    measured
	fresh   bool // nothing has been measured yet
	curves  []curve
	models  []curve // by threading model
}

// measured is all that was measured.
type measured struct {
	values  map[string][]sample // by cell and round; nil for one that failed
	failed  map[string][]string // what went wrong
	rounds  []conditions
	lost    []direction // on the bad wire
	checked []string    // kinds of measurements whose data was compared
}

func (b *bench) run(ctx context.Context) error {
	b.data.values, b.data.failed = make(map[string][]sample), make(map[string][]string)
	b.fresh = true
	if len(b.plan.figures) == 0 && len(b.options.models) == 0 {
		return errors.New("-figures matches no row")
	}
	b.missing = findPrograms(&b.stage, b.plan.cells)
	facts := readFacts(&b.stage)
	fmt.Fprintln(b.out, facts)
	for _, w := range []wire{clean, lossy} {
		if err := b.over(ctx, w); err != nil {
			return err
		}
	}
	t := b.tabulate()
	fmt.Fprint(b.out, t.text(b))
	fmt.Fprint(b.out, modelsText(b.models))
	r := b.report(facts, t)
	if err := r.write(b.options.json); err != nil {
		return err
	}
	if err := writePlots(b.options.svg, b.curves, b.models, facts, r.Quiet); err != nil {
		return err
	}
	if len(b.data.failed) > 0 {
		return fmt.Errorf("%d measurements failed", len(b.data.failed))
	}
	if t.missed > 0 && !b.options.quick {
		return fmt.Errorf("%d of %d: %w", t.missed, t.held, errMissed)
	}
	return nil
}

// over makes all measurements over one kind of wire.
func (b *bench) over(ctx context.Context, w wire) (err error) {
	cells := b.plan.on(w)
	plots := w == clean && b.options.svg != "" && len(b.plan.figures) > 0
	models := w == clean && len(b.options.models) > 0
	if len(cells) == 0 && !plots && !models {
		return nil
	}
	defer func() { err = errors.Join(err, b.stage.lower()) }()
	if err := b.stage.raise(w); err != nil {
		return err
	}
	if err := b.verify(ctx, w); err != nil {
		return err
	}
	for round := range b.options.rounds {
		if len(cells) == 0 {
			break
		}
		if err := b.round(ctx, w, round, cells); err != nil {
			return err
		}
	}
	if w == lossy {
		b.data.lost, err = b.stage.losses()
	}
	if plots && err == nil {
		b.curves, err = b.sweep(ctx)
	}
	if models && err == nil {
		b.models, err = b.compareModels(ctx)
	}
	return err
}

// verifyTime is how long a run with all data compared takes.
const verifyTime = 300 * time.Millisecond

// verify runs each kind of measurement with all data compared.
func (b *bench) verify(ctx context.Context, w wire) error {
	for _, r := range b.plan.checks(w) {
		if _, err := r.measure(ctx, &b.stage, min(verifyTime, b.options.each)); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%v, all data compared, %v: %w", r, w, err)
		}
		b.data.checked = append(b.data.checked, fmt.Sprintf("%v, %v", r, w))
	}
	return nil
}

// round makes each measurement once. One that fails does not end the others.
func (b *bench) round(ctx context.Context, w wire, round int, cells []cell) error {
	before, err := now()
	if err != nil {
		return err
	}
	for _, c := range order(cells, round) {
		if _, out := b.missing[c.run.program()]; out {
			continue
		}
		v, err := c.run.measure(ctx, &b.stage, b.options.each)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			v = nil
			b.data.failed[c.name] = append(b.data.failed[c.name], fmt.Sprintf("round %d: %v", round+1, err))
			fmt.Fprintf(b.stage.log, "%s FAILED: %v\n", c.name, err)
		}
		b.data.values[c.name] = append(b.data.values[c.name], v)
	}
	after, err := now()
	if err != nil {
		return err
	}
	cond := between(before, after, b.fresh)
	b.fresh = false
	cond.Wire, cond.Round = w.String(), round+1
	b.data.rounds = append(b.data.rounds, cond)
	fmt.Fprintln(b.out, cond)
	return nil
}

// series returns what the rounds yielded of a cell; NaN for one that failed.
func (d *measured) series(cell string, m metric) []float64 {
	list := make([]float64, len(d.values[cell]))
	for i, v := range d.values[cell] {
		x, ok := v[m]
		if !ok {
			x = math.NaN()
		}
		list[i] = x
	}
	return list
}
