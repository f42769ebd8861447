package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// small is an easy path that takes little memory.
var small = rdmacm.Easy{Messages: 1, Size: 64}

// dialCrowd dials n times at once and returns how long the last one took. Each
// connection must be answered with its own number.
func dialCrowd(ctx context.Context, d *verbs.Device, to string, n int) (slowest time.Duration, err error) {
	var (
		mu   sync.Mutex
		errs []error
		work sync.WaitGroup
	)
	start := time.Now()
	for i := range n {
		work.Go(func() {
			err := dialOne(ctx, d, to, strconv.Itoa(i))
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			}
			slowest = max(slowest, took)
		})
	}
	work.Wait()
	if len(errs) > 0 {
		return slowest, fmt.Errorf("%d of %d failed, the first: %w", len(errs), n, errs[0])
	}
	return slowest, nil
}

func dialOne(ctx context.Context, d *verbs.Device, to, name string) error {
	c, err := (&rdmacm.Dialer{Device: d, Easy: small, PrivateData: []byte(name)}).Dial(ctx, to)
	if err != nil {
		return err
	}
	if got := string(c.PrivateData()); got != name {
		err = fmt.Errorf("dial %s got the answer for %s", name, got)
	}
	return errors.Join(err, c.Close())
}

// acceptShort answers a dialOne and closes when it does.
func acceptShort(ctx context.Context, req *rdmacm.Request) {
	c, err := req.Accept(ctx, rdmacm.AcceptConfig{Easy: small, PrivateData: req.PrivateData()})
	if err != nil {
		return // the dialer tells
	}
	<-c.Done()
	_ = c.Close()
}

// acceptCrowd listens with a backlog of one and takes n connections.
func acceptCrowd(ctx context.Context, d *verbs.Device, at netip.AddrPort, n int, listening func(netip.AddrPort) error) error {
	lis, err := (&rdmacm.ListenConfig{Device: d, Backlog: 1}).Listen(ctx, at.String())
	if err != nil {
		return err
	}
	defer lis.Close()
	var work sync.WaitGroup
	work.Go(func() {
		for range n {
			req, err := lis.Accept(ctx)
			if err != nil {
				return // the dialers tell
			}
			work.Go(func() { acceptShort(ctx, req) })
		}
	})
	err = listening(lis.Addr())
	if err != nil {
		_ = lis.Close()
	}
	work.Wait()
	return err
}

func crowdFigures(d *verbs.Device, n int, slowest time.Duration) string {
	s := d.Stats()
	return fmt.Sprintf("%d at once to a backlog of 1: the last after %v; %d waited behind the backlog, %d dropped",
		n, slowest.Round(time.Millisecond), s.Counter("cm.backlog_full"), s.Counter("cm.half_open_dropped"))
}

func crowdPipe(ctx context.Context, o *options) (string, error) {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{Protocol: iwarp.Protocol{ConnectTimeout: time.Minute}})
	if err != nil {
		return "", err
	}
	defer a.Close()
	defer b.Close()
	var slowest time.Duration
	err = acceptCrowd(ctx, b, netip.AddrPortFrom(iwarp.PipeAddrB, 0), o.crowd, func(at netip.AddrPort) (err error) {
		slowest, err = dialCrowd(ctx, a, at.String(), o.crowd)
		return err
	})
	return crowdFigures(b, o.crowd, slowest), err
}

func crowdNet(ctx context.Context, o *options, l *lab) (string, error) {
	d, err := l.open(iwarp.Protocol{})
	if err != nil {
		return "", err
	}
	defer d.Close()
	var slowest time.Duration
	err = acceptCrowd(ctx, d, netip.AddrPortFrom(l.us.Addr(), 0), o.crowd, func(at netip.AddrPort) error {
		p, err := l.start("-crowd", at.String(), "-n", strconv.Itoa(o.crowd))
		if err != nil {
			return err
		}
		defer p.kill()
		line, err := p.line()
		if err != nil {
			return err
		}
		ns, err := strconv.ParseInt(line, 10, 64)
		slowest = time.Duration(ns)
		return errors.Join(err, p.cmd.Wait())
	})
	return crowdFigures(d, o.crowd, slowest), err
}
