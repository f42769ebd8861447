package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/pattern"
	"github.com/softrdma/softrdma/verbs"
)

// untouched is what memory holds that nothing was written to.
const untouched = 0xee

// transfers connects two hosts and moves messages of every size.
func (d *demo) transfers(ctx context.Context) (err error) {
	room := max(slices.Max(d.Sizes), wordSize)
	a, err := newHost(d.a, room, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	b, err := newHost(d.b, room, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	crc := "CRC32C on every FPDU"
	if d.NoCRC {
		crc = "no CRC"
	}
	err = d.step("connect", "TCP, then MPA with private data both ways", 0, func(s *Step) error {
		s.Detail = crc
		return d.connect(ctx, a, b, "hello from a", "hello from b")
	})
	if err != nil {
		return err
	}
	d.damage(d.Flip > 0)
	t := &transfer{demo: d, a: a, b: b}
	for _, size := range d.Sizes {
		for _, m := range []struct {
			name, what string
			move       func(context.Context, *Step, int) error
		}{
			{"send", "Send, Receive", t.send}, {"write", "RDMA Write", t.write}, {"read", "RDMA Read", t.read},
		} {
			err := d.step(m.name, m.what, size, func(s *Step) error {
				ctx, cancel := d.stepContext(ctx)
				defer cancel()
				return m.move(ctx, s, size)
			})
			if err != nil {
				return err
			}
		}
	}
	for _, m := range []struct {
		what string
		op   verbs.Opcode
	}{{"Fetch and Add", verbs.OpFetchAdd}, {"Compare and Swap", verbs.OpCompareSwap}} {
		err := d.step("atomic", m.what, wordSize, func(s *Step) error {
			ctx, cancel := d.stepContext(ctx)
			defer cancel()
			return t.atomic(ctx, s, m.op)
		})
		if err != nil {
			return err
		}
	}
	return d.step("close", "FIN behind the last FPDU, both ways", 0, func(*Step) error {
		if err := a.conn.Disconnect(ctx); err != nil {
			return err
		}
		return errors.Join(a.ended(ctx), b.ended(ctx))
	})
}

// stepLimit bounds a transfer over a damaged link: without a CRC, a flip in a
// length makes a receiver wait for octets that never come.
const stepLimit = 5 * time.Second

func (d *demo) stepContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if d.Flip == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, stepLimit, errLost)
}

var errLost = errors.New("the message did not come to its end: the damage must have hit a header")

// transfer moves messages between two connected hosts.
type transfer struct {
	*demo
	a, b *host
}

// prepare puts a new message into from and nothing into to.
func (t *transfer) prepare(from, to *host, n int) (seed uint64) {
	seed = t.nextSeed()
	pattern.Fill(from.message(n), seed)
	for i := range to.mem.Bytes()[:guard+n+guard] {
		to.mem.Bytes()[i] = untouched
	}
	return seed
}

// compare looks at what has arrived and at the memory around it.
func (t *transfer) compare(s *Step, to *host, n int, seed uint64) {
	if d := pattern.Check(to.message(n), seed); !d.OK() {
		s.wrongData("the message", d)
	}
	g := to.guards(n)
	for i, where := range []string{"the memory before the message", "the memory behind the message"} {
		if d := pattern.CheckByte(g[i][:guard], untouched); !d.OK() {
			s.wrongData(where, d)
		}
	}
}

// timed notes how long the transfer alone took.
func (s *Step) timed(start time.Time) { s.Took = time.Since(start) }

func (t *transfer) send(ctx context.Context, s *Step, n int) error {
	seed := t.prepare(t.a, t.b, n)
	if err := t.b.receive(n); err != nil {
		return t.over(ctx, s, t.b, n, seed, err)
	}
	start := time.Now()
	err := t.a.send(verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{t.a.sge(n)}})
	return t.arrived(ctx, s, start, n, seed, err)
}

func (t *transfer) write(ctx context.Context, s *Step, n int) error {
	seed := t.prepare(t.a, t.b, n)
	// A Send without data behind the Write tells that it is in place.
	if err := t.b.receive(0); err != nil {
		return t.over(ctx, s, t.b, n, seed, err)
	}
	start := time.Now()
	err := t.a.send(
		verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{t.a.sge(n)}, Remote: t.b.name()},
		verbs.SendWR{Op: verbs.OpSend, Flags: verbs.SendSignaled},
	)
	return t.arrived(ctx, s, start, n, seed, err)
}

// arrived waits for the receive of b and the Send of a, and looks at b.
func (t *transfer) arrived(ctx context.Context, s *Step, start time.Time, n int, seed uint64, err error) error {
	if err == nil {
		_, err = t.b.complete(ctx)
		s.timed(start)
	}
	if err == nil {
		_, err = t.a.complete(ctx)
	}
	if err != nil {
		return t.over(ctx, s, t.b, n, seed, err)
	}
	t.compare(s, t.b, n, seed)
	return nil
}

func (t *transfer) read(ctx context.Context, s *Step, n int) error {
	seed := t.prepare(t.b, t.a, n)
	start := time.Now()
	err := t.a.send(verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{t.a.sge(n)}, Remote: t.b.name()})
	if err == nil {
		_, err = t.a.complete(ctx)
		s.timed(start)
	}
	if err != nil {
		return t.over(ctx, s, t.a, n, seed, err)
	}
	t.compare(s, t.a, n, seed)
	return nil
}

// over tells why a transfer did not come to its end. Where that is a CRC error
// on a link that damages frames, it is what should happen, if no octet came in
// that was never sent.
func (t *transfer) over(ctx context.Context, s *Step, to *host, n int, seed uint64, err error) error {
	// Both ends: the one that noticed has sent a Terminate to the other.
	ends := [2]error{t.a.ended(ctx), t.b.ended(ctx)}
	if ctx.Err() != nil {
		err, ends = context.Cause(ctx), [2]error{}
	}
	s.Status = err.Error()
	for i, b := range to.message(n) {
		if b != untouched && b != pattern.At(seed, i) {
			s.wrongData("what was placed", pattern.Diff{
				Wrong: 1, Of: n, Offset: i, Offsets: []int{i}, Want: pattern.At(seed, i), Got: b,
			})
			break
		}
	}
	for _, end := range ends {
		e := terminated(end)
		if e == nil {
			continue
		}
		s.Code = fmt.Sprintf("0x%04x", e.Value())
		if e.Value() != codeCRC || t.Flip == 0 {
			return fmt.Errorf("%w (%w)", end, err)
		}
		s.Detail = join(s.Detail, fmt.Sprintf("the connection ended in a CRC error: %v", end))
		if s.Wrong == 0 {
			s.CRC = true
			s.Detail = join(s.Detail, "no wrong octet was delivered")
			t.report.Outcome = CRCError
			t.report.Error = s.Detail
		}
		return errStop
	}
	return errors.Join(err, ends[0], ends[1])
}
