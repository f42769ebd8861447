package netstack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// FuzzDeliver lets arbitrary frames arrive at a stack with a listener and a connection. Whatever they are, nothing
// breaks and the connection carries on, unless the frame was one that TCP has to take for the peer's.
func FuzzDeliver(f *testing.F) { fuzzDeliver(f, inet4) }

// FuzzDeliverIPv6 is the same with IPv6.
func FuzzDeliverIPv6(f *testing.F) { fuzzDeliver(f, inet6) }

func fuzzDeliver(f *testing.F, fam family) {
	p, rec := newFuzzPair(f, fam)
	l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 7), 16)
	require.NoError(f, err)
	ca, cb := p.connectTo(l)
	b := make([]byte, 5000)
	require.NoError(f, ca.Writev([][]byte{b}))
	k := 0
	p.until("octets", func() bool {
		pieces, _ := cb.Peek()
		k += length(pieces)
		cb.Discard(length(pieces))
		return k == len(b)
	})
	for i, frame := range rec.frames() {
		if i < 40 {
			f.Add(frame.Data[0], uint8(i), uint8(3), uint32(0))
		}
	}
	mac := p.b.user.link.info.Addr
	ping := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	f.Add(joined(ethernet(mac, wireMAC, 0x0800), ipPacket(addrA, addrB, 1, len(ping)), ping), uint8(0), uint8(0), uint32(0))
	f.Add(joined(ethernet(mac, wireMAC, 0x0806), make([]byte, 28)), uint8(0), uint8(0), uint32(0))
	f.Add(append(make([]byte, 34), make([]byte, 80)...), uint8(16), uint8(0), uint32(0))
	f.Add(append(append(make([]byte, 34), 3, 4, 0, 0, 0, 0, 5, 20), make([]byte, 60)...), uint8(16), uint8(1), uint32(0))
	f.Add(append(append(make([]byte, 54), 2, 0, 0, 0, 0, 0, 5, 20), make([]byte, 80)...), uint8(16), uint8(1), uint32(0))
	f.Add(append(append(make([]byte, 54), 1, 3, 0, 0, 0, 0, 0, 0), make([]byte, 80)...), uint8(16), uint8(0), uint32(0))
	for _, frame := range seeds6(mac) {
		f.Add(frame, uint8(0), uint8(0), uint32(0))
	}
	f.Add([]byte{}, uint8(0), uint8(0), uint32(0))
	var last uint32 // a sequence number the peer used
	for _, frame := range rec.frames() {
		if tcp := segmentOf(frame.Data[0]); tcp != nil {
			last = tcp.SequenceNumber()
		}
	}

	f.Fuzz(func(t *testing.T, frame []byte, flags, pieces uint8, seq uint32) {
		frame = append([]byte(nil), frame...)
		if flags&1 != 0 && len(frame) >= ethernetHeader+fam.headers() {
			aim(frame, p, ca, last+seq%70_000)
		}
		if flags&16 != 0 && len(frame) >= ethernetHeader+2*fam.headers()-40+8+8 {
			aimICMP(frame, p, ca)
		}
		fr := pktio.Frame{Offload: pktio.Offload{CsumValid: flags&2 != 0, NeedsCsum: flags&4 != 0}}
		if flags&8 != 0 {
			fr.GSO, fr.GSOSize = pktio.GSOTCPv4, 1
			if fam == inet6 {
				fr.GSO = pktio.GSOTCPv6
			}
		}
		size := max(len(frame)/(int(pieces)+1), 1)
		for rest := frame; len(rest) > 0; {
			n := min(size, len(rest))
			fr.Data = append(fr.Data, rest[:n])
			rest = rest[n:]
		}
		link := p.b.user.link
		holdReceiver(link, func() {
			from := p.a.user.link
			from.tx.mu.Lock()
			defer from.tx.mu.Unlock()
			_, _ = from.port.Send([]pktio.Frame{{Data: [][]byte{ethernet(mac, wireMAC, 0x88b5), make([]byte, 46)}}})
		})
		link.rx.join = true
		link.deliver(&fr)
		link.endRuns()
		link.rx.mu.Unlock()
		p.b.poll(0)
		for c, ok := l.Accept(); ok; c, ok = l.Accept() {
			c.Abort()
		}
		if pieces, _ := cb.Peek(); len(pieces) > 0 {
			cb.Discard(length(pieces))
		}
	})
}

