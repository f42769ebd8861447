package netstack

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrdma/softrdma/pktio"
)

// upper is what is above a link: it keeps the packets it gets, each behind an Ethernet header.
type upper struct {
	mac  [6]byte
	got  [][]byte
	good []bool // the TCP checksum is known to be right
}

func (u *upper) DeliverNetworkPacket(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer) {
	v := pkt.ToView()
	u.got = append(u.got, joined(ethernet(u.mac, wireMAC, uint16(proto)), v.AsSlice()))
	v.Release()
	u.good = append(u.good, pkt.RXChecksumValidated)
}

func (u *upper) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}

// joinLink is a link that nothing but a test receives from.
func joinLink(mtu int) (*link, *upper) {
	u := &upper{mac: [6]byte{2, 0, 0, 0, 0, 0xa}}
	return &link{clock: newClock(), info: pktio.Link{MTU: mtu, Addr: u.mac}, ip4: true, ip6: true, up: u}, u
}

// burst lets frames arrive at once, and returns what the upper side got.
func (u *upper) burst(l *link, frames ...pktio.Frame) [][]byte {
	u.got, u.good = nil, nil
	l.rx.frames = frames
	l.take(len(frames), nil)
	return u.got
}

// joinFrame makes a frame with n octets of the stream of a connection, from octet at on, and a timestamp.
func joinFrame(fam family, port, at, n int, flags header.TCPFlags) []byte {
	payload := make([]byte, n)
	for i := range payload {
		payload[i] = byte(at+i) ^ byte((at+i)>>8) ^ byte(port)
	}
	stamp := []byte{1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9}
	seg := tcpSegmentWith(fam.b, fam.a, header.TCPFields{
		SrcPort: uint16(port), DstPort: 7, SeqNum: ^uint32(1999) + uint32(at), AckNum: 77, Flags: flags, WindowSize: 500, // wraps on the way
	}, stamp, payload)
	proto := uint16(0x0800)
	if fam == inet6 {
		proto = 0x86dd
	}
	return joined(ethernet([6]byte{2, 0, 0, 0, 0, 0xa}, wireMAC, proto), ipPacket(fam.b, fam.a, 6, len(seg)), seg)
}

// resum makes the checksums of a frame right again.
func resum(b []byte) {
	ip := b[ethernetHeader:]
	at, addrs := 40, ip[8:40]
	if ip[0]>>4 == 4 {
		at, addrs = int(ip[0]&15)*4, ip[12:20]
		header.IPv4(ip).SetChecksum(0)
		header.IPv4(ip).SetChecksum(^checksum.Checksum(ip[:at], 0))
	}
	tcp := header.TCP(ip[at:])
	tcp.SetChecksum(0)
	sum := checksum.Combine(checksum.Checksum(addrs, 6), uint16(len(tcp)))
	tcp.SetChecksum(^checksum.Checksum(tcp, sum))
}

const joinLen = 1000 // octets of most segments here

// tcpOf is the TCP header of a frame without IP options.
func tcpOf(b []byte) []byte { return segmentOf(b) }

// Which segments are joined. In a burst of three the second is altered.
func TestJoin(t *testing.T) { bothFamilies(t, testJoin) }

