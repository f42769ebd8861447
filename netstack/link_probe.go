package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// isWindowProbe recognizes what gVisor sends to a peer whose window is shut: an octet acknowledged long ago. It pushes
// all other octets.
func isWindowProbe(tcp header.TCP, payload int) bool {
	return payload == 1 && tcp.Flags() == header.TCPFlagAck
}

// addAck puts a bare acknowledgement in front of a window probe, with the sequence number that the peer expects next.
// (Behind the probe it would continue it, and be joined with it on the way.)
//
// A receiver whose window is shut takes nothing but bare segments with exactly that number. gVisor numbers its
// acknowledgements with what it sends next, which is more if some octets got lost in front of the shut window, and
// gVisor at the other end then does not see that its own octets have arrived. Two ends that both wait like that, each
// for room to send before it reads on, would wait forever. (Linux numbers acknowledgements so that they fit.)
func (l *link) addAck(pkt *stack.PacketBuffer) {
	network, transport := pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()
	f := l.nextFrame()
	head := l.tx.heads[l.tx.n-1][:0]
	head = append(head, pkt.LinkHeader().Slice()...)
	head = append(head, network...)
	head = append(head, transport...)
	f.Data = append(f.Data, head)

	at := ethernetHeader + len(network)
	setIPLength(head[ethernetHeader:at], len(transport), 1)
	tcp := header.TCP(head[at:])
	tcp.SetSequenceNumber(tcp.SequenceNumber() + 1)
	// The checksum field holds the sum of the pseudo header, and that a length with the octet of the probe.
	tcp.SetChecksum(checksum.Combine(tcp.Checksum(), ^uint16(1)))
	tcp.SetChecksum(^checksum.Checksum(tcp, 0))
}
