// Command backends runs softrdma on every backend, over IPv4 and IPv6, on links of
// several MTUs: serve on one side of a veth pair, ping and all tests of perf on the
// other, with all data compared.
//
//	go run ./test/backends                          all cells
//	go run ./test/backends --backends packet,kernel --only 1500
//
// It needs root: each cell has two network namespaces of its own. Beside exit codes
// and results it checks that the backend which was asked for is the one that was
// taken: by what softrdma says, and for xdp by what the kernel says of the interface.
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
	"strings"
	"syscall"
	"time"
)

// options say what is run.
type options struct {
	binary   string // softrdma to test
	backends []string
	only     string // part of a cell's name
	duration time.Duration
	pings    int
}

func main() {
	// Namespaces must not outlive the program, however it ends.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "backends:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	var list string
	f := flag.NewFlagSet("backends", flag.ContinueOnError)
	f.StringVar(&o.binary, "softrdma", "", "the softrdma program to test; built from this tree if empty")
	f.StringVar(&list, "backends", strings.Join(backends, ","), "backends to run")
	f.StringVar(&o.only, "only", "", "run the cells whose name has this in it: IPv6, 9000")
	f.DurationVar(&o.duration, "duration", 500*time.Millisecond, "how long each test of perf measures")
	f.IntVar(&o.pings, "pings", 100, "pings of a cell")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q: flags only", f.Args())
	}
	o.backends = strings.Split(list, ",")
	all, err := cells(o.backends, o.only)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("root is needed for network namespaces")
	}
	dir, err := os.MkdirTemp("", "backends-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.binary == "" {
		o.binary = filepath.Join(dir, "softrdma")
		build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "github.com/softrdma/softrdma/cmd/softrdma")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("building softrdma: %w", err)
		}
	} else if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	return matrix(ctx, &o, all, out)
}

// matrix runs the cells and prints a line each. Any that is not as it should be makes
// it fail at the end.
func matrix(ctx context.Context, o *options, all []cell, out io.Writer) error {
	failed := 0
	fmt.Fprintln(out, header())
	for _, c := range all {
		r := c.run(ctx, o)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		fmt.Fprintln(out, r.line())
		if r.err != nil {
			failed++
			for _, line := range strings.Split(strings.TrimSpace(r.err.Error()), "\n") {
				fmt.Fprintln(out, "    "+line)
			}
		}
	}
	fmt.Fprintf(out, "%d cells: %d passed, %d failed\n", len(all), len(all)-failed, failed)
	if failed > 0 {
		return fmt.Errorf("%d cells failed", failed)
	}
	return nil
}
