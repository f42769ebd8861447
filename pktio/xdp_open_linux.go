package pktio

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	maxXDPAddrs  = 16
	minXDPFrames = 64      // more than the longest frame takes, twice
	maxXDPFrames = 1 << 16 // 256 MiB
	// The defaults. That of receive is for all queues together, from many down to few each.
	defaultXDPTxFrames  = 2048
	defaultXDPRxFrames  = 4096
	defaultXDPRxAll     = 32768
	defaultXDPRxAtLeast = 512
)

// OpenXDP opens a port on c.Interface. It needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, in the first user namespace,
// and may lock as much memory as c asks for, which CAP_IPC_LOCK allows without limit. Some cards lose their carrier for
// a second or two when a native program comes or goes.
//
// Errors match os.ErrPermission without those rights, syscall.ENOBUFS where the limit of locked memory is too low,
// syscall.ENODEV if there is no such interface, syscall.ENETDOWN if it is down, and syscall.EBUSY or syscall.EEXIST if
// another XDP program or AF_XDP socket is there.
func OpenXDP(c XDPConfig) (*XDP, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	p := &XDP{dev: iface{grace: c.DownGrace}, groups: -1, news: -1, released: make(chan struct{})}
	if err := p.setup(&c); err != nil {
		p.undo()
		return nil, err
	}
	return p, nil
}

func (c *XDPConfig) setDefaults() error {
	if c.Interface == "" {
		return fmt.Errorf("pktio: no interface named: set XDPConfig.Interface: %w", unix.EINVAL)
	}
	var addrs []netip.Addr // the caller keeps his
	for _, a := range c.Addrs {
		a = a.Unmap().WithZone("")
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
			return fmt.Errorf("pktio: %v is no address that a host can have: correct XDPConfig.Addrs: %w", a, unix.EINVAL)
		}
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	c.Addrs = addrs
	if c.TxFrames == 0 {
		c.TxFrames = defaultXDPTxFrames
	}
	if c.DownGrace == 0 {
		c.DownGrace = defaultDownGrace
	}
	switch {
	case len(addrs) == 0:
		return fmt.Errorf("pktio: an AF_XDP port receives frames to addresses it is told, and it was told none: set XDPConfig.Addrs: %w", unix.EINVAL)
	case len(addrs) > maxXDPAddrs:
		return fmt.Errorf("pktio: an AF_XDP port has %d addresses at most, not %d: use fewer, or the packet backend: %w", maxXDPAddrs, len(addrs), unix.EINVAL)
	case c.Mode > XDPGeneric:
		return fmt.Errorf("pktio: there is no %v: take XDPAuto, XDPNative or XDPGeneric: %w", c.Mode, unix.EINVAL)
	case c.RxFrames < 0 || c.RxFrames > maxXDPFrames || c.TxFrames < 0 || c.TxFrames > maxXDPFrames:
		return fmt.Errorf("pktio: a queue has at most %d buffers each way, not %d and %d: %w", maxXDPFrames, c.RxFrames, c.TxFrames, unix.EINVAL)
	}
	return nil
}

// sizes returns how many buffers queue id of n has.
func (c *XDPConfig) sizes(id, n int) (s xdpSizes) {
	s.rx = c.RxFrames
	if s.rx == 0 {
		s.rx = min(defaultXDPRxFrames, max(defaultXDPRxAll/n, defaultXDPRxAtLeast))
	}
	s.rx = powerOfTwo(s.rx)
	if id == 0 {
		s.tx = powerOfTwo(c.TxFrames)
	}
	return s
}

// powerOfTwo rounds n up to a power of two, no less than minXDPFrames.
func powerOfTwo(n int) int {
	p := minXDPFrames
	for p < n {
		p *= 2
	}
	return p
}

