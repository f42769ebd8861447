package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitMissed = 3
)

// errMissed says that a floor was missed: the program has done all it should.
var errMissed = errors.New("a figure misses its floor")

func main() {
	if len(os.Args) > 1 && os.Args[1] == "end" {
		if err := runEnd(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench end:", err)
			os.Exit(exitFailed)
		}
		return
	}
	// The namespaces must not outlive the program, however it ends.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	o, err := parseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(exitUsage)
	}
	err = run(ctx, o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		if errors.Is(err, errMissed) {
			os.Exit(exitMissed)
		}
		os.Exit(exitFailed)
	}
}

func run(ctx context.Context, o *options, out, log io.Writer) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("root is needed for network namespaces and packet sockets")
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.binary == "" {
		o.binary = filepath.Join(dir, "softrdma")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "github.com/softrdma/softrdma/cmd/softrdma")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stdout, build.Stderr = log, log
		if err := build.Run(); err != nil {
			return fmt.Errorf("building softrdma: %w", err)
		}
	} else if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b := &bench{
		options: o, plan: newPlan(o), out: out,
		stage: stage{binary: o.binary, self: self, log: log, verbose: o.verbose},
	}
	return b.run(ctx)
}
