package netstack

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// zoned returns a, which is to be connected from or to, as the system takes it: a link-local address has the name of an
// interface as its zone, any other none. A zone left out is found where there is one interface that it can be.
func zoned(a netip.Addr) (netip.Addr, error) {
	zone := a.Zone()
	a = a.WithZone("")
	switch {
	case !isLinkLocal(a):
		return a, nil
	case zone == "":
		switch names := linkLocalInterfaces(); len(names) {
		case 0:
			return a, fmt.Errorf("no interface here has a link-local address, which %s is reached from: %w", a, syscall.ENETUNREACH)
		case 1:
			return a.WithZone(names[0]), nil
		default:
			return a, fmt.Errorf("%s may be on each of the links of %s: say on which, as in %s%%%s: %w",
				a, strings.Join(names, ", "), a, names[0], syscall.EINVAL)
		}
	}
	if n, err := strconv.Atoi(zone); err == nil {
		if ifi, err := net.InterfaceByIndex(n); err == nil {
			return a.WithZone(ifi.Name), nil
		}
	} else if _, err := net.InterfaceByName(zone); err == nil {
		return a.WithZone(zone), nil
	}
	return a, fmt.Errorf("%s%%%s: there is no interface %s here: %w", a, zone, zone, syscall.ENODEV)
}

// linkLocalInterfaces names the interfaces that are up and have a link-local address.
func linkLocalInterfaces() []string {
	var names []string
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, ifi := range all {
		addrs, err := ifi.Addrs()
		if err != nil || ifi.Flags&net.FlagUp == 0 {
			continue
		}
		if slices.ContainsFunc(addrs, func(a net.Addr) bool {
			n, ok := a.(*net.IPNet)
			if !ok {
				return false
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			return ok && isLinkLocal(ip.Unmap())
		}) {
			names = append(names, ifi.Name)
		}
	}
	return names
}

// endpoints returns the addresses of a connection to be, as the system takes them. local is the zero Addr if the system
// is to choose it.
func endpoints(local, remote netip.Addr) (from, to netip.Addr, err error) {
	if to, err = zoned(remote); err != nil {
		return from, to, err
	}
	if !local.IsValid() || local.IsUnspecified() {
		return netip.Addr{}, to, nil
	}
	local = local.Unmap()
	if local.Is4() != to.Is4() {
		return from, to, errMixed(local, to)
	}
	if isLinkLocal(local) && local.Zone() == "" && isLinkLocal(to) {
		local = local.WithZone(to.Zone())
	}
	from, err = zoned(local)
	return from, to, err
}

// errMixed says that a connection cannot have addresses of both families.
func errMixed(local, remote netip.Addr) error {
	return fmt.Errorf("%s cannot be reached from %s, which is %s: %w", remote, local, familyOf(local), syscall.EAFNOSUPPORT)
}

// both reports whether a listener on local takes connections of both families.
func both(local netip.Addr) bool { return !local.IsValid() || local == netip.IPv6Unspecified() }
