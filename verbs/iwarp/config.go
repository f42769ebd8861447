package iwarp

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/pktio"
)

// Backend names what carries a device's TCP/IP traffic.
type Backend uint8

const (
	Auto   Backend = iota // Packet where the host allows it, else Kernel
	Packet                // own TCP/IP stack over an AF_PACKET socket
	XDP                   // own TCP/IP stack over AF_XDP sockets
	Kernel                // the host's TCP sockets
	pipe                  // own TCP/IP stack over a link in memory, see Pipe
)

var backendNames = [...]string{Auto: "auto", Packet: "packet", XDP: "xdp", Kernel: "kernel", pipe: "pipe"}

func (b Backend) String() string {
	if int(b) < len(backendNames) {
		return backendNames[b]
	}
	return fmt.Sprintf("Backend(%d)", uint8(b))
}

// ParseBackend returns the backend that a name means: auto, packet, xdp or
// kernel.
func ParseBackend(s string) (Backend, error) {
	for b, name := range backendNames {
		if name == s && Backend(b) != pipe {
			return Backend(b), nil
		}
	}
	return Auto, fmt.Errorf("unknown backend %q: take auto, packet, xdp or kernel", s)
}

// Config says how Open makes a device. The zero value opens the host's TCP
// sockets with the protocol defaults below.
type Config struct {
	Backend   Backend
	XDPMode   pktio.XDPMode  // where XDP's program runs: pktio.XDPAuto, XDPNative or XDPGeneric
	Interface string         // network interface of Packet and XDP
	Addrs     []netip.Prefix // addresses of our own stack, IPv4 and IPv6, which the host must not own; not for Kernel, which has all of the host's
	Gateways  []netip.Addr   // next hops for destinations off the link, at most one of each family
	MTU       int            // octets of an IP packet; the interface's if 0

	Protocol
	Limits Limits // of what applications can take and peers can make the device hold

	Threads Threads // which goroutines do the work; ThreadsAdaptive if 0
	TCP     TCP     // of our own stack, not for Kernel

	// OneCopy has Packet read super-frames from the kernel straight into TCP's buffer: one
	// copy on the way to TCP rather than two, one of which is into the ring that we share
	// with the kernel. It takes CAP_NET_ADMIN, without which nothing changes. Where the
	// sender is on the same host it is slower: docs/performance.md says why.
	OneCopy bool

	AddressProbe time.Duration // how long Open asks the link whether another host has one of Addrs; DefaultAddressProbe if 0, not at all if negative
	DownGrace    time.Duration // how long the interface may be down before the device fails, with all its connections; DefaultDownGrace if 0, at once if negative, as always when it is deleted

	SpinFor time.Duration                        // how long an idle receive goroutine spins before it blocks: processor time against the delay of a wake-up, which is tens of microseconds; DefaultSpin if 0, none if negative
	Tap     func(pktio.Port) (pktio.Port, error) // wraps the port of Packet or XDP: to capture, or in pktio.Faulty; nil for none
	Logger  *slog.Logger                         // connection set-up and loss; nil for none
}

// RTR is a set of ready-to-receive messages, with one of which the initiator
// opens a connection of the peer-to-peer model (RFC 6581, Section 9.2). It
// reaches no application.
type RTR = mpa.RTRKinds

// The ready-to-receive messages; each is empty.
const (
	RTRWrite RTR = 1 << (mpa.RTRWrite - 1)
	RTRRead  RTR = 1 << (mpa.RTRRead - 1)
	RTRSend  RTR = 1 << (mpa.RTRSend - 1)
)

