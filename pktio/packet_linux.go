package pktio

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Packet is a port on a network interface by way of AF_PACKET sockets: TPACKET_V2 rings shared with the kernel for receive,
// one for frames up to the MTU and one for longer ones, sendmsg for transmit, and a virtio_net_hdr with each frame both
// ways, so that super-frames pass whole.
//
// It sees frames to the interface's address and to groups (all frames if Promiscuous), as the kernel does, which keeps
// handling them too, but for packets to PacketConfig.Addrs, see Mode: our stack must use an IP address that the kernel
// does not have. Recv with a wait of 0 makes no system call, but with PacketConfig.LongQueue to read a super-frame.
type Packet struct {
	link Link
	dev  iface
	sock *os.File // the socket
	raw  syscall.RawConn
	file *os.File // the epoll instance that holds it and rx.long's, in Go's poller
	wait syscall.RawConn

	state   atomic.Uint32
	unmap   sync.Once
	sending atomic.Bool
	alarm   alarm // of the receiver
	shield  shield

	rx packetRx
	tx packetTx

	rxFrames, rxOctets, rxSuper, rxTooLong, rxTagged, rxQueueFull atomic.Uint64
	txFrames, txOctets, txSuper, txNoRoom, txErrors               atomic.Uint64

	statsMu  sync.Mutex
	ringFull uint64 // guarded by statsMu: the kernel forgets what it has told
}

// OpenPacket opens a port on c.Interface. It needs CAP_NET_RAW in the user namespace that owns the network
// namespace. Errors match os.ErrPermission without that right, syscall.ENODEV if there is no such interface and
// syscall.ENETDOWN if it is down.
func OpenPacket(c PacketConfig) (*Packet, error) {
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("pktio: a packet socket on %s needs CAP_NET_RAW: run as root, give the program the right with \"setcap cap_net_raw+ep PROGRAM\", or use the kernel backend: %w", c.Interface, err)
	} else if err != nil {
		return nil, fmt.Errorf("pktio: no packet socket to be had from this kernel: use the kernel backend: %w", err)
	}
	p := &Packet{dev: iface{grace: c.DownGrace}}
	if err := p.setup(fd, &c); err != nil {
		p.closeRings()
		p.rx.long.closeSocket()
		_ = unix.Close(fd)
		return nil, err
	}
	p.sock = os.NewFile(uintptr(fd), "packet:"+c.Interface)
	// Not sooner, or Go would put the socket into its poller.
	if err = unix.SetNonblock(fd, true); err == nil {
		p.raw, err = p.sock.SyscallConn()
	}
	if err == nil {
		err = p.openPoller()
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

func (c *PacketConfig) setDefaults() error {
	if c.Interface == "" {
		return fmt.Errorf("pktio: no interface named: set PacketConfig.Interface: %w", unix.EINVAL)
	}
	if c.MaxFrame == 0 {
		c.MaxFrame = MaxSuperFrame
	}
	if c.LongFrames == 0 {
		c.LongFrames = defaultLongFrames
	}
	if c.SendBuffer == 0 {
		c.SendBuffer = defaultSendBuffer
	}
	if c.DownGrace == 0 {
		c.DownGrace = defaultDownGrace
	}
	switch {
	case c.MaxFrame < EthernetHeader+minMTU || c.MaxFrame > maxRingMaxFrame:
		return fmt.Errorf("pktio: the longest frame is from %d to %d octets, not %d: %w", EthernetHeader+minMTU, maxRingMaxFrame, c.MaxFrame, unix.EINVAL)
	case c.RingFrames != 0 && c.RingFrames < 2 || c.RingFrames > maxRingOctets/c.MaxFrame:
		return fmt.Errorf("pktio: a ring for frames of %d octets has 2 to %d of them, not %d: %w", c.MaxFrame, maxRingOctets/c.MaxFrame, c.RingFrames, unix.EINVAL)
	case c.LongFrames < 2 || c.LongFrames > maxRingOctets/MaxSuperFrame:
		return fmt.Errorf("pktio: a ring for long frames has 2 to %d of them, not %d: %w", maxRingOctets/MaxSuperFrame, c.LongFrames, unix.EINVAL)
	case c.SendBuffer < 0 || c.SendBuffer > math.MaxInt32/2:
		return fmt.Errorf("pktio: a send buffer cannot have %d octets: %w", c.SendBuffer, unix.EINVAL)
	}
	return nil
}

// setup makes fd a receiving socket. The socket has no protocol until bind, so that no frame comes in before the filter
// and the ring are in place.
func (p *Packet) setup(fd int, c *PacketConfig) error {
	if err := p.findLink(fd, c); err != nil {
		return err
	}
	if err := setPacketOptions(fd); err != nil {
		return err
	}
	// Forcing needs CAP_NET_ADMIN; without it the kernel gives what it allows everyone.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, c.SendBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, c.SendBuffer)
	}
	p.rx.try = p.tryRecv
	p.rx.look = p.lookFd
	p.tx.try = p.trySend
	frames := acceptAll
	if !c.Promiscuous {
		frames = newFilter(p.link.Addr, c.Addrs)
	}
	if err := p.openRings(fd, c, frames); err != nil {
		return err
	}
	if !c.Promiscuous {
		p.shield.raise(p.dev.index, p.link.Addr, c.Addrs)
	}
	return nil
}

