package wiretest

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
)

func TestCRC32C(t *testing.T) {
	t.Run("MPA-57 the check value of the Castagnoli CRC", func(t *testing.T) {
		require.Equal(t, uint32(0xe3069283), CRC32C([]byte("123456789")))
		require.Equal(t, crc32.Checksum([]byte("hello"), crc32.MakeTable(crc32.Castagnoli)), CRC32C([]byte("hello")))
	})
	t.Run("MPA-57 the CRC of RFC 5044 Figure 5 stands least significant octet first", func(t *testing.T) {
		u := append([]byte{0x41, 0x43}, make([]byte, 40)...)
		u[13] = 1
		covered := append([]byte{0, 0, 0, 0, 0, 42}, u...)
		require.Equal(t, Hex("52 23 99 83"), appendCRC(nil, covered))
	})
}

func TestVectorsAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range append(FPDUs(), SwappedTerminate()) {
		t.Run(v.Name, func(t *testing.T) {
			require.False(t, seen[v.Name])
			seen[v.Name] = true
			require.Equal(t, v.Octets, Frame(v.ULPDU(), true))
			require.Equal(t, v.Opcode, v.ULPDU()[1]&0x0f)
		})
	}
	require.Equal(t, "589b2373", hexOf(SwappedTerminate().Octets[len(SwappedTerminate().Octets)-4:]), "siw's own CRC in its capture")
	for _, v := range Startups() {
		require.Equal(t, v.Octets, v.Frame.Octets(), v.Name)
	}
	bad := 0
	for _, v := range Hostile() {
		n := len(v.Octets)
		if CRC32C(v.Octets[:n-4]) != binary.LittleEndian.Uint32(v.Octets[n-4:]) {
			bad++
			require.Equal(t, "N37", v.ID, "the only one with a wrong CRC")
		}
	}
	require.Equal(t, 1, bad)
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var s []byte
	for _, c := range b {
		s = append(s, digits[c>>4], digits[c&15])
	}
	return string(s)
}

// TestMarkedVectors takes the streams apart in the plainest way: every octet in its place.
func TestMarkedVectors(t *testing.T) {
	for _, v := range Marked() {
		t.Run("MPA-61 "+v.Name, func(t *testing.T) {
			var got [][]byte
			b := v.Octets
			for pos := 0; pos < len(b); {
				start, header := pos, -1
				var plain []byte // length, ULPDU and padding without markers
				need := 2
				for len(plain) < need {
					if pos%512 == 0 {
						ptr := int(binary.BigEndian.Uint16(b[pos+2:]))
						if header >= 0 {
							require.Equal(t, pos-header, ptr, "FPDUPTR at %d", pos)
						} else {
							require.Zero(t, ptr)
						}
						pos += 4
						continue
					}
					if header < 0 {
						header = pos
						need = (2 + int(binary.BigEndian.Uint16(b[pos:])) + 3) &^ 3
					}
					plain = append(plain, b[pos])
					pos++
				}
				if pos%512 == 0 {
					require.Equal(t, pos-header, int(binary.BigEndian.Uint16(b[pos+2:])))
					pos += 4
				}
				require.Equal(t, CRC32C(b[start:pos]), binary.LittleEndian.Uint32(b[pos:]), "CRC of the FPDU at %d", start)
				pos += 4
				got = append(got, plain[2:2+int(binary.BigEndian.Uint16(plain))])
			}
			require.Equal(t, v.ULPDUs, got)
		})
	}
}

func TestBuilders(t *testing.T) {
	byName := map[string][]byte{}
	for _, v := range FPDUs() {
		byName[v.Name] = v.Octets
	}
	ramp := []byte{0, 1, 2, 3, 4, 5, 6, 7}
	for name, got := range map[string][]byte{
		"SEND-HELLO":  Untagged(3, true, 0, 0, 1, 0, []byte("hello")),
		"WRITE-8":     Tagged(0, true, 0x12345678, 0x7f1200001000, ramp),
		"SEND-SE-INV": Untagged(6, true, 0x0a0b0c0d, 0, 2, 0, []byte("done")),
		"RREQ":        ReadRequest(1, 0xaabbcc01, 0x1000, 16, 0x12345678, 0x7f1200001000),
		"TERM-2002":   Terminate(0x2002),
	} {
		require.Equal(t, byName[name], Frame(got, true), name)
	}
	require.Equal(t, Startups()[0].Octets, Startup{Flags: FlagC | FlagS, Rev: 2,
		Private: Block(BlockA|16, BlockC|BlockD|8, 'h', 'i', 0, 1)}.Octets())
}

