package netstack

import (
	"sync"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// inline processes the segments of established connections on the goroutine that takes them off the port. gVisor would
// carry each through its IP layer and queue it for a goroutine of its own, and who waits for the octets would wait for
// that one to be scheduled, too. Here the connection is found by the addresses and ports alone, as its packets need
// nothing that IP has to add, and gVisor's TCP runs at once.
//
// A segment gets into the endpoint's queue as always. While that happens the endpoint is locked as by a user, which
// keeps gVisor from waking its goroutine; what that one would have called is called here instead. Where the lock is
// taken, by a write for instance, gVisor's own way is gone. So are, all the way, segments of connections that are not
// established, and packets with IP options or in fragments.
//
// Acknowledgements are the other half of the gain, see inline_ack.go. A nil inline has no connections: all segments go
// gVisor's way.
type inline struct {
	tcp  queuer
	link *link
	rack bool // RecoveryRACK
	path bool // CongestionPath

	mu    sync.Mutex // guards what follows
	conns map[flowKey]*inlineConn

	// Guarded by rxSide.mu.
	pending []*inlineConn // locked, with segments to process
	late    []*inlineConn // with an acknowledgement to process
	acks    acks

	lateSince time.Duration // by the clock: when the first of late came
}

// queuer is the part of gVisor's TCP that takes segments which have found their endpoint.
type queuer interface {
	QueuePacket(stack.TransportEndpoint, stack.TransportEndpointID, *stack.PacketBuffer)
}

// inlineConn is an established connection.
type inlineConn struct {
	ep    *tcp.Endpoint
	id    stack.TransportEndpointID
	queue unsafe.Pointer // its segments
	flow  *flow

	// Guarded by the endpoint's lock.
	snd   *tcp.TCPSenderState
	board *tcp.SACKScoreboard

	// Guarded by rxSide.mu.
	held  bool          // in inline.pending
	plain bool          // held, and queue has nothing but octets and acknowledgements in it
	whole time.Duration // by the clock: when all of TCP's work was done last
	debt  debt

	late       unsafe.Pointer      // a segment whose octets are processed and whose acknowledgement is not; nil if none
	inLate     bool                // in inline.late
	overtaken  bool                // a segment that came after late went gVisor's way
	ack        *stack.PacketBuffer // an acknowledgement that is not queued yet
	lastACK    uint32              // of what was queued last
	lastWindow uint16

	rate     pathRate
	recovery recovery
}

// wholeEvery is how often at least all of TCP's work is done where segments arrive: it has a keepalive timer to reset, and
// lets ARP know that the neighbour is there. Both think in seconds.
const wholeEvery = 10 * time.Millisecond

// newInline makes it for the TCP of s on l, or returns nil if this gVisor is not the one it was made for.
func newInline(s *stack.Stack, l *link, c *Config) *inline {
	q, ok := s.TransportProtocolInstance(tcp.ProtocolNumber).(queuer)
	if !ok || !canInline() {
		return nil
	}
	return &inline{
		tcp: q, link: l, conns: make(map[flowKey]*inlineConn), pending: make([]*inlineConn, 0, rxBatch),
		acks: acks{keep: c.KeepACKs, most: min(c.RecvBuffer/8, ackAtLeast)},
		rack: c.Recovery == RecoveryRACK, path: c.Congestion != CongestionReno,
	}
}

// add makes ep one whose segments are processed inline, and returns what its TCP knows of sending; nil if it does not.
func (in *inline) add(ep *tcp.Endpoint, f *flow) *tcp.TCPSenderState {
	info, ok := ep.Info().(*stack.TransportEndpointInfo)
	if in == nil || !ok {
		return nil
	}
	c := &inlineConn{ep: ep, id: info.ID, queue: queueOf(ep), flow: f}
	if c.snd, c.board = senderOf(ep); c.snd == nil {
		return nil
	}
	if !in.rack { // which has probes of its own
		in.link.tx.mu.Lock()
		f.tail.fire = func() { in.lookAtTail(c) }
		in.link.tx.mu.Unlock()
	}
	in.mu.Lock()
	in.conns[keyOf(&info.ID)] = c
	in.mu.Unlock()
	return c.snd
}

// drop takes ep out. Segments that come later are gVisor's affair.
func (in *inline) drop(ep *tcp.Endpoint) {
	info, ok := ep.Info().(*stack.TransportEndpointInfo)
	if in == nil || !ok {
		return
	}
	k := keyOf(&info.ID)
	in.mu.Lock()
	if c := in.conns[k]; c != nil && c.ep == ep { // not another one that has these ports by now
		delete(in.conns, k)
	}
	in.mu.Unlock()
}

// takes queues pkt, which begins with its IP header, and reports true if it is for one of the connections here. The
// IP header is known to be good. Caller holds rxSide.mu.
func (in *inline) takes(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) bool {
	if in == nil {
		return false
	}
	b, ok := pkt.Data().PullUp(min(pkt.Data().Size(), header.IPv6MinimumSize+header.TCPMinimumSize))
	if !ok {
		return false
	}
	k, ok := keyIn(proto, pkt.Data().Size(), b)
	if !ok {
		return false
	}
	in.mu.Lock()
	c := in.conns[k]
	in.mu.Unlock()
	if c == nil {
		return false
	}
	if !in.hold(c) {
		c.overtaken = c.late != nil
		return false
	}
	if !consumeHeaders(pkt) {
		return true // of no use
	}
	h := header.TCP(pkt.TransportHeader().Slice())
	pkt.NICID = nicID
	// A data offset that is longer than the segment or shorter than a header leaves no options to read.
	if int(h.DataOffset()) != len(h) || !pkt.RXChecksumValidated && !sumValid(pkt, h) {
		in.tcp.QueuePacket(c.ep, c.id, pkt) // which counts it, and drops it
		return true
	}
	pkt.RXChecksumValidated = true // or gVisor would look again
	flags := h.Flags()
	if flags&^header.TCPFlagPsh != header.TCPFlagAck {
		c.plain = false
	}
	size := pkt.Data().Size()
	if size == 0 && flags == header.TCPFlagAck {
		in.queueACK(c, pkt)
		return true
	}
	in.flushACK(c)
	c.debt.octets += size
	in.queue(c, pkt)
	return true
}

// hold makes sure that c is among those to process, and reports whether it is.
func (in *inline) hold(c *inlineConn) bool {
	if c.held {
		return true
	}
	if !carries(c.ep.EndpointState()) || len(in.pending) == cap(in.pending) || !c.ep.TryLock() {
		return false
	}
	c.ep.ResumeWork()
	c.ep.LockUser() // waits no longer than one of gVisor's calls that came in between, which may have ended it
	state := c.ep.EndpointState()
	if !carries(state) {
		c.ep.UnlockUser()
		return false
	}
	c.held, c.plain = true, state == tcp.StateEstablished && queueEmpty(c.queue)
	in.pending = append(in.pending, c)
	return true
}

// carries reports whether a connection in that state has segments to process here.
func carries(state tcp.EndpointState) bool {
	switch state {
	case tcp.StateEstablished, tcp.StateCloseWait, tcp.StateFinWait1, tcp.StateFinWait2, tcp.StateClosing, tcp.StateLastAck:
		return true
	}
	return false
}

// process does TCP's work on what was queued since the last time. Acknowledgements may wait if polled says that somebody
// will come by soon. Caller holds rxSide.mu.
func (in *inline) process(polled bool) {
	if in == nil || len(in.pending) == 0 {
		return
	}
	now := in.now()
	for i, c := range in.pending {
		in.pending[i], c.held = nil, false
		c.settle()
		in.flushACK(c)
		if queueEmpty(c.queue) { // TCP would have none of it: no sign of life
			if !c.debt.listed {
				c.debt.octets = 0
			}
			c.ep.UnlockUser()
			continue
		}
		// Without octets there is nothing to acknowledge, and what an acknowledgement of the peer tells is whole work.
		if polled && c.plain && c.debt.octets > 0 && now-c.whole < wholeEvery && in.acks.mayWait(c) {
			in.segments(c)
			in.acks.owe(c, now)
			continue
		}
		in.all(c, now)
		c.ep.UnlockUser() // if something is left after all, gVisor's goroutine gets it
	}
	in.pending = in.pending[:0]
}

func (in *inline) now() time.Duration { return in.link.clock.now() }

// all does all of TCP's work on c, which is locked before and after, acknowledgement included.
func (in *inline) all(c *inlineConn, now time.Duration) {
	c.whole, c.debt.octets = now, 0
	s, board := c.snd, c.board
	c.recovery.before(s)
	in.link.hold(c.flow)
	c.ep.ResumeWork()
	handleConnected(c.ep)
	in.link.letGo()
	c.ep.LockUser()
	c.rate.measure(in.now(), s, board, c.flow)
	if in.path {
		c.rate.keep(s, in.link.burst(), in.link.count.dropsOut.Load())
	}
	c.recovery.after(s, board)
}

// segments does TCP's work on the segments of c, which is locked, and unlocks it. There is no reset among them, the only
// thing that ends an established connection; if gVisor finds something else, the connection is one nobody understands.
//
// What a lone segment acknowledges waits until Poll has found nothing: whoever waits for its octets answers first.
func (in *inline) segments(c *inlineConn) {
	for s := dequeue(c.queue); s != nil; s = dequeue(c.queue) {
		var more bool
		var err tcpip.Error
		if c.late == nil && queueEmpty(c.queue) && segmentData(s).Data().Size() > 0 {
			if more, err = receiveSegment(c.ep, s); more {
				c.late = s
				if !c.inLate {
					if len(in.late) == 0 {
						in.lateSince = in.now()
					}
					c.inLate = true
					in.late = append(in.late, c)
				}
				break
			}
			more = err == nil
		} else {
			more, err = handleSegment(c.ep, s)
		}
		release(s)
		if err != nil {
			c.ep.UnlockUser()
			c.ep.Abort()
			return
		}
		if !more {
			break
		}
	}
	c.ep.UnlockUser()
}
