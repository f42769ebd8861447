package netstack

import (
	"fmt"
	"net/netip"
	"slices"

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
	for _, p := range u.conf.Addrs {
		if err := u.tcp.AddProtocolAddress(nicID, protocolAddress(p), stack.AddressProperties{}); err != nil {
			return fmt.Errorf("netstack: address %s: %s", p, err)
		}
	}
	for _, g := range u.conf.Gateways {
		if _, err := u.scoped(g); err != nil {
			return fmt.Errorf("netstack: gateway %w", err)
		}
	}
	u.tcp.SetRouteTable(u.routes())
	return nil
}

// routes returns the routing table: our networks, the smallest first, and what lies behind the gateways. An IPv4 host is
// called from our address in its network, or in the gateway's (IPv6 has rules of its own for that, RFC 6724).
func (u *userStack) routes() []tcpip.Route {
	nets := slices.Clone(u.conf.Addrs)
	slices.SortStableFunc(nets, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	var routes []tcpip.Route
	for _, p := range nets {
		addr := protocolAddress(p).AddressWithPrefix
		routes = append(routes, tcpip.Route{Destination: addr.Subnet(), NIC: nicID, SourceHint: addr.Address})
	}
	for _, g := range u.conf.Gateways {
		r := tcpip.Route{Destination: header.IPv6EmptySubnet, Gateway: toAddress(g), NIC: nicID}
		if g.Is4() {
			r.Destination = header.IPv4EmptySubnet
		}
		if i := slices.IndexFunc(nets, func(p netip.Prefix) bool { return p.Contains(g) }); i >= 0 {
			r.SourceHint = toAddress(nets[i].Addr())
		}
		routes = append(routes, r)
	}
	return routes
}

// protocolAddress is p for gVisor.
func protocolAddress(p netip.Prefix) tcpip.ProtocolAddress {
	return tcpip.ProtocolAddress{
		Protocol:          protocolOf(p.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: toAddress(p.Addr()), PrefixLen: p.Bits()},
	}
}
