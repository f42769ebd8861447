package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/lab"
	"github.com/softrdma/softrdma/cmd/softrdma/internal/perf"
	"github.com/softrdma/softrdma/cmd/softrdma/internal/tcpbase"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// perfFlags keep the letters of perftest.
type perfFlags struct {
	size         int
	iterations   int
	all          bool
	duration     string
	qps          int
	depth        int
	warmup       time.Duration
	port         uint16
	verify       bool
	asJSON       bool
	baseline     string
	baselineAddr string
	only         string
	rounds       int
	minGbps      float64
	maxP99       time.Duration
	atomicType   string
	set          *pflag.FlagSet
}

func (a *app) perfCommand() *cobra.Command {
	p := &perfFlags{}
	c := group("perf", "Measure bandwidth and latency against softrdma serve",
		`Measures against softrdma serve, which takes all options from here.

  softrdma perf write bw HOST                  64 KiB messages for 5 s
  softrdma perf send lat -s 64 HOST            half the round trip
  softrdma perf read bw -a --json HOST         2 octets to 8 MiB
  softrdma perf atomic lat -A CMP_AND_SWAP HOST  8 octets, as always
  softrdma perf write lat --baseline tcp HOST  and plain TCP on the same path`)
	f := c.PersistentFlags()
	f.VarP((*sizeFlag)(&p.size), "size", "s", "octets of a message, or 64K, 1M (bw: 64K, lat and atomic: 8)")
	f.IntVarP(&p.iterations, "iters", "n", 0, "messages or rounds, instead of a duration")
	f.BoolVarP(&p.all, "all", "a", false, "all sizes, 2 to 2^23, one second each unless -n or -D is given")
	f.StringVarP(&p.duration, "duration", "D", "5", "how long each measurement takes, in seconds or as 500ms")
	f.IntVarP(&p.qps, "qp", "q", 1, "connections at once (bw)")
	f.IntVarP(&p.depth, "tx-depth", "t", 0, "messages in flight on a connection (bw: 128)")
	f.DurationVar(&p.warmup, "warmup", 200*time.Millisecond, "time before a measurement that does not count")
	f.Uint16VarP(&p.port, "port", "p", perf.Port, "port of the server; the baseline has the next one")
	f.BoolVar(&p.verify, "verify", false, "fill and compare all data; costs throughput")
	f.BoolVar(&p.asJSON, "json", false, "print one JSON document")
	f.StringVar(&p.baseline, "baseline", "", "measure this beside it: tcp, by blocking and by spinning sockets of the kernel")
	f.StringVar(&p.baselineAddr, "baseline-addr", "", "the kernel's address on the server's host; known in the lab and with --backend kernel")
	f.StringVar(&p.only, "only", "", "with --baseline, measure one alone: softrdma, tcp-blocking or tcp-spinning")
	f.IntVar(&p.rounds, "rounds", 3, "how often a measurement and its baseline take turns, each for a part of the time")
	f.Float64Var(&p.minGbps, "min-gbps", 0, "exit code 3 if the bandwidth is less, in 10^9 bits a second (bw)")
	f.DurationVar(&p.maxP99, "max-p99", 0, "exit code 3 if the 99th percentile is more, as 50us (lat)")
	p.set = f
	for _, op := range []perf.Op{perf.Send, perf.Write, perf.Read, perf.FetchAdd} {
		c.AddCommand(a.perfOpCommand(op, p))
	}
	return c
}

func (a *app) perfOpCommand(op perf.Op, p *perfFlags) *cobra.Command {
	name := map[perf.Op]string{perf.Send: "Send", perf.Write: "RDMA Write", perf.Read: "RDMA Read", perf.FetchAdd: "atomics"}[op]
	c := group(op.String(), "Measure "+name, "Measures "+name+".")
	if op.Atomic() {
		c.PersistentFlags().StringVarP(&p.atomicType, "atomic-type", "A", op.AtomicType(), "FETCH_AND_ADD or CMP_AND_SWAP")
	}
	for kind, short := range map[perf.Kind]string{
		perf.Bandwidth: "Bandwidth of " + name,
		perf.Latency:   "Latency of " + name + latencyOf(op),
	} {
		c.AddCommand(&cobra.Command{
			Use:   kind.String() + " HOST",
			Short: short,
			Args:  wantArgs("HOST"),
			RunE: func(c *cobra.Command, args []string) error {
				op, err := p.op(op)
				if err != nil {
					return err
				}
				return a.perf(c.Context(), args[0], op, kind, p)
			},
		})
	}
	return c
}

// op is what a command measures.
func (p *perfFlags) op(op perf.Op) (perf.Op, error) {
	if !op.Atomic() {
		return op, nil
	}
	op, err := perf.ParseAtomic(p.atomicType)
	if err != nil {
		return op, usagef("`softrdma perf atomic --help` lists the flags", "--atomic-type: %w", err)
	}
	return op, nil
}

func latencyOf(op perf.Op) string {
	if op.Answered() {
		return ": the whole round trip"
	}
	return ": half the round trip"
}

// plan is what the command line asks for.
type plan struct {
	tests    []perf.Test
	rounds   int
	addr     string
	baseline bool
}