// openRings makes the socket fd receive frames, and another one the long ones, if there may be such.
func (p *Packet) openRings(fd int, c *PacketConfig, frames filter) error {
	r := &p.rx
	short := min(c.MaxFrame, p.link.MTU+EthernetHeader)
	r.longest = c.MaxFrame
	if short < c.MaxFrame && c.LongQueue {
		r.queue = openQueue(fd)
	}
	apart := short < c.MaxFrame && r.queue == nil
	if c.RingFrames == 0 {
		c.RingFrames = min(max(defaultRingOctets/slotFor(short), defaultRingFrames), defaultRingMost)
	}
	if err := r.short.open(fd, short, c.RingFrames); err != nil {
		return err
	}
	only := frames
	if apart {
		// First, as the kernel asks the socket that was bound last first: short frames are those that somebody waits for.
		if err := p.openLong(c, frames.beyond(short)); err != nil {
			return err
		}
		only = frames.upTo(short)
	}
	if err := p.receive(fd, only); err != nil {
		return err
	}
	return p.join(fd, c)
}

// setPacketOptions sets what every receiving socket needs, before its ring is made.
func setPacketOptions(fd int) error {
	for _, o := range []struct {
		name  string
		opt   int
		value int
	}{
		{"PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING, 1}, // or we would receive what we send
		{"PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V2},
		{"PACKET_VNET_HDR", unix.PACKET_VNET_HDR, 1},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.opt, o.value); err != nil {
			return fmt.Errorf("pktio: this kernel does not do %s, which came with Linux 4.20 at the latest: use the kernel backend: %w", o.name, err)
		}
	}
	return nil
}

// receive has the frames that f accepts put into the ring of the socket fd from now on.
func (p *Packet) receive(fd int, f filter) error {
	if err := f.attach(fd); err != nil {
		return fmt.Errorf("pktio: no filter on the packet socket on %s: %w", p.link.Name, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: p.dev.index}); err != nil {
		return fmt.Errorf("pktio: interface %s does not let itself be bound: %w", p.link.Name, err)
	}
	return nil
}

// findLink fills in p.link and p.dev.
func (p *Packet) findLink(fd int, c *PacketConfig) (err error) {
	if p.link, err = p.dev.find(fd, c.Interface); err != nil {
		return err
	}
	if !c.NoOffload {
		// True of every device: what it cannot do the kernel does just before.
		p.link.GSO, p.link.Checksum = true, true
		p.link.MaxFrame = MaxSuperFrame
	}
	return nil
}

// join has the interface take all frames to groups, or all there are.
func (p *Packet) join(fd int, c *PacketConfig) error {
	// A card drops what is for groups that nobody joined. Those of our IP addresses, by which IPv6 asks for neighbours,
	// the kernel does not know of.
	how, what := uint16(unix.PACKET_MR_ALLMULTI), "take frames to groups"
	if c.Promiscuous {
		how, what = unix.PACKET_MR_PROMISC, "become promiscuous"
	}
	// The interface stays so until the socket is closed.
	err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(p.dev.index), Type: how})
	if err != nil {
		return fmt.Errorf("pktio: interface %s does not %s: %w", p.link.Name, what, err)
	}
	return nil
}

// Link describes the interface as it was when the port was opened.
func (p *Packet) Link() Link { return p.link }

// Stats returns the counters.
func (p *Packet) Stats() PacketStats {
	return PacketStats{
		RxFrames: p.rxFrames.Load(), RxOctets: p.rxOctets.Load(), RxSuper: p.rxSuper.Load(),
		RxRingFull: p.readRingFull(), RxQueueFull: p.rxQueueFull.Load(), RxTooLong: p.rxTooLong.Load(), RxTagged: p.rxTagged.Load(),
		TxFrames: p.txFrames.Load(), TxOctets: p.txOctets.Load(), TxSuper: p.txSuper.Load(),
		TxNoRoom: p.txNoRoom.Load(), TxErrors: p.txErrors.Load(), Outages: p.dev.outages.Load(),
	}
}

// readRingFull adds up the kernel's drop counters, which start anew at each reading.
func (p *Packet) readRingFull() uint64 {
	p.statsMu.Lock()
	defer p.statsMu.Unlock()
	add := func(fd uintptr) {
		if st, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			p.ringFull += uint64(st.Drops)
		}
	}
	_ = p.raw.Control(add)
	_ = p.rx.long.control(add)
	return p.ringFull
}

// Close closes the socket, see [Port].
func (p *Packet) Close() error {
	if p.raw != nil {
		p.readRingFull()
	}
	old := p.state.Or(stateClosed)
	if old&stateClosed != 0 {
		return nil
	}
	err := p.sock.Close()
	p.rx.long.closeSocket()
	if p.file != nil {
		if ferr := p.file.Close(); err == nil { // wakes a receiver
			err = ferr
		}
	}
	p.shield.lower()
	if old&(stateReceiving|stateLent) == 0 {
		p.closeRings()
	}
	return err
}

func (p *Packet) closeRings() {
	p.unmap.Do(func() {
		p.rx.short.close()
		p.rx.long.close()
	})
}
