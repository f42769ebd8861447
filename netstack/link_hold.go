package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrdma/softrdma/pktio"
)

// In loss recovery gVisor sends segments of one MSS, be they lost ones or new ones, one call for each. A port that cuts
// segments itself takes forty of them together for what it takes for one. So while TCP works on what arrived for a
// connection, what it sends there is kept, and what turns out to be contiguous goes out as one large segment: the peer
// gets the same frames.

// heldMax is how many segments of a connection are kept at most: twice the largest packet of a link with an MTU of 1500.
const heldMax = 96

// held are the segments that are kept, under txSide.mu.
type held struct {
	flow *flow // whose; nil if nobody's
	pkts []*stack.PacketBuffer
}

// hold keeps what f sends from now on until letGo.
func (l *link) hold(f *flow) {
	l.tx.mu.Lock()
	l.tx.held.flow = f
	l.tx.mu.Unlock()
}

// letGo sends what was kept.
func (l *link) letGo() {
	l.tx.mu.Lock()
	l.tx.held.flow = nil
	l.sendHeld()
	l.tx.mu.Unlock()
}

// keep reports whether pkt is one to be kept, and then it is. Caller holds tx.mu.
func (l *link) keep(pkt *stack.PacketBuffer) bool {
	h := &l.tx.held
	if h.flow == nil {
		return false
	}
	if f, ok := pkt.Owner.(*flow); !ok || f != h.flow {
		return false
	}
	pkt.IncRef()
	h.pkts = append(h.pkts, pkt)
	if len(h.pkts) == heldMax {
		l.sendHeld()
	}
	return true
}

// sendHeld sends what was kept so far. Caller holds tx.mu.
func (l *link) sendHeld() {
	h := &l.tx.held
	for rest := h.pkts; len(rest) > 0; {
		n := 1
		if l.hostGSO() {
			n = oneRun(rest, l.large)
		}
		if n == 1 {
			l.write(rest[0])
		} else {
			l.writeRun(rest[:n])
		}
		rest = rest[n:]
	}
	l.flush()
	for i, pkt := range h.pkts {
		pkt.DecRef()
		h.pkts[i] = nil
	}
	h.pkts = h.pkts[:0]
}

// oneRun returns how many of pkts, one at least, can be one packet of up to large octets.
func oneRun(pkts []*stack.PacketBuffer, large int) int {
	first := pkts[0]
	gso := &first.GSOOptions
	if gso.Type == stack.GSONone || !gso.NeedsCsum {
		return 1
	}
	const mayDiffer = header.TCPFlagPsh
	mss, size := int(gso.MSS), first.Size()-len(first.LinkHeader().Slice())
	head := header.TCP(first.TransportHeader().Slice())
	last := first.Data().Size()
	next := head.SequenceNumber() + uint32(last)
	for n, pkt := range pkts[1:] {
		tcp := header.TCP(pkt.TransportHeader().Slice())
		payload := pkt.Data().Size()
		if last == 0 || last%mss != 0 || payload == 0 || size+payload > large || pkt.GSOOptions != *gso ||
			len(tcp) != len(head) || tcp.SequenceNumber() != next || tcp.AckNumber() != head.AckNumber() ||
			tcp.WindowSize() != head.WindowSize() || (tcp.Flags()|head.Flags())&^mayDiffer != header.TCPFlagAck ||
			string(tcp.Options()) != string(head.Options()) {
			return n + 1
		}
		last, size, next = payload, size+payload, next+uint32(payload)
	}
	return len(pkts)
}

// writeRun is write for pkts that go out as one.
func (l *link) writeRun(pkts []*stack.PacketBuffer) {
	first := pkts[0]
	more, push := 0, header.TCPFlags(0)
	for _, pkt := range pkts[1:] {
		more += pkt.Data().Size()
		push |= header.TCP(pkt.TransportHeader().Slice()).Flags() & header.TCPFlagPsh
	}
	tcp := header.TCP(first.TransportHeader().Slice())
	tcpLen := len(tcp) + first.Data().Size()
	tcp.SetFlags(uint8(tcp.Flags() | push))
	// The sum of the pseudo header covers the length.
	pseudo := checksum.Combine(tcp.Checksum(), ^uint16(tcpLen))
	tcp.SetChecksum(checksum.Combine(pseudo, uint16(tcpLen+more)))
	lengthen(first.NetworkHeader().Slice(), more)

	l.write(first)
	f := &l.tx.frames[l.tx.n-1]
	for _, pkt := range pkts[1:] {
		heads := pkt.HeaderSize()
		views, skip := pkt.AsViewList()
		w := walk{v: views.Front()}
		w.skip(skip + heads)
		for left := pkt.Data().Size(); left > 0; {
			b := w.next(left)
			left -= len(b)
			f.Data = append(f.Data, b)
		}
		l.note(pkt, header.TCP(pkt.TransportHeader().Slice()), pkt.Data().Size())
	}
	f.GSO = pktio.GSOTCPv4
	if first.GSOOptions.Type == stack.GSOTCPv6 {
		f.GSO = pktio.GSOTCPv6
	}
	f.GSOSize = first.GSOOptions.MSS
}

// lengthen adds more octets to the length that the IP header h tells.
func lengthen(h []byte, more int) {
	if header.IPVersion(h) == header.IPv6Version {
		ip := header.IPv6(h)
		ip.SetPayloadLength(ip.PayloadLength() + uint16(more))
		return
	}
	ip := header.IPv4(h)
	ip.SetTotalLength(ip.TotalLength() + uint16(more))
	binary.BigEndian.PutUint16(h[10:], 0)
	ip.SetChecksum(^ip.CalculateChecksum())
}
