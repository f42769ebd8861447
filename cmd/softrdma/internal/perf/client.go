package perf

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// Client runs tests against a Server.
type Client struct {
	Device   *verbs.Device
	Addr     string         // host:port
	Progress func(Progress) // is called now and then during a test, from a goroutine of the client; may be nil
}

// Progress is how far a measurement has come.
type Progress struct {
	Elapsed  time.Duration
	Messages uint64
}

const (
	setupTime = 20 * time.Second // for connections and control messages
	graceTime = 5 * time.Second  // for what is in flight when a test is stopped
	tailTime  = 30 * time.Second // for what is in flight when a test ends: gigabytes, maybe
	limitIdle = time.Hour        // a test without a duration may take that long
)

// Run measures. When ctx ends during the measurement the result so far is
// returned, marked as interrupted.
func (c *Client) Run(ctx context.Context, t Test) (*Result, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	r := &run{client: c, test: t, seed: rand.Uint64()}
	defer r.close()
	if err := r.setup(ctx); err != nil {
		return nil, err
	}
	return r.measure(ctx)
}

// run is one session from the client's side.
type run struct {
	client *Client
	test   Test
	seed   uint64
	ctl    *control
	pd     *verbs.PD
	lanes  []*clientLane
	stop   atomic.Bool // lanes post no more
}

// clientLane is a data connection of the client.
type clientLane struct {
	*lane
	run     *run
	ctl     *verbs.MR     // slots of 8 octets for credit messages
	sent    uint64        // messages
	credit  uint64        // messages that the server has receives for, in total
	done    atomic.Uint64 // messages completed, for the sampler
	reading bool          // the flush is under way
}

func (r *run) close() {
	for _, l := range r.lanes {
		_ = l.close() // the test has said what there is to say
	}
	if r.pd != nil {
		_ = r.pd.Close()
	}
	if r.ctl != nil {
		_ = r.ctl.close()
	}
}

// setup opens the session and its connections.
func (r *run) setup(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	dev := r.client.Device
	if r.ctl, err = newControl(dev); err != nil {
		return err
	}
	d := rdmacm.Dialer{Device: dev, PD: r.ctl.pd, QP: r.ctl.qpConfig(), Prepare: r.ctl.prepare, PrivateData: role{}.append(nil)}
	if r.ctl.conn, err = d.Dial(ctx, r.client.Addr); err != nil {
		return err
	}
	ready, err := r.ctl.ask(ctx, r.openMessage(), msgReady)
	if err != nil {
		return err
	}
	theirs, err := r.checkReady(&ready)
	if err != nil {
		return err
	}
	if r.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	for i := range r.test.QPs {
		if err := r.connect(ctx, i, &ready, theirs); err != nil {
			return fmt.Errorf("data connection %d: %w", i, err)
		}
	}
	own := r.lanes[0].mem.Remote()
	_, err = r.ctl.ask(ctx, message{typ: msgStart, addr: own.Addr, key: uint32(own.RKey), len: uint64(own.Len)}, msgGo)
	return err
}

func (r *run) openMessage() message {
	limit := limitIdle
	if r.test.Iterations == 0 {
		limit = r.test.Duration + r.test.Warmup + tailTime + setupTime
	}
	return message{
		typ: msgOpen, op: r.test.Op, kind: r.test.Kind, verify: r.test.Verify,
		size: uint32(r.test.Size), qps: uint16(r.test.QPs), depth: uint16(r.test.Depth),
		limit: uint32(limit / time.Second), seed: r.seed,
	}
}

// checkReady tells whether what the server offers can be worked with.
func (r *run) checkReady(m *message) (layout, error) {
	l := layout{slots: int(m.slots), stride: int(m.stride), receives: int(m.receives), step: int(m.step)}
	need := uint64(l.size()) * uint64(r.test.QPs)
	switch {
	case l.slots < 1 || l.stride < r.test.Size || m.len < need:
		return l, fmt.Errorf("the server offers %d places of %d octets in a memory of %d, which is too little", l.slots, l.stride, m.len)
	case r.test.Op == Send && l.receives < 1,
		r.test.Op == Send && r.test.Kind == Bandwidth && (l.step < 1 || l.step > l.receives):
		return l, fmt.Errorf("the server posts %d receives and tells after %d, which cannot work", l.receives, l.step)
	}
	return l, nil
}

// ours is the layout of the client's own memory.
func (r *run) ours(theirs layout) layout {
	if r.test.Kind == Latency {
		return r.test.layout()
	}
	// Sources of Sends and Writes, or sinks of Reads; credit messages have
	// receives of their own.
	return layout{slots: r.test.slots(r.test.Depth), stride: r.test.Size, receives: creditReceives(theirs)}
}

// creditReceives is how many credit messages can be under way: the server
// sends one for each step of the messages that it had credit for.
func creditReceives(theirs layout) int {
	if theirs.step == 0 {
		return 0
	}
	return theirs.receives/theirs.step + 2
}

