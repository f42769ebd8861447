// Package pktio moves Ethernet frames, in batches, between the TCP/IP stack and a link.
//
// A [Port] is one end of a link. Four kinds exist: [Packet] is an AF_PACKET socket on a network interface (Linux), [XDP]
// are AF_XDP sockets on one (Linux), [Pipe] is a link in memory that needs no rights, and [Faulty] wraps any other Port
// and loses, doubles, reorders, delays or damages what is sent through it.
//
// # Frames
//
// A [Frame] is a whole Ethernet frame from the destination address to the last octet of payload, without frame check
// sequence and without VLAN tag. Beside the octets travels an [Offload], the virtio_net_hdr of Linux in Go: a frame may be a
// super-frame, a TCP segment of up to 64 KiB that stands for many wire segments (GSO), and its TCP checksum may be
// left for the other side to finish. Link says which of these a port takes.
//
// # Ownership
//
// Recv lends: the octets of a received frame are the port's, and good until the receiver's next call of Recv, even
// when Close comes in between. Send borrows: the octets are the caller's again when it returns. One goroutine at a
// time may be in Recv and one in Send; the two may run at once. A second one in Recv panics.
//
// # Closing
//
// Close wakes a blocked Recv. Frames lent before Close hold memory until the receiver calls Recv once more, which
// then returns an error matching net.ErrClosed; a receive loop that ends on that error has given everything back.
package pktio