// plan checks the flags.
func (p *perfFlags) plan(host string, op perf.Op, kind perf.Kind) (*plan, error) {
	bad := func(err error) error { return usagef("`softrdma perf --help` lists the flags", "%w", err) }
	t := perf.Test{
		Op: op, Kind: kind, Size: p.size, Iterations: p.iterations, QPs: p.qps, Depth: p.depth,
		Warmup: p.warmup, Verify: p.verify,
	}
	var err error
	if p.iterations == 0 {
		duration := p.duration
		if p.all && !p.set.Changed("duration") {
			duration = "1"
		}
		if t.Duration, err = parseSeconds(duration); err != nil {
			return nil, bad(fmt.Errorf("--duration: %w", err))
		}
	} else if p.set.Changed("duration") {
		return nil, bad(errors.New("--iters and --duration exclude each other"))
	}
	pl := &plan{rounds: 1, addr: net.JoinHostPort(host, strconv.Itoa(int(p.port)))}
	switch {
	case p.set.Changed("iters") && p.iterations <= 0:
		return nil, bad(errors.New("--iters begins with 1"))
	case p.set.Changed("size") && p.size == 0, p.set.Changed("qp") && p.qps == 0, p.set.Changed("tx-depth") && p.depth == 0:
		return nil, bad(errors.New("size, connections and depth begin with 1"))
	case p.all && p.size != 0:
		return nil, bad(errors.New("--all and --size exclude each other"))
	case p.all && op.Atomic():
		return nil, bad(fmt.Errorf("--all: an atomic works on %d octets, always", perf.AtomicSize))
	case p.baseline != "" && op.Atomic() && kind == perf.Bandwidth:
		return nil, bad(errors.New("--baseline: nothing of TCP is like many atomics in flight; it is for their latency"))
	case p.baseline != "" && p.baseline != "tcp":
		return nil, bad(fmt.Errorf("--baseline: %q is not one, tcp is", p.baseline))
	case p.baselineAddr != "" && p.baseline == "":
		return nil, bad(errors.New("--baseline-addr without --baseline tcp"))
	case p.only != "" && (p.baseline == "" || !slices.Contains([]string{ours, tcpBlocking, tcpSpinning}, p.only)):
		return nil, bad(fmt.Errorf("--only %s: it goes with --baseline tcp, and takes softrdma, tcp-blocking or tcp-spinning", p.only))
	case p.only != "" && p.only != ours && (p.minGbps != 0 || p.maxP99 != 0):
		return nil, bad(errors.New("--min-gbps and --max-p99 are for softrdma, not for --only " + p.only))
	case p.rounds < 1 || p.rounds > 100:
		return nil, bad(fmt.Errorf("--rounds: take 1 to 100, not %d", p.rounds))
	case p.port < 1 || p.port > 65534:
		return nil, bad(fmt.Errorf("--port: %d is out of range", p.port))
	case kind == perf.Latency && p.minGbps != 0:
		return nil, bad(errors.New("--min-gbps is for bw"))
	case kind == perf.Bandwidth && p.maxP99 != 0:
		return nil, bad(errors.New("--max-p99 is for lat"))
	}
	if pl.baseline = p.baseline != ""; pl.baseline {
		pl.rounds = p.rounds
	}
	sizes := []int{t.Size}
	if p.all {
		sizes = nil
		for s := 2; s <= 1<<23; s *= 2 {
			sizes = append(sizes, s)
		}
	}
	for _, s := range sizes {
		one := t
		one.Size = s
		if err := one.Check(); err != nil {
			return nil, bad(err)
		}
		pl.tests = append(pl.tests, one)
	}
	return pl, nil
}

// parseSeconds reads a number of seconds or a duration with its unit.
func parseSeconds(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if sec, numErr := strconv.ParseFloat(s, 64); numErr == nil {
		d, err = time.Duration(sec*float64(time.Second)), nil
	}
	if err != nil || d <= 0 || d > time.Hour {
		return 0, fmt.Errorf("%q is no time from 1ms to 1h; write 5, 0.5 or 500ms", s)
	}
	return d, nil
}

// baselineAddress is where the kernel's TCP of the server's host answers.
func (p *perfFlags) baselineAddress(host string, c *iwarp.Config) (string, error) {
	port := strconv.Itoa(int(p.port) + 1)
	if p.baselineAddr != "" {
		if _, _, err := net.SplitHostPort(p.baselineAddr); err == nil {
			return p.baselineAddr, nil
		}
		return net.JoinHostPort(p.baselineAddr, port), nil
	}
	if addr, err := netip.ParseAddr(host); err == nil && strings.HasPrefix(c.Interface, "sr-") {
		if k, ok := lab.KernelAddr(addr); ok {
			return net.JoinHostPort(k.String(), port), nil
		}
	}
	if c.Backend == iwarp.Kernel {
		return net.JoinHostPort(host, port), nil
	}
	return "", usagef("give it with --baseline-addr: an address of the server's kernel that is reached over the same link",
		"--baseline tcp: %s is not the kernel's address", host)
}

