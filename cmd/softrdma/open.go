package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/softrdma/softrdma/internal/capture"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// deviceFlags say which device to open. Every command has them; what the
// command line leaves out comes from the environment.
type deviceFlags struct {
	backend string
	xdpMode string
	dev     string
	ips     []string
	gws     []string
	mtu     int
	silence time.Duration
	threads string
	once    bool
	proto   protocolFlags
	capture string
	stats   string
	debug   bool
	set     *pflag.FlagSet
}

func (f *deviceFlags) register(set *pflag.FlagSet) {
	set.StringVar(&f.backend, "backend", "auto", "auto, packet, xdp or kernel (SOFTRDMA_BACKEND)")
	set.StringVar(&f.xdpMode, "xdp-mode", "auto", "where the xdp backend's program runs: native, in the driver; generic; auto: native where the driver can (SOFTRDMA_XDP_MODE)")
	set.StringVar(&f.dev, "dev", "", "network interface (SOFTRDMA_DEV)")
	set.StringArrayVar(&f.ips, "ip", nil, "address of our own with its prefix length, which the host must not have; repeatable (SOFTRDMA_IP)")
	set.StringSliceVar(&f.gws, "gw", nil, "next hop for addresses off the link, one for IPv4 and one for IPv6; repeatable (SOFTRDMA_GW)")
	set.IntVar(&f.mtu, "mtu", 0, "octets of an IP packet; the interface's if 0 (SOFTRDMA_MTU)")
	set.DurationVar(&f.silence, "keepalive", 0, "how long a silent peer is trusted to be there; 60s if 0, for ever if below")
	set.BoolVar(&f.once, "one-copy", false, "let the packet backend receive large packets with one copy less, past the ring it shares with the kernel")
	set.StringVar(&f.threads, "threads", "adaptive", "who does the work: c1: one goroutine of the device; c2: the application's; c3: the device's receives, the application's sends; "+
		"adaptive: c2 while the application polls, the device's while it does not; each side has its own (SOFTRDMA_THREADS)")
	f.proto.register(set)
	set.StringVar(&f.capture, "capture", "", "write our frames to this pcapng file")
	set.StringVar(&f.stats, "stats", "", "write the device's counters to this JSON file at the end")
	set.BoolVar(&f.debug, "debug", false, "log the life of connections to stderr")
	f.set = set
}

// config fills in the environment and checks everything.
func (f *deviceFlags) config(env func(string) string) (iwarp.Config, error) {
	var c iwarp.Config
	given := func(name, variable, value string) (string, string) {
		if v := env(variable); v != "" && !f.set.Changed(name) {
			return v, variable
		}
		return value, "--" + name
	}
	backend, from := given("backend", "SOFTRDMA_BACKEND", f.backend)
	if backend == "pipe" {
		return c, usagef("`softrdma demo` runs on it; take auto, packet, xdp or kernel here",
			"%s: a pipe joins two devices of one process", from)
	}
	var err error
	if c.Backend, err = iwarp.ParseBackend(backend); err != nil {
		return c, usagef("`softrdma --help` lists the flags", "%s: %w", from, err)
	}
	mode, from := given("xdp-mode", "SOFTRDMA_XDP_MODE", f.xdpMode)
	if c.XDPMode, err = parseXDPMode(mode); err != nil {
		return c, usagef("take auto, native or generic", "%s: %w", from, err)
	}
	c.Interface, _ = given("dev", "SOFTRDMA_DEV", f.dev)
	if c.Addrs, err = f.addrs(env, c.Backend); err != nil {
		return c, err
	}
	if c.Gateways, err = f.gateways(given("gw", "SOFTRDMA_GW", strings.Join(f.gws, ","))); err != nil {
		return c, err
	}
	mtu, from := given("mtu", "SOFTRDMA_MTU", strconv.Itoa(f.mtu))
	if c.MTU, err = strconv.Atoi(mtu); err != nil || c.MTU < 0 {
		return c, usagef("leave it out for the interface's", "%s: %q is not a number of octets", from, mtu)
	}
	c.OneCopy = f.once
	threads, from := given("threads", "SOFTRDMA_THREADS", f.threads)
	if c.Threads, err = iwarp.ParseThreads(threads); err != nil {
		return c, usagef("`softrdma --help` lists the flags", "%s: %w", from, err)
	}
	if err := f.proto.set(&c.Protocol); err != nil {
		return c, err
	}
	c.Keepalive = f.silence
	if c.Backend == iwarp.Kernel && f.capture != "" {
		return c, usagef("capture on the interface with dumpcap or tcpdump", "--capture: the kernel backend sees no frames")
	}
	return c, nil
}

