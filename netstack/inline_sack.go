package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/header/parse"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// Segments that do nothing but acknowledge are prepared for gVisor.
//
// Of those that arrive in one burst the last one is enough, if it says all that the others say. In loss recovery gVisor
// goes through all that is under way for each of them, which adds up to milliseconds.
//
// One that tells of octets beyond a gap counts as a duplicate with gVisor only if it acknowledges nothing new in order and
// the window is as it was (RFC 5681). RFC 6675 does not ask for that, and with two super-frames under way there may be no
// second one. So it is handed on twice, first without what it says of the gap.

// maxSACKs is how many blocks fit into the options of a segment.
const maxSACKs = 4

// sacks are the blocks of octets beyond a gap of which a segment tells.
type sacks struct {
	n      int
	blocks [maxSACKs][2]uint32
	at     int // where the option begins; of no meaning without blocks
	size   int // octets of the option
}

// sacksIn reads them from the options of a segment.
func sacksIn(opts []byte) (s sacks) {
	for at := 0; at < len(opts); {
		kind := opts[at]
		if kind == header.TCPOptionEOL {
			break
		}
		if kind == header.TCPOptionNOP {
			at++
			continue
		}
		if at+1 >= len(opts) {
			break
		}
		size := int(opts[at+1])
		if size < 2 || at+size > len(opts) {
			break
		}
		if kind == header.TCPOptionSACK {
			s.at, s.size = at, size
			for b := opts[at+2 : at+size]; len(b) >= 8 && s.n < maxSACKs; b = b[8:] {
				s.blocks[s.n] = [2]uint32{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
				s.n++
			}
		}
		at += size
	}
	return s
}

// octets is how many the blocks have.
func (s *sacks) octets() (n uint32) {
	for _, b := range s.blocks[:s.n] {
		n += b[1] - b[0]
	}
	return n
}

// cover reports whether the blocks, or an acknowledgement of what comes before ack, say all that old says.
func (s *sacks) cover(old *sacks, ack uint32) bool {
next:
	for _, o := range old.blocks[:old.n] {
		if int32(ack-o[1]) >= 0 {
			continue
		}
		for _, b := range s.blocks[:s.n] {
			if int32(o[0]-b[0]) >= 0 && int32(b[1]-o[1]) >= 0 {
				continue next
			}
		}
		return false
	}
	return true
}

// queueACK queues pkt, which acknowledges and does nothing else, or keeps it for flushACK.
func (in *inline) queueACK(c *inlineConn, pkt *stack.PacketBuffer) {
	if c.ack != nil && !in.supersedes(c, pkt) {
		in.flushACK(c)
	}
	pkt.IncRef()
	if c.ack != nil {
		c.ack.DecRef()
	}
	c.ack = pkt
}

// supersedes reports whether the acknowledgement pkt says all that c.ack says.
func (in *inline) supersedes(c *inlineConn, pkt *stack.PacketBuffer) bool {
	was, is := header.TCP(c.ack.TransportHeader().Slice()), header.TCP(pkt.TransportHeader().Slice())
	ack := is.AckNumber()
	// The sequence number lets nobody suppress one who cannot send one. Repeated ones without more to say are counted.
	if in.rack || !pkt.RXChecksumValidated || was.SequenceNumber() != is.SequenceNumber() || int32(ack-was.AckNumber()) < 0 {
		return false
	}
	old, s := sacksIn(was.Options()), sacksIn(is.Options())
	if ack == was.AckNumber() && s.octets() < 2*uint32(c.flow.mss.Load()) {
		return false
	}
	return s.cover(&old, ack)
}

// flushACK queues the acknowledgement that was kept.
func (in *inline) flushACK(c *inlineConn) {
	pkt := c.ack
	if pkt == nil {
		return
	}
	c.ack = nil
	c.settle() // which came before
	tcp := header.TCP(pkt.TransportHeader().Slice())
	if s := sacksIn(tcp.Options()); s.n > 0 {
		if tcp.AckNumber() != c.lastACK || tcp.WindowSize() != c.lastWindow {
			if plain := withoutSACKs(pkt, &s); plain != nil {
				in.tcp.QueuePacket(c.ep, c.id, plain)
				plain.DecRef()
				in.all(c, in.now())
			}
		}
		if t := &c.flow.tail; t.probed && tcp.AckNumber() == t.una {
			t.probed = false
			c.recovery.answered(c.snd, c.board)
		}
	}
	in.queue(c, pkt)
	pkt.DecRef()
}

// queue is QueuePacket of gVisor.
func (in *inline) queue(c *inlineConn, pkt *stack.PacketBuffer) {
	tcp := header.TCP(pkt.TransportHeader().Slice())
	c.lastACK, c.lastWindow = tcp.AckNumber(), tcp.WindowSize()
	in.tcp.QueuePacket(c.ep, c.id, pkt)
}

// withoutSACKs returns a copy of pkt, which has no octets, without the option in s. A checksum that is wrong stays wrong.
func withoutSACKs(pkt *stack.PacketBuffer, s *sacks) *stack.PacketBuffer {
	ip, was := pkt.NetworkHeader().Slice(), pkt.TransportHeader().Slice()
	v := buffer.NewView(len(ip) + len(was))
	_, _ = v.Write(ip)
	_, _ = v.Write(was)
	tcp := header.TCP(v.AsSlice()[len(ip):])
	opts := tcp.Options()
	rest := checksum.Combine(^tcp.Checksum(), ^checksum.Checksum(opts, 0))
	for i := range opts[s.at : s.at+s.size] {
		opts[s.at+i] = header.TCPOptionNOP
	}
	tcp.SetChecksum(^checksum.Combine(rest, checksum.Checksum(opts, 0)))
	plain := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(v)})
	plain.NetworkProtocolNumber = pkt.NetworkProtocolNumber
	plain.RXChecksumValidated = pkt.RXChecksumValidated
	plain.NICID = pkt.NICID
	if !consumeHeaders(plain) {
		plain.DecRef()
		return nil
	}
	return plain
}

// sumValid reports whether the checksum of a segment with header tcp is right.
func sumValid(pkt *stack.PacketBuffer, tcp header.TCP) bool {
	var ip header.Network = header.IPv4(pkt.NetworkHeader().Slice())
	if pkt.NetworkProtocolNumber == header.IPv6ProtocolNumber {
		ip = header.IPv6(pkt.NetworkHeader().Slice())
	}
	return tcp.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), pkt.Data().Checksum(), uint16(pkt.Data().Size()))
}

// consumeHeaders parses the IP header of pkt, which is known to be good, and the TCP header.
func consumeHeaders(pkt *stack.PacketBuffer) bool {
	ok := false
	if pkt.NetworkProtocolNumber == header.IPv4ProtocolNumber {
		ok = parse.IPv4(pkt)
	} else {
		_, ok = pkt.NetworkHeader().Consume(header.IPv6MinimumSize)
	}
	return ok && parse.TCP(pkt)
}