func (p *XDP) setup(c *XDPConfig) (err error) {
	if p.news, err = openNews(); err != nil { // before the first look, so that no change is missed
		return err
	}
	if err := p.findLink(c); err != nil {
		return err
	}
	d := lookXDPDevice(p.news, &p.dev)
	p.rx.trusted = d.virtual()
	pieces, err := p.wantPieces(d)
	if err != nil {
		return err
	}
	mode, err := p.attachProgram(c, d, pieces)
	if err != nil {
		return err
	}
	if err := p.openQueues(c, d, mode, pieces); err != nil {
		return err
	}
	// The kernel finishes checksums in copy mode, and leaves them to a device that can; there, the stack above saves
	// the work. Of a device that takes the buffers itself we do not know. And where a frame may get to a port on this
	// host unfinished, that port must know of it: not so on a bridge or a macvlan.
	p.link.Checksum = p.queues[0].meta && !p.zero && d.checksum && (d.virtual() || d.hardware) && !c.NoOffload
	if c.SendSocket && p.link.Checksum && d.driver == "veth" {
		p.openSocket()
	}
	copies, plural := "copy", "s"
	if p.zero {
		copies = "zero-copy"
	}
	if len(p.queues) == 1 {
		plural = ""
	}
	p.mode = fmt.Sprintf("%v, %s, %d queue%s", mode, copies, len(p.queues), plural)
	return p.openPoller()
}

// findLink fills in p.link and p.dev, and makes the interface let through the groups by which others find our IPv6
// addresses. The kernel, which does not have these addresses, has not joined them, and a card drops what nobody joined.
func (p *XDP) findLink(c *XDPConfig) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return xdpError(c.Interface, "making a packet socket", err)
	}
	p.groups = fd
	if p.link, err = p.dev.find(fd, c.Interface); err != nil {
		return err
	}
	for _, addr := range c.Addrs {
		if addr.Is4() {
			continue // by broadcast
		}
		b := addr.As16()
		for _, group := range [][6]byte{
			{0x33, 0x33, 0xff, b[13], b[14], b[15]}, // solicited-node, RFC 4291, Section 2.7.1
			{0x33, 0x33, 0, 0, 0, 1},                // all nodes: who has the address already answers there
		} {
			m := unix.PacketMreq{Ifindex: int32(p.dev.index), Type: unix.PACKET_MR_MULTICAST, Alen: uint16(len(group))}
			copy(m.Address[:], group[:])
			if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
				return fmt.Errorf("pktio: interface %s does not join the groups of %v: %w", c.Interface, addr, err)
			}
		}
	}
	return nil
}

// wantPieces tells whether frames may come in several pieces: where one does not fit a buffer, and where a peer on the
// same host sends super-frames. Elsewhere not, because it may be the price of zero-copy.
func (p *XDP) wantPieces(d xdpDevice) (bool, error) {
	can, err := canPieces(p.dev.name)
	if err != nil {
		return false, err
	}
	fits := p.link.MaxFrame <= xdpPlain
	if !fits && !can {
		return false, fmt.Errorf("pktio: interface %s has an MTU of %d, and AF_XDP takes more than %d from Linux 6.6 on: lower it with \"ip link set %[1]s mtu 1500\", or use the packet backend: %[4]w",
			p.dev.name, p.link.MTU, xdpPlain-EthernetHeader, unix.EOPNOTSUPP)
	}
	return can && (!fits || d.virtual()), nil
}

// canPieces tells whether the kernel knows of frames in several pieces. Without an interface it binds no socket, but it
// looks at the flags first.
func canPieces(name string) (bool, error) {
	fd, err := xdpSocket(name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	return !errors.Is(unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_USE_SG}), unix.EINVAL), nil
}

// attachProgram makes the program and puts it on the interface, and returns in which mode.
func (p *XDP) attachProgram(c *XDPConfig, d xdpDevice, pieces bool) (XDPMode, error) {
	var err error
	p.xsks, err = ebpf.NewMap(&ebpf.MapSpec{Name: "softrdma_xsks", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(d.queues)})
	if err != nil {
		return 0, xdpError(c.Interface, "making the map of AF_XDP sockets", err)
	}
	spec := &ebpf.ProgramSpec{
		Name: "softrdma_steer", Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: xdpProgram(c.Addrs, p.link.Addr, p.xsks.FD()),
	}
	if pieces {
		spec.Flags = unix.BPF_F_XDP_HAS_FRAGS // it looks at the first one alone
	}
	if p.prog, err = ebpf.NewProgram(spec); err != nil {
		return 0, xdpError(c.Interface, "loading the XDP program", err)
	}
	if c.Mode != XDPGeneric {
		err := p.attachAs(link.XDPDriverMode)
		if err == nil {
			return XDPNative, nil
		}
		if c.Mode == XDPNative || !notNative(err) {
			return 0, p.attachError(XDPNative, d, err)
		}
	}
	if err := p.attachAs(link.XDPGenericMode); err != nil {
		return 0, p.attachError(XDPGeneric, d, err)
	}
	return XDPGeneric, nil
}

