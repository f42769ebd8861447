package pktio

import (
	"fmt"
	"net"
	"syscall"
	"time"
)

const (
	// EthernetHeader is the length of an Ethernet header without VLAN tag, in octets.
	EthernetHeader = 14
	// MaxSuperFrame is the longest frame there is: an Ethernet header and the longest IPv4 packet, in octets.
	MaxSuperFrame = EthernetHeader + 65535

	// minMTU is what IPv4 demands of a link (RFC 791).
	minMTU = 68
	maxMTU = 65535
)

var (
	// ErrClosed comes out of Recv and Send after Close. It matches net.ErrClosed.
	ErrClosed = fmt.Errorf("pktio: the port is closed: %w", net.ErrClosed)
	// ErrTooLong says that the frame after those that Send took is longer than the link takes: longer than MTU and
	// Ethernet header without GSO, longer than Link.MaxFrame with it. It matches syscall.EMSGSIZE.
	ErrTooLong = fmt.Errorf("pktio: a frame is longer than the link takes: %w", syscall.EMSGSIZE)
	// ErrBadFrame says that the frame after those that Send took is no Ethernet frame, or that its Offload asks for
	// what the link does not do. It matches syscall.EINVAL.
	ErrBadFrame = fmt.Errorf("pktio: a frame is too short or its offload is not the link's: %w", syscall.EINVAL)
)

// Port is one end of a link. Implementations are [Packet], [XDP], [Pipe], [Faulty] and the capture tap.
type Port interface {
	// Recv fills batch from its start with frames that arrived and returns how many. It reuses the Data slices it
	// finds in batch, may use Room, and overwrites all else. Without a frame at hand it returns at once if wait is 0, waits at
	// most that long if wait is above 0, and until a frame arrives if wait is below 0.
	//
	// The octets are lent until the next Recv. One goroutine at a time may receive.
	//
	// After Close the error matches net.ErrClosed. It matches syscall.ENETDOWN when the interface is gone, or has
	// been down for too long; calling again is no use while that lasts. An error comes with no frame.
	Recv(batch []Frame, wait time.Duration) (int, error)

	// Send transmits the frames of batch in order and returns how many it took. With no error, the rest found no
	// room: drop them or try again. With an error, the frame after those taken is at fault (ErrTooLong,
	// ErrBadFrame) or the port is (net.ErrClosed, syscall.ENETDOWN).
	//
	// The octets are borrowed for the call. One goroutine at a time may send. Send never blocks.
	Send(batch []Frame) (int, error)

	// Link describes the link. It does not change while the port is open.
	Link() Link

	// Close ends the port and wakes a blocked Recv. Any goroutine may call it; a second call does nothing.
	Close() error
}

// Frame is one Ethernet frame: its octets, in order, in one or more pieces, and what travels beside them.
type Frame struct {
	// Data is the frame from the Ethernet destination address on. Ports refill the slice with append(Data[:0], ...).
	Data [][]byte
	// Room is memory of the receiver's, or nothing, that a port may put the octets of a received frame into rather than
	// into memory of its own; those of a TCP payload begin at its start. A piece of Data that begins where Room does is
	// not lent: it stays as it is until the receiver calls Recv with that Room again. Of no meaning for Send. A port
	// that wraps another and leaves frames out swaps them with those behind, so that no Data and no Room is there twice.
	Room []byte
	Offload
}

// Len returns the length of the frame in octets.
func (f *Frame) Len() int {
	n := 0
	for _, d := range f.Data {
		n += len(d)
	}
	return n
}

// CopyTo copies the frame's octets to dst and returns how many fitted.
func (f *Frame) CopyTo(dst []byte) int {
	n := 0
	for _, d := range f.Data {
		n += copy(dst[n:], d)
	}
	return n
}

// Offload is what a frame carries beside its octets. The zero value is a plain frame whose checksums are whole.
type Offload struct {
	// NeedsCsum says that the 16 bits at CsumStart+CsumOffset hold the sum over the pseudo header only. Sent so, the
	// link finishes the checksum where the frame leaves the host. Received so, the frame never left a trustworthy
	// path: treat it as verified.
	NeedsCsum bool
	// CsumValid says, on receive, that the device or the kernel has checked the transport checksum.
	CsumValid bool
	// CsumStart is where the checksum's coverage begins, in octets from the start of the frame; it ends with the
	// frame. CsumOffset is where the checksum is stored, from CsumStart. They come from outside: check them
	// against the frame before use. Of no meaning without NeedsCsum.
	CsumStart, CsumOffset uint16
	// GSO is the kind of super-frame, GSONone for a plain frame.
	GSO GSOType
	// GSOSize is the TCP payload in each wire segment of a super-frame, in octets.
	GSOSize uint16
	// HdrLen is the length of Ethernet, IP and TCP header of a super-frame sent, in octets. Of no meaning on receive.
	HdrLen uint16
}

// GSOType tells super-frames by what they are cut into.
type GSOType uint8

// The kinds of super-frame.
const (
	GSONone  GSOType = iota
	GSOTCPv4         // TCP over IPv4
	GSOTCPv6         // TCP over IPv6
)

// Link describes one end of a link.
type Link struct {
	// MTU is the longest IP packet that is no super-frame, in octets.
	MTU int
	// Addr is the Ethernet address to send from; frames to it and to groups arrive.
	Addr [6]byte
	// MaxFrame is the longest frame that Send takes, super-frames included, in octets.
	MaxFrame int
	// GSO says that super-frames may be sent. It implies Checksum.
	GSO bool
	// Checksum says that frames may be sent with NeedsCsum.
	Checksum bool
	// Name is the name of the interface, for people.
	Name string
}

// check returns why a frame of n octets cannot go over the link, if so.
func (l *Link) check(n int, o *Offload) error {
	switch {
	case n < EthernetHeader, o.NeedsCsum && !l.Checksum, o.GSO != GSONone && !l.GSO:
		return ErrBadFrame
	case n > l.MaxFrame, n > l.MTU+EthernetHeader && o.GSO == GSONone:
		return ErrTooLong
	}
	return nil
}
