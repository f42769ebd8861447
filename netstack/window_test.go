package netstack

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// With a shut window the peer still hears that its octets have arrived: in front of the probe for room goes an
// acknowledgement that fits the window.
func TestShutWindowHearsAcknowledgements(t *testing.T) {
	bothFamilies(t, testShutWindowHearsAcknowledgements)
}

func testShutWindowHearsAcknowledgements(t *testing.T, fam family) {
	w := newWireOf(t, fam, Config{})
	c, una := w.acceptOne(10)

	// Ten octets fit. The peer takes eight of them and shuts its window.
	require.NoError(t, c.Writev([][]byte{make([]byte, 100)}))
	w.recvTCP("ten octets", func(tcp header.TCP) bool { return len(tcp) == 20+10 })
	una += 8
	w.say(header.TCPFields{SeqNum: 100, AckNum: una, Flags: header.TCPFlagAck, WindowSize: 0}, nil)
	// It also sends five, which arrive.
	w.say(header.TCPFields{SeqNum: 100, AckNum: una, Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: 0}, make([]byte, 5))
	until(t, "five octets", func() bool { pieces, _ := c.Peek(); return length(pieces) == 5 }, w.h)

	frame, tcp := w.recvTCP("an acknowledgement", func(tcp header.TCP) bool { return len(tcp) == 20 && tcp.SequenceNumber() == una })
	require.Equal(t, una, tcp.SequenceNumber(), "where the window is")
	require.EqualValues(t, 105, tcp.AckNumber())
	require.Equal(t, header.TCPFlags(header.TCPFlagAck), tcp.Flags())
	require.True(t, sumIsGood(frame))
	frame, _ = w.recvTCP("the probe", func(tcp header.TCP) bool { return len(tcp) == 20+1 && tcp.SequenceNumber() == una-1 })
	require.True(t, sumIsGood(frame))
}

// acceptOne connects the peer's port 1000 to a listener on 2000, with a window for our octets and segments as large as
// the link takes, without any options. The peer's next sequence number is 100, una the first of ours.
func (w *wire) acceptOne(window uint16) (c *Conn, una uint32) {
	w.t.Helper()
	l, err := w.h.Listen(netip.AddrPortFrom(w.fam.a, 2000), 1)
	require.NoError(w.t, err)
	mss := 1500 - w.fam.headers()
	w.sendIP(6, tcpSegmentWith(w.fam.b, w.fam.a,
		header.TCPFields{SrcPort: 1000, DstPort: 2000, SeqNum: 99, Flags: header.TCPFlagSyn, WindowSize: window},
		[]byte{2, 4, byte(mss >> 8), byte(mss)}, nil))
	w.resolve(w.fam.b)
	_, synAck := w.recvTCP("SYN and ACK", nil)
	una = synAck.SequenceNumber() + 1
	w.say(header.TCPFields{SeqNum: 100, AckNum: una, Flags: header.TCPFlagAck, WindowSize: window}, nil)
	until(w.t, "accept", func() bool { var ok bool; c, ok = l.Accept(); return ok }, w.h)
	return c, una
}

// say sends a segment of the connection of acceptOne.
func (w *wire) say(f header.TCPFields, payload []byte) {
	w.t.Helper()
	f.SrcPort, f.DstPort = 1000, 2000
	w.sendTCP(f, payload)
}
