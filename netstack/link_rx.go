package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"

	"github.com/softrdma/softrdma/pktio"
)

// oneView is up to which size a packet is not worth two pieces of memory.
const oneView = 192

// deliver hands an arrived frame to gVisor, as a copy: the frame is the port's again when this returns.
func (l *link) deliver(f *pktio.Frame) {
	total := f.Len()
	l.count.framesIn.Add(1)
	l.count.octetsIn.Add(uint64(total))
	head := l.front(f)
	if len(head) < ethernetHeader || !l.forUs(head) {
		l.count.dropsIn.Add(1)
		return
	}
	proto := tcpip.NetworkProtocolNumber(binary.BigEndian.Uint16(head[12:]))
	switch proto {
	case header.ARPProtocolNumber:
		l.pass(proto, f, total, total, false)
	case header.IPv4ProtocolNumber:
		l.deliverIPv4(f, head, total)
	default:
		l.count.dropsIn.Add(1)
	}
}

// front returns the first octets of f, as many as headers can have.
func (l *link) front(f *pktio.Frame) []byte {
	if len(f.Data) == 0 {
		return nil
	}
	if len(f.Data) == 1 || len(f.Data[0]) >= maxHeaders {
		return f.Data[0]
	}
	n := 0
	for _, p := range f.Data {
		n += copy(l.rx.head[n:], p)
	}
	return l.rx.head[:n]
}

// forUs looks at the destination: our address, or many.
func (l *link) forUs(eth []byte) bool {
	return eth[0]&1 != 0 || [6]byte(eth) == l.info.Addr
}

func (l *link) deliverIPv4(f *pktio.Frame, head []byte, total int) {
	ip := header.IPv4(head[ethernetHeader:])
	if len(ip) < header.IPv4MinimumSize {
		l.count.dropsIn.Add(1)
		return
	}
	hlen := int(ip.HeaderLength())
	if hlen < header.IPv4MinimumSize || hlen > len(ip) {
		l.count.dropsIn.Add(1)
		return
	}
	// Whatever checked the frame looked at TCP's checksum, not at this one.
	if ip[:hlen].CalculateChecksum() != 0xffff {
		l.count.badSums.Add(1)
		l.count.dropsIn.Add(1)
		return
	}
	// Short packets come padded to the least size of a frame.
	if n := ethernetHeader + int(ip.TotalLength()); n < total {
		total = max(n, ethernetHeader+hlen)
	}
	// The TCP header goes into memory of its own with the IP header: gVisor keeps hold of the headers while they are
	// handled, and would copy all that shares memory with them.
	split := total
	if at := ethernetHeader + hlen; total > oneView && ip.Protocol() == uint8(header.TCPProtocolNumber) && len(head) >= at+header.TCPMinimumSize {
		if n := at + int(header.TCP(head[at:]).DataOffset()); n <= total {
			split = n
		}
	}
	l.pass(header.IPv4ProtocolNumber, f, split, total, f.CsumValid || f.NeedsCsum)
}

// pass copies the octets of f from the end of the Ethernet header up to total, those before split into one piece of
// memory, the others into another, and lets gVisor have them.
func (l *link) pass(proto tcpip.NetworkProtocolNumber, f *pktio.Frame, split, total int, valid bool) {
	data := buffer.MakeWithView(viewOf(f, ethernetHeader, split))
	for at := split; at < total; {
		n := min(total-at, buffer.MaxChunkSize)
		_ = data.Append(viewOf(f, at, at+n))
		at += n
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: data})
	pkt.NetworkProtocolNumber = proto
	pkt.RXChecksumValidated = valid
	if l.rx.gro != nil {
		l.rx.gro.Enqueue(pkt)
	} else {
		l.DeliverNetworkPacket(proto, pkt)
	}
	pkt.DecRef()
}

// viewOf copies the octets from..to of f.
func viewOf(f *pktio.Frame, from, to int) *buffer.View {
	v := buffer.NewView(to - from)
	at := 0
	for _, p := range f.Data {
		lo, hi := max(from-at, 0), min(to-at, len(p))
		if lo < hi {
			_, _ = v.Write(p[lo:hi])
		}
		at += len(p)
	}
	return v
}

// newGRO makes what joins the segments of a burst.
func (l *link) newGRO() *gro.GRO {
	g := &gro.GRO{Dispatcher: l}
	g.Init(true)
	return g
}

// DeliverNetworkPacket is the last step to gVisor, after segments were joined. With DeliverLinkPacket it makes link a
// stack.NetworkDispatcher.
func (l *link) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	l.validated(pkt.RXChecksumValidated)
	l.up.DeliverNetworkPacket(proto, pkt)
}

// DeliverLinkPacket is for packet sockets, which this stack does not have.
func (l *link) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}
