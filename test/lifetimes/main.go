// Command lifetimes checks what takes too long for a test: idle connections for
// minutes, cut links for a minute, peers that are killed hundreds of times, crowds of
// connections. It prints a line with figures for each check and fails if one does.
//
//	go run ./test/lifetimes [-idle 1m] [-keepalive 20s] [-cut 60s] [-kills 200] [NAME...]
//
// Names are those of the checks, or the first word of one: idle, silent, cut, kill,
// crowd, churn. All run if none is given.
//
// Most of them run between two network namespaces made for the purpose; the other
// host is a process of its own. That takes root, or a host that allows user
// namespaces. Where neither is given, what runs over a link in memory remains.
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
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	idle      time.Duration
	keepalive time.Duration
	conns     int
	cut       time.Duration
	kills     int
	crowd     int
	churn     int
}

// insideVerb and peerVerb mark copies of this program: the one in a network namespace of
// its own, and the other host.
const (
	insideVerb = "inside"
	peerVerb   = "peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	code := run(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out io.Writer) int {
	inside := false
	if len(args) > 0 {
		switch args[0] {
		case peerVerb:
			if err := runPeer(args[1:]); err != nil {
				fmt.Fprintln(os.Stderr, "peer:", err)
				return 1
			}
			return 0
		case insideVerb:
			inside, args = true, args[1:]
		}
	}
	var o options
	f := flag.NewFlagSet("lifetimes", flag.ContinueOnError)
	f.DurationVar(&o.idle, "idle", time.Minute, "how long connections are idle")
	f.DurationVar(&o.keepalive, "keepalive", 0, "after how long of silence an idle connection's peer is given up; a third of -idle if 0, from 10s to the default")
	f.IntVar(&o.conns, "conns", 2000, "how many are")
	f.DurationVar(&o.cut, "cut", time.Minute, "the longest that a link is cut")
	f.IntVar(&o.kills, "kills", 200, "how often a peer is killed")
	f.IntVar(&o.crowd, "crowd", 1000, "how many connect at once")
	f.IntVar(&o.churn, "churn", 20000, "how many connect one after the other")
	if err := f.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(f.Args())
	if err != nil {
		fmt.Fprintln(out, "lifetimes:", err)
		return 2
	}
	if !inside {
		code, err := runInside(ctx, args)
		if err == nil {
			return code
		}
		fmt.Fprintln(out, "no network namespaces: run as root, or allow user namespaces:", err)
	}
	return report(ctx, &o, chosen, inside, out)
}

// runInside runs this program again in a network namespace of its own. The error says
// that the host does not allow it.
func runInside(ctx context.Context, args []string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{insideVerb}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case errors.As(err, &exit):
		return exit.ExitCode(), nil
	case err != nil:
		return 1, nil
	}
	return 0, nil
}

// check is one of the checks. Its result is a line of figures.
type check struct {
	name string // kind/backend
	net  bool   // it needs network namespaces
	run  func(ctx context.Context, o *options) (string, error)
}

// choose returns the checks that are asked for.
func choose(names []string) ([]check, error) {
	if len(names) == 0 {
		return checks, nil
	}
	var chosen []check
	for _, name := range names {
		before := len(chosen)
		for _, c := range checks {
			if kind, _, _ := strings.Cut(c.name, "/"); c.name == name || kind == name {
				chosen = append(chosen, c)
			}
		}
		if len(chosen) == before {
			all := make([]string, len(checks))
			for i, c := range checks {
				all[i] = c.name
			}
			return nil, fmt.Errorf("there is no check %q: take some of %s", name, strings.Join(all, ", "))
		}
	}
	return chosen, nil
}

// report runs checks and prints a line for each.
func report(ctx context.Context, o *options, chosen []check, namespaces bool, out io.Writer) int {
	passed, failed, left := 0, 0, 0
	for _, c := range chosen {
		if ctx.Err() != nil {
			fmt.Fprintln(out, "interrupted")
			return 1
		}
		if c.net && !namespaces {
			fmt.Fprintf(out, "LEFT OUT %-14s no network namespaces here\n", c.name)
			left++
			continue
		}
		start := time.Now()
		figures, err := c.run(ctx, o)
		took := time.Since(start).Round(100 * time.Millisecond)
		if err != nil {
			fmt.Fprintf(out, "FAILED   %-14s %v (%v)\n", c.name, err, took)
			failed++
			continue
		}
		fmt.Fprintf(out, "ok       %-14s %s (%v)\n", c.name, figures, took)
		passed++
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d left out\n", passed, failed, left)
	if failed > 0 {
		return 1
	}
	return 0
}

// checks are all there are.
var checks = []check{
	{"idle/pipe", false, idlePipe},
	{"silent/pipe", false, silentPipe},
	{"silent/packet", true, onNet("packet", silentNet)},
	{"silent/kernel", true, onNet("kernel", silentNet)},
	{"cut/pipe", false, cutPipe},
	{"cut/packet", true, cutNet("packet", true)},
	{"cut/own", true, cutNet("packet", false)},
	{"cut/kernel", true, cutNet("kernel", true)},
	{"kill/packet", true, onNet("packet", kill)},
	{"kill/kernel", true, onNet("kernel", kill)},
	{"crowd/pipe", false, crowdPipe},
	{"crowd/packet", true, onNet("packet", crowdNet)},
	{"crowd/kernel", true, onNet("kernel", crowdNet)},
	{"churn/pipe", false, churnPipe},
	{"churn/packet", true, onNet("packet", churnNet)},
	{"churn/kernel", true, onNet("kernel", churnNet)},
	{"ports/kernel", true, onNet("kernel", portsRunOut)},
}
