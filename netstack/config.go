package netstack

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Defaults and limits of the two Configs.
const (
	// DefaultBuffer is how many octets a connection buffers in each direction.
	DefaultBuffer = 4 << 20
	// MaxBuffer is the most a Config may ask for.
	MaxBuffer = 16 << 20
	// MinBuffer is the least: two of the largest FPDUs and the window they need.
	MinBuffer = 256 << 10

	// DefaultSpin is how long Poll and the receiver of frames look again before they sleep. Waking up costs more
	// than that, see the package's benchmarks.
	DefaultSpin = 100 * time.Microsecond

	// DefaultConnectTimeout bounds a connection attempt that nobody answers.
	DefaultConnectTimeout = 60 * time.Second

	// DefaultMinRTO is the least the retransmission timer waits. RFC 6298 asks for a second, systems use 200 ms
	// because their peers delay acknowledgements, Linux by 40 ms. Where losses are found in no other way, 5 ms rather than
	// 50 bring five times the throughput with one frame in a hundred lost. On busy processors it goes off without any loss,
	// one to three times in 4 GB. A Linux peer that delays its acknowledgement of a lone message gets that again, until TCP has measured
	// the delay.
	DefaultMinRTO = 5 * time.Millisecond

	// DefaultKeepACKs is how long an acknowledgement waits for octets of ours to go with: longer than an application that
	// polls takes for its answer, and not so long that a peer's TCP would notice.
	DefaultKeepACKs = 20 * time.Microsecond
)

// ackAtLeast is for how many octets an acknowledgement is sent at once: four of the largest segments.
const ackAtLeast = 256 << 10

// Recovery is a way to find out which segments were lost.
type Recovery uint8

const (
	// RecoveryDefault is RecoverySACK.
	RecoveryDefault Recovery = iota
	// RecoveryRACK finds losses by time and probes for the loss of the last segments (RFC 8985), all in gVisor's way. When
	// all that was under way is lost at once, in a full queue or while a link is away, it then sends two segments a
	// retransmission timeout, for minutes.
	RecoveryRACK
	// RecoverySACK finds losses by the number of later segments that arrived (RFC 6675), also that
	// of segments sent again, and probes for the loss of the last ones. When all that was under way is lost at once,
	// everything is there again after one or two timeouts. With Handoff it is gVisor's alone: the loss of the last segments
	// then waits for the timer.
	RecoverySACK
)

// Congestion is what a loss leaves of the congestion window.
type Congestion uint8

const (
	// CongestionDefault is CongestionPath.
	CongestionDefault Congestion = iota
	// CongestionPath leaves at least what the path is known to carry, and is for networks of a data center, where
	// frames get lost that no full queue has dropped. On a path shared with others, over queues shorter than three
	// super-frames of each connection, it takes more than its share.
	CongestionPath
	// CongestionReno leaves one half (RFC 5681), and is for networks that are shared with anybody.
	CongestionReno
)

// Config describes a Stack over a port. The zero value of every field but Addrs is a default.
type Config struct {
	// Addrs are our addresses, IPv4 and IPv6, each with the network that is reached without a gateway. At least one,
	// and no others: no address is made up, and none taken from a router's advertisement. Who wants to reach
	// link-local addresses needs one.
	Addrs []netip.Prefix

	// Gateways are where packets for other networks go, at most one of each family. They are in one of our networks
	// or, for IPv6, link-local. Without one, other networks of that family are unreachable (ENETUNREACH).
	Gateways []netip.Addr

	// MTU is the octets an IP packet may have: 68 at least, 1280 with an IPv6 address. 0: the port's, which is also
	// the most.
	MTU int

	// SendBuffer and RecvBuffer are the octets a connection may hold in each direction, MinBuffer to MaxBuffer.
	// The window offered to the peer is half of RecvBuffer. 0: DefaultBuffer.
	SendBuffer, RecvBuffer int

	// SpinFor is how long Poll and the frame receiver look again before they sleep. 0: DefaultSpin, below 0: they
	// never spin.
	SpinFor time.Duration

	// ConnectTimeout is when an attempt to connect fails with ETIMEDOUT. 0: DefaultConnectTimeout.
	ConnectTimeout time.Duration

	// MinRTO is the least the retransmission timer waits. 0: DefaultMinRTO.
	MinRTO time.Duration

	// Keepalive says how long a peer that is silent is trusted.
	Keepalive Keepalive

	// AddressProbe is how long New asks the link whether another host has one of Addrs, before it uses them (RFC
	// 5227, RFC 4862). If one has, New fails with an error that matches ErrConflict; if not, the addresses are
	// announced, for neighbours to forget a host that had them before. 0: no question and no announcement, for
	// links on which nobody else can be. See Stack.Conflict for what happens later.
	AddressProbe time.Duration

	// Recovery chooses how losses are found.
	Recovery Recovery

	// Congestion chooses what a loss leaves of the congestion window. With Handoff it is always CongestionReno.
	Congestion Congestion

	// KeepACKs is how long an acknowledgement waits for octets of ours that it can go with, while Poll is awake. 0:
	// DefaultKeepACKs, below 0: it does not wait. Where it is longer than a peer's retransmission timer waits, the peer
	// sends again.
	KeepACKs time.Duration

	// Handoff lets goroutines of gVisor process the segments of established connections, rather than whoever took
	// them off the port. It is the way of a gVisor nobody interferes with, takes longer, and is always gone by
	// programs built with the tag softrdma_handoff or with another version of gVisor than this package's.
	Handoff bool
}

