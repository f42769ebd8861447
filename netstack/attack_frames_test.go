package netstack

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// A peer that keeps to TCP's headers and to nothing else: no state of a connection is one that it cannot be in, so all that
// is asked is that the stack lives.
func TestPeerWithoutManners(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		s := newSpoken(t, fam, Config{})
		ended := 0
		for round := range 40 {
			if round > 0 {
				s.port++
				s.connect(r.Uint32())
			}
			for range 150 {
				if r.IntN(4) == 0 {
					_ = s.c.Writev([][]byte{make([]byte, 1+r.IntN(5000))})
				}
				near := func(x uint32) uint32 { return x + uint32(r.IntN(2000)) - uint32(r.IntN(2000)) }
				if r.IntN(8) == 0 {
					near = func(uint32) uint32 { return r.Uint32() }
				}
				var options []byte
				switch r.IntN(6) {
				case 0: // selective acknowledgements of anything
					n := 1 + r.IntN(4)
					options = append(options, 1, 1, 5, byte(2+8*n))
					for range 2 * n {
						options = binary.BigEndian.AppendUint32(options, near(s.una))
					}
				case 1:
					options = make([]byte, 4*(1+r.IntN(10)))
					for i := range options {
						options[i] = byte(r.IntN(12))
					}
				case 2: // a timestamp nobody agreed on
					options = binary.BigEndian.AppendUint64([]byte{1, 1, 8, 10}, r.Uint64())
				}
				flags := header.TCPFlags(header.TCPFlagAck)
				switch r.IntN(10) {
				case 0:
					flags = header.TCPFlags(r.IntN(256)) &^ header.TCPFlagRst
				case 1:
					flags |= header.TCPFlagFin
				case 2:
					flags |= header.TCPFlagUrg | header.TCPFlagPsh
				}
				fields := header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: near(s.seq), AckNum: near(s.una), Flags: flags,
					WindowSize: uint16([]int{0, 1, 10, 65535, r.IntN(65536)}[r.IntN(5)]), UrgentPointer: uint16(r.IntN(65536))}
				s.sendIP(6, tcpSegmentWith(fam.b, fam.a, fields, options, make([]byte, []int{0, 0, 1, r.IntN(1400)}[r.IntN(4)])))
				if r.IntN(20) == 0 {
					s.handled()
					s.swallow()
					if pieces, err := s.c.Peek(); len(pieces) > 0 {
						s.c.Discard(length(pieces))
					} else if err != nil {
						ended++
						break
					}
				}
			}
			if round%2 == 0 {
				s.c.Abort()
			} else {
				s.c.Close()
			}
		}
		s.swallow()
		t.Log(ended, "of 40 ended by themselves")
		s.port = 3
		s.connect(9)
		s.alive()
	})
}

// A peer's question for a sign of life is answered, with an octet that it makes up or without (RFC 9293, Section 3.8.4).
func TestAnswersKeepalive(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		for _, garbage := range [][]byte{nil, {0}} {
			s.swallow()
			s.sendTCP(header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq - 1, AckNum: s.una, Flags: header.TCPFlagAck, WindowSize: window}, garbage)
			_, tcp := s.recvTCP("an answer", nil)
			require.Equal(t, header.TCPFlags(header.TCPFlagAck), tcp.Flags())
			require.Equal(t, s.seq, tcp.AckNumber())
			require.Equal(t, s.una, tcp.SequenceNumber())
			require.Empty(t, tcp.Payload())
			pieces, err := s.c.Peek()
			require.NoError(t, err)
			require.Empty(t, pieces)
			time.Sleep(600 * time.Millisecond)
		}
		s.alive()
	})
}