// Protocol holds what a device asks for and insists on when it sets up a
// connection. The zero value is what every known peer accepts: CRC, no markers,
// MPA revision 2, peer-to-peer with a zero-length Read as the ready-to-receive
// message (RFC 5044, RFC 6581). A dial whose Request of revision 2 is reset is
// tried once more with revision 1, as cxgb4 and irdma do, unless RequireRev2 or
// RequireRTR is set: then what revision 1 does not negotiate, the read depths,
// is what each side was given.
type Protocol struct {
	NoCRC        bool // do not ask for a CRC; it is used all the same if the peer asks for one
	RequireCRC   bool // refuse a peer that would run without CRC
	Rev1         bool // speak MPA revision 1 alone, which negotiates no read depths; a Request of revision 2 is reset
	RequireRev2  bool // refuse a peer that speaks revision 1 only
	ClientServer bool // do not ask for the peer-to-peer model of RFC 6581: the initiator's first message opens the connection

	OfferRTR   RTR  // what a dial offers to open the connection with; the Read alone if 0: siw, cxgb4 and irdma all take it
	TakeRTR    RTR  // what a listener takes; Write and Read if 0
	RequireRTR bool // refuse a peer of the client/server model, or of revision 1
	LegacyRTR  bool // open with a zero-length Read in revision 1 too, though nothing agreed on it: cxgb4 waits for one

	Markers       bool // ask the peer for markers in what it sends (RFC 5044, Section 4.3); siw refuses
	RefuseMarkers bool // refuse a peer that asks for markers, instead of sending them
	LargeFPDUs    bool // FPDUs of up to 64 KiB instead of one per TCP segment, where both sides say so; siw takes them, hardware may not
	PrivateLimit  int  // most octets of an application's private data; 0 for what fits. All known peers take mpa.MaxPrivateInterop
	RequireORD    bool // refuse an initiator that takes fewer reads than the connection is to have outstanding, instead of making do

	NoAtomics   bool // neither post atomics nor do a peer's, which ends a connection that asks for one (RFC 7306)
	NoImmediate bool // likewise RDMA Write with Immediate

	IRD    int // inbound reads a connection takes unless it asks for another number; DefaultReadDepth if 0
	ORD    int // outbound reads likewise
	MaxORD int // bounds the outbound reads of every connection, whatever it asks for: 32 for Chelsio T4 to T6; MaxReadDepth if 0

	ConnectTimeout time.Duration // TCP connect, and again from Request to Reply; 10 s if 0
	RequestTimeout time.Duration // from a TCP connection to its whole Request; 5 s if 0
	DrainTimeout   time.Duration // from our Terminate or FIN to the peer's FIN, and the longest that the peer may take nothing before it; 3 s if 0
	Keepalive      time.Duration // how long a peer that is silent is trusted; DefaultKeepalive if 0, for ever while nothing is under way if negative
	HalfOpen       int           // connections of one listener that have sent no whole Request; one more, and the longest silent gives way, after 100 ms; DefaultHalfOpen if 0
}

const (
	// DefaultSpin is how long an idle receive goroutine looks for frames
	// before it blocks: long enough for an answer from the next host, short
	// enough for an idle device to use no processor.
	DefaultSpin = 50 * time.Microsecond
	// DefaultKeepalive is after how long a silent peer, dead or cut off, ends
	// its connections with ETIMEDOUT, whether something is under way or not.
	DefaultKeepalive = time.Minute
	// DefaultAddressProbe is long enough for any host on the link to say that
	// it has the address, and hardly noticed by who opens a device.
	DefaultAddressProbe = 300 * time.Millisecond
	// DefaultDownGrace outlasts a cable that is put back, a switch or a driver
	// that starts anew. What becomes of a connection meanwhile is Keepalive's
	// affair.
	DefaultDownGrace = 2 * time.Minute
	// DefaultReadDepth is the number of reads in flight each way, clear of
	// the smallest limit of known adapters (32).
	DefaultReadDepth = 16
	// DefaultHalfOpen lets an honest peer in at once beside a thousand silent
	// ones, and clears a full TCP backlog of 4096 in half a second. A half-open
	// connection takes about 4 KiB, so they are 4 MiB a listener. With 128 the
	// honest peer would wait for most of a second, and a backlog for four.
	DefaultHalfOpen = 1024
	// MaxReadDepth bounds both depths: what one connection may hold in read
	// slots, and what Linux siw grants at most.
	MaxReadDepth = 128

	connectTimeout = 10 * time.Second
	requestTimeout = 5 * time.Second
	drainTimeout   = 3 * time.Second
)