// aim makes frame look like one of the peer's, so that it gets past the first checks.
func aim(frame []byte, p *pair, ca *Conn, seq uint32) {
	copy(frame, p.b.user.link.info.Addr[:])
	ip := frame[14:]
	at := 40
	if p.fam == inet6 {
		frame[12], frame[13], ip[0], ip[6] = 0x86, 0xdd, 0x60, 6
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-at))
		copy(ip[8:], p.addrA.AsSlice())
		copy(ip[24:], p.addrB.AsSlice())
	} else {
		at = 20
		frame[12], frame[13], ip[0], ip[9] = 8, 0, 0x45, 6
		ip[6], ip[7] = 0, 0
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		copy(ip[12:], p.addrA.AsSlice())
		copy(ip[16:], p.addrB.AsSlice())
		ip := header.IPv4(ip)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
	}
	tcp := header.TCP(ip[at:])
	tcp.SetSourcePort(ca.LocalAddr().Port())
	tcp.SetDestinationPort(7)
	tcp.SetSequenceNumber(seq)
}

// aimICMP makes frame an ICMP message about a segment of the other end's, ca the peer's.
func aimICMP(frame []byte, p *pair, ca *Conn) {
	copy(frame, p.b.user.link.info.Addr[:])
	b := frame[14:]
	at := p.fam.headers() - 20
	proto := uint8(1)
	frame[12], frame[13] = 8, 0
	if p.fam == inet6 {
		proto, frame[12], frame[13] = 58, 0x86, 0xdd
	}
	copy(b, ipPacket(p.addrA, p.addrB, proto, len(b)-at))
	icmp := b[at:]
	copy(icmp[8:], ipPacket(p.addrB, p.addrA, 6, 20))
	binary.BigEndian.PutUint16(icmp[8+at:], 7)
	binary.BigEndian.PutUint16(icmp[8+at+2:], ca.LocalAddr().Port())
	if p.fam == inet6 {
		sumICMPv6(b[:at], icmp)
		return
	}
	icmp[2], icmp[3] = 0, 0
	binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
}

// seeds6 are frames of IPv6 that are no plain TCP.
func seeds6(mac [6]byte) [][]byte {
	eth := ethernet(mac, wireMAC, 0x86dd)
	all := ethernet([6]byte{0x33, 0x33, 0, 0, 0, 1}, wireMAC, 0x86dd)
	var frames [][]byte
	icmp := func(eth []byte, to netip.Addr, msg ...byte) {
		ip := header.IPv6(ipPacket(inet6.a, to, 58, len(msg)))
		ip.SetHopLimit(255)
		sumICMPv6(ip, msg)
		frames = append(frames, joined(eth, ip, msg))
	}
	b := inet6.b.AsSlice()
	icmp(eth, inet6.b, 128, 0, 0, 0, 0, 1, 0, 1)                                                              // echo
	icmp(eth, inet6.b, append(append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, b...), 1, 1, 2, 0, 0, 0, 0, 10)...)    // solicitation
	icmp(eth, inet6.b, append(append([]byte{136, 0, 0, 0, 0x60, 0, 0, 0}, b...), 2, 1, 2, 0, 0, 0, 0, 10)...) // advertisement
	icmp(all, netip.IPv6LinkLocalAllNodes(), 134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0)               // of a router
	icmp(all, netip.IPv6LinkLocalAllNodes(), make([]byte, 24)...)
	quoted := joined(ipPacket(inet6.b, inet6.a, 6, 20), make([]byte, 20))
	icmp(eth, inet6.b, append([]byte{2, 0, 0, 0, 0, 0, 5, 0}, quoted...)...) // too big
	icmp(eth, inet6.b, append([]byte{1, 3, 0, 0, 0, 0, 0, 0}, quoted...)...) // unreachable
	seg := tcpSegmentOf(inet6.a, inet6.b, header.TCPFields{SrcPort: 1, DstPort: 7, Flags: header.TCPFlagSyn}, nil)
	for _, ext := range [][]byte{
		{6, 0, 5, 2, 0, 0, 1, 0},    // hop by hop: router alert
		{6, 0, 1, 4, 0, 0, 0, 0},    // padding
		{6, 0, 0, 0, 0, 0, 0, 1},    // fragment, the only one
		{6, 0, 0, 1, 0, 0, 0, 1},    // fragment, the first
		{6, 0, 0, 8, 0, 0, 0, 1},    // fragment, the last
		{6, 2, 0, 1, 0, 0, 0, 0},    // longer than it is
		{0, 0, 1, 4, 0, 0, 0, 0},    // and again
		{6, 0, 0xc2, 4, 0, 1, 0, 0}, // jumbogram
	} {
		for _, next := range []byte{0, 43, 44, 60, 51, 135} {
			frames = append(frames, joined(eth, ipPacket(inet6.a, inet6.b, next, len(ext)+len(seg)), ext, seg))
		}
	}
	return frames
}

