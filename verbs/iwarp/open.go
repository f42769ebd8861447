package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
)

// Open opens a device. The caller closes it with Device.Close.
//
// Errors name what is missing and the next step: the right (Packet needs
// CAP_NET_RAW), the interface, its state, an address that the host owns or
// another process uses (errors.Is netstack.ErrInUse), or that another host on
// the link has (errors.Is netstack.ErrConflict).
func Open(ctx context.Context, c Config) (*verbs.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	proto, err := c.Protocol.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("iwarp: %w", err)
	}
	c.Protocol = proto
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("iwarp: %w", err)
	}
	if c.SpinFor == 0 {
		c.SpinFor = DefaultSpin // below 0 means none to netstack too
	}
	if c.AddressProbe == 0 {
		c.AddressProbe = DefaultAddressProbe
	}
	c.AddressProbe = max(c.AddressProbe, 0)
	if c.DownGrace == 0 {
		c.DownGrace = DefaultDownGrace // below 0 means at once to pktio too
	}
	d, err := c.open()
	if err != nil {
		return nil, fmt.Errorf("iwarp: %w", err)
	}
	return verbs.NewDevice(d.provider()), nil
}

func (c *Config) open() (*device, error) {
	switch c.Backend {
	case Packet, XDP:
		return c.openOwn(c.Backend, "asked for")
	case Kernel:
		return c.openKernel("asked for")
	case Auto:
		return c.openAuto()
	}
	return nil, fmt.Errorf("backend %v cannot be opened by name", c.Backend)
}

// openAuto takes our own stack where an interface, an address of our own and
// the right are there, else the host's sockets.
func (c *Config) openAuto() (*device, error) {
	switch {
	case c.Interface == "" && len(c.Addrs) == 0:
		return c.openKernel("no interface and address of our own were given")
	case c.Interface == "":
		return c.openKernel("no interface was given to go with the address")
	case len(c.Addrs) == 0:
		return c.openKernel("no address of our own was given to go with the interface")
	}
	d, err := c.openOwn(Packet, "interface, address and CAP_NET_RAW are there")
	if err == nil || !errors.Is(err, os.ErrPermission) {
		return d, err
	}
	return c.openKernel("the packet backend was refused: " + err.Error())
}

// openOwn runs our own stack on the packet or XDP backend.
func (c *Config) openOwn(b Backend, why string) (d *device, err error) {
	switch {
	case c.Interface == "":
		return nil, fmt.Errorf("backend %v needs a network interface: set Config.Interface (--dev)", b)
	case len(c.Addrs) == 0:
		return nil, fmt.Errorf("backend %v needs an address of its own: set Config.Addrs (--ip), one that the host does not have", b)
	}
	var undo []func() error
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				_ = undo[i]() // the first error is the one to tell
			}
		}
	}()
	var claims []*netstack.Claim
	for _, a := range c.Addrs {
		cl, err := netstack.NewClaim(c.Interface, a.Addr())
		if err != nil {
			return nil, err
		}
		claims = append(claims, cl)
		undo = append(undo, cl.Close)
	}
	port, bufs, err := c.port(b, &why)
	if err != nil {
		return nil, err
	}
	d, err = c.openPort(port)
	if err != nil {
		return nil, err
	}
	d.claim = claims
	d.bufs = append(d.bufs, bufs...)
	d.why = fmt.Sprintf("%v: own TCP/IP stack on %s with %s (%s)", b, c.Interface, prefixes(c.Addrs), why)
	return d, nil
}

// port opens the backend's port on the interface. It adds to why what was got,
// where that is for the backend to find out.
func (c *Config) port(b Backend, why *string) (pktio.Port, []buffers, error) {
	addrs := make([]netip.Addr, 0, len(c.Addrs))
	for _, a := range c.Addrs {
		addrs = append(addrs, a.Addr())
	}
	if b == Packet {
		p, err := pktio.OpenPacket(pktio.PacketConfig{Interface: c.Interface, Addrs: addrs, DownGrace: c.DownGrace, LongQueue: c.OneCopy})
		if err != nil {
			return nil, nil, err
		}
		*why += "; " + p.Mode()
		var bufs []buffers
		for i, r := range p.Rings() {
			what := "packet receive ring, the kernel's memory"
			if i > 0 {
				what = "packet receive ring for super-frames, the kernel's memory"
			}
			bufs = append(bufs, pinnedBuffers(what, r.Frames, r.Slot, r.Octets))
		}
		return p, bufs, nil
	}
	p, err := pktio.OpenXDP(pktio.XDPConfig{Interface: c.Interface, Addrs: addrs, Mode: c.XDPMode, DownGrace: c.DownGrace, SendSocket: true})
	if err != nil {
		return nil, nil, err
	}
	*why = p.Mode() + ", " + *why
	n, size, octets := p.Buffers()
	return p, []buffers{pinnedBuffers("AF_XDP frames, in both directions", n, size, octets)}, nil
}

// openPort runs our own TCP/IP stack on port, which it takes.
func (c *Config) openPort(port pktio.Port) (*device, error) {
	if c.Tap != nil {
		tapped, err := c.Tap(port)
		if err != nil {
			_ = port.Close() // the first error is the one to tell
			return nil, err
		}
		port = tapped
	}
	s, err := netstack.New(port, netstack.Config{
		Addrs: c.Addrs, Gateways: c.Gateways, MTU: c.MTU, SpinFor: c.SpinFor,
		Keepalive: netstack.KeepaliveWithin(c.Keepalive), AddressProbe: c.AddressProbe,
		Recovery: c.TCP.Recovery, Congestion: c.TCP.Congestion, MinRTO: c.TCP.MinRTO, KeepACKs: c.TCP.KeepACKs, Handoff: c.TCP.Handoff,
	})
	if err != nil {
		_ = port.Close()
		return nil, err
	}
	return c.start(s, c.Interface)
}

func (c *Config) openKernel(why string) (*device, error) {
	if c.Tap != nil {
		return nil, errors.New("backend kernel sees no frames: capture with dumpcap or tcpdump on the interface instead")
	}
	s, err := netstack.NewKernel(netstack.KernelConfig{SpinFor: c.SpinFor, Keepalive: netstack.KeepaliveWithin(c.Keepalive)})
	if err != nil {
		return nil, err
	}
	d, err := c.start(s, "kernel")
	if err != nil {
		return nil, err
	}
	d.why = fmt.Sprintf("kernel: the host's TCP sockets (%s)", why)
	return d, nil
}

func (c *Config) start(s *netstack.Stack, name string) (*device, error) {
	d, err := newDevice(s, c, name)
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return d, nil
}

// Explain tells, in one line, which backend a device runs on and why, and its
// threading model if it is not ThreadsAdaptive.
func Explain(d *verbs.Device) string { return d.Provider().Info }

func prefixes(ps []netip.Prefix) string {
	s := make([]string, len(ps))
	for i, p := range ps {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}