// KernelConfig describes a Stack over the system's TCP. Its zero value is good.
type KernelConfig struct {
	// SendBuffer and RecvBuffer fix the system's socket buffers, in octets. 0 leaves them to the system, which
	// tunes them.
	SendBuffer, RecvBuffer int

	// RecvBuffers is how many connections may hold octets not yet discarded at the same time; others wait with
	// theirs in the system's buffer. 0: 4096. A buffer is 256 KiB and allocated when first needed.
	RecvBuffers int

	// SpinFor and ConnectTimeout are as in Config.
	SpinFor        time.Duration
	ConnectTimeout time.Duration

	// Keepalive says how long a peer that is silent, or takes nothing of what waits for it, is trusted. Linux counts
	// whole seconds, two at least in all; elsewhere octets that wait for their acknowledgement are the system's affair.
	Keepalive Keepalive
}

// withDefaults returns the Config that is used, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if len(c.Addrs) == 0 {
		return c, errors.New("netstack: no address: Config.Addrs needs at least one")
	}
	for _, p := range c.Addrs {
		if err := checkAddr(p); err != nil {
			return c, err
		}
	}
	c.Addrs = append([]netip.Prefix(nil), c.Addrs...)
	c.Gateways = append([]netip.Addr(nil), c.Gateways...)
	if err := c.checkGateways(); err != nil {
		return c, err
	}
	for _, b := range []struct {
		name string
		size *int
	}{{"SendBuffer", &c.SendBuffer}, {"RecvBuffer", &c.RecvBuffer}} {
		if *b.size == 0 {
			*b.size = DefaultBuffer
		}
		if *b.size < MinBuffer || *b.size > MaxBuffer {
			return c, fmt.Errorf("netstack: %s of %d octets: it must be %d to %d", b.name, *b.size, MinBuffer, MaxBuffer)
		}
	}
	if c.Recovery > RecoverySACK {
		return c, fmt.Errorf("netstack: unknown Recovery %d", c.Recovery)
	}
	if c.Congestion > CongestionReno {
		return c, fmt.Errorf("netstack: unknown Congestion %d", c.Congestion)
	}
	c.SpinFor = spinFor(c.SpinFor)
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.MinRTO <= 0 {
		c.MinRTO = DefaultMinRTO
	}
	if c.KeepACKs == 0 {
		c.KeepACKs = DefaultKeepACKs
	}
	if c.AddressProbe < 0 {
		return c, fmt.Errorf("netstack: AddressProbe of %v: it cannot be below 0", c.AddressProbe)
	}
	var err error
	c.Keepalive, err = c.Keepalive.withDefaults()
	return c, err
}

func (c KernelConfig) withDefaults() (KernelConfig, error) {
	if c.SendBuffer < 0 || c.RecvBuffer < 0 || c.RecvBuffers < 0 {
		return c, errors.New("netstack: buffer sizes and counts cannot be negative")
	}
	if c.RecvBuffers == 0 {
		c.RecvBuffers = 4096
	}
	c.SpinFor = spinFor(c.SpinFor)
	if c.ConnectTimeout <= 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	var err error
	c.Keepalive, err = c.Keepalive.withDefaults()
	return c, err
}

func spinFor(d time.Duration) time.Duration {
	switch {
	case d == 0:
		return DefaultSpin
	case d < 0:
		return 0
	}
	return d
}
