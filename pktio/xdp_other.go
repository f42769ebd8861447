//go:build !linux

package pktio

import (
	"errors"
	"fmt"
	"time"
)

// XDP is a port on a network interface by way of AF_XDP sockets. It exists on Linux only.
type XDP struct{}

// OpenXDP fails: AF_XDP sockets are Linux's. The error matches errors.ErrUnsupported.
func OpenXDP(XDPConfig) (*XDP, error) {
	return nil, fmt.Errorf("pktio: AF_XDP sockets are there on Linux only: use the pipe or the kernel backend: %w", errors.ErrUnsupported)
}

// Recv fails.
func (*XDP) Recv([]Frame, time.Duration) (int, error) { return 0, ErrClosed }

// Send fails.
func (*XDP) Send([]Frame) (int, error) { return 0, ErrClosed }

// Link describes nothing.
func (*XDP) Link() Link { return Link{} }

// Mode says nothing.
func (*XDP) Mode() string { return "" }

// Buffers are none.
func (*XDP) Buffers() (n, size, octets int) { return 0, 0, 0 }

// Stats counts nothing.
func (*XDP) Stats() XDPStats { return XDPStats{} }

// Close does nothing.
func (*XDP) Close() error { return nil }