// connect dials data connection i.
func (r *run) connect(ctx context.Context, i int, ready *message, theirs layout) (err error) {
	l := &clientLane{run: r, credit: uint64(theirs.receives)}
	if l.lane, err = newLane(r.client.Device, &r.test, i, r.seed, r.ours(theirs)); err != nil {
		return err
	}
	r.lanes = append(r.lanes, l)
	if r.test.Verify && r.test.Kind == Bandwidth {
		// A place must not be used again before its message is complete, on
		// either side.
		r.test.Depth = min(r.test.Depth, l.layout.slots, theirs.slots)
	}
	access := verbs.AccessLocalWrite
	if r.test.Op == Write && r.test.Kind == Latency {
		access |= verbs.AccessRemoteWrite
	}
	if l.mem, err = r.pd.AllocMR(l.layout.size(), access); err != nil {
		return err
	}
	if l.ctl, err = r.pd.AllocMR(8*max(1, l.layout.receives), verbs.AccessLocalWrite); err != nil {
		return err
	}
	l.remote = verbs.RemoteBuf{Addr: ready.addr + uint64(i*theirs.size()), RKey: verbs.Key(ready.key)}
	l.theirs = theirs
	d := rdmacm.Dialer{
		Device: r.client.Device, PD: r.pd, Prepare: l.prepare,
		QP: verbs.QPConfig{
			SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: r.test.Depth + 1, MaxRecvWR: max(1, l.layout.receives),
		},
		PrivateData: role{data: true, number: uint16(i), session: ready.session}.append(nil),
	}
	if r.test.Op.Answered() {
		d.ORD = min(r.test.Depth, maxReads)
	}
	l.conn, err = d.Dial(ctx, r.client.Addr)
	return err
}

// prepare posts the receives before the server can send.
func (l *clientLane) prepare(qp *verbs.QP) error {
	if l.test.Kind == Latency {
		return l.receive(qp, 1, l.layout.receives)
	}
	for slot := range l.layout.receives {
		if err := l.receiveCredit(qp, slot); err != nil {
			return err
		}
	}
	return nil
}

// measure runs the test on the connections.
func (r *run) measure(ctx context.Context) (*Result, error) {
	// What is in flight when the caller has had enough still comes to its end.
	hard, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		r.stop.Store(true)
		time.AfterFunc(graceTime, cancel)
	})()

	res := &Result{Test: r.test}
	began := time.Now()
	if r.test.Warmup > 0 {
		if err := r.phase(hard, nil, 0, r.test.Warmup); err != nil {
			return nil, err
		}
	}
	before := r.sent()
	cpu, start := CPUTime(), time.Now()
	err := r.phase(hard, res, r.test.Iterations, r.test.Duration)
	res.Elapsed, res.CPU = time.Since(start), CPUTime()-cpu
	res.Interrupted = ctx.Err() != nil
	res.Messages = r.sent() - before
	if err != nil {
		return nil, err
	}
	if err := r.finish(hard, res); err != nil {
		return res, err
	}
	// The server counts from its Go to our Stop: take the measured part of that.
	res.PeerCPU = time.Duration(float64(res.PeerCPU) * res.Elapsed.Seconds() / time.Since(began).Seconds())
	return res, nil
}

func (r *run) sent() (n uint64) {
	for _, l := range r.lanes {
		n += l.sent
	}
	return n
}

// phase runs all lanes for n messages altogether, or for d if n is 0. Without
// a result it is a warm-up.
func (r *run) phase(ctx context.Context, res *Result, n int, d time.Duration) error {
	if n > 0 {
		d = limitIdle
	}
	var wg sync.WaitGroup
	errs := make([]error, len(r.lanes))
	stopSampler := r.sample(res)
	until := time.Now().Add(d)
	ctx, cancel := context.WithDeadlineCause(ctx, until.Add(tailTime), errStalled)
	defer cancel()
	for i, l := range r.lanes {
		share := 0
		if n > 0 {
			share = n / len(r.lanes)
			if i < n%len(r.lanes) {
				share++
			}
			if share == 0 {
				continue
			}
		}
		wg.Go(func() {
			if r.test.Kind == Latency {
				errs[i] = l.rounds(ctx, res, share, until)
			} else {
				errs[i] = l.blast(ctx, share, until)
			}
			if errs[i] != nil {
				r.stop.Store(true)
			}
		})
	}
	wg.Wait()
	stopSampler()
	err := errors.Join(errs...)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

var errStalled = errors.New("the peer did not come to the end of the test")

// sampleEvery is the interval of Result.Peak.
const sampleEvery = 100 * time.Millisecond

// sample finds the peak and reports progress until the returned function is
// called.
func (r *run) sample(res *Result) (stop func()) {
	if res == nil {
		return func() {}
	}
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		start, last := time.Now(), time.Now()
		first := r.completed()
		before := first
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			now, n := time.Now(), r.completed()
			rate := float64((n-before)*uint64(r.test.Size)) / now.Sub(last).Seconds()
			res.Peak = max(res.Peak, rate)
			last, before = now, n
			if r.client.Progress != nil {
				r.client.Progress(Progress{Elapsed: now.Sub(start), Messages: n - first})
			}
		}
	}()
	return func() { close(quit); <-gone }
}

func (r *run) completed() (n uint64) {
	for _, l := range r.lanes {
		n += l.done.Load()
	}
	return n
}

// finish tells the server what was sent and takes its part of the result.
func (r *run) finish(ctx context.Context, res *Result) error {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	stop := message{typ: msgStop}
	for _, l := range r.lanes {
		stop.counts = append(stop.counts, l.sent)
		if res.Wrong == 0 {
			res.WrongAt = l.wrongAt
		}
		res.Wrong += l.wrong
	}
	m, err := r.ctl.ask(ctx, stop, msgResult)
	if err != nil {
		return err
	}
	if res.Wrong == 0 && m.text != "" {
		res.WrongAt = fmt.Sprintf("%q", m.text)
	}
	res.Wrong += m.wrong
	res.PeerCPU = time.Duration(m.cpu)
	return nil
}
