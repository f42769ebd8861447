package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Options say what the matrix covers.
type Options struct {
	Binary string         // softrdma to test; built from this tree if empty
	Meet   int            // any so many values of different axes meet in some run; the whole matrix if 0
	Only   *regexp.Regexp // of the runs' names; all if nil
	Keep   string         // folder for captures and logs of all runs; those of failed runs are kept in any case
	Pings  int            // of rping a run
	Accel  string         // of qemu
	Report string         // file for the report; none if empty
}

// Outcome is a row that was run.
type Outcome struct {
	Row
	Result
	Repeated int // times that the guest's kernel broke before
}

// rows returns the rows that are asked for.
func (o Options) rows() []Row {
	all := rows(o.Pings)
	if o.Meet > 0 {
		all = cover(all, o.Meet)
	}
	return slices.DeleteFunc(all, func(r Row) bool { return o.Only != nil && !o.Only.MatchString(r.name()) })
}

// matrix runs all rows and prints one line each. Any run that is not as it should be
// makes it fail at the end.
func matrix(ctx context.Context, img Image, o Options, out io.Writer) error {
	todo := o.rows()
	if len(todo) == 0 {
		return errors.New("no run has a name like that")
	}
	dir := o.Keep
	if dir == "" {
		tmp, err := os.MkdirTemp("", "sr-interop-runs-")
		if err != nil {
			return err
		}
		defer os.Remove(tmp) // unless there are failed runs in it
		dir = tmp
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bin, undo, err := o.binary(out)
	if err != nil {
		return err
	}
	defer undo()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	m := &work{ctx: ctx, img: img, o: o, out: out, todo: todo,
		runner: runner{softrdma: bin, self: self, dir: dir, keep: o.Keep != ""}}
	start := time.Now()
	fmt.Fprintf(out, "%d of the %d runs of the whole matrix\n%s\n", len(todo), len(rows(o.Pings)), header)
	err = m.all()
	failed := m.summary(time.Since(start))
	if err == nil && o.Report != "" {
		err = m.report(o.Report)
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d runs failed", failed)
	}
	return err
}

// binary returns the path of the program to test, and what removes it if it was built
// here.
func (o Options) binary(log io.Writer) (string, func(), error) {
	if o.Binary != "" {
		bin, err := filepath.Abs(o.Binary)
		return bin, func() {}, err
	}
	dir, err := os.MkdirTemp("", "sr-interop-bin-")
	if err != nil {
		return "", nil, err
	}
	undo := func() { _ = os.RemoveAll(dir) }
	bin := filepath.Join(dir, "softrdma")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/softrdma/softrdma/cmd/softrdma")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		undo()
		return "", nil, fmt.Errorf("build softrdma: %w", err)
	}
	return bin, undo, nil
}

// work is the matrix at work.
type work struct {
	ctx    context.Context
	img    Image
	o      Options
	out    io.Writer
	todo   []Row // grouped by guest
	runner runner
	done   []Outcome
	guest  map[string]string // versions of what is in the guests
}

const (
	// bootEarly is how many runs before its first one a guest begins to boot.
	bootEarly = 8
	// breaks is how often a row is run again on a fresh guest whose kernel breaks.
	breaks = 2
)

// all runs the rows. A guest serves all runs up to one that fails: what it is worth after
// that nobody knows, so the next run gets a fresh one.
func (m *work) all() error {
	var ahead *booting // the guest after this one
	defer func() {
		if ahead != nil {
			if h, err := ahead.wait(); err == nil {
				h.Close()
			}
		}
		if m.runner.host != nil {
			m.runner.host.Close()
		}
	}()
	tries := 0
	for i := 0; i < len(m.todo); {
		row := m.todo[i]
		if h := m.runner.host; h != nil && h.vm.Kind != row.Kind {
			h.Close()
			m.runner.host = nil
		}
		if m.runner.host == nil {
			b := ahead
			if b != nil && b.kind == row.Kind {
				ahead = nil
			} else {
				b = bootHost(m.ctx, m.img, row.Kind, m.o.Accel, row.MTU)
			}
			h, err := b.wait()
			if err != nil {
				return err
			}
			m.runner.host = h
			fmt.Fprintf(m.out, "# %s guest up after %.1f s\n", row.Kind, b.took.Seconds())
			if m.guest, err = h.versions(); err != nil {
				return err
			}
		}
		if later := m.todo[min(i+bootEarly, len(m.todo)-1)]; ahead == nil && later.Kind != row.Kind {
			ahead = bootHost(m.ctx, m.img, later.Kind, m.o.Accel, later.MTU)
		}
		res := m.runner.run(row)
		if m.ctx.Err() != nil {
			return context.Cause(m.ctx)
		}
		printResult(m.out, row, res)
		if res.Err != nil {
			m.runner.host.Close()
			m.runner.host = nil
		}
		if errors.Is(res.Err, errGuestBroke) && tries < breaks {
			tries++
			fmt.Fprintf(m.out, "    that is a fault of the guest's kernel: again on a fresh one\n")
			continue
		}
		m.done = append(m.done, Outcome{row, res, tries})
		tries = 0
		i++
	}
	return nil
}

// summary prints what came of it all and returns how many runs failed.
func (m *work) summary(took time.Duration) (failed int) {
	repeated := 0
	for _, d := range m.done {
		if d.Err != nil {
			failed++
		}
		repeated += d.Repeated
	}
	fmt.Fprintf(m.out, "%d runs in %.0f s: %d passed, %d failed", len(m.done), took.Seconds(), len(m.done)-failed, failed)
	if repeated > 0 {
		fmt.Fprintf(m.out, "; the guest's kernel broke %d times, and the run was repeated", repeated)
	}
	fmt.Fprintln(m.out)
	return failed
}

var header = columns("guest", "its program", "backend", "seen", "ours", "IP", "MTU", "load", "asked", "C req/rep", "FPDUs", "tshark", "counters", "seconds", "result")

func printResult(out io.Writer, row Row, res Result) {
	verdict := "ok"
	switch {
	case res.Err != nil:
		verdict = "FAILED"
	case row.Held():
		verdict = "ok, held back"
	}
	fmt.Fprintln(out, columns(row.Kind, row.guestProgram(), row.Backend, res.Seen, row.Role, fmt.Sprintf("v%d", row.Family), fmt.Sprint(row.MTU),
		row.Load.String(), row.crcWord(), res.CRCBits, fmt.Sprint(res.FPDUs), fmt.Sprint(res.Tshark), fmt.Sprint(res.Counters),
		fmt.Sprintf("%.1f", res.Time.Seconds()), verdict))
	if res.Err != nil {
		for _, line := range strings.Split(res.Err.Error(), "\n") {
			fmt.Fprintln(out, "    "+line)
		}
		fmt.Fprintln(out, "    captures and logs: "+res.Kept)
	}
}

// columns lays out one line; every line alike, so that they can be printed one by one.
func columns(cells ...string) string {
	widths := []int{10, 11, 11, 11, 6, 2, 4, 10, 5, 9, 6, 6, 8, 7, 0}
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "%-*s ", widths[i], c)
	}
	return strings.TrimRight(b.String(), " ")
}
