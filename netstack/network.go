package netstack

import (
	"fmt"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// protocols returns the network protocols of the families we have addresses of; of the other we say and hear nothing.
//
// IPv6 comes without what it could do by itself: it makes no address, asks no router and takes no advertisement. It
// does report the multicast groups it listens to (MLD, RFC 3810): switches that snoop let neighbour solicitations
// through only to those who did.
func (u *userStack) protocols() []stack.NetworkProtocolFactory {
	var all []stack.NetworkProtocolFactory
	if u.conf.has4() {
		all = append(all, arp.NewProtocol, guarded(ipv4.NewProtocol))
	}
	if u.conf.has6() {
		all = append(all, guarded(ipv6.NewProtocolWithOptions(ipv6.Options{MLD: ipv6.MLDOptions{Enabled: true}})))
	}
	return all
}

// configureNetwork gives the interface its addresses and makes the routing table.
func (u *userStack) configureNetwork() error {
	var routes []tcpip.Route
	for _, p := range u.conf.Addrs {
		addr := protocolAddress(p)
		if err := u.tcp.AddProtocolAddress(nicID, addr, stack.AddressProperties{}); err != nil {
			return fmt.Errorf("netstack: address %s: %s", p, err)
		}
		routes = append(routes, tcpip.Route{Destination: addr.AddressWithPrefix.Subnet(), NIC: nicID})
	}
	for _, g := range u.conf.Gateways {
		if _, err := u.scoped(g); err != nil {
			return fmt.Errorf("netstack: gateway %w", err)
		}
		all := header.IPv6EmptySubnet
		if g.Is4() {
			all = header.IPv4EmptySubnet
		}
		routes = append(routes, tcpip.Route{Destination: all, Gateway: toAddress(g), NIC: nicID})
	}
	u.tcp.SetRouteTable(routes)
	return nil
}

// protocolAddress is p for gVisor.
func protocolAddress(p netip.Prefix) tcpip.ProtocolAddress {
	return tcpip.ProtocolAddress{
		Protocol:          protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(p.Addr()), PrefixLen: p.Bits()},
	}
}
