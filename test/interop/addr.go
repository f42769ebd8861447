package main

import "net/netip"

// The addresses on the one link between guest and host. Our own stack and the kernel
// have one of each family; what carried a run can so be told from the wire. The host's
// kernel must never have our own stack's.
var (
	guestAddrs  = map[int]netip.Prefix{4: netip.MustParsePrefix("10.77.0.2/24"), 6: netip.MustParsePrefix("fd77::2/64")}
	ownAddrs    = map[int]netip.Prefix{4: netip.MustParsePrefix("10.77.0.1/24"), 6: netip.MustParsePrefix("fd77::1/64")}
	kernelAddrs = map[int]netip.Prefix{4: netip.MustParsePrefix("10.77.0.3/24"), 6: netip.MustParsePrefix("fd77::3/64")}
)

const (
	tapName  = "tap0"
	guestMAC = "52:54:00:77:00:02"
)

// guestAddr is the guest's address in a run.
func (r Row) guestAddr() netip.Addr { return guestAddrs[r.Family].Addr() }

// ourPrefix is softrdma's address in a run, with its prefix length.
func (r Row) ourPrefix() netip.Prefix {
	if r.OwnStack() {
		return ownAddrs[r.Family]
	}
	return kernelAddrs[r.Family]
}

func (r Row) ourAddr() netip.Addr { return r.ourPrefix().Addr() }

// kernelAddr is the address of the host's kernel on the link.
func (r Row) kernelAddr() netip.Addr { return kernelAddrs[r.Family].Addr() }

// port is where the server of the row's program listens.
func (r Row) port() int {
	if r.Program == "rping" {
		return 7174
	}
	return 7471
}

// mss is what a SYN on the row's link must announce, in octets: what the IP and TCP
// headers leave of the MTU.
func (r Row) mss() int {
	if r.Family == 6 {
		return r.MTU - 60
	}
	return r.MTU - 40
}
