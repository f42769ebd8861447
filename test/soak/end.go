package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// end is one of the two: a device with one end of every lane. Side 0 dials.
type end struct {
	o      *options
	side   int
	dev    *verbs.Device
	ctl    *control
	ctx    context.Context // ends with the first failure
	cancel context.CancelFunc
	stats  stats
	lanes  []*lane
	shared *poller

	stopping atomic.Bool
	ready    chan struct{} // closed when target is set
	target   string        // where the listening end listens
	dump     sync.Once

	mu       sync.Mutex // guards what follows
	failures []string
	peerGone bool // the peer's end of the control stream may close
}

// newEnd makes an end on dev. It takes conn, the stream to the other end.
func newEnd(o *options, side int, dev *verbs.Device, conn net.Conn) (*end, error) {
	e := &end{o: o, side: side, dev: dev, ready: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.stats.start, e.stats.resends = time.Now(), kernelRetransmits()
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: o.Lanes * cqDepth})
	if err != nil {
		return nil, err
	}
	e.shared = newPoller(cq, pollWait, func(err error) { e.fail(fmt.Errorf("end %s: %w", sideName(side), err)) })
	for i := range o.Lanes {
		e.lanes = append(e.lanes, newLane(e, i))
	}
	e.ctl = newControl(conn, e.got, e.lost)
	return e, nil
}

// run runs all lanes to their end. addr is where the listening end listens.
func (e *end) run(ctx context.Context, addr string) error {
	var around, lanes sync.WaitGroup
	defer around.Wait()
	aside, cancel := context.WithCancel(context.Background())
	defer cancel()
	around.Go(func() { e.events(aside) })
	around.Go(func() { e.watch(aside) })
	defer context.AfterFunc(ctx, e.stop)()

	if e.side == listening {
		l, err := (&rdmacm.ListenConfig{Device: e.dev}).Listen(e.ctx, addr)
		if err != nil {
			return err
		}
		around.Go(func() { e.calls(aside, l) })
		e.ctl.tell(message{Kind: msgReady, Text: l.Addr().String()})
	} else {
		select {
		case <-e.ready:
		case <-e.ctx.Done():
			return nil // it has failed, and says so
		}
		defer time.AfterFunc(e.o.Duration, e.stop).Stop()
	}
	for _, l := range e.lanes {
		lanes.Go(l.run)
	}
	lanes.Wait()
	return nil
}

// stop lets the rounds under way come to their end, here and there.
func (e *end) stop() {
	if !e.stopping.Swap(true) {
		e.ctl.tell(message{Kind: msgStop})
	}
}

// close closes all that is left of the end, the device included, and checks that
// nothing is.
func (e *end) close() {
	if err := e.shared.close(); err != nil {
		e.fail(err)
	}
	// While one end closes, the other one's connections may still have to say their last.
	e.ctl.tell(message{Kind: msgGone})
	for end := time.Now().Add(10 * time.Second); !e.left() && !e.failed() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if err := e.dev.Close(); err != nil {
		e.fail(err)
	}
	s := e.dev.Stats()
	for name, n := range map[string]int{
		"queue pairs": s.QPs, "completion queues": s.CQs, "memory regions": s.MRs, "protection domains": s.PDs,
		"transmit buffers": int(s.Counter("mempool.tx_out")), "objects that were dropped without Close": int(s.Leaks),
		"completions that found no room": int(s.CompletionsLost),
	} {
		if n != 0 {
			e.fail(fmt.Errorf("end %s: the device is closed and counts %d %s", sideName(e.side), n, name))
		}
	}
	e.ctl.close()
	e.cancel()
	e.lanes = nil // their memory
}

func (e *end) left() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peerGone
}

// calls hands requests to their lanes.
func (e *end) calls(ctx context.Context, l *rdmacm.Listener) {
	for r := range l.All(ctx) {
		if r == nil {
			continue // the error comes again as that of an accept
		}
		b := r.PrivateData()
		if _, err := callOf(b, -1); err != nil {
			e.fail(fmt.Errorf("end %s: %w", sideName(e.side), err))
			continue
		}
		select {
		case e.lanes[int(b[4])<<8|int(b[5])].calls <- r:
		case <-ctx.Done():
		}
	}
	if err := l.Close(); err != nil {
		e.fail(err)
	}
}

// events counts what the device tells unasked.
func (e *end) events(ctx context.Context) {
	for ev, err := range e.dev.Events(ctx) {
		switch {
		case err != nil:
			return
		case ev.Type == verbs.EventDeviceFatal, ev.Type == verbs.EventCQErr:
			e.fail(fmt.Errorf("end %s: %v", sideName(e.side), ev))
		}
		e.stats.events.Add(1)
	}
}

// watch looks for lanes that make no progress.
func (e *end) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		for _, l := range e.lanes {
			what := *l.doing.Load()
			if idle := time.Since(time.Unix(0, l.last.Load())); what != "" && idle > e.o.Hang {
				e.fail(fmt.Errorf("HANG: end %s, lane %d: no progress in %.0f s while %s", sideName(e.side), l.num, idle.Seconds(), what))
				return
			}
		}
	}
}

// got takes a message of the other end.
func (e *end) got(m message) {
	switch m.Kind {
	case msgReady:
		e.target = m.Text
		close(e.ready)
	case msgStop:
		e.stopping.Store(true)
	case msgGone:
		e.mu.Lock()
		e.peerGone = true
		e.mu.Unlock()
	case msgFailed:
		e.failWith(m.Text, false)
	default:
		e.lanes[m.Lane].got(m)
	}
}

// lost is told when the stream to the other end is over.
func (e *end) lost(err error) {
	if !e.left() {
		e.failWith(fmt.Sprintf("end %s: the other end is gone: %v", sideName(e.side), err), false)
	}
}

// fail reports what must not be, and ends the run.
func (e *end) fail(err error) { e.failWith(err.Error(), true) }

func (e *end) failWith(text string, own bool) {
	const most = 20
	e.mu.Lock()
	if len(e.failures) < most && !slices.Contains(e.failures, text) {
		e.failures = append(e.failures, text)
	} else {
		own = false
	}
	e.mu.Unlock()
	if own {
		e.ctl.tell(message{Kind: msgFailed, Text: text})
	}
	e.dump.Do(func() { e.writeDump(text) }) // before things end
	e.cancel()
	for _, l := range e.lanes {
		go l.wake() // the caller may hold any lock
	}
}

func (e *end) failed() bool {
	return e.ctx.Err() != nil
}

// verdict returns what has failed.
func (e *end) verdict() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.failures...)
}
