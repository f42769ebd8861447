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
	a := &app{env: os.Getenv, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	os.Exit(a.run(ctx, os.Args[1:]))
}
