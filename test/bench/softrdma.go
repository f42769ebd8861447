package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// perfRun measures softrdma by `softrdma perf`.
type perfRun struct {
	backend string // packet, xdp-native, xdp-generic or kernel
	op      string // write, send or read
	kind    string // bw or lat
	size    int
	all     bool   // sizes from 2 octets to 8 MiB instead
	depth   int    // perf's own if 0
	threads string // threading model of both sides; perf's own if empty
	once    bool   // both sides receive with one copy on the way to TCP
	noCRC   bool
	verify  bool
}

func (perfRun) program() string { return "" }

// flags open the device of a host.
func (r perfRun) flags(h host) []string {
	backend, mode, _ := strings.Cut(r.backend, "-")
	f := []string{"--backend", backend}
	if backend != "kernel" {
		f = append(f, "--dev", h.iface, "--ip", h.own+"/24")
	}
	if mode != "" {
		f = append(f, "--xdp-mode", mode)
	}
	if r.noCRC {
		f = append(f, "--no-crc")
	}
	if r.once {
		f = append(f, "--one-copy")
	}
	if r.threads != "" {
		f = append(f, "--threads", r.threads)
	}
	return f
}

// pair is the measurement as two commands.
func (r perfRun) pair(binary string, each time.Duration) pair {
	there := sideA.own
	if r.backend == "kernel" {
		there = sideA.kernel
	}
	client := []string{binary, "perf", r.op, r.kind, there, "--json", "-D", each.String()}
	if r.all {
		client = append(client, "-a")
	} else {
		client = append(client, "-s", strconv.Itoa(r.size))
	}
	if r.kind == "bw" {
		client = append(client, "--warmup", "0s") // so that all octets and all processor time belong together
	}
	if r.depth != 0 {
		client = append(client, "-t", strconv.Itoa(r.depth))
	}
	if r.verify {
		client = append(client, "--verify")
	}
	return pair{
		server: append([]string{binary, "serve", "--no-baseline"}, r.flags(sideA)...), ready: "perf: listening", stays: true,
		client: append(client, r.flags(sideB)...), limit: patience(each),
	}
}

// patience is how long a client may take for a measurement.
func patience(each time.Duration) time.Duration { return 3*each + 60*time.Second }

func (r perfRun) measure(ctx context.Context, s *stage, each time.Duration) (sample, error) {
	o, err := s.pair(ctx, r.pair(s.binary, each))
	if err != nil {
		return nil, err
	}
	d, err := parsePerf(o.out)
	if err != nil {
		return nil, err
	}
	if err := d.took(r); err != nil {
		return nil, err
	}
	return d.sample("softrdma", &o)
}

// String tells which kind of measurement it is.
func (r perfRun) String() string {
	s := fmt.Sprintf("%s %s %s, %d octets", r.backend, r.op, r.kind, r.size)
	if r.noCRC {
		s += ", no CRC"
	}
	if r.once {
		s += ", one copy"
	}
	if r.threads != "" {
		s += ", threads " + r.threads
	}
	return s
}

// perfDocument is what `softrdma perf --json` prints, as far as it matters here.
type perfDocument struct {
	Schema string `json:"schema"`
	Test   struct {
		Op      string `json:"op"`
		Kind    string `json:"kind"`
		Latency string `json:"latency"`
		Verify  bool   `json:"verify"`
	} `json:"test"`
	Backend     string    `json:"backend"`
	Threads     string    `json:"threads"`
	Interrupted bool      `json:"interrupted"`
	Error       string    `json:"error"`
	Results     []perfRow `json:"results"`
}

type perfRow struct {
	Transport string  `json:"transport"`
	Size      int     `json:"MsgSize"`
	N         uint64  `json:"n_iterations"`
	Seconds   float64 `json:"seconds"`
	Average   float64 `json:"t_avg"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	P999      float64 `json:"p99.9"`
	Wrong     uint64  `json:"wrong_octets"`
	WrongAt   string  `json:"wrong_at"`
}

func parsePerf(text string) (*perfDocument, error) {
	var d perfDocument
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return nil, fmt.Errorf("softrdma perf --json says %.200q: %w", text, err)
	}
	switch {
	case d.Schema != "softrdma.perf/v1":
		return nil, fmt.Errorf("softrdma perf has schema %q", d.Schema)
	case d.Error != "" || d.Interrupted:
		return nil, fmt.Errorf("softrdma perf did not finish: %s", d.Error)
	case len(d.Results) == 0:
		return nil, fmt.Errorf("softrdma perf has no result")
	}
	for _, r := range d.Results {
		if r.N == 0 || r.Seconds <= 0 {
			return nil, fmt.Errorf("softrdma perf: %d messages in %g s", r.N, r.Seconds)
		}
	}
	return &d, nil
}

// took checks that what was asked for is what was measured.
func (d *perfDocument) took(r perfRun) error {
	backend, mode, _ := strings.Cut(r.backend, "-")
	switch {
	case !strings.HasPrefix(d.Backend, backend+":") || !strings.Contains(d.Backend, mode):
		return fmt.Errorf("asked for backend %s, got %s", r.backend, d.Backend)
	case d.Test.Op != r.op || d.Test.Kind != r.kind || d.Test.Verify != r.verify:
		return fmt.Errorf("asked for %s %s, got %s %s", r.op, r.kind, d.Test.Op, d.Test.Kind)
	case r.threads != "" && d.Threads != r.threads:
		return fmt.Errorf("asked for threads %s, got %q", r.threads, d.Threads)
	case d.Results[0].Wrong > 0:
		return fmt.Errorf("%d octets arrived wrong: %s", d.Results[0].Wrong, d.Results[0].WrongAt)
	}
	return nil
}

// sample takes the result of one size over the given transport.
func (d *perfDocument) sample(transport string, o *outcome) (sample, error) {
	if len(d.Results) != 1 || d.Results[0].Transport != transport {
		return nil, fmt.Errorf("softrdma perf has %d results, the first over %s; one over %s is due", len(d.Results), d.Results[0].Transport, transport)
	}
	return d.Results[0].sample(d, o), nil
}

func (r *perfRow) sample(d *perfDocument, o *outcome) sample {
	if d.Test.Kind == "lat" {
		turns := 1.0
		if d.Test.Latency == "half the round trip" {
			turns = 2
		}
		return sample{p50: turns * r.P50, p99: turns * r.P99, p999: turns * r.P999, mean: turns * r.Average}
	}
	octets := float64(r.N) * float64(r.Size)
	v := sample{rate: octets / r.Seconds / 1e9, msgs: float64(r.N) / r.Seconds / 1e6}
	if o != nil {
		v[cpu] = (o.client + o.server).Seconds() / (octets / 1e9)
		v[hostCPU] = o.hostBusy.Seconds() / (octets / 1e9)
	}
	return v
}
