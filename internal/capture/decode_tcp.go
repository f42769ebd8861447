package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// assembler sorts packets into connections.
type assembler struct {
	conns []*tcpConn
	open  map[flowKey]*tcpConn // the newest connection of an address pair, under both directions
}

type flowKey struct{ from, to netip.AddrPort }

// tcpConn is one TCP connection; side 0 sent its first captured packet.
type tcpConn struct {
	key  [2]flowKey
	side [2]tcpStream
}

func (c *tcpConn) octets() int { return len(c.side[0].data) + len(c.side[1].data) }

// packet feeds one packet and reports whether it was TCP.
func (a *assembler) packet(p gopacket.Packet, number int, at time.Time) bool {
	tcp, _ := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if tcp == nil {
		return false
	}
	var key flowKey
	payload, cut := tcp.Payload, p.Metadata().Truncated
	var src, dst netip.Addr
	switch ip := p.NetworkLayer().(type) {
	case *layers.IPv4:
		src, _ = netip.AddrFromSlice(ip.SrcIP.To4())
		dst, _ = netip.AddrFromSlice(ip.DstIP.To4())
	case *layers.IPv6:
		src, _ = netip.AddrFromSlice(ip.SrcIP)
		dst, _ = netip.AddrFromSlice(ip.DstIP)
	default:
		return false
	}
	key.from = netip.AddrPortFrom(src, uint16(tcp.SrcPort))
	key.to = netip.AddrPortFrom(dst, uint16(tcp.DstPort))

	c := a.open[key]
	// The same ports may be used again: another first sequence number is another connection.
	if c == nil || tcp.SYN && !tcp.ACK && !c.stream(key).mayStartAt(tcp.Seq) {
		c = &tcpConn{key: [2]flowKey{key, {key.to, key.from}}}
		if a.open == nil {
			a.open = make(map[flowKey]*tcpConn)
		}
		a.open[c.key[0]], a.open[c.key[1]] = c, c
		a.conns = append(a.conns, c)
	}
	s := c.stream(key)
	s.rst = s.rst || tcp.RST
	if tcp.SYN {
		if s.empty() {
			*s = tcpStream{} // what came before belongs to an older connection of these ports
		}
		s.start(tcp.Seq + 1)
		return true
	}
	seg := segment{data: payload, packet: number, time: at}
	if !s.started {
		s.start(tcp.Seq)
	}
	seg.off = s.offset(tcp.Seq)
	if tcp.FIN && !cut {
		s.fin = true
	}
	if len(payload) == 0 || tcp.RST {
		return true
	}
	s.segments++
	if !cut && !checksumPlausible(src, dst, tcp) {
		s.badChecksum++
		s.damaged = append(s.damaged, seg)
		return true
	}
	s.add(seg)
	return true
}

func (c *tcpConn) stream(k flowKey) *tcpStream {
	if c.key[0] == k {
		return &c.side[0]
	}
	return &c.side[1]
}

// tcpStream puts one direction in order. Offsets count from the first octet after
// the SYN, or from the first one captured.
type tcpStream struct {
	started bool
	first   uint32 // sequence number of offset 0
	data    []byte // the octets in order so far
	origin  []origin
	held    []segment // arrived early, sorted by offset
	damaged []segment // their checksum is wrong: used only where nothing else fills a gap
	fin     bool
	rst     bool

	segments, retransmitted, outOfOrder, badChecksum, conflicts int
}

type segment struct {
	off    int
	data   []byte
	packet int
	time   time.Time
}

// origin remembers which packet brought the octets before end.
type origin struct {
	end    int
	packet int
	time   time.Time
}

func (s *tcpStream) start(seq uint32) {
	if !s.started {
		s.started, s.first = true, seq
	}
}

// empty tells whether the side has sent no octets so far.
func (s *tcpStream) empty() bool { return len(s.data)+len(s.held)+len(s.damaged) == 0 }

// mayStartAt tells a repeated SYN from the first one of a new connection.
func (s *tcpStream) mayStartAt(syn uint32) bool { return !s.started || s.first == syn+1 }

// offset turns a sequence number into a stream offset. It takes the number as near
// to the next one expected, so the 32-bit wrap does not matter.
func (s *tcpStream) offset(seq uint32) int {
	next := s.first + uint32(len(s.data))
	return len(s.data) + int(int32(seq-next))
}

// add takes one segment, whatever its place.
func (s *tcpStream) add(seg segment) {
	switch {
	case seg.off > len(s.data):
		i := sort.Search(len(s.held), func(i int) bool { return s.held[i].off > seg.off })
		s.held = slices.Insert(s.held, i, seg)
		return
	case !s.append(seg):
		s.retransmitted++
		return
	}
	for len(s.held) > 0 && s.held[0].off <= len(s.data) {
		seg := s.held[0]
		s.held = s.held[1:]
		if s.append(seg) {
			s.outOfOrder++
		} else {
			s.retransmitted++
		}
	}
}

// append adds what is new in a segment that starts at or before the end of the
// stream, and reports whether anything was.
func (s *tcpStream) append(seg segment) bool {
	old := len(s.data) - seg.off // octets of seg we have already
	known := min(old, len(seg.data))
	from := max(-seg.off, 0) // the part before the first octet we know
	if from < known && !bytes.Equal(s.data[seg.off+from:seg.off+known], seg.data[from:known]) {
		s.conflicts++
	}
	if known == len(seg.data) {
		return false
	}
	s.data = append(s.data, seg.data[known:]...)
	s.origin = append(s.origin, origin{len(s.data), seg.packet, seg.time})
	return true
}

// finish ends the reading: damaged segments fill what nothing else filled. It
// returns an error when octets are missing before others that were captured.
func (s *tcpStream) finish() error {
	sort.SliceStable(s.damaged, func(i, j int) bool { return s.damaged[i].off < s.damaged[j].off })
	for _, seg := range s.damaged {
		if seg.off+len(seg.data) > len(s.data) {
			s.add(seg)
		}
	}
	s.damaged = nil
	if len(s.held) > 0 {
		return fmt.Errorf("%w: %d octets from stream offset %d on", ErrMissing, s.held[0].off-len(s.data), len(s.data))
	}
	return nil
}

// source tells which packet completed the stream up to offset end.
func (s *tcpStream) source(end int) (packet int, at time.Time) {
	i := sort.Search(len(s.origin), func(i int) bool { return s.origin[i].end >= end })
	if i == len(s.origin) {
		return 0, time.Time{}
	}
	return s.origin[i].packet, s.origin[i].time
}

// checksumPlausible is false for a TCP checksum that is neither right nor left to a
// device to finish. A frame captured on its way out, or a super-frame, carries only
// the sum of the pseudo header.
func checksumPlausible(src, dst netip.Addr, tcp *layers.TCP) bool {
	length := len(tcp.Contents) + len(tcp.Payload)
	pseudo := sum16(uint32(layers.IPProtocolTCP)+uint32(length)&0xffff+uint32(length)>>16, src.AsSlice())
	pseudo = sum16(pseudo, dst.AsSlice())
	if fold(pseudo) == tcp.Checksum {
		return true
	}
	// The header may have an odd number of octets only in theory: it counts words.
	total := sum16(sum16(pseudo, tcp.Contents), tcp.Payload)
	return fold(total) == 0xffff
}

func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
		if sum >= 1<<31 {
			sum = sum&0xffff + sum>>16
		}
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum&0xffff + sum>>16
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