func testJoin(t *testing.T, fam family) {
	at := func(i int, octets ...byte) func([]byte) {
		return func(b []byte) { copy(tcpOf(b)[i:], octets) }
	}
	flags := func(f header.TCPFlags) func([]byte) { return at(13, byte(f)) }
	ip := func(i int, bits byte) func([]byte) {
		return func(b []byte) { b[ethernetHeader+i] ^= bits }
	}
	none := func([]byte) {}
	type test struct {
		name  string
		alter func([]byte)
		want  []int // segments in each packet
	}
	tests := []test{
		{"alike", none, []int{3}},
		{"PSH", flags(flagPSH), []int{2, 1}},
		{"FIN", flags(header.TCPFlagFin | header.TCPFlagAck), []int{1, 1, 1}},
		{"SYN", flags(header.TCPFlagSyn | header.TCPFlagAck), []int{1, 1, 1}},
		{"RST", flags(header.TCPFlagRst | header.TCPFlagAck), []int{1, 1, 1}},
		{"URG", flags(header.TCPFlagUrg | header.TCPFlagAck), []int{1, 1, 1}},
		{"ECE", flags(0x40 | header.TCPFlagAck), []int{1, 1, 1}},
		{"CWR", flags(0x80 | header.TCPFlagAck), []int{1, 1, 1}},
		{"no ACK", flags(0), []int{1, 1, 1}},
		{"a reserved bit", func(b []byte) { tcpOf(b)[12] |= 1 }, []int{1, 1, 1}},
		{"another acknowledgement", at(8, 0, 0, 0, 78), []int{1, 1, 1}},
		{"another window", at(14, 1, 0), []int{1, 1, 1}},
		{"another urgent pointer", at(18, 0, 1), []int{1, 1, 1}},
		{"another time", at(24, 0, 0, 0, 8), []int{1, 1, 1}},
		{"another time echoed", at(28, 0, 0, 0, 8), []int{1, 1, 1}},
		{"another option", at(20, 0), []int{1, 1, 1}},
		{"a repeated segment", at(4, 0xff, 0xff, 0xf8, 0x30), []int{1, 1, 1}},
		{"an overlap", at(4, 0xff, 0xff, 0xfc, 0x17), []int{1, 1, 1}},
		{"a gap", at(4, 0xff, 0xff, 0xfc, 0x19), []int{1, 1, 1}},
		{"another distance in hops", ip(map[bool]int{true: 8, false: 7}[fam == inet4], 1), []int{1, 1, 1}},
		{"another class", ip(1, map[bool]byte{true: 4, false: 0x10}[fam == inet4]), []int{1, 1, 1}},
		{"congestion", ip(1, map[bool]byte{true: 3, false: 0x30}[fam == inet4]), []int{1, 1, 1}},
	}
	if fam == inet4 {
		tests = append(tests,
			test{"may not be fragmented", ip(6, 0x40), []int{1, 1, 1}},
			test{"another identification", ip(5, 1), []int{3}})
	} else {
		tests = append(tests,
			test{"another flow label", ip(3, 1), []int{1, 1, 1}},
			test{"another upper class", ip(0, 1), []int{1, 1, 1}})
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			l, u := joinLink(1500)
			var frames []pktio.Frame
			var want [][]byte
			for i := range 3 {
				b := joinFrame(fam, 1, i*joinLen, joinLen, header.TCPFlagAck)
				if i == 1 {
					c.alter(b)
					resum(b)
				}
				want = append(want, b)
				frames = append(frames, pktio.Frame{Data: [][]byte{append([]byte(nil), b...)}})
			}
			got := u.burst(l, frames...)
			require.Len(t, got, len(c.want))
			for i, n := range c.want {
				isJoined(t, got[i], want[:n])
				require.True(t, u.good[i] || n == 1, "checked before it was joined")
				want = want[n:]
			}
		})
	}
}

// isJoined fails unless got is the segments of parts joined.
func isJoined(t *testing.T, got []byte, parts [][]byte) {
	t.Helper()
	if len(parts) == 1 {
		require.True(t, bytes.Equal(parts[0], got), "it is as it was")
		return
	}
	want := append([]byte(nil), parts[0]...)
	for _, p := range parts[1:] {
		want = append(want, header.TCP(tcpOf(p)).Payload()...)
		tcpOf(want)[13] |= tcpOf(p)[13]
	}
	ip := want[ethernetHeader:]
	if ip[0]>>4 == 4 {
		require.True(t, header.IPv4(got[ethernetHeader:]).IsChecksumValid())
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		copy(ip[10:12], got[ethernetHeader+10:])
	} else {
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-40))
	}
	copy(tcpOf(want)[16:18], tcpOf(got)[16:18]) // which nobody looks at
	require.True(t, bytes.Equal(want, got), "headers of the first, octets of all:\n% x\n% x", want[:min(80, len(want))], got[:min(80, len(got))])
}

// Each octet of addresses and ports makes another connection.
func TestJoinKey(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		from, to := keyAt4, ethernetHeader+20+portsSize
		if fam == inet6 {
			from, to = keyAt6, ethernetHeader+40+portsSize
		}
		for i := from; i < to; i++ {
			l, u := joinLink(1500)
			var frames []pktio.Frame
			for k := range 2 {
				b := joinFrame(fam, 1, k*joinLen, joinLen, header.TCPFlagAck)
				if k == 1 {
					b[i] ^= 1
					resum(b)
				}
				frames = append(frames, pktio.Frame{Data: [][]byte{b}})
			}
			got := u.burst(l, frames...)
			require.Equal(t, [][]byte{frames[0].Data[0], frames[1].Data[0]}, got, "octet %d", i)
		}
	})
}

