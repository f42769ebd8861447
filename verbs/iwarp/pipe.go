package iwarp

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
)

// Addresses of the two devices that Pipe makes.
var (
	PipeAddrA = netip.MustParseAddr("10.77.0.1")
	PipeAddrB = netip.MustParseAddr("10.77.0.2")
)

// PipeConfig describes the link in memory that joins two devices. The zero
// value is a lossless link with an MTU of 1500 octets.
type PipeConfig struct {
	MTU   int  // octets of an IP packet; 1500 if 0
	Plain bool // no super-frames and no unfinished checksums: frames as they are on a wire, for faults that have to be a wire's
	Protocol
	Limits  Limits                               // of each device
	Threads Threads                              // of each device; ThreadsAdaptive if 0
	TCP     TCP                                  // of each device
	Faults  pktio.Faults                         // what the link does to frames of either direction; none if zero
	Faulty  func(a, b *pktio.Faulty)             // is given the two ends, to change or cut the link later
	Tap     func(pktio.Port) (pktio.Port, error) // wraps the first device's port, for example to capture; nil for none
	Logger  *slog.Logger                         // connection set-up and loss of both devices; nil for none
}

// Pipe returns two devices, PipeAddrA and PipeAddrB, joined by a link in
// memory. Each runs the whole stack, TCP/IP included, so that what works here
// works on a network; no right and no hardware is needed.
func Pipe(c PipeConfig) (a, b *verbs.Device, err error) {
	proto, err := c.Protocol.withDefaults()
	if err != nil {
		return nil, nil, err
	}
	own := Config{Protocol: proto, Limits: c.Limits, Threads: c.Threads, TCP: c.TCP, SpinFor: DefaultSpin, Logger: c.Logger}
	if err := own.check(); err != nil {
		return nil, nil, fmt.Errorf("iwarp: %w", err)
	}
	pa, pb, err := pktio.NewPipe(pktio.PipeConfig{MTU: c.MTU, GSO: !c.Plain})
	if err != nil {
		return nil, nil, err
	}
	fa, fb := pktio.NewFaulty(pa, c.Faults), pktio.NewFaulty(pb, c.Faults)
	if c.Faulty != nil {
		c.Faulty(fa, fb)
	}
	end := func(port pktio.Port, addr netip.Addr, tap func(pktio.Port) (pktio.Port, error)) (*verbs.Device, error) {
		cfg := own
		cfg.Addrs, cfg.Tap = []netip.Prefix{netip.PrefixFrom(addr, 24)}, tap
		d, err := cfg.openPort(port)
		if err != nil {
			return nil, err
		}
		d.why = "pipe: own TCP/IP stack on a link in memory"
		return verbs.NewDevice(d.provider()), nil
	}
	if a, err = end(fa, PipeAddrA, c.Tap); err != nil {
		_ = fb.Close() // the first error is the one to tell
		return nil, nil, err
	}
	if b, err = end(fb, PipeAddrB, nil); err != nil {
		_ = a.Close()
		return nil, nil, err
	}
	return a, b, nil
}
