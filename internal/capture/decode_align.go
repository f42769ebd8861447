package capture

import (
	"cmp"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// WriteAligned writes a pcap file with the octets of the connection as they were, but each
// startup frame and each FPDU in a TCP segment of its own, for tshark (4.0) and its limits:
//
//   - It finds the FPDUs of a direction with markers only if the stream is cut like that.
//   - It takes both directions for marked when one is: where only one is, the FPDUs of the
//     other are left out.
//   - It takes a marker between two FPDUs for the end of the former and not, as RFC 5044,
//     Section 4.3 has it, for the begin of the latter: a direction with markers ends before
//     the first FPDU behind which one is due.
func (s *Session) WriteAligned(w io.Writer) error {
	type piece struct {
		flow   *Flow
		octets []byte
		packet int
		at     time.Time
	}
	var pieces []piece
	flows := []*Flow{&s.Initiator, &s.Responder}
	one := s.Initiator.marked() != s.Responder.marked()
	for _, f := range flows {
		if f.Startup != nil {
			pieces = append(pieces, piece{flow: f, octets: f.Startup.Contents})
		}
	}
	head := len(pieces)
	for _, f := range flows {
		if f.Startup == nil || one && !f.marked() {
			continue
		}
		start := len(f.Startup.Contents)
		for i := range f.FPDUs {
			u := &f.FPDUs[i]
			if f.marked() && (u.Offset+u.size()-start)%512 == 0 {
				break
			}
			pieces = append(pieces, piece{f, f.Stream()[u.Offset : u.Offset+u.size()], u.Packet, u.Time})
		}
	}
	slices.SortStableFunc(pieces[head:], func(a, b piece) int { return cmp.Compare(a.packet, b.packet) })

	pc := pcapgo.NewWriter(w)
	if err := pc.WriteFileHeader(1<<18, layers.LinkTypeEthernet); err != nil {
		return err
	}
	seq := map[*Flow]uint32{&s.Initiator: 1, &s.Responder: 1}
	other := map[*Flow]*Flow{&s.Initiator: &s.Responder, &s.Responder: &s.Initiator}
	buf := gopacket.NewSerializeBuffer()
	put := func(p piece, tcp layers.TCP) error {
		tcp.SrcPort, tcp.DstPort = layers.TCPPort(p.flow.From.Port()), layers.TCPPort(p.flow.To.Port())
		tcp.Seq, tcp.Ack, tcp.Window = seq[p.flow], seq[other[p.flow]], 65535
		if err := packet(buf, p.flow.From.Addr(), p.flow.To.Addr(), &tcp, p.octets); err != nil {
			return err
		}
		seq[p.flow] += uint32(len(p.octets))
		if tcp.SYN {
			seq[p.flow]++
		}
		b := buf.Bytes()
		return pc.WritePacket(gopacket.CaptureInfo{Timestamp: p.at, CaptureLength: len(b), Length: len(b)}, b)
	}
	for i, f := range flows {
		if err := put(piece{flow: f}, layers.TCP{SYN: true, ACK: i == 1}); err != nil {
			return err
		}
	}
	for _, p := range pieces {
		if err := put(p, layers.TCP{ACK: true, PSH: true}); err != nil {
			return err
		}
	}
	return nil
}

// packet fills buf with an Ethernet frame, of any length.
func packet(buf gopacket.SerializeBuffer, from, to netip.Addr, tcp *layers.TCP, octets []byte) error {
	eth := layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}}
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if from.Is4() {
		eth.EthernetType = layers.EthernetTypeIPv4
		ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
		if err := tcp.SetNetworkLayerForChecksum(&ip); err != nil {
			return err
		}
		return gopacket.SerializeLayers(buf, opts, &eth, &ip, tcp, gopacket.Payload(octets))
	}
	eth.EthernetType = layers.EthernetTypeIPv6
	ip := layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: from.AsSlice(), DstIP: to.AsSlice()}
	if err := tcp.SetNetworkLayerForChecksum(&ip); err != nil {
		return err
	}
	return gopacket.SerializeLayers(buf, opts, &eth, &ip, tcp, gopacket.Payload(octets))
}

// marked reports whether the direction has markers; one without octets has none.
func (f *Flow) marked() bool { return len(f.FPDUs) > 0 && len(f.FPDUs[0].MPA.Markers) > 0 }

// size is how many octets of the stream the FPDU takes.
func (u *FPDU) size() int {
	m := &u.MPA
	return len(m.Contents) + len(m.Payload) + len(m.Pad) + crcLen + 4*len(m.Markers)
}
