package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// idleRun measures what a connection costs that is up and has nothing to do, on the
// packet backend: `softrdma ping` after its first ping, and `softrdma serve`.
type idleRun struct{}

func (idleRun) program() string { return "" }

const (
	idleTimes = 5 // so many times the length of other measurements: the cost is small
	// settleTime is how long the processes have to come to rest.
	settleTime = 2 * time.Second
)

func (idleRun) measure(ctx context.Context, s *stage, each time.Duration) (v sample, err error) {
	device := perfRun{backend: "packet"}
	server, err := s.start(ctx, sideA.namespace, nil, append([]string{s.binary, "serve", "--no-baseline"}, device.flags(sideA)...)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = firstOf(err, server.stop()) }()
	if err := server.until(ctx, "it listens", server.says("ping: listening")); err != nil {
		return nil, err
	}
	client, err := s.start(ctx, sideB.namespace, nil, append([]string{s.binary, "ping", sideA.own, "-C", "2", "-i", "1h"}, device.flags(sideB)...)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = firstOf(err, client.stop()) }()
	if err := client.until(ctx, "the first ping is back", client.says("seq=0")); err != nil {
		return nil, err
	}
	if err := rest(ctx, settleTime); err != nil {
		return nil, err
	}
	before, start, err := cpuOf(server, client)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, idleTimes*each); err != nil {
		return nil, err
	}
	after, end, err := cpuOf(server, client)
	if err != nil {
		return nil, err
	}
	return sample{idle: 100 * float64(after-before) / float64(end.Sub(start))}, nil
}

// rest does nothing for a while.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// cpuOf returns the processor time that running processes have had so far, and when.
func cpuOf(list ...*process) (sum time.Duration, now time.Time, err error) {
	for _, p := range list {
		select {
		case <-p.ended:
			return 0, now, p.failure(fmt.Errorf("it ended early: %v", p.result))
		default:
		}
		// The clock of all threads of a process, as clock_getcpuclockid makes it (CPUCLOCK_SCHED).
		const sched = 2
		var t unix.Timespec
		if err := unix.ClockGettime(int32(^p.cmd.Process.Pid)<<3|sched, &t); err != nil {
			return 0, now, fmt.Errorf("the clock of process %d: %w", p.cmd.Process.Pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, time.Now(), nil
}

// firstOf is the first that is an error.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
