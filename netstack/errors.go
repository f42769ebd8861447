package netstack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
)

var (
	// ErrInUse is matched by the error of Claim when another stack, in this process or another, holds the address.
	ErrInUse = errors.New("netstack: the address is in use by another stack")

	// ErrKernelAddr is matched by the error of Claim when the kernel owns the address: it would answer the
	// segments meant for us with resets.
	ErrKernelAddr = errors.New("netstack: the kernel owns the address")

	// ErrNoRoom is what Writev returns for more octets than Room said. It is a mistake of the caller and changes
	// nothing.
	ErrNoRoom = errors.New("netstack: more octets than there is room for")
)

// errFIN is what a write after CloseWrite or Close returns.
var errFIN = fmt.Errorf("netstack: the sending direction is closed: %w", syscall.EPIPE)

// errClosed is what every call on something closed by its user returns.
func errClosed(what string) error { return fmt.Errorf("netstack: %s: %w", what, net.ErrClosed) }

// dialError says what happened to a connection attempt; it matches the system's error number.
func dialError(remote netip.AddrPort, err error) error {
	return fmt.Errorf("netstack: dial %s: %w", remote, err)
}

// listenError is the same for a listener.
func listenError(local netip.AddrPort, err error) error {
	return fmt.Errorf("netstack: listen on %s: %w", local, err)
}

// streamError says what ended an established connection.
func streamError(remote netip.AddrPort, err error) error {
	if fellSilent(err) {
		return &silentPeer{remote, err}
	}
	return fmt.Errorf("netstack: connection to %s: %w", remote, err)
}

// errNoPort says why a connection could not even start. It matches EADDRNOTAVAIL.
var errNoPort = fmt.Errorf("all local ports are in use towards it, or were a moment ago: close connections that are not needed, keep them for longer instead of dialing anew, or dial from a further address: %w", syscall.EADDRNOTAVAIL)

// errNotConnected is returned for octets written before the connection is there.
const errNotConnected = syscall.ENOTCONN
