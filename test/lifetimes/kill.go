package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// victim is a connection to a peer that is killed.
type victim struct {
	*flow
	ended  chan error    // why it ended
	killed time.Time     // when the peer was
	after  time.Duration // how much later it ended
}

// kill kills a busy peer and starts it anew, with the same address and port, again and
// again; in turn it is the peer that listens and we who do. Each time the connection
// of old must end with all its work requests completed, and a new one be there at once.
func kill(ctx context.Context, o *options, l *lab) (string, error) {
	dev, err := l.open(iwarp.Protocol{ConnectTimeout: time.Minute})
	if err != nil {
		return "", err
	}
	defer dev.Close()
	h, err := newHost(dev)
	if err != nil {
		return "", err
	}
	lis, err := (&rdmacm.ListenConfig{Device: dev}).Listen(ctx, netip.AddrPortFrom(l.us.Addr(), port).String())
	if err != nil {
		return "", err
	}
	defer lis.Close()

	var connects, ends, endsAfterReady []time.Duration
	var last *victim
	for i := range o.kills {
		v, p, took, err := l.victim(ctx, h, lis, i)
		if err != nil {
			return "", fmt.Errorf("peer %d: %w", i, err)
		}
		connects = append(connects, took)
		if last != nil {
			back := time.Now()
			if err := last.over(ctx); err != nil {
				p.kill()
				return "", fmt.Errorf("connection to peer %d: %w", i-1, err)
			}
			ends = append(ends, last.after)
			endsAfterReady = append(endsAfterReady, time.Since(back))
		}
		if err := v.until(ctx, func() bool { return v.good.Load() > 100 }); err != nil {
			p.kill()
			return "", fmt.Errorf("traffic with peer %d: %w", i, err)
		}
		v.killed = time.Now()
		p.kill()
		last = v
	}
	// The last one is not followed by a peer that could tell: it ends as silent.
	if err := errors.Join(last.Modify(ctx, verbs.QPSErr), last.over(ctx)); err != nil {
		return "", err
	}
	if s := dev.Stats(); s.QPs+s.CQs+s.MRs > 0 {
		return "", fmt.Errorf("objects are left: %d queue pairs, %d completion queues, %d regions", s.QPs, s.CQs, s.MRs)
	}
	return fmt.Sprintf("%d busy peers killed and started anew: connected %s after they were ready; connections of old ended %s after the kill, %s after the next connection; all work requests completed",
		o.kills, spread(connects), spread(ends), spread(endsAfterReady)), nil
}

// victim starts a peer and makes a busy connection with it. took is how long the
// connection took once the peer was ready.
func (l *lab) victim(ctx context.Context, h *host, lis *rdmacm.Listener, i int) (v *victim, p *peer, took time.Duration, err error) {
	args := []string{}
	if i%2 == 1 {
		args = []string{"-dial", lis.Addr().String()}
	}
	if p, err = l.start(args...); err != nil {
		return nil, nil, 0, err
	}
	v = &victim{ended: make(chan error, 1)}
	ready := time.Now()
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if i%2 == 1 {
		var req *rdmacm.Request
		if req, err = lis.Accept(limit); err == nil {
			v.flow, err = h.accept(limit, req)
		}
	} else {
		v.flow, err = h.dial(limit, netip.AddrPortFrom(l.them.Addr(), port))
	}
	if err != nil {
		p.kill()
		return nil, nil, 0, err
	}
	took = time.Since(ready)
	go func() {
		v.ended <- v.run(ctx)
		v.after = time.Since(v.killed)
		close(v.ended)
	}()
	return v, p, took, nil
}

// over waits until the connection has ended, and takes its account.
func (v *victim) over(ctx context.Context) error {
	select {
	case <-v.Done():
	case <-time.After(30 * time.Second):
		return errors.New("it did not end within 30 s of the next peer's start")
	case <-ctx.Done():
		return ctx.Err()
	}
	for range v.ended {
	}
	return v.settle()
}

// spread shows median and maximum.
func spread(d []time.Duration) string {
	if len(d) == 0 {
		return "-"
	}
	slices.Sort(d)
	r := func(x time.Duration) time.Duration { return x.Round(100 * time.Microsecond) }
	return fmt.Sprintf("%v (at most %v)", r(d[len(d)/2]), r(d[len(d)-1]))
}