// Segments of other sizes.
func TestJoinSizes(t *testing.T) { bothFamilies(t, testJoinSizes) }

func testJoinSizes(t *testing.T, fam family) {
	heads := fam.headers() + 12 // with the timestamp
	full := make([]int, 50)
	for i := range full {
		full[i] = 1400
	}
	edge := (maxPacket - heads) / 5
	for _, c := range []struct {
		name  string
		mtu   int
		sizes []int
		want  []int
	}{
		{"one", 1500, []int{1000}, []int{1}},
		{"a short one ends", 1500, []int{1000, 999, 999}, []int{2, 1}},
		{"a long one begins", 1500, []int{1000, 1001, 1000}, []int{1, 2}},
		{"octet by octet", 1500, []int{1, 1, 1, 1}, []int{4}},
		{"an acknowledgement between", 1500, []int{1000, 0, 1000, 1000}, []int{1, 1, 2}},
		{"an acknowledgement last", 1500, []int{1000, 1000, 0}, []int{2, 1}},
		{"acknowledgements alone", 1500, []int{0, 0}, []int{1, 1}},
		{"as long as packets get", 1500, full, []int{46, 4}},
		{"as long as packets get, exactly", 16000, []int{edge + 1, edge + 1, edge + 1, edge + 1, maxPacket - heads - 4*edge - 4, 1}, []int{5, 1}},
		{"one octet more", 16000, []int{edge + 1, edge + 1, edge + 1, edge + 1, maxPacket - heads - 4*edge - 3}, []int{4, 1}},
		{"joined already", 1500, []int{4000, 4000}, []int{1, 1}},
		{"joined already between", 1500, []int{1000, 4000, 1000, 1000}, []int{1, 1, 2}},
		{"too long to have company", 65535, []int{33000, 1000}, []int{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, u := joinLink(c.mtu)
			var frames []pktio.Frame
			var want [][]byte
			at := 0
			for _, n := range c.sizes {
				b := joinFrame(fam, 1, at, n, header.TCPFlagAck)
				at += n
				want = append(want, b)
				frames = append(frames, pktio.Frame{Data: [][]byte{b[:ethernetHeader+heads], b[ethernetHeader+heads:]}})
			}
			got := u.burst(l, frames...)
			require.Len(t, got, len(c.want))
			for i, n := range c.want {
				isJoined(t, got[i], want[:n])
				want = want[n:]
			}
		})
	}
}

// What cannot be joined and may overtake: damaged segments, which nobody wants, and packets that TCP has never made.
func TestJoinGoesAround(t *testing.T) { bothFamilies(t, testJoinGoesAround) }

func testJoinGoesAround(t *testing.T, fam family) {
	alter := map[string]func(b []byte) []byte{
		"damaged payload": func(b []byte) []byte { b[len(b)-1] ^= 1; return b },
		"damaged header":  func(b []byte) []byte { tcpOf(b)[15] ^= 1; return b },
		"short header":    func(b []byte) []byte { tcpOf(b)[12] = 4 << 4; return b },
		"long header": func(b []byte) []byte {
			tcpOf(b)[12] = 15 << 4
			n := fam.headers() + ethernetHeader + 30
			b = b[:n:n]
			if fam == inet6 {
				header.IPv6(b[14:]).SetPayloadLength(50)
			} else {
				header.IPv4(b[14:]).SetTotalLength(70)
			}
			return b
		},
	}
	if fam == inet4 {
		for name, bits := range map[string]uint16{"first fragment": 0x2000, "last fragment": 1, "reserved": 0x8000} {
			alter[name] = func(b []byte) []byte {
				binary.BigEndian.PutUint16(b[ethernetHeader+6:], bits)
				resum(b)
				return b
			}
		}
		alter["another protocol"] = func(b []byte) []byte { b[ethernetHeader+9] = 17; resum(b); return b }
		alter["options"] = func(b []byte) []byte {
			b = joined(b[:34], []byte{1, 1, 1, 0}, b[34:])
			b[14]++
			header.IPv4(b[14:]).SetTotalLength(uint16(len(b) - 14))
			resum(b)
			return b
		}
	} else {
		alter["extension"] = func(b []byte) []byte {
			b = joined(b[:54], []byte{6, 0, 1, 4, 0, 0, 0, 0}, b[54:])
			b[20] = 0
			header.IPv6(b[14:]).SetPayloadLength(uint16(len(b) - 54))
			return b
		}
	}
	for name, f := range alter {
		t.Run(name, func(t *testing.T) {
			l, u := joinLink(1500)
			var frames []pktio.Frame
			for i := range 3 {
				b := joinFrame(fam, 1, i*joinLen, joinLen, header.TCPFlagAck)
				if i == 1 {
					b = f(b)
					if fam == inet4 { // damaged further up only
						header.IPv4(b[14:]).SetChecksum(0)
						header.IPv4(b[14:]).SetChecksum(^header.IPv4(b[14:]).CalculateChecksum())
					}
				}
				frames = append(frames, pktio.Frame{Data: [][]byte{b}})
			}
			got := u.burst(l, frames...)
			require.Len(t, got, 3)
			require.Equal(t, frames[1].Data[0], got[0])
			require.False(t, u.good[0])
			require.Equal(t, frames[0].Data[0], got[1])
			require.Equal(t, frames[2].Data[0], got[2])
		})
	}
}