// Neighbour discovery messages that RFC 4861, Sections 7.1.1 and 7.1.2, has hosts discard change nothing and are not answered.
func TestInvalidNeighbourDiscovery(t *testing.T) {
	s := newSpoken(t, inet6, Config{})
	nobody := netip.IPv6Unspecified()
	all := netip.IPv6LinkLocalAllNodes()
	evil := [6]byte{2, 6, 6, 6, 6, 6}
	group := netip.AddrFrom16(header.SolicitedNodeAddr(toAddress(inet6.a)).As16())
	us := s.h.user.link.info.Addr
	msg := func(typ, code, flags byte, target netip.Addr, options ...byte) []byte {
		return append(append([]byte{typ, code, 0, 0, flags, 0, 0, 0}, target.AsSlice()...), options...)
	}
	slla, tlla := append([]byte{1, 1}, evil[:]...), append([]byte{2, 1}, evil[:]...)
	cases := []struct {
		name     string
		from, to netip.Addr
		hops     uint8
		icmp     []byte
		bad      bool // checksum
	}{
		{"solicitation hop limit", inet6.b, inet6.a, 254, msg(135, 0, 0, inet6.a, slla...), false},
		{"solicitation code", inet6.b, inet6.a, 255, msg(135, 1, 0, inet6.a, slla...), false},
		{"solicitation checksum", inet6.b, inet6.a, 255, msg(135, 0, 0, inet6.a, slla...), true},
		{"solicitation short", inet6.b, inet6.a, 255, msg(135, 0, 0, inet6.a)[:23], false},
		{"solicitation option of length 0", inet6.b, inet6.a, 255, msg(135, 0, 0, inet6.a, 1, 0, 2, 6, 6, 6, 6, 6), false},
		{"solicitation option too long", inet6.b, inet6.a, 255, msg(135, 0, 0, inet6.a, 1, 2, 2, 6, 6, 6, 6, 6), false},
		{"solicitation multicast target", inet6.b, inet6.a, 255, msg(135, 0, 0, all, slla...), false},
		{"solicitation from nobody to one", nobody, inet6.a, 255, msg(135, 0, 0, inet6.a), false},
		{"solicitation from nobody with address", nobody, group, 255, msg(135, 0, 0, inet6.a, slla...), false},
		{"solicitation for another", inet6.b, group, 255, msg(135, 0, 0, netip.MustParseAddr("fd77::99"), slla...), false},
		{"advertisement hop limit", inet6.b, inet6.a, 64, msg(136, 0, 0x60, inet6.b, tlla...), false},
		{"advertisement code", inet6.b, inet6.a, 255, msg(136, 9, 0x60, inet6.b, tlla...), false},
		{"advertisement checksum", inet6.b, inet6.a, 255, msg(136, 0, 0x60, inet6.b, tlla...), true},
		{"advertisement short", inet6.b, inet6.a, 255, msg(136, 0, 0x60, inet6.b)[:20], false},
		{"advertisement option of length 0", inet6.b, inet6.a, 255, msg(136, 0, 0x60, inet6.b, 2, 0, 2, 6, 6, 6, 6, 6), false},
		{"advertisement multicast target", inet6.b, inet6.a, 255, msg(136, 0, 0x60, all, tlla...), false},
		{"advertisement to all that was asked for", inet6.b, all, 255, msg(136, 0, 0x60, inet6.b, tlla...), false},
		{"redirect", inet6.b, inet6.a, 255, append(msg(137, 0, 0, inet6.b), append(inet6.b.AsSlice(), tlla...)...), false},
	}
	for _, c := range cases {
		s.alive()
		time.Sleep(60 * time.Millisecond) // acknowledgements are on their way
		s.swallow()
		ip := header.IPv6(ipPacket(c.from, c.to, 58, len(c.icmp)))
		ip.SetHopLimit(c.hops)
		sumICMPv6(ip, c.icmp)
		if c.bad {
			c.icmp[2]++
		}
		dst := us
		if b := c.to.As16(); c.to.IsMulticast() {
			dst = [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
		}
		s.send(ethernet(dst, evil, 0x86dd), ip, c.icmp)
		s.handled()
		time.Sleep(20 * time.Millisecond)
		for n, _ := s.wire.port.Recv(s.in, 0); n > 0; n, _ = s.wire.port.Recv(s.in, 0) {
			b := make([]byte, s.in[0].Len())
			s.in[0].CopyTo(b)
			if b[20] == 58 {
				t.Errorf("%s: answered with %x", c.name, b)
			}
		}
		require.Equal(t, tcpip.LinkAddress(wireMAC[:]), s.h.known(inet6.b), c.name)
	}
	require.Zero(t, s.h.Stats().AddressConflicts)
	s.alive()
}

// Packets from addresses that nobody sends from are for nobody.
func TestImpossibleSources(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		time.Sleep(60 * time.Millisecond)
		s.swallow()
		sources := []string{"0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "10.77.0.255", fam.a.String()}
		if fam == inet6 {
			sources = []string{"::", "::1", "ff02::1", "::ffff:10.77.0.2", fam.a.String()}
		}
		for _, from := range sources {
			from := netip.MustParseAddr(from)
			for _, port := range []uint16{spokenPort, 4000} {
				seg := tcpSegmentOf(from, fam.a, header.TCPFields{SrcPort: spokenPort, DstPort: port, SeqNum: 1, Flags: header.TCPFlagSyn, WindowSize: 1000}, nil)
				s.send(s.eth(), ipPacket(from, fam.a, 6, len(seg)), seg)
			}
		}
		s.handled()
		time.Sleep(100 * time.Millisecond)
		s.h.poll(0)
		for n, _ := s.wire.port.Recv(s.in, 0); n > 0; n, _ = s.wire.port.Recv(s.in, 0) {
			b := make([]byte, s.in[0].Len())
			s.in[0].CopyTo(b)
			t.Errorf("answered with %x", b)
		}
		_, ok := s.l.Accept()
		require.False(t, ok)
		s.alive()
	})
}

