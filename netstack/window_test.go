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
	w := newWire(t, Config{})
	l, err := w.h.Listen(netip.AddrPortFrom(addrA, 2000), 1)
	require.NoError(t, err)
	mac := w.h.user.link.info.Addr
	say := func(f header.TCPFields, payload []byte) {
		f.SrcPort, f.DstPort = 1000, 2000
		seg := tcpSegment(f, payload)
		w.send(ethernet(mac, wireMAC, 0x0800), ipPacket(addrB, addrA, 6, len(seg)), seg)
	}
	say(header.TCPFields{SeqNum: 99, Flags: header.TCPFlagSyn, WindowSize: 10}, nil)
	w.answerARP(w.recv("ARP request", isARPRequest(addrB)))
	synAck := header.TCP(w.recv("SYN and ACK", func(b []byte) bool { return b[23] == 6 })[34:])
	say(header.TCPFields{SeqNum: 100, AckNum: synAck.SequenceNumber() + 1, Flags: header.TCPFlagAck, WindowSize: 10}, nil)
	var c *Conn
	until(t, "accept", func() bool { var ok bool; c, ok = l.Accept(); return ok }, w.h)

	// Ten octets fit. The peer takes eight of them and shuts its window.
	require.NoError(t, c.Writev([][]byte{make([]byte, 100)}))
	una := synAck.SequenceNumber() + 1
	w.recv("ten octets", func(b []byte) bool { return b[23] == 6 && len(b) == 54+10 })
	una += 8
	say(header.TCPFields{SeqNum: 100, AckNum: una, Flags: header.TCPFlagAck, WindowSize: 0}, nil)
	// It also sends five, which arrive.
	say(header.TCPFields{SeqNum: 100, AckNum: una, Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: 0}, make([]byte, 5))
	until(t, "five octets", func() bool { pieces, _ := c.Peek(); return length(pieces) == 5 }, w.h)

	ack := w.recv("an acknowledgement", func(b []byte) bool {
		return b[23] == 6 && len(b) == 54 && header.TCP(b[34:]).SequenceNumber() == una
	})
	tcp := header.TCP(ack[34:])
	require.Equal(t, una, tcp.SequenceNumber(), "where the window is")
	require.EqualValues(t, 105, tcp.AckNumber())
	require.Equal(t, header.TCPFlags(header.TCPFlagAck), tcp.Flags())
	ip := header.IPv4(ack[14:])
	require.EqualValues(t, 40, ip.TotalLength())
	require.True(t, ip.IsChecksumValid())
	require.True(t, tcp.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), 0, 0))
	w.recv("the probe", func(b []byte) bool {
		return b[23] == 6 && len(b) == 54+1 && header.TCP(b[34:]).SequenceNumber() == una-1
	})
}
