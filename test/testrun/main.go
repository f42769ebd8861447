// Command testrun runs go test and sums up what it said: the output of what failed,
// a line a package, everything that was left out and why, and a count at the end.
//
//	go run ./test/testrun [-strict] [-plain] GO-TEST-ARGUMENTS
//
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

func run(args []string, out io.Writer) int {
	var strict, plain bool
	for len(args) > 0 {
		switch args[0] {
		case "-strict":
			strict = true
		case "-plain":
			plain = true
		case insideFlag:
			if err := prepareInside(); err != nil {
				fmt.Fprintln(out, "LEFT OUT: the namespace has no loopback:", err)
			}
		default:
			return test(args, strict, plain, out)
		}
		args = args[1:]
	}
	return test([]string{"./..."}, strict, plain, out)
}

// insideFlag marks the copy of this program that runs inside the namespaces.
const insideFlag = "-inside"

func test(args []string, strict, plain bool, out io.Writer) int {
	if !plain && os.Geteuid() != 0 {
		code, err := runInside(args, strict, out)
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
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	s := newSummary(out)
	readErr := s.read(pipe)
	testErr := cmd.Wait()
	s.print()
	switch {
	case readErr != nil:
		fmt.Fprintln(out, "go test -json:", readErr)
		return 1
	case testErr != nil, s.failed > 0:
		return 1
	case strict && len(s.leftOut) > 0:
		fmt.Fprintln(out, "nothing may be left out here")
		return 1
	}
	return 0
}
