package main

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/capture"
)

// TestSeen: which backend carried a run, by what can be seen from outside.
func TestSeen(t *testing.T) {
	with := func(ours string) sight {
		var s capture.Session
		s.Initiator.From = netip.MustParseAddrPort(ours + ":7174")
		s.Responder.From = netip.MustParseAddrPort("10.77.0.2:1024")
		return sight{Sessions: capture.Sessions{All: []*capture.Session{&s}}, packets: 10}
	}
	row := Row{Family: 4}
	for _, c := range []struct {
		modes []string
		seen  sight
		want  string
	}{
		{nil, with("10.77.0.1"), "packet"},
		{nil, with("10.77.0.3"), "kernel"},
		{[]string{"native"}, sight{}, "xdp-native"},
		{[]string{"generic"}, sight{}, "xdp-generic"},
		{nil, sight{}, "? "},                                          // nothing at all
		{[]string{"native"}, with("10.77.0.1"), "? native 10.77.0.1"}, // attached, but not used
		{[]string{"native", "generic"}, sight{}, "? native generic"},
		{nil, with("10.77.0.9"), "? 10.77.0.9"},
	} {
		require.Equal(t, c.want, (&observer{modes: c.modes}).backend(row, c.seen))
	}
}

// TestLook: what tcpdump sees beside AF_XDP, told by time and sender.
func TestLook(t *testing.T) {
	f := files{t.TempDir()}
	row := Row{Backend: "xdp-native", Family: 4}
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	packet := func(from, to string) []byte {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.ParseIP(from), DstIP: net.ParseIP(to)}
		tcp := &layers.TCP{SrcPort: 7174, DstPort: 1024, ACK: true}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(ip))
		b := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			&layers.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: layers.EthernetTypeIPv4}, ip, tcp))
		return b.Bytes()
	}
	info := func(ms int, b []byte) gopacket.CaptureInfo {
		return gopacket.CaptureInfo{Timestamp: at(ms), CaptureLength: len(b), Length: len(b)}
	}
	ours, theirs := packet("10.77.0.1", "10.77.0.2"), packet("10.77.0.2", "10.77.0.1")

	own, err := os.Create(f.own())
	require.NoError(t, err)
	ng, err := pcapgo.NewNgWriter(own, layers.LinkTypeEthernet)
	require.NoError(t, err)
	for _, ms := range []int{100, 200} {
		require.NoError(t, ng.WritePacket(info(ms, ours), ours))
	}
	require.NoError(t, ng.Flush())
	require.NoError(t, own.Close())

	for _, c := range []struct {
		ms   int
		b    []byte
		want int
	}{{50, theirs, 0}, {150, theirs, 1}, {250, theirs, 0}, {150, ours, 1}, {250, ours, 1}} {
		tap, err := os.Create(f.wire())
		require.NoError(t, err)
		w := pcapgo.NewWriter(tap)
		require.NoError(t, w.WriteFileHeader(1<<16, layers.LinkTypeEthernet))
		require.NoError(t, w.WritePacket(info(c.ms, c.b), c.b))
		require.NoError(t, tap.Close())
		seen, err := look(row, f)
		require.NoError(t, err)
		require.Equal(t, c.want, seen.packets, "%+v", c)
	}
	require.NoError(t, os.Truncate(f.wire(), 0))
	require.Error(t, eachPacket(f.wire(), nil), "an empty file is no capture")
}

// TestMSS: the recorded sessions ran on a link with MTU 1500.
func TestMSS(t *testing.T) {
	for _, c := range []struct {
		file string
		row  Row
		good bool
	}{
		{"siw-rping", Row{Backend: "packet", Family: 4, MTU: 1500, Load: Load{Conns: 1}}, true},
		{"siw-rping", Row{Backend: "packet", Family: 4, MTU: 9000, Load: Load{Conns: 1}}, false},
		{"siw-rping", Row{Backend: "packet", Family: 4, MTU: 1500, Load: Load{Conns: 2}}, false},
		{"siw-rping", Row{Backend: "kernel", Family: 4, MTU: 1500, Load: Load{Conns: 1}}, false},
		{"siw-rping-ipv6", Row{Backend: "packet", Family: 6, MTU: 1500, Load: Load{Conns: 1}}, true},
	} {
		err := checkMSS(c.row, "../../testdata/siw/"+c.file+".pcap")
		require.Equal(t, c.good, err == nil, "%+v: %v", c, err)
	}
}

// TestCheckMessages holds a recorded ucmatose, of two siw, against what the checks want of
// our side, and then against a few lies.
func TestCheckMessages(t *testing.T) {
	h, err := os.Open("../../testdata/siw/siw-ucmatose.pcap")
	require.NoError(t, err)
	defer h.Close()
	s, err := capture.DecodeFile(h)
	require.NoError(t, err)
	require.Len(t, s.All, 2)
	for _, ses := range s.All {
		theirs := messages(&ses.Responder)
		require.Len(t, theirs, 2)
		require.Len(t, theirs[0], 100)
		require.Len(t, messages(&ses.Initiator), 2)
	}
	row := Row{Kind: "siw-strict", Program: "ucmatose", Role: "server", Load: Load{2, 2, 100}}
	err = checkMessages(row, &s.All[0].Responder, &s.All[0].Initiator)
	require.ErrorContains(t, err, "our message 0 is on the wire as", "the C program does not number its messages")
	row.Load.Count, row.Load.Size = 3, 99
	err = checkMessages(row, &s.All[0].Responder, &s.All[0].Initiator)
	require.ErrorContains(t, err, "2 messages of ours on the wire instead of 3")
	require.ErrorContains(t, err, "has 100 octets instead of 99")
}