func (p *XDP) attachAs(flags link.XDPAttachFlags) (err error) {
	p.attach, err = link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: p.dev.index, Flags: flags})
	return err
}

// notNative tells whether an error comes from a driver that takes no program, or none as things are, so that generic
// mode is worth a try: it is not where somebody else's program is in the way, or a right or a descriptor is missing.
func notNative(err error) bool {
	for _, e := range []error{unix.EBUSY, unix.EEXIST, unix.EPERM, unix.EACCES, unix.ENODEV, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return false
		}
	}
	return true
}

func (p *XDP) attachError(mode XDPMode, d xdpDevice, err error) error {
	name := p.dev.name
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		var errno unix.Errno
		errors.As(err, &errno)
		return fmt.Errorf("pktio: interface %s has an XDP program already: \"bpftool net\" shows it; end the program that it belongs to, take it off with \"ip link set %[1]s xdp off\", or use the packet backend: %w", name, errno)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("pktio: this kernel has no links for XDP programs, which came with Linux 5.9: use the packet backend: %w", err)
	case mode == XDPNative && notNative(err):
		var errno unix.Errno
		if errors.As(err, &errno) {
			err = errno
		}
		lower := ""
		if p.link.MTU > 1500 {
			lower = fmt.Sprintf(", or lower the MTU, which is %d", p.link.MTU)
		}
		return fmt.Errorf("pktio: the driver of interface %s (%s) takes no XDP program: set XDPConfig.Mode to XDPGeneric or XDPAuto%s: %w", name, d.driver, lower, err)
	}
	return xdpError(name, "attaching the XDP program", err)
}

// openQueues makes a socket for each receive queue and binds it.
func (p *XDP) openQueues(c *XDPConfig, d xdpDevice, mode XDPMode, pieces bool) error {
	var flags uint16
	if mode == XDPGeneric {
		flags = unix.XDP_COPY // the driver must not take the buffers: the frames would miss the program
	}
	if pieces {
		flags |= unix.XDP_USE_SG
	}
	for id := range d.queues {
		q, err := newXDPQueue(p.dev.name, c.sizes(id, d.queues))
		if err != nil {
			return err
		}
		p.queues = append(p.queues, q)
		err = q.bind(p.dev.index, id, flags)
		if errors.Is(err, unix.EINVAL) && id > 0 {
			q.close()
			q.unmap()
			p.queues = p.queues[:id]
			break // the device was made for more queues than it has
		}
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("pktio: queue %d of interface %s has an AF_XDP socket already: end the program that it belongs to, or use the packet backend: %w", id, p.dev.name, err)
		} else if err != nil {
			return xdpError(p.dev.name, fmt.Sprintf("binding an AF_XDP socket to queue %d", id), err)
		}
		if err := p.xsks.Put(uint32(id), uint32(q.fd)); err != nil {
			return xdpError(p.dev.name, fmt.Sprintf("giving queue %d to its AF_XDP socket", id), err)
		}
		p.zero = p.zero || q.zeroCopy()
	}
	return nil
}

// undo gives back what setup has got, however far it came.
func (p *XDP) undo() {
	if p.attach != nil {
		_ = p.attach.Close()
	}
	if p.file != nil {
		_ = p.file.Close()
	}
	for _, q := range p.queues {
		q.close()
	}
	p.unmapAll()
	if p.prog != nil {
		_ = p.prog.Close()
	}
	if p.xsks != nil {
		_ = p.xsks.Close()
	}
	for _, fd := range []int{p.groups, p.news} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
