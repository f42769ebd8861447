package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/perf"
	"github.com/softrdma/softrdma/cmd/softrdma/internal/rping"
	"github.com/softrdma/softrdma/cmd/softrdma/internal/tcpbase"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

type serveFlags struct {
	addr       string
	port       uint16
	noBaseline bool
	verbose    bool
}

func (a *app) serveCommand() *cobra.Command {
	var s serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Answer ping and perf, for many clients at once",
		Long: `Answers until Ctrl-C, for many clients at once; the clients choose what is done.

  port 7174   ping: softrdma ping, or rdma-core's rping -c
  port 7175   perf: softrdma perf
  port 7176   on the kernel's TCP: the baseline of perf --baseline tcp`,
		Args: wantArgs(),
		RunE: func(c *cobra.Command, _ []string) error { return a.serve(c.Context(), &s) },
	}
	f := c.Flags()
	f.StringVar(&s.addr, "addr", "", "address of the device to listen on; all its addresses, IPv4 and IPv6, if empty")
	f.Uint16VarP(&s.port, "port", "p", rping.Port, "port for ping; perf has the next one, the baseline the one after that")
	f.BoolVar(&s.noBaseline, "no-baseline", false, "do not listen on the kernel's TCP")
	f.BoolVarP(&s.verbose, "verbose", "v", false, "print what clients ping")
	return c
}

func (a *app) serve(ctx context.Context, s *serveFlags) (err error) {
	if s.port < 1 || s.port > 65533 {
		return usagef("take 1 to 65533", "--port: %d leaves no room for the next two", s.port)
	}
	if s.addr != "" {
		if _, err := netip.ParseAddr(s.addr); err != nil {
			return usagef("give one of the --ip addresses, without the prefix length", "--addr: %w", err)
		}
	}
	dev, closeDevice, err := a.openDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	v := server{app: a, dev: dev, flags: s, ended: make(chan error, 3)}
	fatal := make(chan error, 1)
	go v.watch(ctx, fatal, cancel)
	err = v.start(ctx)
	if err != nil {
		cancel(nil)
	}
	// One that fails ends the others.
	for range v.running {
		if e := <-v.ended; e != nil {
			err = errors.Join(err, e)
			cancel(e)
		}
	}
	select {
	case e := <-fatal:
		err = failed(e, "bring the interface back and start again")
	default:
	}
	return err
}

// watch ends everything when the device dies.
func (v *server) watch(ctx context.Context, fatal chan<- error, cancel context.CancelCauseFunc) {
	for ev, err := range v.dev.Events(ctx) {
		if err == nil && ev.Type == verbs.EventDeviceFatal {
			fatal <- ev.Err
			cancel(ev.Err)
			return
		}
	}
}

// server is a running serve command.
type server struct {
	*app
	dev     *verbs.Device
	flags   *serveFlags
	running int
	ended   chan error
}

// start starts the three servers; those that did not start are not counted in
// running.
func (v *server) start(ctx context.Context) error {
	ping := rping.Server{Device: v.dev, OnStart: v.pingStart, OnEnd: v.pingEnd}
	if v.flags.verbose {
		ping.OnPing = v.pinged
	}
	tests := perf.Server{Device: v.dev, OnTest: v.tested}
	for i, s := range []struct {
		name  string
		serve func(context.Context, *rdmacm.Listener) error
	}{{"ping", ping.Serve}, {"perf", tests.Serve}} {
		lc := rdmacm.ListenConfig{Device: v.dev}
		l, err := lc.Listen(ctx, net.JoinHostPort(v.flags.addr, strconv.Itoa(int(v.flags.port)+i)))
		if err != nil {
			return err
		}
		fmt.Fprintf(v.stderr, "%s: listening on %v\n", s.name, l.Addr())
		v.running++
		go func() { v.ended <- errors.Join(s.serve(ctx, l), l.Close()) }()
	}
	if v.flags.noBaseline {
		return nil
	}
	addr := ":" + strconv.Itoa(int(v.flags.port)+2)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Fprintf(v.stderr, "baseline: not available: %v\n", err)
		return nil
	}
	fmt.Fprintf(v.stderr, "baseline: listening on the kernel's TCP, %v\n", l.Addr())
	v.running++
	base := tcpbase.Server{Begin: v.cpus.widen}
	go func() { v.ended <- base.Serve(ctx, l) }()
	return nil
}

func (v *server) pingStart(peer netip.AddrPort) {
	fmt.Fprintf(v.stderr, "ping: %v has connected\n", peer)
}

func (v *server) pingEnd(e rping.End) {
	if e.Err != nil {
		fmt.Fprintf(v.stderr, "ping: %v ended after %d pings: %v\n", e.Peer, e.Pings, e.Err)
		return
	}
	fmt.Fprintf(v.stderr, "ping: %v is through after %d pings\n", e.Peer, e.Pings)
}

// pinged prints a client's text, which may hold anything, quoted.
func (v *server) pinged(p rping.Ping) {
	fmt.Fprintf(v.stdout, "server ping data: %q\n", p.Text[:max(0, len(p.Text)-1)])
}

func (v *server) tested(r perf.Report) {
	switch {
	case r.Err != nil:
		fmt.Fprintf(v.stderr, "perf: %v: %v: %v\n", r.Peer, &r.Test, r.Err)
	case r.Wrong > 0:
		fmt.Fprintf(v.stderr, "perf: %v: %v: %d messages, %d octets WRONG\n", r.Peer, &r.Test, r.Messages, r.Wrong)
	default:
		fmt.Fprintf(v.stderr, "perf: %v: %v: %d messages\n", r.Peer, &r.Test, r.Messages)
	}
}
