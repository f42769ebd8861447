//go:build !linux

package netstack

import (
	"errors"
	"fmt"
	"net/netip"
)

// Claim is the right of one stack to use an address on an interface.
type Claim struct{}

// NewClaim fails: frames cannot be sent on interfaces of this system.
func NewClaim(iface string, addr netip.Addr) (*Claim, error) {
	return nil, fmt.Errorf("netstack: %s on %s: claiming an address: %w", addr, iface, errors.ErrUnsupported)
}

// Close does nothing.
func (c *Claim) Close() error { return nil }
