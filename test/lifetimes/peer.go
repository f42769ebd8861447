package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// runPeer is the other host. It listens and takes all connections until its standard
// input ends, or dials if it is told to.
//
//	-idle    connections are left alone rather than kept busy
//	-short   connections are those of a crowd
//	-dial A  dials A and keeps that connection busy
//	-crowd A dials A -n times at once, says what came of it, and ends
func runPeer(args []string) error {
	f := flag.NewFlagSet("peer", flag.ContinueOnError)
	backend := f.String("backend", "", "")
	dev := f.String("dev", "", "")
	addr := f.String("addr", "", "")
	idle := f.Bool("idle", false, "")
	short := f.Bool("short", false, "")
	dial := f.String("dial", "", "")
	many := f.String("crowd", "", "")
	n := f.Int("n", 1, "")
	keepalive := f.Duration("keepalive", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	at, err := netip.ParsePrefix(*addr)
	if err != nil {
		return err
	}
	d, err := openDevice(*backend, *dev, at, iwarp.Protocol{Keepalive: *keepalive, ConnectTimeout: time.Minute})
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	h, err := newHost(d)
	if err != nil {
		return err
	}
	listen := rdmacm.ListenConfig{Device: d}
	lis, err := listen.Listen(ctx, netip.AddrPortFrom(at.Addr(), port).String())
	if err != nil {
		return err
	}
	defer lis.Close()
	switch {
	case *many != "":
		fmt.Println("ready")
		slowest, err := dialCrowd(ctx, d, *many, *n)
		fmt.Println(slowest.Nanoseconds())
		return err
	case *dial != "":
		to, err := netip.ParseAddrPort(*dial)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		c, err := h.dial(ctx, to)
		if err != nil {
			return err
		}
		if err := c.run(ctx); err != nil {
			return err
		}
		return c.settle()
	}
	fmt.Println("ready")
	for {
		req, err := lis.Accept(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, verbs.ErrClosed):
			return nil
		case err != nil:
			return err
		case *short:
			go acceptShort(ctx, req)
		default:
			go h.serve(ctx, req, *idle)
		}
	}
}

// serve takes a connection and keeps it until it ends. What becomes of it is the other
// host's to judge: it may be cut off or killed.
func (h *host) serve(ctx context.Context, req *rdmacm.Request, idle bool) {
	f, err := h.accept(ctx, req)
	if err != nil {
		return
	}
	if idle {
		<-f.Done()
	} else {
		_ = f.run(ctx)
	}
	if err := f.settle(); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
	}
}
