package pktio

import (
	"net/netip"
	"time"
)

// PacketConfig describes an AF_PACKET port. Only Interface must be set.
type PacketConfig struct {
	// Interface is the name of an Ethernet device that is up, in the network namespace of the calling thread: a
	// network card, a veth, a tap, a bridge. The port shares the interface's Ethernet address with the kernel.
	Interface string
	// Addrs are the IP addresses that are ours. IP packets to others are not received, unless they go to a group: they
	// are for the kernel, which shares the Ethernet address. None, or more than 16: all packets are received. None of
	// them may be the kernel's: where it lets us, it no longer gets packets to them, see Packet.Mode.
	Addrs []netip.Addr
	// RingFrames is how many received frames up to the MTU the kernel keeps for us; further ones are dropped. 0 means as
	// many as 8 MiB have room for, 256 at least and 4096 at most.
	RingFrames int
	// LongFrames is how many longer ones it keeps beside them: super-frames, in places of MaxFrame octets. 0 means 64.
	LongFrames int
	// LongQueue has longer ones wait as the kernel has them, up to 16 MiB of them, until they are received, rather than
	// copied into places of their own before: that is one copy less, but the memory a frame takes then comes from one
	// processor and goes back on another. Without CAP_NET_ADMIN the kernel lets few octets wait, and this is of no effect.
	LongQueue bool
	// MaxFrame is the longest frame that can be received, in octets; longer ones are dropped. 0 means 65549, the
	// longest super-frame.
	MaxFrame int
	// SendBuffer is how many octets may wait in the kernel before Send finds no room. 0 means 8 MiB.
	SendBuffer int
	// DownGrace is how long the interface may be down before Recv reports it with an error matching
	// syscall.ENETDOWN. 0 means ten seconds, below 0 means at once. An interface that is gone is reported at once.
	DownGrace time.Duration
	// NoOffload makes Link report neither GSO nor Checksum, so that only frames as they go over the wire are sent.
	// Received frames may still be super-frames.
	NoOffload bool
	// Promiscuous makes the port receive every frame that comes to the interface, whoever it is for, as a port of a
	// bridge does. What it sends may have any source address, as on every port.
	Promiscuous bool
}

// PacketStats counts what passed a Packet, in frames unless the name says otherwise.
type PacketStats struct {
	RxFrames, RxOctets uint64 // received
	RxSuper            uint64 // received super-frames, also in RxFrames
	RxRingFull         uint64 // dropped by the kernel because a ring was full
	RxQueueFull        uint64 // with LongQueue, dropped because too many octets waited
	RxTooLong          uint64 // dropped because they were longer than MaxFrame
	RxTagged           uint64 // dropped because they had a VLAN tag
	TxFrames, TxOctets uint64 // taken by the kernel
	TxSuper            uint64 // sent super-frames, also in TxFrames
	TxNoRoom           uint64 // not taken: the kernel had no room
	TxErrors           uint64 // not taken: the kernel refused them
	Outages            uint64 // times the interface was found down
}

// RingSize tells what a receive ring takes.
type RingSize struct {
	Frames int // it has room for
	Slot   int // octets a frame may take, header included
	Octets int // all of it
}

const (
	defaultRingFrames = 256
	defaultLongFrames = 64
	defaultRingMost   = 4096
	defaultRingOctets = 8 << 20
	defaultSendBuffer = 8 << 20
	defaultDownGrace  = 10 * time.Second
	maxRingMaxFrame   = 512 << 10
	maxRingOctets     = 256 << 20 // the kernel would try for more, at everybody's expense
)
