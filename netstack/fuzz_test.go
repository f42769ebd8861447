package netstack

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// FuzzDeliver lets arbitrary frames arrive at a stack with a listener and a connection. Whatever they are, nothing
// breaks and the connection carries on, unless the frame was one that TCP has to take for the peer's.
func FuzzDeliver(f *testing.F) {
	p, rec := newFuzzPair(f)
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
	ping := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	f.Add(joined(ethernet(p.b.user.link.info.Addr, wireMAC, 0x0800), ipPacket(addrA, addrB, 1, len(ping)), ping), uint8(0), uint8(0), uint32(0))
	f.Add(joined(ethernet(p.b.user.link.info.Addr, wireMAC, 0x0806), make([]byte, 28)), uint8(0), uint8(0), uint32(0))
	f.Add([]byte{}, uint8(0), uint8(0), uint32(0))
	var last uint32 // a sequence number the peer used
	for _, frame := range rec.frames() {
		if d := frame.Data[0]; len(d) >= 54 && d[23] == 6 {
			last = header.TCP(d[34:]).SequenceNumber()
		}
	}

	f.Fuzz(func(t *testing.T, frame []byte, flags, pieces uint8, seq uint32) {
		frame = append([]byte(nil), frame...)
		if flags&1 != 0 && len(frame) >= 54 {
			aim(frame, p, ca, last+seq%70_000)
		}
		fr := pktio.Frame{Offload: pktio.Offload{CsumValid: flags&2 != 0, NeedsCsum: flags&4 != 0}}
		if flags&8 != 0 {
			fr.GSO, fr.GSOSize = pktio.GSOTCPv4, 1
		}
		size := max(len(frame)/(int(pieces)+1), 1)
		for rest := frame; len(rest) > 0; {
			n := min(size, len(rest))
			fr.Data = append(fr.Data, rest[:n])
			rest = rest[n:]
		}
		link := p.b.user.link
		link.rx.mu.Lock()
		link.deliver(&fr)
		if link.rx.gro != nil {
			link.rx.gro.Flush()
		}
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
	frame[12], frame[13], frame[14], frame[23] = 8, 0, 0x45, 6
	frame[20], frame[21] = 0, 0
	binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
	copy(frame[26:], p.addrA.AsSlice())
	copy(frame[30:], p.addrB.AsSlice())
	ip := header.IPv4(frame[14:])
	ip.SetChecksum(0)
	ip.SetChecksum(^ip.CalculateChecksum())
	tcp := header.TCP(frame[34:])
	tcp.SetSourcePort(ca.LocalAddr().Port())
	tcp.SetDestinationPort(7)
	tcp.SetSequenceNumber(seq)
}

// newFuzzPair is a pair whose a side is recorded.
func newFuzzPair(t testing.TB) (*pair, *recorder) {
	pa, pb, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	rec := &recorder{Port: pa}
	return newPortPair(t, rec, pb, Config{}), rec
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
