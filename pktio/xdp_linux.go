package pktio

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// XDP is a port on a network interface by way of AF_XDP sockets, one on each receive queue: rings shared with the
// kernel for receive and transmit. An XDP program on the interface hands the sockets the frames for the addresses of
// the port, and the kernel never sees those; all others are the kernel's, as ever. The program goes away with the port
// or the process, however it ends. Recv with a wait of 0 makes no system call, except now and then, and to wake a
// device that ran out of buffers. Transmit is on the first queue.
//
// Frames with a VLAN tag are the kernel's; tags that the card takes off before anyone can see them ("rxvlan" in
// "ethtool -k IF") are not known of, and should be left on.
//
// It sends no super-frames unless XDPConfig.SendSocket is of effect. A peer at the other end of a veth or a tap may send
// some, which arrive in as many pieces as it takes, on Linux 6.6 and later. Such peers also leave checksums unfinished:
// on a veth, a tap and a virtio card a TCP or UDP checksum that holds the sum over the pseudo header only makes the frame
// NeedsCsum. On all other devices nothing is said about checksums and the receiver is to verify them, so that on a bridge
// or a macvlan it may find those of peers on the same host wrong.
type XDP struct {
	link Link
	dev  iface
	mode string // for people
	zero bool   // zero-copy

	prog   *ebpf.Program
	xsks   *ebpf.Map
	attach link.Link // keeps the program on the interface
	queues []*xdpQueue
	groups int  // a packet socket that receives nothing and keeps groups joined
	socket bool // super-frames leave through it, not through the ring

	news int      // a netlink socket that tells when an interface changed; the receiver's
	file *os.File // an epoll instance with all sockets that wake the receiver, in Go's poller
	raw  syscall.RawConn

	state    atomic.Uint32
	release  sync.Once
	unmap    sync.Once
	released chan struct{} // closed when the sockets are
	alarm    alarm         // of the receiver
	kickDue  atomic.Bool   // frames wait for the kernel to have room for them

	rx xdpRx
	tx xdpTx

	rxFrames, rxOctets, rxTooLong          atomic.Uint64
	txFrames, txOctets, txNoRoom, txErrors atomic.Uint64

	statsMu sync.Mutex
	closed  bool               // guarded by statsMu: the sockets are, and final is
	final   unix.XDPStatistics // guarded by statsMu: what they had counted
}

// Link describes the interface as it was when the port was opened.
func (p *XDP) Link() Link { return p.link }

// Mode says how the port works, for people: "native, zero-copy, 8 queues", or generic, or copy.
func (p *XDP) Mode() string { return p.mode }

// Buffers tells how many buffers for frames there are, on all queues and for both directions, how many octets each has
// and how many all of them have. It is locked memory.
func (p *XDP) Buffers() (n, size, octets int) {
	for _, q := range p.queues {
		n += cap(q.lent) + cap(q.free)
	}
	return n, xdpChunk, n * xdpChunk
}

// Stats returns the counters.
func (p *XDP) Stats() XDPStats {
	p.statsMu.Lock()
	c := p.final
	if !p.closed {
		c = p.counters()
	}
	p.statsMu.Unlock()
	return XDPStats{
		RxFrames: p.rxFrames.Load(), RxOctets: p.rxOctets.Load(), RxTooLong: p.rxTooLong.Load(),
		RxRingFull: c.Rx_ring_full, RxDropped: c.Rx_dropped, RxNoBuffer: c.Rx_fill_ring_empty_descs, RxInvalid: c.Rx_invalid_descs,
		TxFrames: p.txFrames.Load(), TxOctets: p.txOctets.Load(), TxNoRoom: p.txNoRoom.Load(), TxErrors: p.txErrors.Load(),
		TxInvalid: c.Tx_invalid_descs, Outages: p.dev.outages.Load(),
	}
}

// counters adds up what the kernel has counted on all queues.
func (p *XDP) counters() (sum unix.XDPStatistics) {
	for _, q := range p.queues {
		c := q.counters()
		sum.Rx_dropped += c.Rx_dropped
		sum.Rx_invalid_descs += c.Rx_invalid_descs
		sum.Tx_invalid_descs += c.Tx_invalid_descs
		sum.Rx_ring_full += c.Rx_ring_full
		sum.Rx_fill_ring_empty_descs += c.Rx_fill_ring_empty_descs
	}
	return sum
}

// Close takes the program off the interface and closes the sockets, see [Port]. When it returns, all frames are the
// kernel's again. The kernel frees the queues a moment later; OpenXDP waits for that.
func (p *XDP) Close() error {
	if p.state.Or(stateClosed)&stateClosed != 0 {
		return nil
	}
	err := p.attach.Close()
	if ferr := p.file.Close(); err == nil { // wakes a receiver
		err = ferr
	}
	p.leave(0, 0)
	<-p.released
	return err
}

// leave takes bits from the state and adds others, and tells whether the port is closed. Whoever leaves a closed port
// last gives back what is left.
func (p *XDP) leave(gone, left uint32) (closed bool) {
	for {
		old := p.state.Load()
		next := old&^gone | left
		closed = next&stateClosed != 0
		if !p.state.CompareAndSwap(old, next) {
			continue
		}
		if closed && next&(stateReceiving|stateSending) == 0 {
			p.release.Do(p.closeSockets)
			if next&stateLent == 0 {
				p.unmap.Do(p.unmapAll)
			}
		}
		return closed
	}
}

func (p *XDP) closeSockets() {
	p.statsMu.Lock()
	p.final, p.closed = p.counters(), true
	for _, q := range p.queues {
		q.close()
	}
	p.statsMu.Unlock()
	_ = unix.Close(p.groups)
	_ = unix.Close(p.news)
	_ = p.xsks.Close()
	_ = p.prog.Close()
	close(p.released)
}

func (p *XDP) unmapAll() {
	for _, q := range p.queues {
		q.unmap()
	}
}
