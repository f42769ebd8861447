package netstack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
)

var ipv4Broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// familyOf names the family of a for people.
func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// protocolOf is gVisor's number for the family of a.
func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// checkAddr returns why p cannot be an address of ours.
func checkAddr(p netip.Prefix) error {
	switch a := p.Addr(); {
	case !p.IsValid():
		return errors.New("netstack: an address in Config.Addrs is not valid: give address and network, as in 10.77.0.1/24")
	case a.Is4In6():
		return fmt.Errorf("netstack: %s is an IPv4 address in IPv6 clothing: give it as %s", p, a.Unmap())
	case !isHost(a):
		return fmt.Errorf("netstack: %s is no address a host can have on a link", p)
	}
	return nil
}

// isHost reports whether a is one a host can have on a link.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != ipv4Broadcast
}

// isLinkLocal reports whether a is an IPv6 address that means something on one link only. (Those of IPv4, 169.254.0.0/16,
// are like any others: they have no zone.)
func isLinkLocal(a netip.Addr) bool { return a.Is6() && a.IsLinkLocalUnicast() }

// checkGateways returns what is wrong with c.Gateways, zones left aside.
func (c *Config) checkGateways() error {
	var v4, v6 bool
	for _, g := range c.Gateways {
		seen := &v6
		if g.Is4() {
			seen = &v4
		}
		switch a := g.WithZone(""); {
		case !isHost(a) || a.Is4In6():
			return fmt.Errorf("netstack: %s is no address of a gateway", g)
		case *seen:
			return fmt.Errorf("netstack: %s is a second %s gateway: give one of each family at most", g, familyOf(g))
		case !c.has(g):
			return fmt.Errorf("netstack: gateway %s, but no %s address of our own to use it with: add one to Config.Addrs", g, familyOf(g))
		case c.owns(a):
			return fmt.Errorf("netstack: gateway %s is an address of our own", g)
		case !isLinkLocal(a) && !c.onLink(a):
			return fmt.Errorf("netstack: gateway %s is in none of our networks %v, and so not on the link", g, c.Addrs)
		}
		*seen = true
	}
	return nil
}

// has reports whether we have an address of the family of a.
func (c *Config) has(a netip.Addr) bool {
	return c.any(func(b netip.Addr) bool { return a.Is4() == b.Is4() })
}

func (c *Config) has4() bool { return c.has(netip.IPv4Unspecified()) }
func (c *Config) has6() bool { return c.has(netip.IPv6Unspecified()) }

// owns reports whether a, without zone, is ours.
func (c *Config) owns(a netip.Addr) bool {
	return c.any(func(b netip.Addr) bool { return a == b })
}

// onLink reports whether a, without zone, is reached without a gateway.
func (c *Config) onLink(a netip.Addr) bool {
	return slices.ContainsFunc(c.Addrs, func(p netip.Prefix) bool { return p.Contains(a) })
}

// any reports whether one of our addresses is such.
func (c *Config) any(such func(netip.Addr) bool) bool {
	return slices.ContainsFunc(c.Addrs, func(p netip.Prefix) bool { return such(p.Addr()) })
}

// scoped checks the zone of a and returns a with the zone we tell of: our interface if it is link-local, else none. As
// there is but one interface, it needs no zone to be understood.
func (u *userStack) scoped(a netip.Addr) (netip.Addr, error) {
	name := u.link.info.Name
	zone := a.Zone()
	a = a.WithZone("")
	if !isLinkLocal(a) {
		return a, nil
	}
	if zone != "" && zone != name {
		return a, fmt.Errorf("%s is on interface %s, and this device on %s: write %s, or use a device on %s: %w",
			a, zone, name, a.WithZone(name), zone, syscall.ENETUNREACH)
	}
	return a.WithZone(name), nil
}

// ours returns a, which is to be one of our addresses, with its zone.
func (u *userStack) ours(a netip.Addr) (netip.Addr, error) {
	if err := u.hasFamily(a); err != nil {
		return a, err
	}
	a, err := u.scoped(a)
	if err == nil && !u.conf.owns(a.WithZone("")) {
		err = fmt.Errorf("%s is not one of our addresses %v: %w", a, u.conf.Addrs, syscall.EADDRNOTAVAIL)
	}
	return a, err
}

// reach returns a, which we are to connect to, with its zone.
func (u *userStack) reach(a netip.Addr) (netip.Addr, error) {
	if err := u.hasFamily(a); err != nil {
		return a, err
	}
	a, err := u.scoped(a)
	if err != nil {
		return a, err
	}
	bare := a.WithZone("")
	switch {
	case !isHost(bare):
		err = fmt.Errorf("%s is no address of a host on a network: %w", a, syscall.ENETUNREACH)
	case isLinkLocal(bare):
		if !u.conf.any(isLinkLocal) {
			err = fmt.Errorf("this device has no link-local address to call %s from: add one, such as fe80::77/64, with --ip (Config.Addrs): %w",
				a, syscall.ENETUNREACH)
		}
	case u.conf.onLink(bare):
	case bare.Is6() && !u.conf.any(func(a netip.Addr) bool { return a.Is6() && !isLinkLocal(a) }):
		err = fmt.Errorf("this device has no IPv6 address but link-local ones, which %s cannot answer: add one with --ip (Config.Addrs): %w",
			a, syscall.ENETUNREACH)
	case !u.hasGateway(bare):
		err = fmt.Errorf("%s is in none of our networks %v, and there is no %s gateway: give one with --gw (Config.Gateways): %w",
			a, u.conf.Addrs, familyOf(bare), syscall.ENETUNREACH)
	}
	return a, err
}

// hasFamily returns an error unless we have an address of the family of a.
func (u *userStack) hasFamily(a netip.Addr) error {
	if u.conf.has(a) {
		return nil
	}
	return fmt.Errorf("this device has no %s address: add one with --ip (Config.Addrs): %w", familyOf(a), syscall.EAFNOSUPPORT)
}

func (u *userStack) hasGateway(a netip.Addr) bool {
	return slices.ContainsFunc(u.conf.Gateways, func(g netip.Addr) bool { return g.Is4() == a.Is4() })
}

func toAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// addrPort turns gVisor's address into one to tell of, with the zone of a link-local one.
func (u *userStack) addrPort(a tcpip.FullAddress) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(a.Addr.AsSlice())
	if ip = ip.Unmap(); isLinkLocal(ip) {
		ip = ip.WithZone(u.link.info.Name)
	}
	return netip.AddrPortFrom(ip, a.Port)
}
