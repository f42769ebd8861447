// Command testrun runs go test and sums up what it said: the output of what failed,
// a line a package, everything that was left out and why, and a count at the end.
//
//	go run ./test/testrun [-strict] [-plain] [-json FILE] GO-TEST-ARGUMENTS
//
// With -json what go test -json said goes to a file too, for test/conformance.
// An ordinary user's tests run in a user and network namespace of their own where the
// host allows it, so that those which need CAP_NET_RAW run too. With -plain they do not.
// With -strict anything left out makes the run fail: that is for CI.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout)) }

// options are this program's own flags.
type options struct {
	strict, plain bool
	json          string // where go test's words go, besides
}

func run(args []string, out io.Writer) int {
	var o options
	for len(args) > 0 {
		switch args[0] {
		case "-strict":
			o.strict = true
		case "-plain":
			o.plain = true
		case "-json":
			if len(args) < 2 {
				fmt.Fprintln(out, "-json needs the name of a file")
				return 2
			}
			o.json, args = args[1], args[1:]
		case insideFlag:
			if err := prepareInside(); err != nil {
				fmt.Fprintln(out, "LEFT OUT: the namespace has no loopback:", err)
			}
		default:
			return test(args, o, out)
		}
		args = args[1:]
	}
	return test([]string{"./..."}, o, out)
}

// insideFlag marks the copy of this program that runs inside the namespaces.
const insideFlag = "-inside"

func test(args []string, o options, out io.Writer) int {
	if !o.plain && os.Geteuid() != 0 {
		code, err := runInside(args, o, out)
		if err == nil {
			return code
		}
		fmt.Fprintln(out, "LEFT OUT: user namespaces are not allowed here, so tests that need root are:", err)
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	said := io.Reader(pipe)
	if o.json != "" {
		f, err := os.Create(o.json)
		if err != nil {
			fmt.Fprintln(out, err)
			return 1
		}
		defer f.Close()
		said = io.TeeReader(pipe, f)
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	s := newSummary(out)
	readErr := s.read(said)
	testErr := cmd.Wait()
	s.print()
	switch {
	case readErr != nil:
		fmt.Fprintln(out, "go test -json:", readErr)
		return 1
	case testErr != nil, s.failed > 0:
		return 1
	case o.strict && len(s.leftOut) > 0:
		fmt.Fprintln(out, "nothing may be left out here")
		return 1
	}
	return 0
}
