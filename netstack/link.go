package netstack

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrdma/softrdma/pktio"
)

const (
	ethernetHeader = header.EthernetMinimumSize

	// maxPacket is the largest IP packet. Segments handed to the link are up to that large.
	maxPacket = 65535

	// minMTU4 is the least an IPv4 link has to carry (RFC 791), minMTU6 an IPv6 link (RFC 8200, Section 5).
	minMTU4 = 68
	minMTU6 = 1280
)

// link is gVisor's link endpoint (stack.LinkEndpoint) on a pktio.Port. Transmit is in link_tx.go and link_tso.go,
// receive in pump.go and link_rx.go.
//
// gVisor is told that the link cuts segments itself. Ports that can are handed the large segment with the request to
// cut it; for the others the link cuts it while sending. Either way TCP's work is per large segment.
type link struct {
	port  pktio.Port
	info  pktio.Link
	clock *clock
	said  atomic.Uint64           // segments with octets that were sent
	large int                     // octets of the largest IP packet gVisor may send
	up    stack.NetworkDispatcher // gVisor's side; set by Attach before receiving starts and after it ended
	caps  atomic.Uint32           // stack.LinkEndpointCapabilities, see validated
	ip4   bool                    // families we take part in
	ip6   bool
	mcast [][6]byte // IPv6 groups we listen to
	count linkCounters

	others     conflicts
	neighbours neighbours

	tx txSide
	rx rxSide
}

// linkCounters are written by many goroutines and read by Stats.
type linkCounters struct {
	framesIn, octetsIn, dropsIn, badSums atomic.Uint64
	framesOut, octetsOut, dropsOut       atomic.Uint64
}

// txSide is used under mu.
type txSide struct {
	mu     sync.Mutex
	frames [txBatch]pktio.Frame
	heads  [txBatch][maxHeaders]byte // headers of segments the link cut
	n      int
	held   held
}

// stream is what Poll knows of octets that come without any that go.
type stream struct {
	said uint64 // link.said
	from uint64 // count.octetsIn at that time
}

// rxSide is used under mu, by Poll or the pump: see pump.go.
type rxSide struct {
	polled atomic.Bool   // Poll is awake
	looks  atomic.Uint64 // times Poll looked at the port
	timer  *time.Timer   // goes off when Poll is awake and looks no more
	roused chan struct{} // one token: Poll went to sleep
	stop   chan struct{} // closed to end the pump
	done   chan struct{} // closed when the pump has ended; nil before it started
	spin   time.Duration
	stream stream // Poll's own
	fail   func(error)

	mu     sync.Mutex // guards what follows, and port.Recv
	frames []pktio.Frame
	rooms  rooms
	head   [maxHeaders]byte
	joiner joiner
	inline *inline // nil: gVisor's goroutines process segments
	join   bool    // this burst has something to join
	handed bool    // goroutines of gVisor have got something to do
	failed bool
}

func newLink(port pktio.Port, c *Config) (*link, error) {
	l := &link{port: port, clock: newClock(), info: port.Link(), ip4: c.has4(), ip6: c.has6(), mcast: groups(c.Addrs)}
	mtu := c.MTU
	if mtu == 0 {
		mtu = l.info.MTU
	}
	switch {
	case l.ip6 && mtu < minMTU6:
		return nil, fmt.Errorf("netstack: an MTU of %d octets carries no IPv6, which needs %d: raise it with \"ip link set %s mtu %[2]d\", or use IPv4 addresses alone",
			mtu, minMTU6, l.info.Name)
	case mtu < minMTU4:
		return nil, fmt.Errorf("netstack: an MTU of %d octets carries no IPv4: it must be %d at least", mtu, minMTU4)
	case mtu > l.info.MTU:
		return nil, fmt.Errorf("netstack: an MTU of %d octets was asked for and %s has %d: ask for no more, or raise it with \"ip link set %[2]s mtu %[1]d\"",
			mtu, l.info.Name, l.info.MTU)
	}
	l.info.MTU = min(mtu, maxPacket)
	l.large = maxPacket
	if l.hostGSO() && l.info.MaxFrame > 0 {
		l.large = min(l.large, l.info.MaxFrame-ethernetHeader)
	}
	l.caps.Store(uint32(stack.CapabilityResolutionRequired))
	for i := range l.tx.frames {
		l.tx.frames[i].Data = make([][]byte, 0, 8)
	}
	return l, nil
}

// hostGSO reports whether the port cuts segments, and so finishes their checksums.
func (l *link) hostGSO() bool { return l.info.GSO && l.info.Checksum }

// burst is how many octets can get lost at once.
func (l *link) burst() int {
	if l.hostGSO() {
		return l.large
	}
	return l.info.MTU
}

// validated tells gVisor whether the checksums of the packet that is delivered next need no look. gVisor knows that
// as a capability of the link, but asks for it with each packet; nothing else looks at this bit.
func (l *link) validated(ok bool) {
	caps := uint32(stack.CapabilityResolutionRequired)
	if ok {
		caps |= uint32(stack.CapabilityRXChecksumOffload)
	}
	if l.caps.Load() != caps {
		l.caps.Store(caps)
	}
}

// The rest of this file is what stack.LinkEndpoint asks for.

func (l *link) MTU() uint32                             { return uint32(l.info.MTU) }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return ethernetHeader }
func (l *link) LinkAddress() tcpip.LinkAddress          { return tcpip.LinkAddress(l.info.Addr[:]) }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) Attach(d stack.NetworkDispatcher)        { l.up = d }
func (l *link) IsAttached() bool                        { return l.up != nil }
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }
func (l *link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
func (l *link) GSOMaxSize() uint32                      { return uint32(l.large) }
func (l *link) SupportedGSO() stack.SupportedGSO        { return stack.HostGSOSupported }
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.LinkEndpointCapabilities(l.caps.Load())
}

// AddHeader puts the Ethernet header in front of an outgoing packet.
func (l *link) AddHeader(pkt *stack.PacketBuffer) {
	eth := header.Ethernet(pkt.LinkHeader().Push(ethernetHeader))
	copy(eth[0:6], pkt.EgressRoute.RemoteLinkAddress)
	copy(eth[6:12], l.info.Addr[:])
	eth[12], eth[13] = byte(pkt.NetworkProtocolNumber>>8), byte(pkt.NetworkProtocolNumber)
}
