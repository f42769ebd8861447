package netstack

import (
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// The loss of the last segments under way, or of the acknowledgement of all of them, shows in nothing that arrives. TCP
// waits for its retransmission timer then, and begins anew with a window of one segment. So when two round trips have
// passed without anything new, the end of what was sent is sent once more, as RFC 8985 has it (tail loss probe): its
// acknowledgement tells what is missing. It is the link that does that: gVisor has probes only with RACK.
//
// A lone segment is not probed for: its acknowledgement may wait at the peer for longer than that.

// leastProbe is how long a probe waits at least. The peer's threads may have other things to do.
const leastProbe = time.Millisecond

// tail is the end of what a connection has sent.
type tail struct {
	fire   func()       // probes; nil where nobody does. Guarded by txSide.mu
	armed  atomic.Bool  // timer runs, or fire does
	after  atomic.Int64 // how long it waits; 0 while no round trip is known
	window atomic.Uint32

	// Guarded by txSide.mu.
	timer *time.Timer
	last  *stack.PacketBuffer // the octets of the last segment, while armed
	head  [maxHeaders]byte    // its headers
	heads int                 // octets of these
	ip    int                 // and of the IP header
	mss   int

	// Of fire, and of whoever processes segments: guarded by the lock of the endpoint.
	una, next uint32 // as fire found them
	probed    bool   // for these two
}

// follow notes that s is sent, whose octets are new ones. Caller holds txSide.mu.
func (t *tail) follow(s *sentSegment) {
	if !t.armed.Load() {
		after := t.after.Load()
		if t.fire == nil || after == 0 || s.payload <= s.mss {
			return
		}
		t.armed.Store(true)
		if t.timer == nil {
			t.timer = time.AfterFunc(time.Duration(after), t.fire)
		} else {
			t.timer.Reset(time.Duration(after))
		}
	}
	if t.last != nil {
		t.last.DecRef()
	}
	t.last, t.mss = s.pkt, s.mss
	if s.head != nil {
		t.last = s.pkt.Clone() // TCP cuts off what is acknowledged
		t.heads = copy(t.head[:], s.head)
	} else {
		s.pkt.IncRef()
		t.heads = s.pkt.HeaderSize()
		readHeaders(s.pkt, t.head[:t.heads])
	}
	t.ip = t.heads - ethernetHeader - len(s.tcp)
}

// disarm ends the wait.
func (l *link) disarm(t *tail) {
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	if t.last != nil {
		t.last.DecRef()
		t.last = nil
	}
	t.armed.Store(false)
}

// lookAtTail runs each time that the timer of c has run out.
func (in *inline) lookAtTail(c *inlineConn) {
	t := &c.flow.tail
	if c.ep.TryLock() { // else somebody is at work on it
		// gVisor's goroutine, should it come by meanwhile, relies on UnlockUser to be told.
		c.ep.ResumeWork()
		c.ep.LockUser()
		wait := carries(c.ep.EndpointState()) && in.tailWaits(c)
		c.ep.UnlockUser()
		if !wait {
			in.link.disarm(t)
			return
		}
	}
	in.link.tx.mu.Lock()
	t.timer.Reset(time.Duration(t.after.Load()))
	in.link.tx.mu.Unlock()
}

// tailWaits probes if it is time, and reports whether to look again. c is locked.
func (in *inline) tailWaits(c *inlineConn) bool {
	t, s := &c.flow.tail, c.snd
	una, next := uint32(s.SndUna), uint32(s.SndNxt)
	switch {
	case una == next:
		return false
	case una != t.una || next != t.next:
		t.una, t.next, t.probed = una, next, false
		return true
	case t.probed || int(next-una) <= s.MaxPayloadSize || s.SndCwnd <= 1:
		return false
	}
	t.probed = true
	in.link.sendTail(t, uint32(s.MaxSentAck))
	return true
}

// sendTail sends the end of the last segment again, which acknowledges what comes before ack.
func (l *link) sendTail(t *tail, ack uint32) {
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	pkt := t.last
	if pkt == nil {
		return
	}
	payload, ipLen := pkt.Data().Size(), t.ip
	n := min(payload, t.mss)
	f := l.nextFrame()
	head := l.tx.heads[l.tx.n-1][:t.heads]
	copy(head, t.head[:t.heads])
	views, skip := pkt.AsViewList()
	w := walk{v: views.Front()}
	w.skip(skip + pkt.HeaderSize() + payload - n)

	tcpAt := ethernetHeader + ipLen
	tcp := header.TCP(head[tcpAt:])
	size := len(tcp) + n
	setIPLength(head[ethernetHeader:tcpAt], size, 0)
	tcp.SetSequenceNumber(tcp.SequenceNumber() + uint32(payload-n))
	tcp.SetAckNumber(ack)
	tcp.SetWindowSize(uint16(t.window.Load()))
	var ip header.Network = header.IPv4(head[ethernetHeader:tcpAt])
	if header.IPVersion(head[ethernetHeader:]) == header.IPv6Version {
		ip = header.IPv6(head[ethernetHeader:tcpAt])
	}
	pseudo := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(size))
	f.Data = append(f.Data, head)
	for left := n; left > 0; {
		b := w.next(left)
		left -= len(b)
		f.Data = append(f.Data, b)
	}
	l.seal(f, ipLen, tcp, pseudo)
	l.flush()
}
