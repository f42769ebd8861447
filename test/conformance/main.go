// Command conformance tells which requirements the tests show to be met, and writes
// docs/conformance.md: each requirement of testdata/conformance/requirements.tsv with
// the tests that name it.
//
//	go run ./test/conformance [flags] [PACKAGE...]
//
// It runs the tests of the packages once (./... if none is named), or takes the results
// of a run that was recorded by test/testrun -json. It fails if a requirement failed, if
// one is open (those of the verbs family may be, with -allow-open all of them), and if a
// test names a requirement that does not exist.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

const module = "github.com/softrdma/softrdma"

type options struct {
	list, recorded, report string
	run                    string
	allowOpen, verbose     bool
	within                 time.Duration
	packages               []string
}

func run(args []string, out io.Writer) int {
	o, err := parse(args, out)
	if err == nil {
		var fine bool
		if fine, err = o.conform(out); fine && err == nil {
			return 0
		}
	}
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(out, "conformance:", err)
	}
	return 1
}

func parse(args []string, out io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.list, "requirements", "testdata/conformance/requirements.tsv", "the list of requirements")
	f.StringVar(&o.recorded, "results", "", "take the results from this `file`, the output of go test -json, instead of running the tests")
	f.StringVar(&o.report, "report", "docs/conformance.md", "write the report to this `file`; none if empty")
	f.StringVar(&o.run, "run", "", "run only tests that match this `pattern`")
	f.BoolVar(&o.allowOpen, "allow-open", false, "do not fail for requirements that are open")
	f.BoolVar(&o.verbose, "open", false, "list what is open")
	f.DurationVar(&o.within, "timeout", 30*time.Minute, "the longest that all the tests may take")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.packages = f.Args()
	if len(o.packages) == 0 {
		o.packages = []string{"./..."}
	}
	return o, nil
}

// conform does it all; fine tells whether the requirements are met.
func (o *options) conform(out io.Writer) (fine bool, err error) {
	b, err := os.ReadFile(o.list)
	if err != nil {
		return false, err
	}
	list, err := readRequirements(bytes.NewReader(b))
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.list, err)
	}
	res, err := o.results()
	if err != nil {
		return false, err
	}
	res.settle()
	rows, wrong := judge(list, res.find(module))
	if o.report != "" {
		var b bytes.Buffer
		if err := writeReport(&b, rows, o.about()); err != nil {
			return false, err
		}
		if err := os.WriteFile(o.report, b.Bytes(), 0o644); err != nil {
			return false, err
		}
	}
	fine = len(wrong)+len(res.broken) == 0
	for _, p := range res.broken {
		fmt.Fprintf(out, "%s: the package failed outside of its tests: run go test on it\n", p)
	}
	for _, w := range wrong {
		fmt.Fprintln(out, w)
	}
	for _, r := range rows {
		mustBeClosed := r.result == open && r.family() != "VRB" && !o.allowOpen
		if mustBeClosed || r.result == failed {
			fine = false
		}
		if mustBeClosed || r.result == failed || r.result == open && o.verbose {
			fmt.Fprintf(out, "%-6s %s %s: %s\n", r.result, r.id, r.level, r.text)
			for _, e := range r.tests {
				fmt.Fprintf(out, "         %s: %s\n", e.test, outcome(e.result))
			}
		}
	}
	fmt.Fprintln(out, summaryLine(rows))
	return fine, nil
}

// grace is for building, and for go test to tell which test is late.
const grace = time.Minute

// results runs the tests, or reads what a run has said.
func (o *options) results() (*results, error) {
	if o.recorded != "" {
		f, err := os.Open(o.recorded)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readResults(f)
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.within+grace)
	defer cancel()
	args := []string{"test", "-json", "-count=1", "-timeout", o.within.String()}
	if o.run != "" {
		args = append(args, "-run", o.run)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, o.packages...)...)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	said, err := cmd.Output()
	var exit *exec.ExitError
	if ctx.Err() != nil {
		return nil, fmt.Errorf("the tests took longer than %v: name fewer packages, or raise -timeout", o.within)
	}
	if err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("go test: %w", err)
	}
	res, rerr := readResults(bytes.NewReader(said))
	if rerr != nil {
		return nil, fmt.Errorf("go test -json: %w", rerr)
	}
	if len(res.tests) == 0 {
		return nil, errors.New("no test ran: does the pattern match any, and do the packages build?")
	}
	return res, nil
}

// about says which state of the sources was tested, and when.
func (o *options) about() string {
	version := "unknown"
	if b, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output(); err == nil {
		version = strings.TrimSpace(string(b))
	}
	return fmt.Sprintf("softrdma %s, %s.", version, time.Now().UTC().Format(time.DateOnly))
}
