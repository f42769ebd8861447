package capture

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

var (
	addrA = netip.MustParseAddrPort("10.77.0.1:40000")
	addrB = netip.MustParseAddrPort("10.77.0.2:7174")
)

// conversation makes packets of one TCP connection from a to b, which tests may then
// lose, repeat and shuffle before they are written to a file.
type conversation struct {
	t       *testing.T
	seq     [2]uint32 // next sequence number of a and of b
	packets [][]byte
}

func newConversation(t *testing.T) *conversation {
	c := &conversation{t: t, seq: [2]uint32{0xfffffff0, 1000}} // a's numbers wrap soon
	c.add(0, layers.TCP{SYN: true}, nil)
	c.add(1, layers.TCP{SYN: true, ACK: true}, nil)
	return c
}

// add appends a packet of side 0 or 1 and moves its sequence number on.
func (c *conversation) add(side int, tcp layers.TCP, payload []byte) {
	from, to := addrA, addrB
	if side == 1 {
		from, to = to, from
	}
	eth := layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, byte(side)}, DstMAC: []byte{2, 0, 0, 0, 0, byte(1 - side)}, EthernetType: layers.EthernetTypeIPv4}
	ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	tcp.SrcPort, tcp.DstPort = layers.TCPPort(from.Port()), layers.TCPPort(to.Port())
	tcp.Seq, tcp.Ack, tcp.Window = c.seq[side], c.seq[1-side], 65535
	tcp.ACK = tcp.ACK || !tcp.SYN
	require.NoError(c.t, tcp.SetNetworkLayerForChecksum(&ip))
	buf := gopacket.NewSerializeBuffer()
	require.NoError(c.t, gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&eth, &ip, &tcp, gopacket.Payload(payload)))
	c.packets = append(c.packets, bytes.Clone(buf.Bytes()))
	c.seq[side] += uint32(len(payload))
	if tcp.SYN || tcp.FIN {
		c.seq[side]++
	}
}

// say sends octets in segments of at most mss octets.
func (c *conversation) say(side, mss int, octets ...[]byte) {
	b := bytes.Join(octets, nil)
	for len(b) > 0 {
		n := min(mss, len(b))
		c.add(side, layers.TCP{PSH: n == len(b)}, b[:n])
		b = b[n:]
	}
}

func (c *conversation) fin(side int) { c.add(side, layers.TCP{FIN: true}, nil) }

// file writes the packets as pcap or pcapng.
func (c *conversation) file(ng bool) []byte {
	var buf bytes.Buffer
	var write func(gopacket.CaptureInfo, []byte) error
	flush := func() error { return nil }
	if ng {
		w, err := pcapgo.NewNgWriter(&buf, layers.LinkTypeEthernet)
		require.NoError(c.t, err)
		write, flush = w.WritePacket, w.Flush
	} else {
		w := pcapgo.NewWriter(&buf)
		require.NoError(c.t, w.WriteFileHeader(65535, layers.LinkTypeEthernet))
		write = w.WritePacket
	}
	for i, p := range c.packets {
		ci := gopacket.CaptureInfo{Timestamp: time.Unix(1700000000, int64(i)*1000), CaptureLength: len(p), Length: len(p)}
		require.NoError(c.t, write(ci, p))
	}
	require.NoError(c.t, flush())
	return buf.Bytes()
}

// saved writes the conversation to a file for other programs.
func (c *conversation) saved() string {
	name := filepath.Join(c.t.TempDir(), "c.pcap")
	require.NoError(c.t, os.WriteFile(name, c.file(false), 0o644))
	return name
}

func (c *conversation) decode() Sessions {
	s, err := DecodeFile(bytes.NewReader(c.file(true)))
	require.NoError(c.t, err)
	return s
}
