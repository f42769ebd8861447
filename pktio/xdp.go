package pktio

import (
	"fmt"
	"net/netip"
	"time"
)

// XDPMode says where in the kernel the XDP program of a port runs.
type XDPMode uint8

// The modes.
const (
	XDPAuto    XDPMode = iota // native where the driver takes a program, else generic
	XDPNative                 // in the driver, before the kernel makes anything of a frame
	XDPGeneric                // in the kernel's common receive path, which every device has
)

// String returns the mode's name.
func (m XDPMode) String() string {
	switch m {
	case XDPAuto:
		return "auto"
	case XDPNative:
		return "native"
	case XDPGeneric:
		return "generic"
	}
	return fmt.Sprintf("XDPMode(%d)", uint8(m))
}

// XDPConfig describes an AF_XDP port. Interface and Addrs must be set.
type XDPConfig struct {
	// Interface is the name of an Ethernet device that is up, in the network namespace of the calling thread: a
	// network card, a veth, a tap. The port shares the interface's Ethernet address with the kernel.
	Interface string
	// Addrs are the IP addresses that are ours, at most 16, without those that the kernel has: a frame to one of
	// them goes to the port, and every other frame to the kernel. A zone is ignored.
	Addrs []netip.Addr
	// Mode says where the XDP program runs.
	Mode XDPMode
	// RxFrames is how many buffers each receive queue of the interface has for frames that arrived; further frames
	// are dropped. A frame takes one buffer per 3840 octets. The number is rounded up to a power of two. 0 means
	// 4096, and less on an interface with more than 8 queues: 32768 for all together, but no less than 512 each.
	// Each buffer takes 4 KiB of locked memory. A queue should hold more than a peer may send unacknowledged.
	RxFrames int
	// TxFrames is how many buffers there are for frames on their way out before Send finds no room, rounded up to a
	// power of two. A frame takes one buffer per 4072 octets. 0 means 2048. Each takes 4 KiB of locked memory.
	TxFrames int
	// DownGrace is how long the interface may be down before Recv reports it with an error matching
	// syscall.ENETDOWN. 0 means ten seconds, below 0 means at once. An interface that is gone is reported at once.
	DownGrace time.Duration
	// NoOffload makes Link report no Checksum, so that only frames with whole checksums are sent.
	NoOffload bool
	// SendSocket makes the port send super-frames through a packet socket on a veth, where the kernel would copy frames
	// out of AF_XDP's memory anyway, and report GSO: one then costs the kernel as much as one frame. It is of no effect
	// on other devices, or with NoOffload.
	SendSocket bool
}

// XDPStats counts what passed an XDP, in frames unless the comment says otherwise. The kernel counts its drops in
// frames and in events, as the comments tell.
type XDPStats struct {
	RxFrames, RxOctets uint64 // received
	RxTooLong          uint64 // dropped because they were longer than MaxSuperFrame
	RxRingFull         uint64 // dropped by the kernel because the receive ring was full
	RxDropped          uint64 // dropped by the kernel because no buffer was free or the frame took more than one
	RxNoBuffer         uint64 // times the kernel looked for a free buffer and found none
	RxInvalid          uint64 // buffers that the kernel did not take back: always 0, or there is a fault here
	TxFrames, TxOctets uint64 // taken
	TxNoRoom           uint64 // not taken: no buffer was free
	TxErrors           uint64 // not taken: at fault, or the interface was down
	TxInvalid          uint64 // taken and refused by the kernel: always 0, or there is a fault here
	Outages            uint64 // times the interface was found down
}
