package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ucxRun measures UCX over the kernel's TCP by ucx_perftest, which spins.
type ucxRun struct {
	test string // tag_lat, ucp_put_lat or tag_bw
	size int
}

const (
	ucxProgram = "ucx_perftest"
	ucxPort    = 13340
)

func (ucxRun) program() string { return ucxProgram }

func (r ucxRun) bandwidth() bool { return strings.HasSuffix(r.test, "_bw") }

// rounds is how many make a measurement of about the given length: ucx_perftest takes a
// number and no time. warm ones come before.
func (r ucxRun) rounds(each time.Duration) (n, warm int) {
	if r.bandwidth() {
		const perSecond = 1 << 30 // octets, about
		return max(20, int(each.Seconds()*perSecond/float64(r.size))), 20
	}
	const one = 25 * time.Microsecond
	return max(1000, int(each/one)), 1000
}

func (r ucxRun) pair(each time.Duration) pair {
	env := func(h host) []string { return []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=" + h.iface} }
	n, warm := r.rounds(each)
	port := strconv.Itoa(ucxPort)
	return pair{
		env:    [2][]string{env(sideA), env(sideB)},
		server: []string{ucxProgram, "-p", port}, readyPort: ucxPort,
		client: []string{ucxProgram, sideA.kernel, "-p", port, "-t", r.test, "-s", strconv.Itoa(r.size),
			"-n", strconv.Itoa(n), "-w", strconv.Itoa(warm), "-f"},
		limit: patience(each),
	}
}

func (r ucxRun) measure(ctx context.Context, s *stage, each time.Duration) (sample, error) {
	if err := s.setBuffers(0); err != nil {
		return nil, err
	}
	o, err := s.pair(ctx, r.pair(each))
	if err != nil {
		return nil, err
	}
	return parseUCX(o.out, r.bandwidth())
}

// parseUCX reads the last line of ucx_perftest -f: iterations; time at the median, average,
// overall; bandwidth average, overall; message rate average, overall. A time is one way, in
// microseconds; a bandwidth is in MiB a second.
func parseUCX(text string, bandwidth bool) (sample, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := strings.Fields(lines[len(lines)-1])
	const columns = 8
	if len(last) != columns {
		return nil, fmt.Errorf("ucx_perftest says %.400q", text)
	}
	var v [columns]float64
	for i, s := range last {
		var err error
		if v[i], err = strconv.ParseFloat(s, 64); err != nil || v[i] < 0 {
			return nil, fmt.Errorf("ucx_perftest says %q: column %d is no number", lines[len(lines)-1], i+1)
		}
	}
	if bandwidth {
		return sample{rate: v[5] * (1 << 20) / 1e9}, nil
	}
	return sample{p50: 2 * v[1], mean: 2 * v[3]}, nil
}