// check tells what is wrong with the fields that have no withDefaults of their own.
func (c *Config) check() error {
	if err := c.Threads.check(); err != nil {
		return err
	}
	return c.TCP.check()
}

// withDefaults returns a checked copy with every zero replaced.
func (p Protocol) withDefaults() (Protocol, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	after := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&p.IRD, DefaultReadDepth)
	def(&p.ORD, DefaultReadDepth)
	def(&p.MaxORD, MaxReadDepth)
	def(&p.HalfOpen, DefaultHalfOpen)
	after(&p.ConnectTimeout, connectTimeout)
	after(&p.RequestTimeout, requestTimeout)
	after(&p.DrainTimeout, drainTimeout)
	after(&p.Keepalive, DefaultKeepalive)
	switch {
	case p.IRD < 0 || p.IRD > MaxReadDepth || p.ORD < 0 || p.ORD > MaxReadDepth:
		return p, fmt.Errorf("read depths IRD %d, ORD %d: each must be 0..%d", p.IRD, p.ORD, MaxReadDepth)
	case p.ConnectTimeout < 0 || p.RequestTimeout < 0 || p.DrainTimeout < 0 || p.HalfOpen < 0:
		return p, fmt.Errorf("timeouts and limits must not be negative")
	case p.NoCRC && p.RequireCRC:
		return p, fmt.Errorf("NoCRC and RequireCRC exclude each other: set one of them")
	case p.Rev1 && p.RequireRev2:
		return p, fmt.Errorf("Rev1 and RequireRev2 exclude each other: set one of them")
	case p.RequireRTR && (p.Rev1 || p.ClientServer):
		return p, fmt.Errorf("RequireRTR excludes Rev1 and ClientServer, which have no ready-to-receive message: set one of them")
	case (p.OfferRTR|p.TakeRTR)&^(RTRWrite|RTRRead|RTRSend) != 0:
		return p, fmt.Errorf("OfferRTR %#x, TakeRTR %#x: make them of RTRWrite, RTRRead and RTRSend", uint8(p.OfferRTR), uint8(p.TakeRTR))
	case p.PrivateLimit < 0 || p.PrivateLimit > mpa.MaxPrivate:
		return p, fmt.Errorf("PrivateLimit %d: it must be 0..%d", p.PrivateLimit, mpa.MaxPrivate)
	case p.MaxORD < 0 || p.MaxORD > MaxReadDepth:
		return p, fmt.Errorf("MaxORD %d: it must be 0..%d", p.MaxORD, MaxReadDepth)
	}
	return p, nil
}

// mpa is the start-up policy of one connection. The depths are the
// application's; -1 takes the device's.
func (p Protocol) mpa(ird, ord int) mpa.Config {
	depth := func(v, def int) int {
		if v < 0 {
			return def
		}
		return v
	}
	return mpa.Config{
		NoCRC: p.NoCRC, RequireCRC: p.RequireCRC, Rev1: p.Rev1, RequireRev2: p.RequireRev2,
		ClientServer: p.ClientServer, OfferRTR: p.OfferRTR, TakeRTR: p.TakeRTR,
		RequireRTR: p.RequireRTR, LegacyRTR: p.LegacyRTR,
		Markers: p.Markers, RefuseMarkers: p.RefuseMarkers, LargeFPDUs: p.LargeFPDUs, PrivateLimit: p.PrivateLimit,
		IRD: depth(ird, p.IRD), ORD: min(depth(ord, p.ORD), p.MaxORD), MaxIRD: MaxReadDepth, RequireORD: p.RequireORD,
	}
}
