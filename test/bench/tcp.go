package main

import (
	"context"
	"strconv"
	"time"
)

// tcpRun measures the kernel's TCP from Go: the baseline of `softrdma perf`, alone. The
// device that softrdma opens beside it is the kernel backend's, which has nothing on the
// wire.
type tcpRun struct {
	carrier string // tcp-blocking or tcp-spinning
	kind    string // bw or lat
	size    int
	all     bool // sizes from 2 octets to 8 MiB instead
	depth   int  // of softrdma's measurement that it stands beside; perf's own if 0
	buffers int  // of the sockets, in octets; as the kernel does it if 0
}

func (tcpRun) program() string { return "" }

func (r tcpRun) pair(binary string, each time.Duration) pair {
	p := perfRun{backend: "kernel", op: "write", kind: r.kind, size: r.size, all: r.all, depth: r.depth}.pair(binary, each)
	p.server = []string{binary, "serve", "--backend", "kernel"}
	p.ready = "baseline: "
	p.client = append(p.client, "--baseline", "tcp", "--rounds", "1", "--only", r.carrier)
	return p
}

func (r tcpRun) measure(ctx context.Context, s *stage, each time.Duration) (sample, error) {
	if err := s.setBuffers(r.buffers); err != nil {
		return nil, err
	}
	o, err := s.pair(ctx, r.pair(s.binary, each))
	if err != nil {
		return nil, err
	}
	d, err := parsePerf(o.out)
	if err != nil {
		return nil, err
	}
	return d.sample(r.carrier, &o)
}

// gatherRun measures the kernel's TCP from Go with a bufio.Writer that gathers messages
// and a bufio.Reader from which they are taken one by one.
type gatherRun struct {
	size  int
	batch int // messages that the writer holds
}

func (gatherRun) program() string { return "" }

func (r gatherRun) measure(ctx context.Context, s *stage, each time.Duration) (sample, error) {
	if err := s.setBuffers(0); err != nil {
		return nil, err
	}
	o, err := s.pair(ctx, pair{
		server: []string{s.self, "end", "take", sideA.kernel, strconv.Itoa(r.size)}, ready: "ready",
		client: []string{s.self, "end", "gather", serverWord, strconv.Itoa(r.size), strconv.Itoa(r.batch), each.String()},
		limit:  patience(each),
	})
	if err != nil {
		return nil, err
	}
	n, took, err := parseCount(o.out)
	if err != nil {
		return nil, err
	}
	return sample{msgs: float64(n) / took.Seconds() / 1e6, rate: float64(n) * float64(r.size) / took.Seconds() / 1e9}, nil
}