func parseXDPMode(s string) (pktio.XDPMode, error) {
	for _, m := range []pktio.XDPMode{pktio.XDPAuto, pktio.XDPNative, pktio.XDPGeneric} {
		if m.String() == s {
			return m, nil
		}
	}
	return 0, fmt.Errorf("there is no mode %q of XDP", s)
}

// addrs returns the addresses of our own. Those of the environment are meant
// for our own stack: the kernel, asked for by hand, has its own.
func (f *deviceFlags) addrs(env func(string) string, b iwarp.Backend) ([]netip.Prefix, error) {
	list, from := f.ips, "--ip"
	if v := env("SOFTRDMA_IP"); v != "" && !f.set.Changed("ip") {
		if b == iwarp.Kernel {
			return nil, nil
		}
		list, from = strings.Split(v, ","), "SOFTRDMA_IP"
	}
	var addrs []netip.Prefix
	for _, s := range list {
		s = strings.TrimSpace(s)
		p, err := netip.ParsePrefix(s)
		if addr, addrErr := netip.ParseAddr(s); addrErr == nil {
			if b != iwarp.Kernel {
				return nil, usagef(fmt.Sprintf("write it as %s/24, or whatever the link's prefix length is", s),
					"%s: %s needs a prefix length", from, s)
			}
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, usagef("write it as 10.77.0.1/24", "%s: %q is not an address with a prefix length", from, s)
		}
		addrs = append(addrs, p)
	}
	return addrs, nil
}

// gateways parses a list with commas; from is where it came from.
func (f *deviceFlags) gateways(list, from string) ([]netip.Addr, error) {
	var gws []netip.Addr
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		gw, err := netip.ParseAddr(s)
		if err != nil {
			return nil, usagef("give an address such as 10.77.0.254 or fd77::fe", "%s: %w", from, err)
		}
		gws = append(gws, gw)
	}
	return gws, nil
}

// logger is where a device reports the life of its connections.
func (f *deviceFlags) logger(w io.Writer) *slog.Logger {
	if !f.debug {
		return nil
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// openDevice opens the device that flags and environment describe and says on
// stderr which backend it took. The returned function closes it and finishes
// the capture file.
func (a *app) openDevice(ctx context.Context) (*verbs.Device, func() error, error) {
	c, err := a.device.config(a.env)
	if err != nil {
		return nil, nil, err
	}
	c.Logger = a.device.logger(a.stderr)
	file, err := a.device.openCapture()
	if err != nil {
		return nil, nil, err
	}
	c.Tap = file.tap()
	dev, err := iwarp.Open(ctx, c)
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	how := iwarp.Explain(dev)
	fmt.Fprintln(a.stderr, how)
	if !strings.HasPrefix(how, iwarp.Kernel.String()) && (c.Threads == iwarp.ThreadsAdaptive || c.Threads == iwarp.ThreadsRunToCompletion) {
		a.cpus.narrow() // the others are for more threads than one
	}
	return dev, func() error {
		return errors.Join(a.device.writeStats(dev), dev.Close(), file.Close())
	}, nil
}

// writeStats leaves the counters for whoever asked for them.
func (f *deviceFlags) writeStats(dev *verbs.Device) error {
	if f.stats == "" {
		return nil
	}
	b, err := json.MarshalIndent(counters(dev), "", "  ")
	if err == nil {
		err = os.WriteFile(f.stats, append(b, '\n'), 0o644)
	}
	return failed(err, "give --stats a file that can be written")
}

// counters are those of the device by name.
func counters(dev *verbs.Device) map[string]uint64 {
	m := make(map[string]uint64)
	for _, c := range dev.Stats().Counters {
		m[c.Name] = c.Value
	}
	return m
}

// captureFile buffers a capture. A nil one does nothing.
type captureFile struct {
	f *os.File
	w *bufio.Writer
}

func (f *deviceFlags) openCapture() (*captureFile, error) {
	if f.capture == "" {
		return nil, nil
	}
	file, err := os.Create(f.capture)
	if err != nil {
		return nil, failed(err, "give a file that can be written")
	}
	return &captureFile{f: file, w: bufio.NewWriterSize(file, 1<<20)}, nil
}

// tap returns what wraps a port so that its frames go to the file.
func (c *captureFile) tap() func(pktio.Port) (pktio.Port, error) {
	if c == nil {
		return nil
	}
	return func(p pktio.Port) (pktio.Port, error) { return capture.NewTap(p, c.w) }
}

// Close writes out what is left; nothing may write any more.
func (c *captureFile) Close() error {
	if c == nil {
		return nil
	}
	return errors.Join(c.w.Flush(), c.f.Close())
}
