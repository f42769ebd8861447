// Command softrdma shows, tries, measures and serves RDMA over plain Ethernet.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal lets a command print what it has so far, the second one
	// ends the process.
	context.AfterFunc(ctx, stop)
	out := &output{File: os.Stdout}
	a := &app{env: os.Getenv, stdin: os.Stdin, stdout: out, stderr: os.Stderr, cpus: newProcessors(os.Getenv)}
	code := a.run(ctx, os.Args[1:])
	if code == exitOK && out.err != nil {
		code = a.report(failed(out.err, "give the results a place that can take them"))
	}
	os.Exit(code)
}

// output is where results go. It remembers that some were lost.
type output struct {
	*os.File
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.File.Write(b)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}
