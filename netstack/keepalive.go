package netstack

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// Keepalive says how long a peer that is silent is trusted. A connection on which nothing arrives for Idle asks the
// peer for a sign of life, and again after each Interval, and counts as broken (ETIMEDOUT) when Count questions have
// found no answer. Where octets wait for the peer's acknowledgement no questions are needed: they are sent again and
// again, and the same time is the limit. The zero value is [DefaultKeepalive]; an Idle below 0 asks no questions.
type Keepalive struct {
	Idle, Interval time.Duration
	Count          int
}

// DefaultKeepalive finds a silent peer out after a minute: longer than a switch takes to start, shorter than people
// wait before they look for themselves. A peer that has started anew meanwhile says so to the first question.
var DefaultKeepalive = Keepalive{Idle: 10 * time.Second, Interval: 10 * time.Second, Count: 5}

// KeepaliveWithin returns the Keepalive that finds a silent peer out after d. 0 gives the default, below 0 none.
func KeepaliveWithin(d time.Duration) Keepalive {
	switch {
	case d == 0:
		return DefaultKeepalive
	case d < 0:
		return Keepalive{Idle: -1}
	}
	sixth := d / 6
	return Keepalive{Idle: d - 5*sixth, Interval: sixth, Count: 5}
}

// Total is how long a silent peer is trusted, 0 for ever.
func (k Keepalive) Total() time.Duration {
	if k.Idle < 0 {
		return 0
	}
	return k.Idle + time.Duration(k.Count)*k.Interval
}

// withDefaults returns the Keepalive that is used, or what is wrong with it.
func (k Keepalive) withDefaults() (Keepalive, error) {
	switch {
	case k == Keepalive{}:
		return DefaultKeepalive, nil
	case k.Idle < 0:
		return Keepalive{Idle: -1}, nil
	case k.Idle == 0 || k.Interval <= 0 || k.Count <= 0 || k.Count > 127: // the most that Linux takes
		return k, fmt.Errorf("netstack: Keepalive %v: Idle and Interval must be above 0 and Count from 1 to 127, or all of them 0 for the default", k)
	}
	return k, nil
}

const (
	// maxRTO is the most the retransmission timer waits. RFC 6298 allows no bound below 60 seconds, having the whole
	// Internet in mind. It matters after a lost SYN: gVisor then takes the second that the next one took for a
	// round-trip time, and would wait several seconds for each later loss. And a link that was away for a minute is
	// in use again a second after it came back.
	maxRTO = time.Second
	// lastingUnacked is how long octets are sent again and again without Keepalive.
	lastingUnacked = time.Minute
)

// retransmission returns the most the retransmission timer may wait, and after how many retransmissions of a segment
// about as much time has passed as a silent peer is given. It is at most an eighth more or less.
//
// gVisor has a limit of time as well, TCPUserTimeout, but measures it from the last time that nothing was outstanding:
// on a busy connection two losses far apart exceed it. It also ends peers that shut their window, which are not silent.
func (k Keepalive) retransmission(minRTO time.Duration) (most time.Duration, retries int) {
	total := k.Total()
	if total == 0 {
		total = lastingUnacked
	}
	most = max(min(maxRTO, total/8), minRTO)
	// A segment is given up at the expiry after its last retransmission.
	retries = -1
	for waited, rto := time.Duration(0), minRTO; waited < total; rto = min(2*rto, most) {
		waited += rto
		retries++
	}
	return most, max(retries, 1)
}

// arm asks for signs of life on an established connection of gVisor.
func (k Keepalive) arm(ep tcpip.Endpoint) {
	if k.Idle < 0 {
		return
	}
	idle, interval := tcpip.KeepaliveIdleOption(k.Idle), tcpip.KeepaliveIntervalOption(k.Interval)
	// None of them fails; each starts the time anew, and the last one lets it begin.
	_ = ep.SetSockOpt(&idle)
	_ = ep.SetSockOpt(&interval)
	_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, k.Count)
	ep.SocketOptions().SetKeepAlive(true)
}

// silentPeer is why a connection was given up: the peer answers no more. It matches ETIMEDOUT, whatever else the
// system has to say about it.
type silentPeer struct {
	remote netip.AddrPort
	cause  error
}

func (e *silentPeer) Error() string {
	return fmt.Sprintf("netstack: connection to %s: the peer answers no more, nor does its host or the link to it: %v", e.remote, e.cause)
}

func (e *silentPeer) Unwrap() error { return e.cause }

// Is makes ETIMEDOUT of it.
func (e *silentPeer) Is(target error) bool { return target == syscall.ETIMEDOUT }

// Timeout is for net.Error.
func (e *silentPeer) Timeout() bool { return true }

// fellSilent reports whether err, which ended an established connection, says that the peer fell silent. A host that
// answers no ARP either is reported as one that cannot be reached, but nothing tells so before the time is up.
func fellSilent(err error) bool {
	switch err {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN:
		return true
	}
	return false
}

// lost counts the end of an established connection by err.
func (s *Stack) lost(err error) {
	var silent *silentPeer
	if errors.As(err, &silent) {
		s.silent.Add(1)
	}
}
