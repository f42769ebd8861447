package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is one line of go test -json (see cmd/test2json).
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// leftOutLine is a line in which a test says, by Skip or by Log, what could not run on
// this host. The words in other places, such as a script that a test prints, mean nothing.
var leftOutLine = regexp.MustCompile(`^\s+\S+\.go:\d+: LEFT OUT: ?(.*)`)

// summary adds events up. It prints a package's failures when the package ends.
type summary struct {
	out             io.Writer
	passed, failed  int
	leftOut         []string // "package Test: reason"
	output          map[string][]string
	builds          map[string][]string
	passedInPackage map[string]int
	failedInPackage map[string]int
}

func newSummary(out io.Writer) *summary {
	return &summary{out: out, output: map[string][]string{}, builds: map[string][]string{},
		passedInPackage: map[string]int{}, failedInPackage: map[string]int{}}
}

func (s *summary) read(r io.Reader) error {
	d := json.NewDecoder(r)
	for {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		s.add(e)
	}
}

func (s *summary) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
	case "output":
		s.output[key] = append(s.output[key], e.Output)
		if m := leftOutLine.FindStringSubmatch(e.Output); m != nil {
			s.leave(e, m[1])
		}
	case "pass":
		if e.Test == "" {
			fmt.Fprintf(s.out, "ok    %6.1fs %4d %s\n", e.Elapsed, s.passedInPackage[e.Package], e.Package)
			break
		}
		s.passed++
		s.passedInPackage[e.Package]++
		delete(s.output, key)
	case "skip":
		if e.Test != "" && !s.explained(key) {
			s.leave(e, s.reason(key))
		}
		if e.Test != "" {
			delete(s.output, key)
		}
	case "fail":
		s.fail(e, key)
	}
}

func (s *summary) fail(e event, key string) {
	if e.Test != "" {
		s.failed++
		s.failedInPackage[e.Package]++
		fmt.Fprintf(s.out, "FAIL  %s %s\n%s", e.Package, e.Test, strings.Join(s.output[key], ""))
		delete(s.output, key)
		return
	}
	fmt.Fprintf(s.out, "FAIL  %6.1fs      %s\n", e.Elapsed, e.Package)
	switch {
	case e.FailedBuild != "":
		s.failed++
		fmt.Fprint(s.out, strings.Join(s.builds[e.FailedBuild], ""))
		delete(s.builds, e.FailedBuild)
	default:
		// What no test said: a panic, a leak found by TestMain, a time-out.
		said := strings.Join(s.output[key], "")
		for _, running := range s.unfinished(e.Package) {
			said += strings.Join(s.output[running], "")
		}
		if s.failedInPackage[e.Package] == 0 {
			s.failed++
		}
		fmt.Fprint(s.out, said)
	}
}

// unfinished lists the tests of a package that neither passed nor failed.
func (s *summary) unfinished(pkg string) []string {
	var keys []string
	for k := range s.output {
		if p, test, _ := strings.Cut(k, " "); p == pkg && test != "" {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (s *summary) leave(e event, why string) {
	what := e.Package
	if e.Test != "" {
		what += " " + e.Test
	}
	s.leftOut = append(s.leftOut, fmt.Sprintf("%s: %s", what, strings.TrimSpace(why)))
}

// explained tells whether a test has said why it was left out.
func (s *summary) explained(key string) bool {
	return slices.ContainsFunc(s.output[key], leftOutLine.MatchString)
}

// reason is the last thing that a skipped test said.
func (s *summary) reason(key string) string {
	for _, line := range slices.Backward(s.output[key]) {
		if l := strings.TrimSpace(line); l != "" && !strings.HasPrefix(l, "===") && !strings.HasPrefix(l, "--- SKIP") {
			return l
		}
	}
	return "no reason given"
}

func (s *summary) print() {
	if len(s.leftOut) > 0 {
		fmt.Fprintln(s.out, "\nLeft out on this host:")
		for _, l := range s.leftOut {
			fmt.Fprintln(s.out, "  "+l)
		}
	}
	fmt.Fprintf(s.out, "\n%d passed, %d failed, %d left out\n", s.passed, s.failed, len(s.leftOut))
}
