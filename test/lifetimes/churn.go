package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// churn dials to from one address again and again, and tells how fast and what is left.
func churn(ctx context.Context, d *verbs.Device, to string, n int) (string, error) {
	start := time.Now()
	for i := range n {
		if err := dialOne(ctx, d, to, fmt.Sprint(i)); err != nil {
			return "", fmt.Errorf("connection %d after %v: %w", i, time.Since(start).Round(time.Millisecond), err)
		}
	}
	took := time.Since(start)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := d.Stats()
	if s.QPs+s.CQs+s.MRs+s.PDs > 0 {
		return "", fmt.Errorf("objects are left: %+v", s)
	}
	return fmt.Sprintf("%d connections from one address one after the other: %.0f a second, %d MiB in use after it", n, float64(n)/took.Seconds(), m.HeapAlloc>>20), nil
}

func churnPipe(ctx context.Context, o *options) (string, error) {
	a, b, err := iwarp.Pipe(iwarp.PipeConfig{})
	if err != nil {
		return "", err
	}
	defer a.Close()
	defer b.Close()
	lis, err := (&rdmacm.ListenConfig{Device: b}).Listen(ctx, netip.AddrPortFrom(iwarp.PipeAddrB, 0).String())
	if err != nil {
		return "", err
	}
	defer lis.Close()
	go func() {
		for req, err := range lis.All(ctx) {
			if err != nil {
				return
			}
			go acceptShort(ctx, req)
		}
	}()
	return churn(ctx, a, lis.Addr().String(), o.churn)
}

func churnNet(ctx context.Context, o *options, l *lab) (string, error) {
	p, err := l.start("-short")
	if err != nil {
		return "", err
	}
	defer p.kill()
	d, err := l.open(iwarp.Protocol{})
	if err != nil {
		return "", err
	}
	defer d.Close()
	return churn(ctx, d, netip.AddrPortFrom(l.them.Addr(), port).String(), o.churn)
}

// portsRunOut has few local ports: the error says so and what to do.
func portsRunOut(ctx context.Context, _ *options, l *lab) (string, error) {
	const ports = "/proc/sys/net/ipv4/ip_local_port_range"
	before, err := os.ReadFile(ports)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(ports, []byte("40000 40007"), 0); err != nil {
		return "", err
	}
	defer func() { _ = os.WriteFile(ports, before, 0) }()
	p, err := l.start("-short")
	if err != nil {
		return "", err
	}
	defer p.kill()
	d, err := l.open(iwarp.Protocol{})
	if err != nil {
		return "", err
	}
	defer d.Close()
	var conns []*rdmacm.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for range 9 {
		c, err := (&rdmacm.Dialer{Device: d, Easy: small}).Dial(ctx, netip.AddrPortFrom(l.them.Addr(), port).String())
		if err == nil {
			conns = append(conns, c)
			continue
		}
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "close connections") {
			return "", err
		}
		return fmt.Sprintf("with 8 ports %d connections, then: %v", len(conns), err), nil
	}
	return "", errors.New("nine connections from eight ports")
}
