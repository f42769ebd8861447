package netstack

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// handled waits until the stack has dealt with all that was sent to it. (What is about neighbours and ICMP it deals with
// while it receives.)
func (w *wire) handled() {
	w.t.Helper()
	until(w.t, "all to be received", func() bool { return w.h.Stats().FramesIn == w.port.Stats().TxFrames }, w.h)
	// The last frame may be under way still. The pump keeps the lock while it waits for the next one, so that is an end
	// of waiting too.
	mu := &w.h.user.link.rx.mu
	for late := time.Now().Add(200 * time.Millisecond); time.Now().Before(late); time.Sleep(time.Millisecond) {
		if mu.TryLock() {
			mu.Unlock()
			return
		}
	}
}

// tooBig is a packet too big.
func (w *wire) tooBig(mtu int, packet []byte) {
	w.t.Helper()
	if w.fam.a.Is4() {
		w.icmpError(3, 4, uint32(mtu&0xffff), packet)
	} else {
		w.icmpError(2, 0, uint32(mtu), packet)
	}
	w.handled()
}

// segmentSize returns the size that the next segments of c will have.
func segmentSize(c *Conn) int {
	c.user.ep.LockUser()
	defer c.user.ep.UnlockUser()
	return int(reflect.ValueOf(c.user.ep).Elem().FieldByName("snd").Elem().FieldByName("MaxPayloadSize").Int())
}

// resent waits for a segment with sequence number seq and returns how many octets it carries.
func (w *wire) resent(seq uint32) (frame []byte, n int) {
	w.t.Helper()
	// Whatever was sent before does not count.
	for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
	}
	frame, tcp := w.recvTCP("the segment again", func(tcp header.TCP) bool { return tcp.SequenceNumber() == seq && len(tcp.Payload()) > 0 })
	return frame, len(tcp.Payload())
}

// A packet too big changes the size of segments, for a connection whose segment it is about, and no further than can be.
func TestPacketTooBig(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		c, una := w.acceptOne(60000)
		require.NoError(t, c.Writev([][]byte{make([]byte, 20_000)}))
		frame, tcp := w.recvTCP("a full segment", func(tcp header.TCP) bool { return tcp.SequenceNumber() == una })
		full := 1500 - fam.headers()
		require.Len(t, tcp.Payload(), full)
		require.Equal(t, full, c.MSS())
		quote := frame[14 : 14+fam.headers()-20+8] // as little as a router may quote

		mtu := 1500
		for _, claim := range []int{1400, 1450, 1500, 9000, 0xffff, 1399, 1280} {
			w.tooBig(claim, quote)
			mtu = min(mtu, claim)
			require.Equal(t, mtu-fam.headers(), segmentSize(c), "after %d", claim)
		}
		_, n := w.resent(una)
		require.Equal(t, 1280-fam.headers(), n)
		require.Equal(t, 1280-fam.headers(), c.MSS())
		if fam == inet6 {
			for _, claim := range []int{1279, 576, 68, 1, 0} {
				w.tooBig(claim, quote)
				require.Equal(t, 1220, segmentSize(c), "after %d", claim)
			}
			_, n := w.resent(una)
			require.Equal(t, 1220, n)
			require.Equal(t, 1220, c.MSS())
			return
		}
		require.NotZero(t, frame[20]&0x40, "not to be fragmented")
		w.tooBig(553, quote)
		frame, n = w.resent(una)
		require.Equal(t, 513, n)
		require.NotZero(t, frame[20]&0x40)
		for _, claim := range []int{551, 68, 67, 1, 0} {
			w.tooBig(claim, quote)
			require.Equal(t, 512, segmentSize(c), "after %d", claim)
		}
		frame, n = w.resent(una)
		require.Equal(t, 512, n)
		require.Equal(t, 512, c.MSS())
		require.Zero(t, frame[20]&0x40, "to be fragmented where that is not enough")
		require.True(t, sumIsGood(frame))
	})
}

