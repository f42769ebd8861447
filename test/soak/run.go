package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// port is where the listening end listens.
const port = 7199

// protocol is patient: a bad link may lose the same thing over and over.
var protocol = iwarp.Protocol{ConnectTimeout: time.Minute, RequestTimeout: time.Minute, DrainTimeout: 30 * time.Second}

// result is what --json prints.
type result struct {
	Schema   string   `json:"schema"`
	Command  string   `json:"command"`
	Backend  string   `json:"backend"`
	Options  options  `json:"options"`
	Passed   bool     `json:"passed"`
	Failures []string `json:"failures"`
	Total    snapshot `json:"total"`
	Before   host     `json:"before"` // of all processes, before the devices were opened
	After    host     `json:"after"`  // when all was closed
}

// printer prints the lines of a run.
type printer struct {
	o   *options
	out io.Writer // results
	log io.Writer // all else
}

func (p *printer) line(s *snapshot) {
	w := p.out
	if p.o.JSON {
		w = p.log
	}
	fmt.Fprintln(w, s)
}

// finish prints the verdict and returns the exit code.
func (p *printer) finish(r *result) int {
	r.Schema, r.Options, r.Passed = "softrdma.soak/v1", *p.o, len(r.Failures) == 0
	r.Command = "go run ./test/soak " + p.o.args()
	if r.Failures == nil {
		r.Failures = []string{}
	}
	if p.o.JSON {
		e := json.NewEncoder(p.out)
		e.SetIndent("", "  ")
		_ = e.Encode(r) // who does not read it does not want it
	} else {
		p.text(r)
	}
	if !r.Passed {
		return 1
	}
	return 0
}

func (p *printer) text(r *result) {
	p.line(&r.Total)
	fmt.Fprintf(p.out, "%s; %s\n", r.Backend, r.Total.rates())
	fmt.Fprintf(p.out, "closed: %d MiB of memory of its own, before %d (allowed: %d more a process); %d KiB of objects, before %d; %d goroutines, before %d\n",
		r.After.Anon>>20, r.Before.Anon>>20, p.o.Allowance, r.After.Heap>>10, r.Before.Heap>>10, r.After.Goroutines, r.Before.Goroutines)
	if r.Passed {
		fmt.Fprintf(p.out, "soak: passed, seed %d\n", p.o.Seed)
		return
	}
	for _, f := range r.Failures {
		fmt.Fprintln(p.out, "  ", strings.ReplaceAll(f, "\n", "\n      "))
	}
	fmt.Fprintf(p.out, "soak: FAILED, seed %d\n  %s\n", p.o.Seed, r.Command)
}

// start fills in the seed and says how to repeat the run.
func (p *printer) start() {
	if p.o.Seed == 0 {
		p.o.Seed = rand.Uint64()>>20 + 1
	}
	fmt.Fprintln(p.log, "soak", p.o.args())
}

// runHere runs both ends in this process.
func runHere(ctx context.Context, p *printer) int {
	p.start()
	before := settledHost()
	r := &result{Before: before}
	if err := soakHere(ctx, p, r, nil); err != nil {
		r.Failures = append(r.Failures, err.Error())
	}
	var wrong []string
	r.After, wrong = before.back(p.o.Allowance)
	for _, w := range wrong {
		r.Failures = append(r.Failures, "after everything was closed: "+w)
	}
	if len(wrong) > 0 {
		fmt.Fprintf(p.log, "what is left:\n%s\n", goroutines())
	}
	return p.finish(r)
}

// soakHere does the work of runHere. begun, if there is one, is called when the ends
// are about to run.
func soakHere(ctx context.Context, p *printer, r *result, begun func(ends [2]*end, link []*pktio.Faulty)) (err error) {
	file, err := openCapture(p.o.Capture)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.close()) }()
	var faulty []*pktio.Faulty
	devs, err := openPair(p.o, file, &faulty)
	if err != nil {
		return err
	}
	r.Backend = iwarp.Explain(devs[0])
	conns, err := socketPair()
	if err != nil {
		return err
	}
	addr := fmt.Sprintf("%s:%d", iwarp.PipeAddrB, port)
	if p.o.Link == "loopback" {
		if addr = "127.0.0.1:0"; p.o.V6 {
			addr = "[::1]:0"
		}
	}
	var ends [2]*end
	for i := range ends {
		if ends[i], err = newEnd(p.o, i, devs[i], conns[i]); err != nil {
			return err
		}
	}
	total := func() *snapshot {
		s := ends[0].snapshot()
		s.add(ends[1].snapshot())
		if p.o.faulty() {
			for _, f := range faulty {
				s.addFaults(f.Stats())
			}
		}
		s.Host = readHost()
		return &s
	}
	if begun != nil {
		begun(ends, faulty)
	}
	stop := every(p.o.Every, func() { p.line(total()) })
	var runs sync.WaitGroup
	for _, e := range ends {
		runs.Go(func() {
			if err := e.run(ctx, addr); err != nil {
				e.fail(err)
			}
		})
	}
	runs.Wait()
	stop()
	r.Total = *total()
	for _, e := range ends {
		runs.Go(e.close)
	}
	runs.Wait()
	r.Failures = verdicts(ends[0].verdict(), ends[1].verdict())
	return nil
}

// verdicts joins those of two ends, which tell each other.
func verdicts(lists ...[]string) (all []string) {
	for _, l := range lists {
		for _, f := range l {
			if !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all
}

// openPair opens two devices in this process.
func openPair(o *options, file *captureFile, faulty *[]*pktio.Faulty) (devs [2]*verbs.Device, err error) {
	if o.Link == "loopback" {
		for i := range devs {
			if devs[i], err = iwarp.Open(context.Background(), iwarp.Config{Backend: iwarp.Kernel, Protocol: protocol}); err != nil {
				return devs, err
			}
		}
		return devs, nil
	}
	c := iwarp.PipeConfig{MTU: o.MTU, Protocol: protocol, Faults: o.Faults, Tap: file.tap()}
	c.Faults.Seed, c.Faults.Queue = o.Seed, wireQueue
	c.Faulty = func(a, b *pktio.Faulty) { *faulty = []*pktio.Faulty{a, b} }
	devs[0], devs[1], err = iwarp.Pipe(c)
	return devs, err
}

// every calls f again and again until the returned function is called.
func every(d time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	var gone sync.WaitGroup
	gone.Go(func() {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f()
			case <-done:
				return
			}
		}
	})
	return func() { close(done); gone.Wait() }
}

// socketPair returns the two ends of a stream.
func socketPair() (c [2]net.Conn, err error) {
	dir, err := os.MkdirTemp("", "soak-")
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "control"))
	if err != nil {
		return c, err
	}
	defer l.Close()
	if c[0], err = net.Dial("unix", l.Addr().String()); err != nil {
		return c, err
	}
	c[1], err = l.Accept()
	return c, err
}
