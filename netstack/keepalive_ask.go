package netstack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// askWithin is how soon the peers of idle connections are asked when there is reason to, spread by the time at
	// which each connection gets to know. askedBy is when all have been.
	askWithin = 50 * time.Millisecond
	askedBy   = 100 * time.Millisecond
)

// peers counts connections by the address of the other host, without zone.
type peers map[netip.Addr]int

func (p peers) add(a netip.AddrPort) { p[a.Addr().WithZone("")]++ }

func (p peers) drop(a netip.AddrPort) {
	if addr := a.Addr().WithZone(""); p[addr] > 1 {
		p[addr]--
	} else {
		delete(p, addr)
	}
}

// askSoon asks the peers of connections to addr for a sign of life without waiting for Keepalive: the host there says
// that its stack has just started, and then it knows nothing of them. Its answer ends them at once. Without a question
// only what we send could find out, and who waits for the answer to a Read sends nothing.
func (s *Stack) askSoon(addr netip.Addr) {
	k := s.user.conf.Keepalive
	s.mu.Lock()
	known := s.peers[addr] > 0
	s.mu.Unlock()
	if !known || k.Idle <= askWithin { // else it is off, or as soon
		return
	}
	// Not here: it takes the locks of connections, and whoever receives must not wait for those who send.
	go func() {
		eps := s.established(addr)
		set := func(d time.Duration) {
			for _, ep := range eps {
				idle := tcpip.KeepaliveIdleOption(d)
				_ = ep.SetSockOpt(&idle) // starts the time anew; does nothing to a connection that has ended
			}
		}
		set(askWithin)
		time.AfterFunc(askedBy, func() { set(k.Idle) })
	}()
}

// established returns the endpoints of the connections to addr.
func (s *Stack) established(addr netip.Addr) (eps []*tcp.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.out.isUp() && c.remote.Addr().WithZone("") == addr { // in that order: before, remote is not settled
			eps = append(eps, c.user.ep)
		}
	}
	return eps
}
