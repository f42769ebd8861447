package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// options are those of the command line.
type options struct {
	frames uint64
	every  int
	lose   int
	lanes  int
	mtu    int
	seed   uint64
}

func main() {
	var o options
	flag.Uint64Var(&o.frames, "frames", 10_000_000, "frames to pass, in both directions together")
	flag.IntVar(&o.every, "every", 10_000, "one frame in so many has a bit flipped, on average")
	flag.IntVar(&o.lose, "lose", 100_000, "one frame in so many is lost, and one in so many doubled; 0: none")
	flag.IntVar(&o.lanes, "lanes", 2, "connections at a time")
	flag.IntVar(&o.mtu, "mtu", 1500, "octets of an IP packet")
	flag.Uint64Var(&o.seed, "seed", 1, "of the damage and the data")
	flag.Parse()
	if flag.NArg() > 0 || o.frames == 0 || o.every < 1 || o.lose < 0 || o.lanes < 1 || o.lanes > 100 {
		fmt.Fprintln(os.Stderr, "corruption: -frames, -every and -lanes must be above 0; see -help")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := o.all(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "corruption:", err)
		os.Exit(1)
	}
}

// proofFrames are enough, with a flip in proofEvery of them, to see damage many times.
const (
	proofFrames = 20_000
	proofEvery  = 200
)

// all proves the checker, and then runs with the CRC.
func (o options) all(ctx context.Context, w io.Writer) error {
	fmt.Fprintln(w, "without CRC, payload hit alone:")
	p := o
	p.frames, p.every, p.lose = proofFrames, proofEvery, 0
	seen, err := p.run(ctx, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "  %d flips, %d deliveries of wrong octets seen\n", seen.flips(), seen.run.wrong.Load())
	if seen.run.wrong.Load() == 0 {
		return errors.New("no wrong octet was seen without CRC: the checker sees no damage, and would see none with CRC either")
	}
	fmt.Fprintln(w, "with CRC:")
	got, err := o.run(ctx, true)
	if err != nil {
		return err
	}
	got.print(w)
	for _, note := range got.run.notes {
		fmt.Fprintln(w, "  "+note)
	}
	if list := got.wrong(); len(list) > 0 {
		return fmt.Errorf("%v", list)
	}
	fmt.Fprintln(w, "every flip is accounted for, nothing wrong was delivered")
	return nil
}

// run is one run from opening the devices to the ledger's end.
func (o options) run(ctx context.Context, crc bool) (out outcome, err error) {
	// Far more than it takes, so that a run that hangs ends.
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(o.frames)*200*time.Microsecond)
	defer cancel()
	r := &run{goal: o.frames, tap: newTap(o.seed, o.every, o.lose, !crc)}
	r.a, r.b, err = iwarp.Pipe(iwarp.PipeConfig{
		MTU: o.mtu, Plain: true,
		Protocol: iwarp.Protocol{
			NoCRC: !crc, ConnectTimeout: 2 * time.Second, RequestTimeout: 2 * time.Second,
			DrainTimeout: endLimit, // a Terminate that was given up for want of time would be missing from the sum
		},
		Tap: func(p pktio.Port) (pktio.Port, error) {
			r.tap.Port = p
			return r.tap, nil
		},
	})
	if err != nil {
		return out, err
	}
	start := time.Now()
	errs := make([]error, o.lanes)
	var wg sync.WaitGroup
	clients := make([]*client, o.lanes)
	for i := range o.lanes {
		wg.Go(func() { clients[i], errs[i] = r.lane(ctx, i, o.seed) })
	}
	stop := r.progress(start)
	wg.Wait()
	stop()
	took := time.Since(start)
	err = errors.Join(append(errs, r.a.Close(), r.b.Close())...)
	out = r.account()
	out.crc, out.took = crc, took
	a, b := r.a.Stats(), r.b.Stats()
	out.counted = a.Counter("mpa.crc_errors") + b.Counter("mpa.crc_errors")
	for _, c := range clients {
		if c != nil {
			for i, n := range c.by {
				out.tasks[i] += n
			}
		}
	}
	return out, err
}

// progress tells every ten seconds how far a run is, until stop is called.
func (r *run) progress(start time.Time) (stop func()) {
	done := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n := r.tap.passed()
				fmt.Fprintf(os.Stderr, "%d of %d frames, %.0f a second, %d connections\n", n, r.goal, float64(n)/time.Since(start).Seconds(), r.conns.Load())
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		told.Wait()
	}
}