// Frames cut off anywhere, and with any octet of their headers made 0, 255 or one more.
func TestDamagedFrames(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		seg := tcpSegmentOf(fam.b, fam.a, header.TCPFields{SrcPort: 9, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: header.TCPFlagAck, WindowSize: window}, make([]byte, 300))
		frames := [][]byte{
			joined(s.eth(), ipPacket(fam.b, fam.a, 6, len(seg)), seg),
			s.asks(fam.b, wireMAC),
			s.fragment(fam.b, 3, 6, 0, true, seg[:64]),
			s.fragment(fam.b, 3, 6, 64, false, seg[64:]),
		}
		if fam == inet6 {
			frames = append(frames, seeds6(s.h.user.link.info.Addr)...)
		} else {
			options := []byte{0x07, 7, 4, 0, 0, 0, 0, 0x83, 7, 4, 10, 77, 0, 9, 0x44, 8, 5, 1, 0, 0, 0, 0, 0, 0}
			ip := header.IPv4(append(ipPacket(fam.b, fam.a, 6, len(seg)), options...))
			ip[0] = 0x45 + byte(len(options)/4)
			ip.SetTotalLength(uint16(len(ip) + len(seg)))
			frames = append(frames, joined(s.eth(), ip, seg))
			ping := append([]byte{8, 0, 0, 0, 1, 2, 0, 1}, make([]byte, 40)...)
			binary.BigEndian.PutUint16(ping[2:], ^checksum.Checksum(ping, 0))
			frames = append(frames, joined(s.eth(), ipPacket(fam.b, fam.a, 1, len(ping)), ping))
		}
		fix := func(b []byte) []byte {
			if len(b) >= 34 && b[12] == 8 && b[13] == 0 {
				ip := header.IPv4(b[14:])
				if n := int(ip.HeaderLength()); n >= 20 && n <= len(ip) {
					ip.SetChecksum(0)
					ip.SetChecksum(^ip[:n].CalculateChecksum())
				}
			}
			return b
		}
		total := 0
		for _, frame := range frames {
			var all [][]byte
			for n := 14; n < len(frame); n++ {
				all = append(all, frame[:n])
			}
			for at := 12; at < min(len(frame), 110); at++ {
				for _, v := range []byte{0, 255, frame[at] + 1, frame[at] ^ 0x80} {
					b := append([]byte(nil), frame...)
					b[at] = v
					all = append(all, fix(b))
				}
			}
			total += len(all)
			s.trickle(len(all), func(i int) []byte { return all[i] })
		}
		t.Log(total, "frames")
		s.wire.sayAnew()
		s.alive()
	})
}

// sayAnew tells the stack where the peer is.
func (w *wire) sayAnew() { w.send(w.asks(w.fam.b, wireMAC)); w.handled() }

// A segment to many is nobody's, whoever listens (RFC 9293, Section 3.9.2.3).
func TestSegmentsToMany(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		l, err := w.h.Listen(netip.AddrPortFrom(netip.Addr{}, spokenPort), 8)
		require.NoError(t, err)
		w.sayAnew()
		time.Sleep(60 * time.Millisecond)
		w.swallow()
		many := []string{"10.77.0.255", "255.255.255.255", "224.0.0.1", "10.77.0.0"}
		if fam == inet6 {
			many = []string{"ff02::1", header.SolicitedNodeAddr(toAddress(fam.a)).String()}
		}
		for _, to := range many {
			to := netip.MustParseAddr(to)
			dst := broadcastMAC
			if b := to.As16(); to.Is6() {
				dst = [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
			}
			for _, port := range []uint16{spokenPort, 4000} {
				seg := tcpSegmentOf(fam.b, to, header.TCPFields{SrcPort: 9, DstPort: port, SeqNum: 1, Flags: header.TCPFlagSyn, WindowSize: 1000}, nil)
				w.send(ethernet(dst, wireMAC, binary.BigEndian.Uint16(w.eth()[12:])), ipPacket(fam.b, to, 6, len(seg)), seg)
			}
		}
		w.handled()
		time.Sleep(100 * time.Millisecond)
		w.h.poll(0)
		for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
			b := make([]byte, w.in[0].Len())
			w.in[0].CopyTo(b)
			t.Errorf("answered with %x", b)
		}
		_, ok := l.Accept()
		require.False(t, ok)
	})
}

// asInitialized is the logger that the packages of gVisor found when they were initialized.
var asInitialized = log.Log()

// Peers cannot make gVisor write to standard error, not even by what it writes once a minute to the logger that it kept.
func TestQuiet(t *testing.T) {
	require.Equal(t, silence{}, asInitialized.Emitter)
	require.Equal(t, silence{}, log.Log().Emitter)
}
