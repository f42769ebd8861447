package pktio

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testType is an EtherType for experiments: nothing else on a test link speaks it.
const testType = 0x88b5

// rawFrame makes a plain frame of n octets with a counting payload.
func rawFrame(dst, src [6]byte, n int) []byte {
	b := make([]byte, n)
	copy(b, dst[:])
	copy(b[6:], src[:])
	binary.BigEndian.PutUint16(b[12:], testType)
	for i := EthernetHeader; i < n; i++ {
		b[i] = byte(i)
	}
	return b
}

// tcpOpts says what tcpFrame makes.
type tcpOpts struct {
	v6      bool
	partial bool // leave the checksum to the link
	gso     int  // payload per wire segment: make a super-frame
	dst     [6]byte
	src     [6]byte
}

// tcpFrame makes a TCP segment over IP with gopacket: not with the code under test.
func tcpFrame(t testing.TB, payload []byte, o tcpOpts) Frame {
	t.Helper()
	eth := &layers.Ethernet{DstMAC: o.dst[:], SrcMAC: o.src[:], EthernetType: layers.EthernetTypeIPv4}
	tcp := &layers.TCP{SrcPort: 4791, DstPort: 7174, Seq: 1, Ack: 2, ACK: true, PSH: true, Window: 512}
	var ip gopacket.SerializableLayer
	hdr := EthernetHeader + 20 + 20
	if o.v6 {
		eth.EthernetType = layers.EthernetTypeIPv6
		v6 := &layers.IPv6{Version: 6, NextHeader: layers.IPProtocolTCP, HopLimit: 64, SrcIP: net.ParseIP("fd77::1"), DstIP: net.ParseIP("fd77::2")}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(v6))
		ip = v6
		hdr += 20
	} else {
		v4 := &layers.IPv4{Version: 4, Protocol: layers.IPProtocolTCP, TTL: 64, SrcIP: net.IP{10, 77, 0, 1}, DstIP: net.IP{10, 77, 0, 2}}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(v4))
		ip = v4
	}
	w := gopacket.NewSerializeBuffer()
	require.NoError(t, gopacket.SerializeLayers(w, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, tcp, gopacket.Payload(payload)))
	b := w.Bytes()
	f := Frame{Data: [][]byte{b}}
	if o.partial || o.gso > 0 {
		f.NeedsCsum, f.CsumStart, f.CsumOffset = true, uint16(hdr-20), 16
		binary.BigEndian.PutUint16(b[hdr-4:], pseudoSum(b))
	}
	if o.gso > 0 {
		f.GSO, f.GSOSize, f.HdrLen = GSOTCPv4, uint16(o.gso), uint16(hdr)
		if o.v6 {
			f.GSO = GSOTCPv6
		}
	}
	return f
}

// slowSum is RFC 1071 word by word.
func slowSum(b []byte) uint16 {
	sum := 0
	for i, o := range b {
		if i%2 == 0 {
			sum += int(o) << 8
		} else {
			sum += int(o)
		}
		if sum > 0xffff {
			sum -= 0xffff
		}
	}
	return uint16(sum)
}

// pseudoSum is the sum over the pseudo header of a TCP frame.
func pseudoSum(b []byte) uint16 {
	var p []byte
	if b[12] == 0x08 {
		p = append(p, b[26:34]...)
		p = binary.BigEndian.AppendUint32(p, uint32(binary.BigEndian.Uint16(b[16:])-20))
	} else {
		p = append(p, b[22:54]...)
		p = binary.BigEndian.AppendUint32(p, uint32(binary.BigEndian.Uint16(b[18:])))
	}
	return slowSum(append(p, 0, 0, 0, 6))
}

// tcpOK tells whether a receiver's TCP takes the frame: it trusts NeedsCsum and CsumValid and else verifies.
func tcpOK(f *Frame) bool {
	if f.NeedsCsum || f.CsumValid {
		return true
	}
	b := make([]byte, f.Len())
	f.CopyTo(b)
	start := EthernetHeader + 20
	if b[12] != 0x08 {
		start += 20
	}
	sum := append(binary.BigEndian.AppendUint16(nil, pseudoSum(b)), b[start:]...)
	return slowSum(sum) == 0xffff
}

// one makes a batch of one frame.
func one(pieces ...[]byte) []Frame { return []Frame{{Data: pieces}} }

// octets returns a copy of a frame in one piece.
func octets(f *Frame) []byte {
	b := make([]byte, f.Len())
	f.CopyTo(b)
	return b
}

// recvOne receives one frame of test traffic and returns a copy of it; noise on a real interface is passed over.
func recvOne(t testing.TB, p Port, wait time.Duration) (Frame, []byte) {
	t.Helper()
	var batch [1]Frame
	for until := time.Now().Add(wait); ; {
		n, err := p.Recv(batch[:], wait)
		require.NoError(t, err)
		if n == 1 {
			b := octets(&batch[0])
			if typ := binary.BigEndian.Uint16(b[12:]); typ == testType || len(b) > 34 && b[23] == 6 || len(b) > 54 && b[20] == 6 {
				return Frame{Data: [][]byte{b}, Offload: batch[0].Offload}, b
			}
		}
		if time.Now().After(until) {
			require.Fail(t, "no frame came")
		}
	}
}

// pattern makes n octets that differ from place to place.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}
