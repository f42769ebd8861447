package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/softrdma/softrdma/verbs/iwarp"
)

// modelNames are the threading models and what the plots say of them.
var modelNames = map[string]string{
	iwarp.ThreadsAdaptive.String():        "adaptive",
	iwarp.ThreadsIO.String():              "c1, one goroutine for packets and protocols",
	iwarp.ThreadsRunToCompletion.String(): "c2, run to completion",
	iwarp.ThreadsSplit.String():           "c3, one goroutine receives, the application sends",
	iwarp.ThreadsSplit.String() + once:    "c3-copy, the same with one copy less on receive",
}

// once behind the name of a model says that it is measured with one copy on the way to TCP.
const once = "-copy"

var allModels = []string{
	iwarp.ThreadsAdaptive.String(), iwarp.ThreadsIO.String(), iwarp.ThreadsRunToCompletion.String(), iwarp.ThreadsSplit.String(),
	iwarp.ThreadsSplit.String() + once,
}

func parseModels(list string) ([]string, error) {
	switch list {
	case "":
		return nil, nil
	case "all":
		return allModels, nil
	}
	models := strings.Split(list, ",")
	for i, m := range models {
		if _, err := iwarp.ParseThreads(m); err != nil && modelNames[m] == "" {
			return nil, fmt.Errorf("-models: %w; several with commas, or all", err)
		}
		if slices.Contains(models[:i], m) {
			return nil, fmt.Errorf("-models: %s stands there twice", m)
		}
	}
	return models, nil
}

// modelRun is a measurement of the comparison, under any model.
type modelRun struct {
	kind string
	size int
}

// modelRuns are the sizes: 64 octets to 64 KiB for latency, to 1 MiB for throughput.
func modelRuns() (list []modelRun) {
	for size := small; size <= large; size *= 2 {
		if size <= 64<<10 {
			list = append(list, modelRun{"lat", size})
		}
		list = append(list, modelRun{"bw", size})
	}
	return list
}

func (r modelRun) under(model string) perfRun {
	threads, less := strings.CutSuffix(model, once)
	return perfRun{backend: "packet", op: "write", kind: r.kind, size: r.size, threads: threads, once: less}
}

// compareModels makes a curve of each model and kind. At each size the models take turns,
// in every second pass the other way round.
func (b *bench) compareModels(ctx context.Context) ([]curve, error) {
	if err := b.stage.setBuffers(0); err != nil {
		return nil, err
	}
	for _, m := range b.options.models {
		for _, r := range []modelRun{{"lat", small}, {"bw", large}} {
			p := r.under(m)
			p.verify = true
			if _, err := p.measure(ctx, &b.stage, min(verifyTime, b.options.each)); err != nil {
				return nil, fmt.Errorf("%v, all data compared: %w", p, err)
			}
			b.data.checked = append(b.data.checked, fmt.Sprintf("%v, %v", p, clean))
		}
	}
	each := max(sizeTime, b.options.each/8)
	values := make(map[string]map[int][]float64) // by curve and size
	for pass := range min(maxPasses, b.options.rounds) {
		before, err := now()
		if err != nil {
			return nil, err
		}
		models := slices.Clone(b.options.models)
		if pass%2 == 1 {
			slices.Reverse(models)
		}
		for _, r := range modelRuns() {
			for _, m := range models {
				s, err := r.under(m).measure(ctx, &b.stage, each)
				if err != nil {
					return nil, fmt.Errorf("%v: %w", r.under(m), err)
				}
				name := r.kind + m
				if values[name] == nil {
					values[name] = make(map[int][]float64)
				}
				values[name][r.size] = append(values[name][r.size], s[r.metric()])
			}
		}
		after, err := now()
		if err != nil {
			return nil, err
		}
		cond := between(before, after, b.fresh)
		b.fresh = false
		cond.Wire, cond.Round = "threading models", pass+1
		b.data.rounds = append(b.data.rounds, cond)
		fmt.Fprintln(b.out, cond)
	}
	var curves []curve
	for _, kind := range []string{"lat", "bw"} {
		for _, m := range b.options.models {
			curves = append(curves, curve{Name: modelNames[m], Kind: kind, Points: points(values[kind+m])})
		}
	}
	return curves, nil
}

func (r modelRun) metric() metric {
	if r.kind == "lat" {
		return p50
	}
	return rate
}

// modelsText is the comparison as two tables.
func modelsText(curves []curve) string {
	var s strings.Builder
	for _, k := range []struct{ kind, head string }{
		{"lat", "WRITE, round trip in microseconds, median"}, {"bw", "WRITE, GB/s"},
	} {
		some := slices.DeleteFunc(slices.Clone(curves), func(c curve) bool { return c.Kind != k.kind })
		if len(some) == 0 {
			continue
		}
		fmt.Fprintf(&s, "\n%s\n", k.head)
		w := tabwriter.NewWriter(&s, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, c := range some {
			name, _, _ := strings.Cut(c.Name, ",")
			fmt.Fprintf(w, "\t%s", name)
		}
		fmt.Fprintln(w, "\t")
		for i, p := range some[0].Points {
			fmt.Fprint(w, sizeWord(p.Size))
			for _, c := range some {
				fmt.Fprintf(w, "\t%.4g", c.Points[i].Value)
			}
			fmt.Fprintln(w, "\t")
		}
		_ = w.Flush() // into memory
	}
	return s.String()
}
