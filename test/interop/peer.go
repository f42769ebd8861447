package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/test/interop/peer"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// peerOptions are the command line of our side of ucmatose and rdma_client. The flags of
// the device are named as those of softrdma.
type peerOptions struct {
	program, role      string
	addr               string // host:port to connect to or to listen on
	conns, count, size int
	held               bool
	backend, mode, ip  string
	device             iwarp.Config
	stats, capture     string
}

func parsePeer(args []string) (*peerOptions, error) {
	usage := errors.New("usage: interop peer ucmatose|rdma_client client|server FLAGS")
	if len(args) < 2 {
		return nil, usage
	}
	o := &peerOptions{program: args[0], role: args[1]}
	f := flag.NewFlagSet("interop peer", flag.ContinueOnError)
	f.StringVar(&o.addr, "addr", "", "host:port to connect to or to listen on")
	f.IntVar(&o.conns, "c", 1, "connections of ucmatose")
	f.IntVar(&o.count, "C", 10, "messages of ucmatose each way")
	f.IntVar(&o.size, "S", 100, "octets of a message of ucmatose")
	f.BoolVar(&o.held, "held", false, "expect that the server's messages stay here")
	f.StringVar(&o.backend, "backend", "auto", "auto, packet, xdp or kernel")
	f.StringVar(&o.mode, "xdp-mode", "auto", "where the XDP program runs: auto, native or generic")
	f.StringVar(&o.device.Interface, "dev", "", "network interface")
	f.StringVar(&o.ip, "ip", "", "address of our own, with prefix length")
	f.BoolVar(&o.device.NoCRC, "no-crc", false, "do not ask for the CRC")
	f.StringVar(&o.stats, "stats", "", "write the counters to this file")
	f.StringVar(&o.capture, "capture", "", "write our frames to this pcapng file")
	if err := f.Parse(args[2:]); err != nil {
		return nil, err
	}
	if o.program != "ucmatose" && o.program != "rdma_client" || o.role != "client" && o.role != "server" || f.NArg() > 0 {
		return nil, usage
	}
	var err error
	if o.device.Backend, err = iwarp.ParseBackend(o.backend); err != nil {
		return nil, err
	}
	modes := map[string]pktio.XDPMode{"auto": pktio.XDPAuto, "native": pktio.XDPNative, "generic": pktio.XDPGeneric}
	var known bool
	if o.device.XDPMode, known = modes[o.mode]; !known {
		return nil, fmt.Errorf("--xdp-mode %q is none of auto, native, generic", o.mode)
	}
	if o.ip != "" {
		p, err := netip.ParsePrefix(o.ip)
		if err != nil {
			return nil, err
		}
		o.device.Addrs = []netip.Prefix{p}
	}
	return o, nil
}

// playPeer is the command.
func playPeer(ctx context.Context, args []string, log io.Writer) (err error) {
	o, err := parsePeer(args)
	if err != nil {
		return err
	}
	if o.capture != "" {
		f, e := os.Create(o.capture)
		if e != nil {
			return e
		}
		w := bufio.NewWriterSize(f, 1<<20)
		defer func() { err = errors.Join(err, w.Flush(), f.Close()) }()
		o.device.Tap = func(p pktio.Port) (pktio.Port, error) { return capture.NewTap(p, w) }
	}
	dev, err := iwarp.Open(ctx, o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.writeStats(dev), dev.Close()) }()
	fmt.Fprintln(log, iwarp.Explain(dev))
	if err := o.play(ctx, dev, log); err != nil {
		return err
	}
	fmt.Fprintf(log, "%s %s: all done\n", o.program, o.role)
	return nil
}

// silence is how long a server that may not speak is watched.
const silence = time.Second

func (o *peerOptions) play(ctx context.Context, dev *verbs.Device, log io.Writer) (err error) {
	c := peer.Cmatose{Device: dev, Conns: o.conns, Count: o.count, Size: o.size}
	if o.role == "client" {
		if o.program == "rdma_client" {
			return peer.Greet(ctx, dev, o.addr)
		}
		return c.Connect(ctx, o.addr)
	}
	l, err := (&rdmacm.ListenConfig{Device: dev}).Listen(ctx, o.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Fprintf(log, "%s: listening on %v\n", o.program, l.Addr())
	switch {
	case o.program == "rdma_client":
		return peer.ServeGreeting(ctx, dev, l)
	case o.held:
		return c.ServeHeld(ctx, l, silence)
	}
	return c.Serve(ctx, l)
}

func (o *peerOptions) writeStats(dev *verbs.Device) error {
	if o.stats == "" {
		return nil
	}
	counters := map[string]uint64{}
	for _, c := range dev.Stats().Counters {
		counters[c.Name] = c.Value
	}
	b, err := json.MarshalIndent(counters, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.stats, append(b, '\n'), 0o644)
}
