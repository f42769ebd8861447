package iwarp

import (
	"fmt"
	"time"

	"github.com/softrdma/softrdma/netstack"
)

// Recovery is a way in which our own TCP finds out which segments were lost.
type Recovery = netstack.Recovery

// The ways; the zero value is RecoverySACK.
const (
	// RecoverySACK counts the later segments that arrived (RFC 6675). It is the one for
	// links that lose in bursts, or hardly ever.
	RecoverySACK = netstack.RecoverySACK
	// RecoveryRACK goes by time (RFC 8985). After a burst or a cut it is slow for minutes.
	RecoveryRACK = netstack.RecoveryRACK
)

// Congestion is what a loss leaves of our own TCP's congestion window.
type Congestion = netstack.Congestion

// The choices; the zero value is CongestionPath.
const (
	// CongestionPath leaves at least what the path is known to carry. It is for networks of a
	// data center, where frames get lost that no full queue has dropped; on a path shared with
	// others it takes more than its share where queues are short.
	CongestionPath = netstack.CongestionPath
	// CongestionReno leaves one half (RFC 5681), and is for networks shared with anybody.
	CongestionReno = netstack.CongestionReno
)

// TCP holds what there is to choose of our own TCP/IP stack: of Packet, XDP and
// Pipe. Kernel has the host's settings and ignores it. The zero value is good in a
// data center.
type TCP struct {
	Recovery   Recovery   // how losses are found; RecoverySACK if 0
	Congestion Congestion // what a loss leaves of the congestion window; CongestionPath if 0

	// MinRTO is the least that the retransmission timer waits, 1 ms to 1 s;
	// DefaultMinRTO if 0. Make it more where round trips vary by more than that, as on
	// long paths, or with peers that delay acknowledgements for longer and mind an octet
	// that comes twice: Linux delays by 40 ms.
	MinRTO time.Duration

	// KeepACKs is how long an acknowledgement waits for a message of ours to go with, at
	// most 500 ms (RFC 5681, Section 4.2); DefaultKeepACKs if 0, none if negative. More
	// spares frames where answers take longer than that; where it outlasts a peer's
	// retransmission timer the peer sends again.
	KeepACKs time.Duration

	// Handoff hands arriving segments to goroutines of gVisor, as gVisor does by itself,
	// rather than process them where they are received. It is slower, and there to
	// find out whether trouble comes from the short way. Programs built with the tag
	// softrdma_handoff, or with another version of gVisor, have it always.
	Handoff bool
}

const (
	// DefaultMinRTO is many times a round trip in a data center, and so short that a
	// loss at the end of a message is no stop of 200 ms.
	DefaultMinRTO = netstack.DefaultMinRTO
	// DefaultKeepACKs is what an application that polls takes for its answer, and
	// nothing that a peer's TCP notices.
	DefaultKeepACKs = netstack.DefaultKeepACKs

	leastMinRTO  = time.Millisecond
	mostMinRTO   = time.Second            // what RFC 6298 asks for
	mostKeepACKs = 500 * time.Millisecond // what RFC 5681, Section 4.2, forbids to exceed
)

func (t *TCP) check() error {
	switch {
	case t.Recovery > RecoverySACK:
		return fmt.Errorf("TCP.Recovery %d: take RecoverySACK or RecoveryRACK", t.Recovery)
	case t.Congestion > CongestionReno:
		return fmt.Errorf("TCP.Congestion %d: take CongestionPath or CongestionReno", t.Congestion)
	case t.MinRTO != 0 && (t.MinRTO < leastMinRTO || t.MinRTO > mostMinRTO):
		return fmt.Errorf("TCP.MinRTO %v: it must be %v to %v, or 0 for %v", t.MinRTO, leastMinRTO, mostMinRTO, DefaultMinRTO)
	case t.KeepACKs > mostKeepACKs:
		return fmt.Errorf("TCP.KeepACKs %v: it must not be more than %v, or negative for none", t.KeepACKs, mostKeepACKs)
	}
	return nil
}
