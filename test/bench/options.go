package main

import (
	"flag"
	"fmt"
	"io"
	"regexp"
	"time"
)

// options are the command line.
type options struct {
	binary  string // softrdma to measure
	rounds  int
	each    time.Duration // of a measurement
	quick   bool
	rows    *regexp.Regexp // nil: all
	json    string         // file; none if empty
	svg     string         // directory; none if empty
	models  []string       // threading models to compare by message size
	verbose bool
}

// What -quick sets unless it is given.
const (
	quickRounds  = 1
	quickSeconds = 0.2
)

func parseOptions(args []string, log io.Writer) (*options, error) {
	o := &options{}
	var rows, models string
	var seconds float64
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(log)
	f.StringVar(&o.binary, "softrdma", "", "the softrdma program to measure; built from this tree if empty")
	f.IntVar(&o.rounds, "rounds", 10, "how often each measurement runs")
	f.Float64Var(&seconds, "seconds", 2, "how long each measurement takes; five times as long for an idle connection")
	f.BoolVar(&o.quick, "quick", false, fmt.Sprintf("%d round of %g s each unless given, and no floor counts", quickRounds, quickSeconds))
	f.StringVar(&rows, "figures", "", "regular expression: run the rows whose number and name match")
	f.StringVar(&o.json, "json", "", "write all values to this file")
	f.StringVar(&o.svg, "svg", "", "measure by message size, too, and write plots to this directory")
	f.StringVar(&models, "models", "", "compare these threading models by message size, too: of adaptive, c1, c2 and c3, with commas, or all")
	f.BoolVar(&o.verbose, "v", false, "print each command")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	given := make(map[string]bool)
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if o.quick && !given["rounds"] {
		o.rounds = quickRounds
	}
	if o.quick && !given["seconds"] {
		seconds = quickSeconds
	}
	o.each = time.Duration(seconds * float64(time.Second))
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("%q: flags only", f.Args())
	case o.rounds < 1 || o.rounds > 1000:
		return nil, fmt.Errorf("-rounds: take 1 to 1000, not %d", o.rounds)
	case o.each < 50*time.Millisecond || o.each > 10*time.Minute:
		return nil, fmt.Errorf("-seconds: take 0.05 to 600, not %g", seconds)
	}
	var err error
	if o.models, err = parseModels(models); err != nil {
		return nil, err
	}
	if rows != "" {
		if o.rows, err = regexp.Compile(rows); err != nil {
			return nil, fmt.Errorf("-figures: %w", err)
		}
	}
	return o, nil
}
