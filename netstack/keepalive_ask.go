package netstack

import (
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// askWithin is how soon the peers of idle connections are asked when there is reason to, spread by the time at
	// which each connection gets to know. askedBy is when all have been, on a busy host too; a peer that answers is asked
	// some times until then.
	askWithin = 50 * time.Millisecond
	askedBy   = 300 * time.Millisecond
	// askMost is how often that is done while nothing arrives. To ask is to begin anew to count what the peer does not
	// answer: whoever announces all the time must not keep a silent peer alive. A stack that starts announces twice.
	askMost = 3
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
	s.mu.Lock()
	known := s.peers[addr] > 0
	s.mu.Unlock()
	if !known { // while New runs nobody is, and s.user is not there yet
		return
	}
	k := s.user.conf.Keepalive
	if k.Idle <= askWithin { // else it is off, or as soon
		return
	}
	// Not here: it takes the locks of connections, and whoever receives must not wait for those who send.
	go func() {
		eps := s.askable(addr)
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

// askable returns the endpoints of the connections to addr and takes note that they are asked.
func (s *Stack) askable(addr netip.Addr) (eps []*tcp.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if !c.out.isUp() || c.remote.Addr().WithZone("") != addr { // in that order: before, remote is not settled
			continue
		}
		uc := c.user
		if heard := uc.ep.Stats().(*tcp.Stats).SegmentsReceived.Value(); uc.heard != heard {
			uc.heard, uc.asked = heard, 0
		}
		if uc.asked < askMost {
			uc.asked++
			eps = append(eps, uc.ep)
		}
	}
	return eps
}