// Who checked a frame is believed, and a checksum left to be finished is none to check.
func TestJoinTrust(t *testing.T) {
	for _, o := range []pktio.Offload{{CsumValid: true}, {NeedsCsum: true}, {}} {
		l, u := joinLink(1500)
		var frames []pktio.Frame
		for i := range 3 {
			b := joinFrame(inet4, 1, i*joinLen, joinLen, header.TCPFlagAck)
			tcpOf(b)[16] ^= 1
			frames = append(frames, pktio.Frame{Data: [][]byte{b}, Offload: o})
		}
		want := 1
		if o == (pktio.Offload{}) {
			want = 3
		}
		require.Len(t, u.burst(l, frames...), want)
		require.Equal(t, want == 1, u.good[0])
	}
}

// Connections do not disturb each other, until there are more than places; then nothing is lost.
func TestJoinManyConnections(t *testing.T) {
	for _, c := range []struct{ conns, want int }{{2, 2}, {maxRuns, maxRuns}, {maxRuns + 1, 3 * (maxRuns + 1)}} {
		l, u := joinLink(1500)
		var frames []pktio.Frame
		streams := make(map[[2]int][]byte)
		for i := range 3 {
			for port := range c.conns {
				for k, fam := range []family{inet4, inet6}[port%2 : port%2+1] {
					b := joinFrame(fam, 1+port, i*100, 100, header.TCPFlagAck)
					streams[[2]int{port, k}] = append(streams[[2]int{port, k}], header.TCP(tcpOf(b)).Payload()...)
					frames = append(frames, pktio.Frame{Data: [][]byte{b}})
				}
			}
		}
		got := make(map[[2]int][]byte)
		for _, b := range u.burst(l, frames...) {
			tcp := segmentOf(b)
			k := [2]int{int(tcp.SourcePort()) - 1, 0}
			got[k] = append(got[k], tcp.Payload()...)
		}
		require.Equal(t, streams, got)
		require.Len(t, u.got, c.want)
		require.Len(t, u.burst(l, frames[0]), 1, "nothing is left of the burst")
	}
}

func BenchmarkJoin(b *testing.B) {
	for _, fam := range []family{inet4, inet6} {
		b.Run(map[bool]string{true: "IPv4", false: "IPv6"}[fam == inet4], func(b *testing.B) {
			l, _ := joinLink(1500)
			l.up = nobody{}
			var frames []pktio.Frame
			for i := range 45 {
				frames = append(frames, pktio.Frame{Data: [][]byte{joinFrame(fam, 1, i*1400, 1400, header.TCPFlagAck)}, Offload: pktio.Offload{CsumValid: true}})
			}
			l.rx.frames = frames
			b.SetBytes(45 * 1400)
			b.ReportAllocs()
			for b.Loop() {
				l.take(len(frames), nil)
			}
		})
	}
}

type nobody struct{}

func (nobody) DeliverNetworkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer) {}
func (nobody) DeliverLinkPacket(tcpip.NetworkProtocolNumber, *stack.PacketBuffer)    {}
