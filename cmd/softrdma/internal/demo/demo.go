package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// Config says what to run. The zero value is the demo on a link without
// faults.
type Config struct {
	MTU    int                                  // octets of an IP packet; 1500 if 0
	Flip   float64                              // probability that the link flips a bit in a frame's TCP payload and makes the TCP checksum right again
	NoCRC  bool                                 // run without the CRC that notices
	Proto  iwarp.Protocol                       // how else connections are set up, on both hosts
	Seed   uint64                               // of the data and the faults
	Sizes  []int                                // of the messages; DefaultSizes if nil
	Tap    func(pktio.Port) (pktio.Port, error) // wraps the first host's port, to capture; nil for none
	Logger *slog.Logger
	OnStep func(Step) // is called after each step; may be nil
}

// DefaultSizes go from one octet to 64 MiB.
func DefaultSizes() []int { return []int{1, 64, 4 << 10, 64 << 10, 1 << 20, 64 << 20} }

// limit bounds a whole demo, which takes a second or two.
const limit = 14 * time.Second

// demo is a running one.
type demo struct {
	Config
	report *Report
	a, b   *verbs.Device
	fault  [2]*pktio.Faulty
	lis    *rdmacm.Listener
	seed   uint64 // of the next message
}

// errStop ends the steps; the report says why.
var errStop = errors.New("stop")

// Run runs the demo. What went wrong is in the report.
func Run(ctx context.Context, c Config) *Report {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if c.Sizes == nil {
		c.Sizes = DefaultSizes()
	}
	d := &demo{
		Config: c, seed: c.Seed,
		report: &Report{Schema: Schema, Outcome: OK, MTU: c.MTU, CRC: !c.NoCRC, Flip: c.Flip, Seed: c.Seed, Steps: []Step{}},
	}
	if c.MTU == 0 {
		d.report.MTU = 1500
	}
	start := time.Now()
	err := d.run(ctx)
	d.report.Took = time.Since(start)
	if err != nil && !errors.Is(err, errStop) {
		d.fail(err)
	}
	return d.report
}

// fail notes the first thing that went wrong. Wrong data stays the verdict.
func (d *demo) fail(err error) {
	if d.report.Outcome == OK || d.report.Outcome == CRCError {
		d.report.Outcome, d.report.Error = Failed, err.Error()
	}
}

func (d *demo) run(ctx context.Context) (err error) {
	if err := d.open(); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.a.Close(), d.b.Close())
		for _, f := range d.fault {
			d.report.Flipped += f.Stats().Corrupted
		}
		n := d.a.Stats()
		d.report.FPDUs = n.Counter("mpa.fpdus_in") + n.Counter("mpa.fpdus_out")
	}()
	lc := rdmacm.ListenConfig{Device: d.b}
	if d.lis, err = lc.Listen(ctx, fmt.Sprintf("%v:%d", iwarp.PipeAddrB, port)); err != nil {
		return err
	}
	defer d.lis.Close()
	for _, part := range []func(context.Context) error{d.transfers, d.rejection, d.accessErrors} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// port is where the second device listens.
const port = 7174

// step runs one line of the demo. Its time is what f says, or else that of f.
func (d *demo) step(name, what string, octets int, f func(*Step) error) error {
	s := Step{Name: name, What: what, Octets: octets, OK: true}
	start := time.Now()
	err := f(&s)
	if s.Took == 0 {
		s.Took = time.Since(start)
	}
	if err != nil {
		s.OK = false
		if !errors.Is(err, errStop) {
			s.Detail = join(s.Detail, err.Error())
			err = fmt.Errorf("%s: %w", name, err)
		}
	}
	if s.Wrong > 0 && d.report.Outcome != WrongData { // the first one is the one to tell
		d.report.Outcome = WrongData
		d.report.Error = fmt.Sprintf("%s of %s: %s", what, Size(octets), s.Detail)
	}
	d.report.Steps = append(d.report.Steps, s)
	if d.OnStep != nil {
		d.OnStep(s)
	}
	return err
}

func (d *demo) open() error {
	what := fmt.Sprintf("%v and %v in memory, each with all layers", iwarp.PipeAddrA, iwarp.PipeAddrB)
	proto := d.Proto
	proto.NoCRC = d.NoCRC
	return d.step("link", what, 0, func(s *Step) (err error) {
		d.a, d.b, err = iwarp.Pipe(iwarp.PipeConfig{
			MTU:      d.MTU,
			Protocol: proto,
			Faulty:   func(a, b *pktio.Faulty) { d.fault = [2]*pktio.Faulty{a, b} },
			Tap:      d.Tap,
			Logger:   d.Logger,
		})
		s.Detail = fmt.Sprintf("MTU %d", d.report.MTU)
		if d.Flip > 0 {
			s.Detail += fmt.Sprintf("; once connected, a bit flips in a frame with probability %g and the TCP checksum is made right again", d.Flip)
		}
		return err
	})
}

// damage turns the faults of the link on or off.
func (d *demo) damage(on bool) {
	for i, p := range d.fault {
		f := pktio.Faults{}
		if on {
			f = pktio.Faults{Seed: d.Seed + uint64(i), Corrupt: d.Flip, FixChecksum: true, CorruptOffsetMin: headers}
		}
		p.SetFaults(f)
	}
}

// headers are the octets of the longest header of the first FPDU in a frame:
// damage to payload shows best what a CRC is for.
const headers = 2 + 18

// nextSeed returns the seed of another message.
func (d *demo) nextSeed() uint64 {
	d.seed++
	return d.seed
}
