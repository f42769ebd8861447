package netstack

import (
	"bytes"
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// joiner makes one large TCP segment of those that follow each other in a burst, where the port does not: to TCP a segment
// costs the same whatever its size. The rules are those of Linux' GRO, and one more: all of the headers have to be equal
// but for lengths, checksums, sequence number, PSH and IPv4's identification, the window included. So nothing is lost that
// a header says. The segments wait in the port's memory, for the end of the burst at most, and their octets are copied
// once, to where TCP gets them.
//
// gVisor's GRO makes a packet of each segment first, and of IPv6 copies much.
type joiner struct {
	runs [maxRuns]run
	next int // the run to end when a new one needs a place
}

const (
	// maxRuns is how many connections at most have segments that wait.
	maxRuns = 16

	// keyAt4 and keyAt6 are where in a frame the addresses and the ports begin.
	keyAt4 = ethernetHeader + header.IPv4MinimumSize - 2*header.IPv4AddressSize
	keyAt6 = ethernetHeader + header.IPv6MinimumSize - 2*header.IPv6AddressSize
)

// run is segments of a connection that follow each other.
type run struct {
	parts []part // none: the place is free
	size  int    // octets of their payload
	first int    // of the first one's
	next  uint32 // the sequence number that would follow
	flags header.TCPFlags
	seg   tcpHead
	store [maxHeaders]byte // seg.head
}

// part is one segment's payload: octets from..to of a frame.
type part struct {
	f        *pktio.Frame
	from, to int
}

// tcpHead is the headers of a segment without IP options or extension headers.
type tcpHead struct {
	proto tcpip.NetworkProtocolNumber
	head  []byte // Ethernet, IP and TCP header
	key   int    // where in head the addresses and ports begin
	tcp   int    // where the TCP header begins
}

func (s *tcpHead) ports() []byte    { return s.head[s.key : s.tcp+portsSize] } // with the addresses in front
func (s *tcpHead) tcpH() header.TCP { return header.TCP(s.head[s.tcp:]) }

// tcpHeadOf returns the headers of a frame of total octets without padding, of which head has the first. It returns false
// for everything else, fragments included, and where something is malformed.
func tcpHeadOf(proto tcpip.NetworkProtocolNumber, head []byte, total int) (s tcpHead, ok bool) {
	s = tcpHead{proto: proto, key: keyAt4, tcp: ethernetHeader + header.IPv4MinimumSize}
	if proto == header.IPv6ProtocolNumber {
		s.key, s.tcp = keyAt6, ethernetHeader+header.IPv6MinimumSize
	}
	if len(head) < s.tcp+header.TCPMinimumSize {
		return s, false
	}
	if proto == header.IPv6ProtocolNumber {
		ip := header.IPv6(head[ethernetHeader:])
		ok = ip.NextHeader() == uint8(header.TCPProtocolNumber) && s.tcp+int(ip.PayloadLength()) == total
	} else {
		const mayFragment = 0x4000
		ip := header.IPv4(head[ethernetHeader:])
		ok = ip[0] == 4<<4|header.IPv4MinimumSize/4 && ip.Protocol() == uint8(header.TCPProtocolNumber) &&
			ethernetHeader+int(ip.TotalLength()) == total && binary.BigEndian.Uint16(ip[6:])&^mayFragment == 0
	}
	end := s.tcp + int(header.TCP(head[s.tcp:]).DataOffset())
	if !ok || end < s.tcp+header.TCPMinimumSize || end > min(total, len(head), maxHeaders) {
		return s, false
	}
	s.head = head[:end]
	return s, true
}

// joins takes f, an IP packet with total octets of frame whose first are head, and reports true if it continues a run or
// can begin one. valid says that its TCP checksum is known to be right. Of a segment that it does not take, what it took
// of the same connection before has been delivered.
func (l *link) joins(proto tcpip.NetworkProtocolNumber, f *pktio.Frame, head []byte, total int, valid bool) bool {
	j := &l.rx.joiner
	s, ok := tcpHeadOf(proto, head, total)
	if !ok {
		return false
	}
	payload := total - len(s.head)
	flags := s.tcpH().Flags()
	plain := payload > 0 && flags&^header.TCPFlagPsh == header.TCPFlagAck &&
		total <= ethernetHeader+min(l.info.MTU, maxPacket/2) // larger ones somebody has joined, or they are large enough
	r := j.find(&s)
	switch {
	case r == nil && (!plain || flags&header.TCPFlagPsh != 0):
		return false // nothing to end, and nothing to begin
	case !valid && !sumsUp(&s, f, total):
		return false // whose ever it is
	case r != nil && !(plain && r.continues(&s, payload)):
		l.endRun(r)
		r = nil
	}
	if r == nil {
		if !plain || flags&header.TCPFlagPsh != 0 {
			return false
		}
		r = l.beginRun(&s, payload)
	}
	r.parts = append(r.parts, part{f, len(s.head), total})
	r.size += payload
	r.next += uint32(payload)
	r.flags = flags // PSH is the last one's
	if flags&header.TCPFlagPsh != 0 || payload < r.first || len(r.parts) == cap(r.parts) {
		l.endRun(r)
	}
	return true
}

// find returns the run of the connection that s is of; nil without.
func (j *joiner) find(s *tcpHead) *run {
	for i := range j.runs {
		if r := &j.runs[i]; len(r.parts) > 0 && bytes.Equal(r.seg.ports(), s.ports()) {
			return r
		}
	}
	return nil
}

// continues reports whether a segment of r's connection can be joined to r.
func (r *run) continues(s *tcpHead, payload int) bool {
	return s.tcpH().SequenceNumber() == r.next && payload <= r.first &&
		len(r.seg.head)-ethernetHeader+r.size+payload <= maxPacket && r.seg.equal(s)
}

// equal compares all of the headers that joined segments have in common, but for addresses and ports.
func (s *tcpHead) equal(o *tcpHead) bool {
	if len(s.head) != len(o.head) || s.proto != o.proto {
		return false
	}
	a, b := s.head[ethernetHeader:s.key], o.head[ethernetHeader:o.key]
	if s.proto == header.IPv4ProtocolNumber {
		// Of the rest, length and identification may differ, and the checksum has to.
		if a[1] != b[1] || !bytes.Equal(a[6:9], b[6:9]) { // TOS, fragment bits, TTL
			return false
		}
	} else if !bytes.Equal(a[:4], b[:4]) || a[7] != b[7] { // class and flow label, hop limit
		return false
	}
	a, b = s.head[s.tcp:], o.head[o.tcp:]
	return bytes.Equal(a[8:13], b[8:13]) && // acknowledgement and length; flags are known
		bytes.Equal(a[14:16], b[14:16]) && bytes.Equal(a[18:], b[18:]) // window; urgent pointer and options
}

// sumsUp checks the TCP checksum of f.
func sumsUp(s *tcpHead, f *pktio.Frame, total int) bool {
	sum := checksum.Checksum(s.head[s.key:s.tcp], uint16(header.TCPProtocolNumber))
	sum = checksum.Combine(sum, uint16(total-s.tcp))
	var c checksum.Checksumer
	c.Add(s.head[s.tcp:])
	pieces(f, len(s.head), total, c.Add)
	return checksum.Combine(sum, c.Checksum()) == 0xffff
}

// beginRun makes a run for a connection that has none.
func (l *link) beginRun(s *tcpHead, payload int) *run {
	j := &l.rx.joiner
	r := (*run)(nil)
	for i := range j.runs {
		if len(j.runs[i].parts) == 0 {
			r = &j.runs[i]
			break
		}
	}
	if r == nil {
		r = &j.runs[j.next]
		j.next = (j.next + 1) % maxRuns
		l.endRun(r)
	}
	if r.parts == nil {
		r.parts = make([]part, 0, rxBatch)
	}
	r.size, r.first = 0, payload
	r.next = s.tcpH().SequenceNumber()
	r.seg = *s
	r.seg.head = r.store[:copy(r.store[:], s.head)]
	return r
}

// endRuns delivers all that waits.
func (l *link) endRuns() {
	for i := range l.rx.joiner.runs {
		if r := &l.rx.joiner.runs[i]; len(r.parts) > 0 {
			l.endRun(r)
		}
	}
}

// endRun delivers what r joined as one segment.
func (l *link) endRun(r *run) {
	s := &r.seg
	if len(r.parts) > 1 {
		setIPLength(s.head[ethernetHeader:s.tcp], len(s.head)-s.tcp+r.size, 0)
		s.tcpH().SetFlags(uint8(r.flags)) // its checksum is of no meaning any more
	}
	payload := viewFor(r.size)
	to := payload.AsSlice()
	for i := range r.parts {
		p := &r.parts[i]
		pieces(p.f, p.from, p.to, func(b []byte) { to = to[copy(to, b):] })
		p.f = nil
	}
	r.parts = r.parts[:0]
	data := buffer.MakeWithView(buffer.NewViewWithData(s.head[ethernetHeader:]))
	_ = data.Append(payload)
	l.hand(s.proto, data, true)
}

// viewFor returns a view of n octets, at most as many as the largest chunk has, with whatever is in there.
func viewFor(n int) *buffer.View {
	if n <= buffer.MaxChunkSize/2 {
		return buffer.NewViewSize(n) // clears less than it would waste
	}
	v := uncleared()
	v.CapLength(n)
	return v
}

// pieces calls f with the octets from..to of a frame, in order.
func pieces(fr *pktio.Frame, from, to int, f func([]byte)) {
	at := 0
	for _, p := range fr.Data {
		lo, hi := max(from-at, 0), min(to-at, len(p))
		if lo < hi {
			f(p[lo:hi])
		}
		if at += len(p); at >= to {
			return
		}
	}
}