// newFuzzPair is a pair whose a side is recorded.
func newFuzzPair(t testing.TB, fam family) (*pair, *recorder) {
	pa, pb, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	rec := &recorder{Port: pa}
	return newPortPairOf(t, fam, rec, pb, Config{}), rec
}

// FuzzOutbox passes writes of arbitrary sizes through an outbox over a TCP that takes arbitrary parts of them. All
// octets come out, in order.
func FuzzOutbox(f *testing.F) {
	f.Add([]byte{10, 5, 0, 1, 200, 0, 3, 255, 1})
	f.Add([]byte{0, 0, 0})
	f.Add([]byte{255, 255, 254, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, script []byte) {
		var st Stack
		o := outbox{pool: &st.spare}
		k := checker{}
		next := func() int {
			if len(script) == 0 {
				return 0
			}
			n := int(script[0])
			script = script[1:]
			return n * 37
		}
		finished, released := false, false
		o.tcp = sender{
			write: func(parts [][]byte, n int) (int, error) {
				took := min(next(), n)
				left := took
				for _, p := range parts {
					p = p[:min(left, len(p))]
					require.NoError(t, k.check(p))
					left -= len(p)
				}
				return took, nil
			},
			finish:  func() error { finished = true; return nil },
			release: func() { released = true },
		}
		require.Zero(t, o.room())
		o.open()
		sent := 0
		for len(script) > 0 {
			n := next()
			if o.room() < n {
				require.True(t, o.owing.Load())
				require.ErrorIs(t, o.writev([][]byte{make([]byte, n)}), ErrNoRoom)
				require.NoError(t, o.writev(nil))
				o.writable.Store(n%2 == 0)
				o.serve()
				continue
			}
			b := make([]byte, n)
			pattern(b, 0, sent)
			require.NoError(t, o.writev([][]byte{b[:n/3], b[n/3:]}))
			sent += n
		}
		require.NoError(t, o.closeWrite())
		if !o.let() {
			for i := 0; !released; i++ {
				require.Less(t, i, 1000)
				script = []byte{255}
				o.writable.Store(true)
				o.serve()
			}
		}
		require.True(t, finished)
		require.Equal(t, sent, k.at)
	})
}

func TestNeverConnectedIsClosed(t *testing.T) {
	p := newUserPair(t, pipe1500, Config{})
	p.portA.Cut(true)
	c, err := p.a.Dial(netip.Addr{}, netip.AddrPortFrom(p.addrB, 1))
	require.NoError(t, err)
	c.Close()
	c.Close()
	require.Zero(t, p.a.Stats().Conns)
	_, err = c.Peek()
	require.ErrorIs(t, err, net.ErrClosed)
	require.Zero(t, p.a.Poll(make([]Event, 1), time.Millisecond))
}