func (a *app) perf(ctx context.Context, host string, op perf.Op, kind perf.Kind, p *perfFlags) (err error) {
	pl, err := p.plan(host, op, kind)
	if err != nil {
		return err
	}
	m := measurement{app: a, plan: pl, flags: p}
	c, err := a.device.config(a.env)
	if err != nil {
		return err
	}
	if pl.baseline {
		if m.tcp, err = p.baselineAddress(host, &c); err != nil {
			return err
		}
	}
	dev, closeDevice, err := a.openDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	m.client = perf.Client{Device: dev, Addr: pl.addr}
	m.doc = newPerfDocument(dev, pl, c.Threads)
	return m.run(ctx)
}

// measurement is a running perf command.
type measurement struct {
	*app
	plan   *plan
	flags  *perfFlags
	client perf.Client
	tcp    string // address of the baseline
	doc    *perfDocument
}

// carriers are what is measured side by side, in the order in which they are
// printed.
func (m *measurement) carriers() []string {
	switch {
	case m.flags.only != "":
		return []string{m.flags.only}
	case !m.plan.baseline:
		return []string{ours}
	case !tcpbase.CanSpin:
		return []string{ours, tcpBlocking}
	}
	return []string{ours, tcpBlocking, tcpSpinning}
}

const (
	ours        = "softrdma"
	tcpBlocking = "tcp-blocking"
	tcpSpinning = "tcp-spinning"
)

func (m *measurement) run(ctx context.Context) error {
	table := newPerfTable(m.stdout, m.doc)
	var failure error
	for _, t := range m.plan.tests {
		results, err := m.side(ctx, t)
		for _, row := range m.doc.add(results, m.carriers()) {
			if !m.flags.asJSON {
				table.row(row)
			}
		}
		if err != nil {
			failure = err
			break
		}
		if m.doc.Interrupted = ctx.Err() != nil; m.doc.Interrupted {
			break
		}
	}
	if failure != nil {
		m.doc.Error = failure.Error()
	}
	if m.flags.asJSON {
		if err := m.writeJSON(m.doc); err != nil {
			return err
		}
	}
	if failure != nil {
		return failure
	}
	return m.verdict()
}

// side measures one test on all carriers, in turns.
func (m *measurement) side(ctx context.Context, t perf.Test) (map[string]*perf.Result, error) {
	results := make(map[string]*perf.Result)
	t.Duration /= time.Duration(m.plan.rounds)
	if t.Iterations > 0 {
		t.Iterations = max(1, t.Iterations/m.plan.rounds)
	}
	for range m.plan.rounds {
		for _, c := range m.carriers() {
			if ctx.Err() != nil {
				return results, nil
			}
			stop := m.progress(c, t)
			r, err := m.once(ctx, c, t)
			stop()
			if err != nil {
				if ctx.Err() != nil {
					return results, nil
				}
				if c != ours {
					err = failed(fmt.Errorf("TCP baseline: %w", err),
						"is `softrdma serve` running there, without --no-baseline? --baseline-addr says where")
				}
				return results, err
			}
			if results[c] == nil {
				results[c] = r
			} else {
				results[c].Add(r)
			}
		}
	}
	return results, nil
}

func (m *measurement) once(ctx context.Context, carrier string, t perf.Test) (*perf.Result, error) {
	if carrier == ours {
		return m.client.Run(ctx, t)
	}
	defer m.cpus.widen()()
	c := tcpbase.Client{Addr: m.tcp, Spin: carrier == tcpSpinning}
	return c.Run(ctx, t)
}

// progress says on a terminal what is being measured.
func (m *measurement) progress(carrier string, t perf.Test) (stop func()) {
	if !isTerminal(m.stderr) {
		return func() {}
	}
	const eraseLine = "\r\x1b[K"
	fmt.Fprintf(m.stderr, eraseLine+"%s: %v ...", carrier, &t)
	m.client.Progress = func(p perf.Progress) {
		fmt.Fprintf(m.stderr, eraseLine+"%s: %v ... %.1f s, %d messages", carrier, &t, p.Elapsed.Seconds(), p.Messages)
	}
	return func() { fmt.Fprint(m.stderr, eraseLine) }
}

// verdict makes the exit code of the results.
func (m *measurement) verdict() error {
	for _, r := range m.doc.Results {
		if r.Transport != ours {
			continue
		}
		switch {
		case r.Wrong > 0:
			return failed(fmt.Errorf("%d octets arrived wrong: %s", r.Wrong, r.WrongAt),
				"this must not happen: run it again with --capture FILE, and report it")
		case r.bwRow != nil && r.Gbps < m.flags.minGbps:
			return &exitError{exitMissed, fmt.Errorf("%.3f Gbit/s are less than --min-gbps %g", r.Gbps, m.flags.minGbps),
				"perf --baseline tcp tells what the path allows"}
		case r.latRow != nil && m.flags.maxP99 > 0 && r.P99 > usec(m.flags.maxP99):
			return &exitError{exitMissed, fmt.Errorf("a 99th percentile of %.2f us is more than --max-p99 %v", r.P99, m.flags.maxP99),
				"perf --baseline tcp tells what the path allows"}
		}
	}
	return nil
}
