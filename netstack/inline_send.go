package netstack

import (
	"encoding/binary"
	"math"
	"time"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/softrdma/softrdma/pktio"
)

// What gVisor does between the decision to send a segment and the frame takes longer than all that RDMA does: it asks for
// options, route and filters anew each time, and ends up with the headers of the segment before but for a few fields. So
// where nothing has to be decided a segment is sent from here, behind the headers of the last one that gVisor sent: the
// connection is established, all before was sent, no loss is known at either end, and both windows have room for the
// whole of it. TCP's state is then what it is when gVisor has sent it. All else goes gVisor's way, and so does a segment
// each leadFor: it has neighbours, routes and the path's MTU to look after.

// leadFor is for how long headers are used again.
const leadFor = 10 * time.Millisecond

// tsOptions begins the options of a segment that has a timestamp and nothing else.
const tsOptions = header.TCPOptionNOP<<24 | header.TCPOptionNOP<<16 | header.TCPOptionTS<<8 | header.TCPOptionTSLength

// lead is the headers of a segment that gVisor sent for a connection. Guarded by txSide.mu.
type lead struct {
	head    [maxHeaders]byte // Ethernet, IP, TCP
	ip, tcp int              // octets of these two
	pseudo  uint16           // sum of the pseudo header but for its length
	gso     pktio.GSOType
	mss     int
	until   time.Duration // by the clock: of no use from then on
}

// learn keeps the headers of pkt if other segments can have them, too.
func (d *lead) learn(pkt *stack.PacketBuffer, tcp header.TCP, now time.Duration) {
	ip := pkt.NetworkHeader().Slice()
	d.until, d.ip, d.tcp, d.mss = 0, len(ip), len(tcp), int(pkt.GSOOptions.MSS)
	var addrs header.Network
	if v4 := header.IPv4(ip); header.IPVersion(ip) == header.IPv4Version {
		// Packets that may be fragmented have an identification each.
		if len(ip) != header.IPv4MinimumSize || v4.Flags()&header.IPv4FlagDontFragment == 0 {
			return
		}
		addrs, d.gso = v4, pktio.GSOTCPv4
	} else {
		v6 := header.IPv6(ip)
		if len(ip) != header.IPv6MinimumSize || v6.NextHeader() != uint8(header.TCPProtocolNumber) {
			return
		}
		addrs, d.gso = v6, pktio.GSOTCPv6
	}
	if !d.stamped(tcp) && len(tcp) != header.TCPMinimumSize {
		return
	}
	copy(d.head[:], pkt.LinkHeader().Slice())
	copy(d.head[ethernetHeader:], ip)
	copy(d.head[ethernetHeader+d.ip:], tcp)
	d.pseudo = header.PseudoHeaderChecksum(header.TCPProtocolNumber, addrs.SourceAddress(), addrs.DestinationAddress(), 0)
	d.until = now + leadFor
}

// stamped reports whether a TCP header has a timestamp and no other option.
func (d *lead) stamped(tcp header.TCP) bool {
	return len(tcp) == header.TCPMinimumSize+12 && binary.BigEndian.Uint32(tcp[header.TCPMinimumSize:]) == tsOptions
}

// quick sends the octets b of segment, the last one of its connection, and reports whether it did. If not, gVisor has to.
// The endpoint is locked.
func (uc *userConn) quick(segment unsafe.Pointer, b []byte) bool {
	l, s := uc.c.st.user.link, uc.snd
	if s == nil || uc.ep.EndpointState() != tcp.StateEstablished || !fluent(uc.ep) {
		return false
	}
	n := (len(b)-1)/s.MaxPayloadSize + 1
	end := s.SndUna.Add(s.SndWnd)
	now := l.clock.NowMonotonic()
	if n > 1 && !l.hostGSO() || !s.SndNxt.LessThan(end) || int(s.SndNxt.Size(end)) < len(b) ||
		s.Outstanding+n > s.SndCwnd || now.Sub(s.LastSendTime) > s.RTO {
		return false
	}
	ack, window := sendParams(uc.ep)
	if !l.sendLed(uc, segment, b, ack, window) {
		return false
	}
	if s.SndNxt == s.RTTMeasureSeqNum {
		s.RTTMeasureTime = now
	}
	markSent(segment, s.SndNxt, now)
	s.LastSendTime, s.MaxSentAck = now, ack
	s.SndNxt.UpdateForward(seqnum.Size(len(b)))
	s.Outstanding += n
	uc.c.st.user.sent.Increment()
	uc.sent.Increment()
	sentData(uc.ep)
	return true
}

// sendLed sends the octets b of segment behind the lead of their connection, and reports false if that is of no use now.
func (l *link) sendLed(uc *userConn, segment unsafe.Pointer, b []byte, ack seqnum.Value, window seqnum.Size) bool {
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	f, d, s := &uc.flow, &uc.flow.lead, uc.snd
	size := ethernetHeader + d.ip + d.tcp
	if d.until <= l.clock.now() || d.mss != s.MaxPayloadSize || size-ethernetHeader+len(b) > l.large || l.tx.held.flow == f {
		return false
	}
	fr := l.nextFrame()
	head := l.tx.heads[l.tx.n-1][:size]
	copy(head, d.head[:size])
	setIPLength(head[ethernetHeader:ethernetHeader+d.ip], d.tcp+len(b), 0)
	tcp := header.TCP(head[ethernetHeader+d.ip:])
	w := uint16(min(window, math.MaxUint16))
	tcp.SetSequenceNumber(uint32(s.SndNxt))
	tcp.SetAckNumber(uint32(ack))
	tcp.SetFlags(uint8(header.TCPFlagAck | header.TCPFlagPsh))
	tcp.SetWindowSize(w)
	if d.stamped(tcp) {
		mine, theirs := timestamps(uc.ep)
		binary.BigEndian.PutUint32(tcp[header.TCPMinimumSize+4:], mine)
		binary.BigEndian.PutUint32(tcp[header.TCPMinimumSize+8:], theirs)
	}
	fr.Data = append(fr.Data, head, b)
	l.seal(fr, d.ip, tcp, checksum.Combine(d.pseudo, uint16(d.tcp+len(b))))
	if len(b) > d.mss {
		fr.GSO, fr.GSOSize = d.gso, uint16(d.mss)
	}
	if f.tail.window.Load() != uint32(w) {
		f.tail.window.Store(uint32(w))
	}
	l.noteSent(f, sentSegment{pkt: segmentData(segment), head: head, tcp: tcp, payload: len(b), mss: d.mss})
	l.flush()
	return true
}
