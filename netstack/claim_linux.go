package netstack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Claim is the right of one stack to use an address on an interface. Two stacks that used the same one would each
// answer the other's segments with resets.
type Claim struct {
	once sync.Once
	fd   int
}

// NewClaim claims addr on the interface named iface, in the network namespace of the calling thread, until Close or
// the end of the process. A link-local address may have iface as its zone. The error matches ErrInUse when another
// stack has it, and ErrKernelAddr when the kernel owns it. Any goroutine.
func NewClaim(iface string, addr netip.Addr) (*Claim, error) {
	addr = addr.Unmap()
	zone := addr.Zone()
	addr = addr.WithZone("")
	if !isHost(addr) {
		return nil, fmt.Errorf("netstack: %s is no address a host can have on a link", addr)
	}
	if zone != "" && zone != iface {
		return nil, fmt.Errorf("netstack: %s is on interface %s, and claimed on %s: leave the zone out", addr, zone, iface)
	}
	ifi, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, fmt.Errorf("netstack: interface %s: %w", iface, err)
	}
	if err := kernelOwns(ifi, addr); err != nil {
		return nil, err
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err != nil {
		return nil, os.NewSyscallError("netstack: network namespace", err)
	}
	// A socket in the abstract namespace is gone with its process, whatever ends it. That namespace is one a network
	// namespace as it is; its number in the name is for people who look at /proc/net/unix.
	name := fmt.Sprintf("\x00softrdma/%d/%d/%s", ns.Ino, ifi.Index, addr)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("netstack: socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("%w: %s on %s: stop that one, or use an address of its own for each", ErrInUse, addr, iface)
		}
		return nil, os.NewSyscallError("netstack: bind", err)
	}
	return &Claim{fd: fd}, nil
}

// Close gives the address up. Any goroutine; a second call changes nothing.
func (c *Claim) Close() error {
	var err error
	c.once.Do(func() { err = unix.Close(c.fd) })
	return err
}

// kernelOwns returns an error if an interface of this network namespace has addr. Which one does not matter, as the
// kernel answers for its addresses on every interface; a link-local address though is another one on each.
func kernelOwns(on *net.Interface, addr netip.Addr) error {
	ifs, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("netstack: interfaces: %w", err)
	}
	if isLinkLocal(addr) {
		ifs = []net.Interface{*on}
	}
	for _, ifi := range ifs {
		addrs, err := ifi.Addrs()
		if err != nil {
			continue // it went away
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == addr {
				return fmt.Errorf("%w: %s is set on %s and would be answered by it: use an address no interface has", ErrKernelAddr, addr, ifi.Name)
			}
		}
	}
	return nil
}
