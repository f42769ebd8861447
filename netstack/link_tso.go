package netstack

import (
	"encoding/binary"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// maxHeaders bounds the Ethernet, IP and TCP headers of a segment, options included. TCP over IPv6 has less: gVisor sends
// it without extension headers.
const maxHeaders = ethernetHeader + header.IPv4MaximumHeaderSize + header.TCPHeaderMaximumSize

// segment cuts a large TCP segment of payload octets into frames of the wire's size: headers copied and corrected,
// payload referred to where it lies.
func (l *link) segment(pkt *stack.PacketBuffer, payload int) {
	var (
		mss   = int(pkt.GSOOptions.MSS)
		ipLen = len(pkt.NetworkHeader().Slice())
		heads = pkt.HeaderSize()
		all   [maxHeaders]byte
	)
	w := readHeaders(pkt, all[:heads])
	// The sum of the pseudo header covers the length of the large segment. Take that out once.
	tcpAt := ethernetHeader + ipLen
	first := header.TCP(all[tcpAt:heads])
	tcpLen := heads - tcpAt
	pseudo := checksum.Combine(first.Checksum(), ^uint16(tcpLen+payload))
	seq, flags := first.SequenceNumber(), first.Flags()

	for i := 0; payload > 0; i++ {
		n := min(mss, payload)
		payload -= n
		f := l.nextFrame()
		head := l.tx.heads[l.tx.n-1][:heads]
		copy(head, all[:heads])
		setIPLength(head[ethernetHeader:tcpAt], tcpLen+n, i)
		tcp := header.TCP(head[tcpAt:])
		tcp.SetSequenceNumber(seq)
		seq += uint32(n)
		if payload > 0 {
			tcp.SetFlags(uint8(flags &^ (header.TCPFlagFin | header.TCPFlagPsh)))
		}
		tcp.SetChecksum(checksum.Combine(pseudo, uint16(tcpLen+n)))

		f.Data = append(f.Data, head)
		var sum checksum.Checksumer
		for left := n; left > 0; {
			b := w.next(left)
			left -= len(b)
			f.Data = append(f.Data, b)
			if !l.info.Checksum {
				sum.Add(b)
			}
		}
		if l.info.Checksum {
			f.NeedsCsum = true
			f.CsumStart = uint16(tcpAt)
			f.CsumOffset = header.TCPChecksumOffset
			f.HdrLen = uint16(heads)
			continue
		}
		tcp.SetChecksum(^checksum.Combine(checksum.Checksum(tcp, 0), sum.Checksum()))
	}
}

// readHeaders fills head with the headers of pkt and returns a walk through what follows them.
func readHeaders(pkt *stack.PacketBuffer, head []byte) walk {
	views, skip := pkt.AsViewList()
	w := walk{v: views.Front()}
	w.skip(skip)
	for at := 0; at < len(head); {
		at += copy(head[at:], w.next(len(head)-at))
	}
	return w
}

// setIPLength gives the i-th piece of a cut packet its length, and with IPv4 its identification and header checksum. h is
// the IP header, payload the octets behind it.
func setIPLength(h []byte, payload, i int) {
	if header.IPVersion(h) == header.IPv6Version {
		header.IPv6(h).SetPayloadLength(uint16(len(h) - header.IPv6MinimumSize + payload))
		return
	}
	ip := header.IPv4(h)
	ip.SetTotalLength(uint16(len(h) + payload))
	binary.BigEndian.PutUint16(h[4:], ip.ID()+uint16(i))
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
}