func TestChunks(t *testing.T) {
	b := make([]byte, 1000)
	for i := range b {
		b[i] = byte(i)
	}
	var joined []byte
	for _, c := range Chunks(b, 7, 1) {
		require.LessOrEqual(t, len(c), 7)
		joined = append(joined, c...)
	}
	require.Equal(t, b, joined)
	require.Equal(t, Chunks(b, 7, 1), Chunks(b, 7, 1))
}

// TestPeer lets two scripted peers talk over loopback TCP.
func TestPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
	}()
	a := DialPeer(t, l.Addr().String())
	b := NewPeer(t, <-accepted)
	kind := PeerKinds()[0]

	a.Write(kind.Request.Octets())
	require.Equal(t, kind.Request, b.Respond(kind.Reply))
	require.Equal(t, kind.Reply, a.Startup())
	require.True(t, b.CRC)

	hello := Untagged(3, true, 0, 0, 1, 0, []byte("hello"))
	a.Send(hello, Terminate(0x1202))
	b.Expect(hello)
	b.ExpectTerminate(0x1202)
	a.Drip(Frame(hello, true))
	b.Expect(hello)
	b.ExpectSilence(10 * time.Millisecond)
	a.CRC, b.CRC = false, false
	a.Send(hello)
	b.Expect(hello)
	a.CloseWrite()
	b.ExpectEOF()
	b.Reset()
	a.ExpectReset()
}

func TestParseTshark(t *testing.T) {
	r, err := parseTshark([]byte(`Frame 4
iWARP Marker Protocol data unit Aligned framing
    Request frame header
    Reply frame header
    FPDU
        ULPDU length: 14 bytes
        CRC check: 0xebd34c5f (Good CRC32)
            .... 0000 = OpCode: Write (0x0)
        ULPDU length: 34 bytes
        CRC check: 0x1c026a7b (Bad CRC32, should be 0x1c026a7c)
            .... 0111 = OpCode: Terminate (0x7)
[Malformed Packet: TCP]
`))
	require.NoError(t, err)
	want := Report{Requests: 1, Replies: 1, FPDUs: 2, ULPDU: []int{14, 34}, GoodCRC: 1, BadCRC: 1, Malformed: 1}
	want.ByOpcode[0], want.ByOpcode[7] = 1, 1
	require.Equal(t, want, r)
}

// TestTsharkPorts: the dissectors find MPA whatever port the client happens to have.
func TestTsharkPorts(t *testing.T) {
	const golden = "../../testdata/siw/siw-rping.pcap"
	f, err := os.Open(golden)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "pmproxy.pcap")
	out, err := os.Create(name)
	require.NoError(t, err)
	w := pcapgo.NewWriter(out)
	require.NoError(t, w.WriteFileHeader(1<<18, r.LinkType()))
	for {
		data, info, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		p := gopacket.NewPacket(data, r.LinkType(), gopacket.Default)
		tcp, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP)
		require.True(t, ok)
		const pmproxy = 44322 // a port that tshark has a dissector for
		if tcp.SrcPort != 7174 {
			tcp.SrcPort = pmproxy
		} else {
			tcp.DstPort = pmproxy
		}
		require.NoError(t, tcp.SetNetworkLayerForChecksum(p.NetworkLayer()))
		b := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializePacket(b, gopacket.SerializeOptions{ComputeChecksums: true}, p))
		info.CaptureLength, info.Length = len(b.Bytes()), len(b.Bytes())
		require.NoError(t, w.WritePacket(info, b.Bytes()))
	}
	require.NoError(t, out.Close())
	want := Tshark(t, golden)
	require.NotZero(t, want.FPDUs)
	require.Equal(t, want, Tshark(t, name))
}