// ICMP errors of somebody who sees nothing of the connection, but knows its addresses and ports, change nothing.
func TestForgedICMP(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		c, una := w.acceptOne(60000)
		require.NoError(t, c.Writev([][]byte{make([]byte, 3000)}))
		frame, tcp := w.recvTCP("a full segment", func(tcp header.TCP) bool { return tcp.SequenceNumber() == una })
		full := len(tcp.Payload())
		tcpAt := fam.headers() - 20
		quote := func(change func(packet []byte)) []byte {
			b := bytes.Clone(frame[14 : 14+tcpAt+20])
			change(b)
			return b
		}
		sequence := func(seq uint32) []byte {
			return quote(func(b []byte) { binary.BigEndian.PutUint32(b[tcpAt+4:], seq) })
		}
		forged := map[string][]byte{
			"before":            sequence(una - 1),
			"long before":       sequence(una - 1<<20),
			"far away":          sequence(una + 1<<31),
			"behind":            sequence(una + 3001),
			"source port":       quote(func(b []byte) { b[tcpAt]++ }),
			"destination port":  quote(func(b []byte) { b[tcpAt+3]++ }),
			"source":            quote(func(b []byte) { b[tcpAt-fam.a.BitLen()/8-1]++ }),
			"destination":       quote(func(b []byte) { b[tcpAt-1]++ }),
			"cut off":           quote(func([]byte) {})[:tcpAt+7],
			"without a segment": quote(func([]byte) {})[:tcpAt],
			"without an end":    quote(func([]byte) {})[:tcpAt-1],
			"the listener":      quote(func(b []byte) { copy(b[tcpAt-fam.a.BitLen()/8:], make([]byte, fam.a.BitLen()/8)) }),
			"UDP": quote(func(b []byte) {
				if fam == inet6 {
					b[6] = 17
				} else {
					b[9] = 17
				}
			}),
		}
		for name, packet := range forged {
			w.tooBig(1300, packet)
			require.Equal(t, full, segmentSize(c), name)
		}
		_, n := w.resent(una)
		require.Equal(t, full, n)
		require.Equal(t, full, c.MSS())
		// The end of the data is where an acknowledgement has its number.
		w.tooBig(1400, sequence(una+3000))
		_, n = w.resent(una)
		require.Equal(t, 1400-fam.headers(), n)

		// What was acknowledged is under way no more.
		w.say(header.TCPFields{SeqNum: 100, AckNum: una + 2800, Flags: header.TCPFlagAck, WindowSize: 60000}, nil)
		until(t, "the acknowledgement to be taken", func() bool {
			first, _, _ := underWay(c.user.ep)
			return uint32(first) == una+2800
		}, w.h)
		w.tooBig(1300, sequence(una))
		w.tooBig(1300, sequence(una+2799))
		require.NoError(t, c.Writev([][]byte{make([]byte, 3000)}))
		_, tcp = w.recvTCP("a full segment", func(tcp header.TCP) bool { return len(tcp.Payload()) > 1000 })
		require.Len(t, tcp.Payload(), 1400-fam.headers())

		// A connection that stands is not ended by any of them.
		for code := range byte(16) {
			typ := byte(3)
			if fam == inet6 {
				typ = 1
			}
			if typ == 3 && code == 4 {
				continue
			}
			w.icmpError(typ, code, 0, sequence(una+2800))
			w.handled()
		}
		_, err := c.Peek()
		require.NoError(t, err)
		_, n = w.resent(una + 2800)
		require.Positive(t, n)
	})
}

// A connection attempt is ended by what ICMP says about its SYN only.
func TestForgedICMPWhileConnecting(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.b, 1))
		require.NoError(t, err)
		w.resolve(fam.b)
		frame, syn := w.recvTCP("SYN", nil)
		tcpAt := fam.headers() - 20
		say := func(seq uint32) {
			b := bytes.Clone(frame[14 : 14+tcpAt+8])
			binary.BigEndian.PutUint32(b[tcpAt+4:], seq)
			if fam == inet6 {
				w.icmpError(1, 4, 0, b)
			} else {
				w.icmpError(3, 3, 0, b)
			}
			w.handled()
		}
		for _, d := range []uint32{1, 1 << 10, 1 << 31, 0xffffffff} {
			say(syn.SequenceNumber() + d)
		}
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
			w.h.poll(time.Millisecond)
		}
		ok, err := c.Connected()
		require.NoError(t, err)
		require.False(t, ok)
		say(syn.SequenceNumber())
		until(t, "refusal", func() bool { _, err = c.Connected(); return err != nil }, w.h)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		c.Close()
	})
}

// ICMPv6 behind extension headers, and in fragments, passes the same guard.
func TestTooBigBehindHeaders(t *testing.T) {
	w := newWireOf(t, inet6, Config{})
	c, una := w.acceptOne(60000)
	require.NoError(t, c.Writev([][]byte{make([]byte, 3000)}))
	frame, tcp := w.recvTCP("a full segment", func(tcp header.TCP) bool { return tcp.SequenceNumber() == una })
	full := len(tcp.Payload())
	icmp := append([]byte{2, 0, 0, 0, 0, 0, 0, 0}, frame[14:14+60]...)
	sumICMPv6(ipPacket(inet6.b, inet6.a, 58, len(icmp)), icmp)
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 60, 8+len(icmp)), []byte{58, 0, 1, 4, 0, 0, 0, 0}, icmp)
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 44, 8+40), []byte{58, 0, 0, 1, 0, 0, 0, 7}, icmp[:40])
	w.send(w.eth(), ipPacket(inet6.b, inet6.a, 44, 8+len(icmp)-40), []byte{58, 0, 0, 40, 0, 0, 0, 7}, icmp[40:])
	w.handled()
	_, n := w.resent(una)
	require.Equal(t, full, n)
	require.Equal(t, full, c.MSS())
}
