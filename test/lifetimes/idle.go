package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// idlePipe leaves many connections alone for a while, and tells what that costs. Peers
// are asked for a sign of life each sixth of the time in which a silent one is found
// out, which unless asked for is no shorter than a busy machine may keep a peer from answering.
func idlePipe(ctx context.Context, o *options) (string, error) {
	keepalive := o.keepalive
	if keepalive == 0 {
		keepalive = min(max(o.idle/3, 10*time.Second), iwarp.DefaultKeepalive)
	}
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{Protocol: iwarp.Protocol{Keepalive: keepalive}})
	if err != nil {
		return "", err
	}
	defer a.Close()
	defer b.Close()
	ha, err := newHost(a)
	if err != nil {
		return "", err
	}
	hb, err := newHost(b)
	if err != nil {
		return "", err
	}
	conns, err := connectMany(ctx, ha, hb, netip.AddrPortFrom(iwarp.PipeAddrB, 0).String(), o.conns)
	if err != nil {
		return "", err
	}
	before, frames := cpu(), framesOf(a, b)
	select {
	case <-time.After(o.idle):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	used := cpu() - before
	asked := framesOf(a, b) - frames
	ended := 0
	for _, c := range conns {
		if c.State() != verbs.QPSRTS {
			ended++
		}
	}
	for _, c := range conns {
		err = errors.Join(err, c.QP.Close())
	}
	if ended > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d connections ended while idle", ended/2, o.conns))
	}
	return fmt.Sprintf("%d connections idle for %v, silent peers found out after %v: none ended; %.2f %% of a processor, %.0f frames a second, for both hosts",
		o.conns, o.idle, keepalive, 100*used.Seconds()/o.idle.Seconds(), float64(asked)/o.idle.Seconds()), err
}

// connectMany makes n connections that share memory and completion queue.
func connectMany(ctx context.Context, a, b *host, at string, n int) (conns []*rdmacm.Conn, err error) {
	lis, err := (&rdmacm.ListenConfig{Device: b.dev}).Listen(ctx, at)
	if err != nil {
		return nil, err
	}
	defer lis.Close()
	config := func(h *host) (verbs.QPConfig, error) {
		cq, err := h.dev.CreateCQ(verbs.CQConfig{Depth: 64 * n})
		return verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}, err
	}
	qa, err := config(a)
	if err != nil {
		return nil, err
	}
	qb, err := config(b)
	if err != nil {
		return nil, err
	}
	accepted := make(chan error, 1)
	go func() {
		for range n {
			req, err := lis.Accept(ctx)
			if err == nil {
				var c *rdmacm.Conn
				c, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: b.pd, QP: qb})
				conns = append(conns, c)
			}
			if err != nil {
				accepted <- err
				return
			}
		}
		accepted <- nil
	}()
	var dialed []*rdmacm.Conn
	for range n {
		c, err := (&rdmacm.Dialer{Device: a.dev, PD: a.pd, QP: qa}).Dial(ctx, lis.Addr().String())
		if err != nil {
			return nil, err
		}
		dialed = append(dialed, c)
	}
	if err := <-accepted; err != nil {
		return nil, err
	}
	return append(dialed, conns...), nil
}

// cpu is the processor time this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func framesOf(devs ...*verbs.Device) (n uint64) {
	for _, d := range devs {
		s := d.Stats()
		n += s.Counter("link.frames_out")
	}
	return n
}
