package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// fabricRun measures libfabric over the kernel's TCP by fi_pingpong with connected
// endpoints.
type fabricRun struct{ size int }

const (
	fabricProgram = "fi_pingpong"
	fabricPort    = 47592 // of its control connection
)

func (fabricRun) program() string { return fabricProgram }

func (r fabricRun) pair(each time.Duration) pair {
	const one = 40 * time.Microsecond
	argv := []string{fabricProgram, "-p", "tcp", "-e", "msg", "-S", strconv.Itoa(r.size), "-I", strconv.Itoa(max(500, int(each/one)))}
	return pair{
		server: argv, readyPort: fabricPort,
		client: append(argv[:len(argv):len(argv)], sideA.kernel), limit: patience(each),
	}
}

func (r fabricRun) measure(ctx context.Context, s *stage, each time.Duration) (sample, error) {
	if err := s.setBuffers(0); err != nil {
		return nil, err
	}
	o, err := s.pair(ctx, r.pair(each))
	if err != nil {
		return nil, err
	}
	return parseFabric(o.out)
}

// parseFabric reads the table of fi_pingpong: a line of headings and one of figures. A
// transfer is one way.
func parseFabric(text string) (sample, error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 2 {
		return nil, fmt.Errorf("fi_pingpong says %.400q", text)
	}
	names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
	for i, name := range names {
		if name != "usec/xfer" || len(values) != len(names) {
			continue
		}
		if v, err := strconv.ParseFloat(values[i], 64); err == nil && v > 0 {
			return sample{mean: 2 * v}, nil
		}
	}
	return nil, fmt.Errorf("fi_pingpong says %.400q", text)
}
