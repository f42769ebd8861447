package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// troubles are the links of the matrix: the first one is good.
var troubles = []pktio.Faults{
	{},
	{Loss: 0.001}, {Loss: 0.01}, {Loss: 0.05},
	{Reorder: 0.01},
	{Duplicate: 0.01},
	{Corrupt: 0.01},
	{Delay: time.Millisecond, Jitter: 200 * time.Microsecond},
}

// matrix runs each kind of trouble on each backend, one after the other, and prints
// a table.
func matrix(ctx context.Context, args []string) int {
	o := &options{}
	f := flag.NewFlagSet("soak matrix", flag.ContinueOnError)
	each := f.Duration("each", 30*time.Second, "how long each run takes")
	list := f.String("backends", "pipe,"+strings.Join(backends, ","), "links and backends to run on; pipe is the link in memory")
	f.Uint64Var(&o.Seed, "seed", 0, "of the first run; each further run has the next one")
	f.IntVar(&o.Lanes, "qps", 16, "queue pairs at each end")
	f.IntVar(&o.Rounds, "rounds", 100, "how many rounds a connection lasts at most")
	f.BoolVar(&o.V6, "6", false, "IPv6, but for pipe")
	f.IntVar(&o.MTU, "mtu", 1500, "octets of an IP packet")
	f.DurationVar(&o.Hang, "hang", 60*time.Second, "without progress on a queue pair")
	if err := f.Parse(args); err != nil {
		return 2
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 1
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()>>20 + 1
	}
	o.Duration, o.MaxSize = *each, maxPlace
	fmt.Println(matrixRow("link", "trouble", "op/s", "MiB/s", "rexmit", "faults", "conns", "cut off", "RSS MiB", "result"))
	runs, failed := 0, 0
	for _, b := range strings.Split(*list, ",") {
		one := *o
		if one.Link, one.Backend = "netns", b; b == "pipe" {
			one.Link, one.Backend, one.V6 = b, "", false
		}
		for _, one.Faults = range troubles {
			one.Seed = o.Seed + uint64(runs)
			r, err := again(ctx, self, &one)
			if ctx.Err() != nil {
				fmt.Println("interrupted")
				return 1
			}
			runs++
			if !printRun(os.Stdout, b, &one, r, err) {
				failed++
			}
		}
	}
	fmt.Printf("%d runs: %d passed, %d failed\n", runs, runs-failed, failed)
	if failed > 0 || runs == 0 {
		return 1
	}
	return 0
}

// again runs this program with o in a process of its own, where nothing is left of
// earlier runs.
func again(ctx context.Context, self string, o *options) (*result, error) {
	args := append([]string{"--json", "--every", "24h", "--hang", o.Hang.String()}, strings.Fields(o.args())...)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	var r result
	if e := json.Unmarshal(out.Bytes(), &r); e != nil {
		return nil, errors.Join(err, fmt.Errorf("%w: %s%s", e, log.String(), out.String()))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && !r.Passed {
		err = nil // which the result tells
	}
	return &r, err
}

// printRun prints a line, and what was wrong; true if nothing was.
func printRun(out io.Writer, link string, o *options, r *result, err error) bool {
	trouble := o.troubles()
	if trouble == "" {
		trouble = "none"
	}
	trouble = strings.ReplaceAll(trouble, "--", "")
	if r == nil {
		fmt.Fprintln(out, matrixRow(link, trouble, "", "", "", "", "", "", "", "FAILED"))
		fmt.Fprintln(out, "   ", err)
		return false
	}
	t := &r.Total
	faults, cut := uint64(0), uint64(0)
	if f := t.Faults; f != nil {
		faults = f.Lost + f.Duplicated + f.Reordered + f.Corrupted + f.Delayed
	}
	for how, n := range t.Ends {
		if how != endInOrder.String() {
			cut += n
		}
	}
	verdict := "ok"
	if !r.Passed || err != nil {
		verdict = "FAILED"
	}
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	fmt.Fprintln(out, matrixRow(link, trouble, fmt.Sprintf("%.0f", float64(t.all())/t.Seconds),
		fmt.Sprintf("%.1f", float64(t.Octets)/t.Seconds/(1<<20)), count(t.Counters["tcp.retransmits"]), count(faults),
		count(t.Generations), count(cut), count(uint64(t.Host.RSS)>>20), verdict))
	if verdict == "ok" {
		return true
	}
	for _, f := range r.Failures {
		fmt.Fprintln(out, "   ", strings.ReplaceAll(f, "\n", "\n      "))
	}
	if err != nil {
		fmt.Fprintln(out, "   ", err)
	}
	fmt.Fprintln(out, "   ", r.Command)
	return false
}

// matrixRow lays out one line; every line alike, so that they can be printed one by one.
func matrixRow(cells ...string) string {
	widths := []int{-12, -26, 7, 7, 8, 9, 6, 8, 8, 0}
	var b strings.Builder
	for i, c := range cells {
		fmt.Fprintf(&b, "%*s ", widths[i], c)
	}
	return strings.TrimRight(b.String(), " ")
}
