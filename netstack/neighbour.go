package netstack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// A neighbour's Ethernet address changes when its host is replaced, or its stack starts anew on another interface. gVisor
// learns that from the neighbour's own questions to us, and else by asking again what it has not heard of for a while.
// What IPv6 neighbours announce to all it takes as well; what ARP packets say to others it does not look at, although
// RFC 826 has every host correct its table by them. That is done here.

const (
	// reachableTime is how long a neighbour that nothing is heard from counts as reachable, on average. RFC 4861 says
	// 30 seconds, and five more before it is asked: too long for connections that are given a minute. TCP's
	// acknowledgements are heard from, so that this costs no question while all is well.
	reachableTime = 5 * time.Second
	// doubtTime is how long segments to a neighbour that has counted as reachable are given before it is asked.
	doubtTime = time.Second

	// steadyTime is how long an Ethernet address is not doubted after it was heard: two hosts that both have a
	// neighbour's address must not make us ask anew with each answer.
	steadyTime = time.Second
	// heardMost bounds what is remembered, and lookEvery how often gVisor's table is looked at: anyone on the link
	// can claim any number of addresses.
	heardMost = 1024
	lookEvery = time.Millisecond
)

// nudConfig says when neighbours are asked.
func nudConfig() stack.NUDConfigurations {
	c := stack.DefaultNUDConfigurations()
	c.BaseReachableTime = reachableTime
	c.DelayFirstProbeTime = doubtTime
	c.RetransmitTimer = arpWait
	return c
}

// neighbours corrects gVisor's table of IPv4 neighbours, and notices those that begin anew. It belongs to whoever
// receives frames (rx.mu).
type neighbours struct {
	tcp    *stack.Stack     // set before receiving starts, as is
	anew   func(netip.Addr) // told of a neighbour that begins anew
	last   map[netip.Addr]heard
	looked time.Time
	begun  map[netip.Addr]time.Time // when neighbours announced themselves
}

// heard is what was heard of a neighbour last.
type heard struct {
	mac [6]byte
	at  time.Time
}

// heard is told that a neighbour says it has addr.
func (n *neighbours) heard(addr netip.Addr, mac [6]byte, now time.Time) {
	was, known := n.last[addr]
	switch {
	case known && was.mac == mac:
		was.at = now
		n.last[addr] = was
		return
	case known && now.Sub(was.at) < steadyTime, now.Sub(n.looked) < lookEvery:
		return
	}
	n.looked = now
	if len(n.last) >= heardMost || n.last == nil {
		n.last = make(map[netip.Addr]heard)
	}
	n.last[addr] = heard{mac, now}
	all, err := n.tcp.Neighbors(nicID, ipv4.ProtocolNumber)
	if err != nil {
		return
	}
	for _, e := range all {
		if e.Addr == toAddress(addr) && e.LinkAddr != "" && e.LinkAddr != tcpip.LinkAddress(mac[:]) {
			// The next packet asks for the new one, rather than believing what anyone may say.
			_ = n.tcp.RemoveNeighbor(nicID, ipv4.ProtocolNumber, e.Addr)
			return
		}
	}
}

// began is told that a neighbour announces addr, as one does whose stack has just started.
func (n *neighbours) began(addr netip.Addr, now time.Time) {
	if at, known := n.begun[addr]; known && now.Sub(at) < steadyTime {
		return
	}
	if len(n.begun) >= heardMost || n.begun == nil {
		n.begun = make(map[netip.Addr]time.Time)
	}
	n.begun[addr] = now
	n.anew(addr)
}
