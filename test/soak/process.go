package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// runEnd is the process of one end: it runs in the end's network namespace and says
// on standard output, in lines of JSON, how it goes.
func runEnd(ctx context.Context, args []string) int {
	var c endConfig
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &c) != nil {
		fmt.Fprintln(os.Stderr, "soak: end is started by soak --link netns")
		return 2
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // until the process that has started this one is gone
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	time.Sleep(10 * time.Millisecond) // let it begin, as it is counted
	say := json.NewEncoder(os.Stdout)
	last := endLine{Final: true, Before: settledHost()}
	err := c.soak(ctx, &last, func(s snapshot) {
		s.Host = readHost()
		_ = say.Encode(endLine{Snapshot: s}) // nobody listens: then standard input ends, too
	})
	if err != nil {
		last.Failures = append(last.Failures, fmt.Sprintf("end %s: %v", sideName(c.Side), err))
	}
	var wrong []string
	last.After, wrong = last.Before.back(c.Options.Allowance)
	for _, w := range wrong {
		last.Failures = append(last.Failures, fmt.Sprintf("end %s, after everything was closed: %s", sideName(c.Side), w))
	}
	if len(wrong) > 0 {
		fmt.Fprintf(os.Stderr, "what is left at end %s:\n%s\n", sideName(c.Side), goroutines())
	}
	if say.Encode(last) != nil || len(last.Failures) > 0 {
		return 1
	}
	return 0
}

func (c *endConfig) soak(ctx context.Context, last *endLine, line func(snapshot)) (err error) {
	var file *captureFile
	if c.Side == dialing {
		if file, err = openCapture(c.Options.Capture); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.close()) }()
	}
	dev, err := c.open(file)
	if err != nil {
		return err
	}
	last.Backend = iwarp.Explain(dev)
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	e, err := newEnd(&c.Options, c.Side, dev, conn)
	if err != nil {
		return err
	}
	if !c.taken(last.Backend) {
		e.fail(fmt.Errorf("end %s: asked for backend %s, got %s", sideName(c.Side), c.Options.Backend, last.Backend))
	}
	stop := every(c.Options.Every, func() { line(e.snapshot()) })
	if err := e.run(ctx, c.Listen); err != nil {
		e.fail(err)
	}
	stop()
	last.Snapshot = e.snapshot()
	last.Snapshot.Host = readHost()
	e.close()
	last.Failures = e.verdict()
	return nil
}

// open opens the device.
func (c *endConfig) open(file *captureFile) (*verbs.Device, error) {
	cfg := iwarp.Config{Backend: iwarp.Kernel, Protocol: protocol, Tap: file.tap()}
	if c.Options.Backend != "kernel" {
		addr, err := netip.ParsePrefix(c.Addr)
		if err != nil {
			return nil, err
		}
		cfg.Interface, cfg.Addrs = c.Interface, []netip.Prefix{addr}
	}
	switch c.Options.Backend {
	case "packet":
		cfg.Backend = iwarp.Packet
	case "xdp-native":
		cfg.Backend, cfg.XDPMode = iwarp.XDP, pktio.XDPNative
	case "xdp-generic":
		cfg.Backend, cfg.XDPMode = iwarp.XDP, pktio.XDPGeneric
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return iwarp.Open(ctx, cfg)
}

// taken reports whether the device runs on what was asked for.
func (c *endConfig) taken(explained string) bool {
	backend, mode, _ := strings.Cut(c.Options.Backend, "-")
	return strings.HasPrefix(explained, backend+":") && strings.Contains(explained, mode)
}

// connect makes the control stream.
func (c *endConfig) connect(ctx context.Context) (net.Conn, error) {
	const patience = 30 * time.Second
	if c.Side == listening {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Control, Net: "unix"})
		if err != nil {
			return nil, err
		}
		defer l.Close()
		if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
			return nil, err
		}
		return l.Accept()
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", c.Control)
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return conn, err
		}
	}
}
