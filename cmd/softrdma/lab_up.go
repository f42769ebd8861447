package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/lab"
)

func (a *app) labUpCommand() *cobra.Command {
	var f impairFlags
	c := &cobra.Command{
		Use:   "up",
		Short: "Build the lab and print the commands that do it",
		Long: `Builds the lab and prints the commands that do it; what has no command is a
comment. --mtu is that of all links, from 1280, which IPv6 needs, to 65535.

Loss, alone, is done by a bridge and a BPF program on its ports, which costs
next to nothing. With any of the other flags, and on kernels before Linux 6.6, a
process carries the frames, which adds about 0.1 ms to a round trip. --loss 0%
and --delay 0s build the same without an impairment, to compare with.

Frames are impaired as they come, which for TCP is in super-frames of up to
64 KiB: to lose one in a hundred of these is not what a wire does that loses one
in a hundred of its frames. --wire-frames switches off what makes super-frames,
so that each frame has at most the MTU; it works without an impairment too.

A delay is one way, so that a round trip takes twice as long. A reordered frame
is held back until one to three others have passed it, or for a millisecond if
none come. The same --seed impairs the same frames, if they come in the same
order; ` + "`lab status`" + ` tells which was taken, and how many frames were hit.`,
		Args: wantArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := f.plan(c.Flags().Changed)
			if err != nil {
				return err
			}
			if c.Flags().Changed("mtu") {
				p.MTU = a.device.mtu
			}
			if err := p.Check(); err != nil {
				return usagef(fmt.Sprintf("`%s --help` tells what there is", c.CommandPath()), "%w", err)
			}
			return a.labUp(c, p)
		},
	}
	f.register(c)
	return c
}

func (a *app) labUp(c *cobra.Command, p lab.Plan) error {
	h := lab.Host{Lab: lab.Default(), Log: a.stdout}
	// Where Up is going to refuse, without rights say, the question is of no use.
	if p.Impair != nil && !p.Impair.Process && errors.Is(h.Ready(), lab.ErrDown) {
		if err := lab.NoLoss(); err != nil {
			fmt.Fprintf(a.stderr, "%v; a process loses the frames instead\n", err)
			p.Impair.Process = true
		}
	}
	if err := h.Up(c.Context(), p); err != nil {
		if p.Impair != nil && !p.Impair.Process {
			return labErrorOr(err, "add --delay 0s: then a process does it, without a bridge and BPF")
		}
		return labError(err)
	}
	for _, line := range p.Describe() {
		fmt.Fprintln(a.stderr, line)
	}
	fmt.Fprintln(a.stderr, "the lab is up; next: softrdma lab exec a -- softrdma serve")
	return nil
}

// impairFlags say how bad the link of the lab is to be.
type impairFlags struct {
	loss, duplicate, reorder string
	delay, jitter            time.Duration
	seed                     uint64
	wireFrames               bool
}

func (f *impairFlags) register(c *cobra.Command) {
	s := c.Flags()
	s.StringVar(&f.loss, "loss", "0%", "frames lost in each direction, such as 1%, 0.1% or 0.001")
	s.DurationVar(&f.delay, "delay", 0, "how much longer each frame takes, such as 1ms")
	s.DurationVar(&f.jitter, "jitter", 0, "up to so much is added to the delay, so that frames overtake each other")
	s.StringVar(&f.reorder, "reorder", "0%", "frames that one to three later ones overtake")
	s.StringVar(&f.duplicate, "duplicate", "0%", "frames that come twice")
	s.Uint64Var(&f.seed, "seed", 0, "impairs the same frames again (default: another one each time)")
	s.BoolVar(&f.wireFrames, "wire-frames", false, "no super-frames: switch GSO, TSO and GRO of the interfaces off")
}

// plan checks the flags. given tells which are on the command line: a zero there
// builds the wire all the same.
func (f *impairFlags) plan(given func(string) bool) (lab.Plan, error) {
	p := lab.Plan{WireFrames: f.wireFrames}
	process := slices.ContainsFunc([]string{"delay", "jitter", "reorder", "duplicate"}, given)
	if !process && !given("loss") {
		if given("seed") {
			return p, usagef("add --loss, --delay, --jitter, --reorder or --duplicate", "--seed alone impairs nothing")
		}
		return p, nil
	}
	i := &lab.Impairment{Delay: f.delay, Jitter: f.jitter, Seed: f.seed, Process: process}
	for _, flag := range []struct {
		name, given string
		v           *float64
	}{{"loss", f.loss, &i.Loss}, {"reorder", f.reorder, &i.Reorder}, {"duplicate", f.duplicate, &i.Duplicate}} {
		var err error
		if *flag.v, err = lab.ParsePercent(flag.given); err != nil {
			return p, usagef("write it as 1%, 0.1% or 0.001", "--%s: %w", flag.name, err)
		}
	}
	if f.delay < 0 || f.jitter < 0 {
		return p, usagef("write it as 1ms or 250us", "--delay %v, --jitter %v: a frame cannot arrive before it was sent", f.delay, f.jitter)
	}
	if !given("seed") {
		i.Seed = uint64(rand.Uint32())
	}
	p.Impair = i
	return p, nil
}
