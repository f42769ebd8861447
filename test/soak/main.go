package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	verb := ""
	if len(args) > 0 && len(args[0]) > 0 && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "":
		return soak(ctx, args)
	case "matrix":
		return matrix(ctx, args)
	case "end":
		return runEnd(ctx, args)
	}
	fmt.Fprintf(os.Stderr, "soak: %q is no command: matrix is, and none for a single run\n", verb)
	return 2
}

func soak(ctx context.Context, args []string) int {
	o := &options{}
	f := flag.NewFlagSet("soak", flag.ContinueOnError)
	o.register(f)
	if err := parse(f, args, o); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 2
	}
	p := &printer{o: o, out: os.Stdout, log: os.Stderr}
	if o.Link == "netns" {
		return runApart(ctx, p)
	}
	return runHere(ctx, p)
}

func parse(f *flag.FlagSet, args []string, o *options) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q: flags only", f.Args())
	}
	return o.check()
}
