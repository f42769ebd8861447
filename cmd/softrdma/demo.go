package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	var (
		cfg    demo.Config
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run the whole stack in memory: no device, no rights",
		Long: `Runs two hosts in memory, each with all layers of the stack, on a link between
them: connects, moves 1 octet to 64 MiB by Send, RDMA Write and RDMA Read and
compares every octet, changes a word by atomics, closes, has a connection
rejected and an access refused.

With --flip the link damages frames and makes the TCP checksum right again.
The CRC of MPA then ends the connection, which is what it is for (exit code 0);
with --no-crc too, wrong data gets through and the demo fails, as it should.`,
		Args: wantArgs(),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.checkDemo(c, &cfg); err != nil {
				return err
			}
			if err := a.device.proto.set(&cfg.Proto); err != nil {
				return err
			}
			file, err := a.device.openCapture()
			if err != nil {
				return err
			}
			cfg.Tap = file.tap()
			cfg.MTU, cfg.NoCRC, cfg.Logger = a.device.mtu, cfg.Proto.NoCRC, a.device.logger(a.stderr)
			if !asJSON {
				cfg.OnStep = a.demoLine
			}
			r := demo.Run(c.Context(), cfg)
			if err := file.Close(); err != nil {
				return err
			}
			if asJSON {
				if err := a.writeJSON(r); err != nil {
					return err
				}
			}
			return a.demoVerdict(r, asJSON)
		},
	}
	f := c.Flags()
	f.Float64Var(&cfg.Flip, "flip", 0, "probability that the link flips a bit in a frame, from 0 to 1")
	f.Uint64Var(&cfg.Seed, "seed", 1, "of data and faults")
	jsonFlag(c, &asJSON)
	return c
}

// checkDemo refuses what the demo cannot do. The environment is not looked at:
// it is about devices.
func (a *app) checkDemo(c *cobra.Command, cfg *demo.Config) error {
	for _, name := range []string{"dev", "ip", "gw", "stats"} {
		if c.Flags().Changed(name) {
			return usagef("leave it out", "--%s: the demo opens no device", name)
		}
	}
	switch b := a.device.backend; {
	case c.Flags().Changed("backend") && b != "pipe" && b != "auto":
		return usagef("`softrdma serve` and `softrdma ping` open devices", "--backend: the demo runs on pipe, not on %s", b)
	case !(cfg.Flip >= 0 && cfg.Flip <= 1) || math.IsNaN(cfg.Flip):
		return usagef("0.001 is a good choice", "--flip: %g is no probability", cfg.Flip)
	case a.device.mtu != 0 && (a.device.mtu < demoMinMTU || a.device.mtu > demoMaxMTU):
		return usagef("leave it out for 1500", "--mtu: the demo takes %d to %d octets", demoMinMTU, demoMaxMTU)
	}
	return nil
}

const (
	demoMinMTU = 576
	demoMaxMTU = 65535
)

// demoLine prints one step.
func (a *app) demoLine(s demo.Step) {
	what, rate := s.What, ""
	if s.Octets > 0 {
		what = fmt.Sprintf("%-8s %s", demo.Size(s.Octets), s.What)
		if s.OK && s.Octets >= 1<<20 && s.Took > 0 {
			rate = fmt.Sprintf("%.2f GB/s", float64(s.Octets)/float64(s.Took))
		}
	}
	verdict := a.paint(green, "ok   ")
	switch {
	case s.Wrong > 0:
		verdict = a.paint(red, "WRONG")
	case !s.OK && s.CRC:
		verdict = "ended"
	case !s.OK:
		verdict = a.paint(red, "FAIL ")
	}
	line := fmt.Sprintf("%-7s %-51s %10s  %s  %s", s.Name, what, shortTime(s.Took), verdict, join(rate, s.Detail))
	fmt.Fprintln(a.stdout, strings.TrimRight(line, " "))
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// shortTime prints d to three digits or so.
func shortTime(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.1f us", float64(d)/1e3)
	case d < time.Second:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// demoVerdict prints how it ended, and makes the exit code of it.
func (a *app) demoVerdict(r *demo.Report, asJSON bool) error {
	switch r.Outcome {
	case demo.OK, demo.CRCError:
		if asJSON {
			return nil
		}
		end := "all of it works"
		if r.Outcome == demo.CRCError {
			end = fmt.Sprintf("CRC error: the damage (%d frames) was noticed and the connection ended, as it should", r.Flipped)
		} else if r.Flip > 0 {
			end = fmt.Sprintf("all of it works; the link damaged %d frames", r.Flipped)
		}
		_, err := fmt.Fprintf(a.stdout, "%s, in %s\n", end, shortTime(r.Took))
		return err
	case demo.WrongData:
		next := "run it without --no-crc: then the CRC notices"
		if r.CRC {
			next = "this must not happen: run it again with --debug and --capture FILE, and report it"
		}
		return failed(errors.New(r.Error), next)
	}
	return failed(errors.New(r.Error), "run it again with --debug, and --capture FILE for the frames")
}
