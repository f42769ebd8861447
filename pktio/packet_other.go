//go:build !linux

package pktio

import (
	"errors"
	"fmt"
	"time"
)

// Packet is a port on a network interface. It exists on Linux only.
type Packet struct{}

// OpenPacket fails: AF_PACKET sockets are Linux's. The error matches errors.ErrUnsupported.
func OpenPacket(PacketConfig) (*Packet, error) {
	return nil, fmt.Errorf("pktio: packet sockets are there on Linux only: use the pipe or the kernel backend: %w", errors.ErrUnsupported)
}

// Recv fails.
func (*Packet) Recv([]Frame, time.Duration) (int, error) { return 0, ErrClosed }

// Send fails.
func (*Packet) Send([]Frame) (int, error) { return 0, ErrClosed }

// Link describes nothing.
func (*Packet) Link() Link { return Link{} }

// Stats counts nothing.
func (*Packet) Stats() PacketStats { return PacketStats{} }

// Mode tells nothing.
func (*Packet) Mode() string { return "" }

// Rings has no memory.
func (*Packet) Rings() []RingSize { return nil }

// Close does nothing.
func (*Packet) Close() error { return nil }
