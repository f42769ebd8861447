package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// options say what a run does. Both ends have the same.
type options struct {
	Seed      uint64
	Duration  time.Duration
	Lanes     int // queue pairs
	MaxSize   int // octets of the largest operation
	Rounds    int // the most of a generation, beside the first ten
	NoEndings bool

	Link    string // pipe, loopback, netns
	Backend string // of netns: packet, xdp-native, xdp-generic, kernel
	V6      bool
	MTU     int
	Super   bool // let super-frames pass the wire whole
	Faults  pktio.Faults

	Every     time.Duration // between two lines
	Hang      time.Duration // without progress
	Allowance int           // MiB that the process may have more than at the start
	Dump      string        // folder for what is known of a failure
	Capture   string        // file for the frames of one end
	JSON      bool
}

var backends = []string{"packet", "xdp-native", "xdp-generic", "kernel"}

// register declares the flags of o.
func (o *options) register(f *flag.FlagSet) {
	f.Uint64Var(&o.Seed, "seed", 0, "decides what is done; drawn if 0. When it is done is up to the machine")
	f.DurationVar(&o.Duration, "duration", 5*time.Minute, "how long")
	f.IntVar(&o.Lanes, "qps", 16, "queue pairs at each end")
	f.IntVar(&o.MaxSize, "max-size", 1<<20, "octets of the largest operation")
	f.IntVar(&o.Rounds, "rounds", 300, "how many rounds a connection lasts at most: fewer make more reconnects")
	f.BoolVar(&o.NoEndings, "orderly", false, "end connections in order alone, never in the midst of traffic")
	f.StringVar(&o.Link, "link", "pipe", "pipe: a link in memory; loopback: the kernel's TCP in one process; netns: two processes in network namespaces (root)")
	f.StringVar(&o.Backend, "backend", "packet", "with --link netns: "+strings.Join(backends, ", "))
	f.BoolVar(&o.V6, "6", false, "IPv6, with --link netns or loopback")
	f.IntVar(&o.MTU, "mtu", 1500, "octets of an IP packet")
	f.BoolVar(&o.Super, "super", false, "with --link netns and faults: super-frames pass the wire whole, and are lost whole. Otherwise they are cut before")
	for _, p := range []struct {
		v    *float64
		name string
		what string
	}{
		{&o.Faults.Loss, "loss", "lost"},
		{&o.Faults.Duplicate, "duplicate", "doubled"},
		{&o.Faults.Reorder, "reorder", "held back behind the next few"},
		{&o.Faults.Corrupt, "corrupt", "damaged in one bit, for TCP to notice"},
	} {
		f.Func(p.name, "share of the frames of either direction that is "+p.what+", as 1% or 0.01", func(s string) (err error) {
			*p.v, err = parseShare(s)
			return err
		})
	}
	f.DurationVar(&o.Faults.Delay, "delay", 0, "how long each frame takes longer")
	f.DurationVar(&o.Faults.Jitter, "jitter", 0, "up to how long it takes longer than that; frames closer together change places")
	f.DurationVar(&o.Every, "every", 30*time.Second, "between two lines")
	f.DurationVar(&o.Hang, "hang", 60*time.Second, "without progress on a queue pair")
	f.IntVar(&o.Allowance, "allowance", 48, "MiB of memory that a process may keep more than it began with")
	f.StringVar(&o.Dump, "dump", os.TempDir(), "folder for counters and goroutines when something fails")
	f.StringVar(&o.Capture, "capture", "", "write the frames of end a, as far as our own stack sees them, to this pcapng file")
	f.BoolVar(&o.JSON, "json", false, "print one JSON document at the end; the lines go to stderr")
}

func parseShare(s string) (float64, error) {
	num, percent := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(num, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no share: write 1%% or 0.01", s)
	}
	if percent {
		v /= 100
	}
	return v, nil
}

func (o *options) check() error {
	switch {
	case o.Lanes < 1 || o.Lanes > maxLanes:
		return fmt.Errorf("--qps: take 1 to %d", maxLanes)
	case o.MaxSize < 1 || o.MaxSize > maxPlace:
		return fmt.Errorf("--max-size: take 1 to %d", maxPlace)
	case o.Rounds < 1 || o.Rounds > maxSeq/maxOps-100:
		return fmt.Errorf("--rounds: take 1 to %d", maxSeq/maxOps-100)
	case o.Duration <= 0 || o.Every <= 0 || o.Hang <= 0:
		return fmt.Errorf("times begin above 0")
	}
	switch o.Link {
	case "pipe":
		if o.V6 {
			return fmt.Errorf("--6: the link in memory has IPv4 addresses")
		}
	case "loopback":
		if o.faulty() {
			return fmt.Errorf("--link loopback has no faults: take pipe or netns")
		}
	case "netns":
		if !slices.Contains(backends, o.Backend) {
			return fmt.Errorf("--backend: %q is none of %s", o.Backend, strings.Join(backends, ", "))
		}
		if os.Geteuid() != 0 {
			return fmt.Errorf("--link netns makes network namespaces, which takes root")
		}
	default:
		return fmt.Errorf("--link: %q is none of pipe, loopback, netns", o.Link)
	}
	return o.Faults.Check()
}

// faulty reports whether the link does anything to frames.
func (o *options) faulty() bool {
	f := &o.Faults
	return f.Loss > 0 || f.Duplicate > 0 || f.Reorder > 0 || f.Corrupt > 0 || f.Delay > 0 || f.Jitter > 0
}

// lossy reports whether frames do not arrive. Delay may lose some, for want of room.
func (o *options) lossy() bool {
	f := &o.Faults
	return f.Loss > 0 || f.Corrupt > 0 || f.Delay > 0 || f.Jitter > 0
}

// slot is the size of a round's part of an area, in octets.
func (o *options) slot() int {
	const page = 4096
	return (o.MaxSize + extra + slack + page - 1) / page * page
}

// args are the flags that make the same run again.
func (o *options) args() string {
	a := fmt.Sprintf("--seed %d --duration %v --qps %d --max-size %d --rounds %d --link %s", o.Seed, o.Duration, o.Lanes, o.MaxSize, o.Rounds, o.Link)
	if o.Link == "netns" {
		a += " --backend " + o.Backend
	}
	for _, b := range []struct {
		name string
		on   bool
	}{{"6", o.V6}, {"super", o.Super}, {"orderly", o.NoEndings}} {
		if b.on {
			a += " --" + b.name
		}
	}
	if o.MTU != 1500 {
		a += fmt.Sprintf(" --mtu %d", o.MTU)
	}
	if f := o.troubles(); f != "" {
		a += " " + f
	}
	return a
}

// troubles are the flags of the faults.
func (o *options) troubles() string {
	var list []string
	for _, p := range []struct {
		name string
		v    float64
	}{{"loss", o.Faults.Loss}, {"duplicate", o.Faults.Duplicate}, {"reorder", o.Faults.Reorder}, {"corrupt", o.Faults.Corrupt}} {
		if p.v > 0 {
			list = append(list, fmt.Sprintf("--%s %g%%", p.name, p.v*100))
		}
	}
	if o.Faults.Delay > 0 {
		list = append(list, fmt.Sprintf("--delay %v", o.Faults.Delay))
	}
	if o.Faults.Jitter > 0 {
		list = append(list, fmt.Sprintf("--jitter %v", o.Faults.Jitter))
	}
	return strings.Join(list, " ")
}
