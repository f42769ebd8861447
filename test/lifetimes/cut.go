package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// cuts are how long links are cut.
func (o *options) cuts() []time.Duration {
	return []time.Duration{o.cut / 60, o.cut / 6, o.cut}
}

// patient is a Protocol that outlasts the cuts.
func (o *options) patient() iwarp.Protocol {
	return iwarp.Protocol{Keepalive: max(3*o.cut, iwarp.DefaultKeepalive)}
}

// through keeps f busy while the link is cut for d, and returns how long after that
// the first work request completed.
func (f *flow) through(ctx context.Context, d time.Duration, cut func(bool) error) (first time.Duration, err error) {
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- f.run(running) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended, f.settle())
	}()
	if err := f.until(ctx, func() bool { return f.good.Load() > 200 }); err != nil {
		return 0, err
	}
	if err := cut(true); err != nil {
		return 0, err
	}
	time.Sleep(d)
	if err := cut(false); err != nil {
		return 0, err
	}
	back := time.Now()
	good := f.good.Load()
	if err := f.until(ctx, func() bool { return f.good.Load() > good }); err != nil {
		return 0, fmt.Errorf("after a cut of %v: %w", d, err)
	}
	first = time.Since(back)
	return first, f.until(ctx, func() bool { return f.good.Load() > good+200 })
}

// until waits until cond holds.
func (f *flow) until(ctx context.Context, cond func() bool) error {
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Millisecond) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case f.State() != verbs.QPSRTS:
			return fmt.Errorf("the connection ended: %w", f.Err())
		case time.Now().After(end):
			return errors.New("nothing moves")
		}
	}
	return nil
}

// allCuts runs one cut of each length at the same time, and sums up.
func (o *options) allCuts(one func(d time.Duration) (time.Duration, error)) (string, error) {
	cuts := o.cuts()
	firsts, errs := make([]time.Duration, len(cuts)), make([]error, len(cuts))
	var work sync.WaitGroup
	for i, d := range cuts {
		work.Go(func() { firsts[i], errs[i] = one(d) })
	}
	work.Wait()
	figures := make([]string, len(cuts))
	for i, d := range cuts {
		figures[i] = fmt.Sprintf("%v after a cut of %v", firsts[i].Round(time.Millisecond), d)
	}
	return "in use again " + strings.Join(figures, ", "), errors.Join(errs...)
}

func cutPipe(ctx context.Context, o *options) (string, error) {
	return o.allCuts(func(d time.Duration) (time.Duration, error) {
		f, end, done, err := pipeFlow(ctx, o.patient())
		if err != nil {
			return 0, err
		}
		defer done()
		return f.through(ctx, d, func(cut bool) error { end.Cut(cut); return nil })
	})
}

// pipeFlow makes a connection over a link in memory that can be cut.
func pipeFlow(ctx context.Context, p iwarp.Protocol) (f *flow, end *pktio.Faulty, done func(), err error) {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{Protocol: p, Faulty: func(a, _ *pktio.Faulty) { end = a }})
	if err != nil {
		return nil, nil, nil, err
	}
	done = func() { _, _ = a.Close(), b.Close() }
	ha, err := newHost(a)
	if err == nil {
		var hb *host
		if hb, err = newHost(b); err == nil {
			var lis *rdmacm.Listener
			if lis, err = (&rdmacm.ListenConfig{Device: b}).Listen(ctx, netip.AddrPortFrom(iwarp.PipeAddrB, 0).String()); err == nil {
				go func() {
					if req, err := lis.Accept(ctx); err == nil {
						hb.serve(ctx, req, true)
					}
				}()
				f, err = ha.dial(ctx, lis.Addr())
			}
		}
	}
	if err != nil {
		done()
	}
	return f, end, done, err
}

// cutNet takes the other host's interface down, or ours.
func cutNet(backend string, theirs bool) func(context.Context, *options) (string, error) {
	return func(ctx context.Context, o *options) (string, error) {
		var mu sync.Mutex // labs are made one after the other
		return o.allCuts(func(d time.Duration) (time.Duration, error) {
			mu.Lock()
			l, err := newLab(backend)
			mu.Unlock()
			if err != nil {
				return 0, err
			}
			defer l.close()
			p, err := l.start("-idle", "-keepalive", o.patient().Keepalive.String())
			if err != nil {
				return 0, err
			}
			defer p.kill()
			dev, err := l.open(o.patient())
			if err != nil {
				return 0, err
			}
			defer dev.Close()
			f, err := l.dial(ctx, dev)
			if err != nil {
				return 0, err
			}
			return f.through(ctx, d, func(cut bool) error { return l.set(!theirs, !cut) })
		})
	}
}

// dial connects to the peer.
func (l *lab) dial(ctx context.Context, dev *verbs.Device) (*flow, error) {
	h, err := newHost(dev)
	if err != nil {
		return nil, err
	}
	return h.dial(ctx, netip.AddrPortFrom(l.them.Addr(), port))
}

// foundOut cuts the link under an idle and a busy connection for good, and tells how
// long it takes until each ends.
func foundOut(ctx context.Context, idle, busy *flow, cut func() error) (string, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- busy.run(running) }()
	if err := busy.until(ctx, func() bool { return busy.good.Load() > 200 }); err != nil {
		return "", err
	}
	if err := cut(); err != nil {
		return "", err
	}
	start := time.Now()
	var after [2]time.Duration
	var watch sync.WaitGroup
	limit, cancel := context.WithTimeout(ctx, 3*iwarp.DefaultKeepalive)
	defer cancel()
	for i, f := range []*flow{idle, busy} {
		watch.Go(func() {
			select {
			case <-f.Done():
				after[i] = time.Since(start)
			case <-limit.Done():
			}
		})
	}
	watch.Wait()
	var errs []error
	for i, f := range []*flow{idle, busy} {
		name := [...]string{"idle", "busy"}[i]
		switch {
		case after[i] == 0:
			errs = append(errs, fmt.Errorf("the %s connection did not end", name))
		case !errors.Is(f.Err(), syscall.ETIMEDOUT):
			errs = append(errs, fmt.Errorf("the %s connection ended by: %w", name, f.Err()))
		}
	}
	if len(errs) > 0 {
		return "", errors.Join(errs...)
	}
	<-ended
	return fmt.Sprintf("a silent peer is found out after %v while idle, %v while busy; all work requests completed",
		after[0].Round(100*time.Millisecond), after[1].Round(100*time.Millisecond)), errors.Join(idle.settle(), busy.settle())
}

func silentPipe(ctx context.Context, _ *options) (string, error) {
	idle, end, done, err := pipeFlow(ctx, iwarp.Protocol{})
	if err != nil {
		return "", err
	}
	defer done()
	busy, end2, done2, err := pipeFlow(ctx, iwarp.Protocol{})
	if err != nil {
		return "", err
	}
	defer done2()
	return foundOut(ctx, idle, busy, func() error { end.Cut(true); end2.Cut(true); return nil })
}

func silentNet(ctx context.Context, _ *options, l *lab) (string, error) {
	p, err := l.start("-idle")
	if err != nil {
		return "", err
	}
	defer p.kill()
	dev, err := l.open(iwarp.Protocol{})
	if err != nil {
		return "", err
	}
	defer dev.Close()
	idle, err := l.dial(ctx, dev)
	if err != nil {
		return "", err
	}
	busy, err := l.dial(ctx, dev)
	if err != nil {
		return "", err
	}
	return foundOut(ctx, idle, busy, func() error { return l.set(false, false) })
}
