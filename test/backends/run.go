package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// limit bounds a cell, and a cell that hangs. The machine may be busy.
	limit = 2 * time.Minute
	// starting bounds how long serve takes until it listens, and to end.
	starting = 20 * time.Second
)

// run does one cell. Everything that is wrong is gathered, so that a failure tells
// whatever can be told.
func (c cell) run(ctx context.Context, o *options) (r outcome) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r = outcome{cell: c, figures: map[test]float64{}}
	l, err := newLink(c)
	if err != nil {
		r.err = err
		return r
	}
	h := host{cell: c, options: o, link: l}
	r.err = errors.Join(h.run(ctx, &r), l.close())
	r.took = time.Since(start)
	return r
}

// host runs the programs of a cell.
type host struct {
	cell
	*options
	link *link
}

// deviceArgs are the flags that say which device to open.
func (h *host) deviceArgs(s *side) []string {
	backend, mode := h.split()
	args := []string{"--backend", backend}
	if mode != "" {
		args = append(args, "--xdp-mode", mode)
	}
	if backend != "kernel" {
		args = append(args, "--dev", s.iface, "--ip", s.addrs[1].String())
	}
	return args
}

// address is where the server answers.
func (h *host) address() string {
	if h.backend == "kernel" {
		return h.link[0].addrs[0].Addr().String()
	}
	return h.link[0].addrs[1].Addr().String()
}

func (h *host) run(ctx context.Context, r *outcome) (err error) {
	fail := func(what string, e error) {
		if e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", what, e))
		}
	}
	server, e := h.serve(ctx)
	if e != nil {
		return fmt.Errorf("serve: %w", e)
	}
	fail("serve", h.attached(h.link[0]))
	r.ping, e = h.ping(ctx)
	fail("ping", e)
	for _, t := range tests {
		if ctx.Err() != nil {
			break
		}
		r.figures[t], e = h.perf(ctx, t)
		fail("perf "+t.String(), e)
	}
	fail("serve", server.stop())
	for _, s := range h.link {
		switch mode, e := s.xdpMode(); {
		case e != nil:
			fail("at the end", e)
		case mode != "none":
			fail("at the end", fmt.Errorf("a program for XDP, %s, is left on %s", mode, s.iface))
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		fail("all", fmt.Errorf("not done within %v", limit))
	}
	return err
}

// attached checks that the kernel has an XDP program where one should be, of the kind
// that was asked for, and none elsewhere.
func (h *host) attached(s *side) error {
	_, want := h.split()
	if want == "" {
		want = "none"
	}
	got, err := s.xdpMode()
	if err == nil && got != want {
		err = fmt.Errorf("the kernel says that the XDP program on %s is %s, not %s", s.iface, got, want)
	}
	return err
}

// taken checks the line in which softrdma says what it runs on.
func (h *host) taken(stderr string) error {
	backend, mode := h.split()
	line, _, _ := strings.Cut(stderr, "\n")
	if !strings.HasPrefix(line, backend+": ") || !strings.Contains(line, mode) {
		return fmt.Errorf("asked for %s, softrdma says %q", h.backend, line)
	}
	return nil
}

// server is a running softrdma serve.
type server struct {
	cmd    *exec.Cmd
	stderr output
	ended  chan error
}

// output gathers what a program says while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// serve starts softrdma serve and waits until it listens.
func (h *host) serve(ctx context.Context) (*server, error) {
	args := append([]string{"serve", "--no-baseline", "--addr", h.address()}, h.deviceArgs(h.link[0])...)
	v := &server{cmd: h.link[0].command(ctx, h.binary, args...), ended: make(chan error, 1)}
	v.cmd.Stderr = &v.stderr
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { v.ended <- v.cmd.Wait() }()
	for end := time.Now().Add(starting); !strings.Contains(v.stderr.String(), "perf: listening"); time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-v.ended:
			return nil, fmt.Errorf("it has ended: %w: %s", err, v.stderr.String())
		default:
		}
		if time.Now().After(end) {
			_ = v.cmd.Process.Kill()
			return nil, fmt.Errorf("it does not listen after %v: %s", starting, v.stderr.String())
		}
	}
	if err := h.taken(v.stderr.String()); err != nil {
		return nil, errors.Join(err, v.stop())
	}
	return v, nil
}

// stop ends the server as Ctrl-C does: it has to end well, and without complaint.
func (v *server) stop() error {
	_ = v.cmd.Process.Signal(syscall.SIGTERM) // if it has ended, Wait says so
	select {
	case err := <-v.ended:
		if err != nil {
			return fmt.Errorf("it has ended: %w: %s", err, v.stderr.String())
		}
	case <-time.After(starting):
		_ = v.cmd.Process.Kill()
		return fmt.Errorf("it does not end after %v: %s", starting, v.stderr.String())
	}
	for line := range strings.Lines(v.stderr.String()) {
		if strings.Contains(line, "WRONG") {
			return errors.New(strings.TrimSpace(line))
		}
	}
	return nil
}

// client runs a softrdma command to its end and reads the document it prints.
func (h *host) client(ctx context.Context, document any, args ...string) error {
	var stdout, stderr output
	cmd := h.link[1].command(ctx, h.binary, append(args, h.deviceArgs(h.link[1])...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s%s", err, stderr.String(), stdout.String())
	}
	if err := h.taken(stderr.String()); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(stdout.String()), document); err != nil {
		return fmt.Errorf("its document: %w: %s", err, stdout.String())
	}
	return nil
}
