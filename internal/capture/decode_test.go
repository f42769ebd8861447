package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

const siwDir = "../../testdata/siw"

// siwFiles says what each golden capture holds: connections, whole FPDUs, whether the
// CRC is in use, and by opcode.
var siwFiles = map[string]struct {
	sessions, fpdus int
	crc             bool
}{
	"siw-connect-refused-by-ulp":     {2, 0, false},
	"siw-read":                       {2, 112, false},
	"siw-rping":                      {1, 21, false},
	"siw-rping-4k":                   {1, 22, false},
	"siw-rping-ipv6":                 {1, 14, false},
	"siw-rping-read-too-long":        {1, 4, false},
	"siw-strict-rping":               {1, 22, true},
	"siw-strict-rping-4k":            {1, 23, true},
	"siw-strict-rping-read-too-long": {1, 5, true},
	"siw-ucmatose":                   {2, 8, false},
	"siw-write":                      {2, 107, false},
}

func decodeFile(t *testing.T, name string) Sessions {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	s, err := DecodeFile(f)
	require.NoError(t, err)
	return s
}

func TestSiwCaptures(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(siwDir, "*.pcap"))
	require.NoError(t, err)
	require.Len(t, files, len(siwFiles))
	total := 0
	for name, want := range siwFiles {
		t.Run("IOP-36 "+name, func(t *testing.T) {
			s := decodeFile(t, filepath.Join(siwDir, name+".pcap"))
			require.NoError(t, s.Err(), "every octet is explained and every CRC holds")
			require.Len(t, s.All, want.sessions)
			require.Equal(t, want.fpdus, s.FPDUs())
			require.Zero(t, s.Foreign)
			total += s.FPDUs()
			for _, ses := range s.All {
				require.Equal(t, want.crc, ses.CRC)
				for _, f := range []*Flow{&ses.Initiator, &ses.Responder} {
					require.Zero(t, f.Tail, "whole FPDUs to the end")
					require.NotNil(t, f.Startup)
					again, err := f.Encode()
					require.NoError(t, err)
					require.True(t, bytes.Equal(f.Stream(), again), "the same octets when built again")
				}
			}
		})
	}
	require.Equal(t, 338, total)
}

// TestSiwFindings: siw follows the rules that need several FPDUs to see, but for the
// two habits it is known for.
func TestSiwFindings(t *testing.T) {
	for name := range siwFiles {
		for _, ses := range decodeFile(t, filepath.Join(siwDir, name+".pcap")).All {
			for _, f := range ses.Check() {
				switch f.Rule {
				case "padding is not zero (RFC 5044, Section 4.1)",
					"the responder sent before the initiator's first FPDU (RFC 5044, Section 7.1.2)",
					"the Terminate's control field is not as drawn in RFC 5040, Section 4.8":
				case "the Read Response has 100 octets, its request asked for 64 (RFC 5040, Section 4.5)":
					require.Contains(t, name, "read-too-long")
				default:
					require.Fail(t, "unexpected finding", "%s: %v", name, f)
				}
			}
		}
	}
}

func TestSiwAgainstTshark(t *testing.T) {
	for name, want := range siwFiles {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(siwDir, name+".pcap")
			agree(t, file, decodeFile(t, file), want.crc)
		})
	}
}

// agree holds the decoder against tshark.
func agree(t *testing.T, file string, s Sessions, crc bool) {
	t.Helper()
	r := wiretest.Tshark(t, file)
	var by [16]int
	requests, replies := 0, 0
	for _, ses := range s.All {
		for _, f := range []*Flow{&ses.Initiator, &ses.Responder} {
			for op, n := range f.Counts.ByOpcode {
				by[op] += n
			}
			switch {
			case f.Startup != nil && f.Startup.Reply:
				replies++
			case f.Startup != nil:
				requests++
			}
		}
	}
	require.Equal(t, s.FPDUs(), r.FPDUs, "FPDUs")
	require.Equal(t, by, r.ByOpcode, "opcodes")
	require.Equal(t, [2]int{requests, replies}, [2]int{r.Requests, r.Replies}, "startup frames")
	require.Zero(t, r.Malformed)
	require.Equal(t, s.BadCRC(), r.BadCRC)
	if crc {
		require.Equal(t, s.FPDUs()-s.BadCRC(), r.GoodCRC)
	}
}

func TestVectors(t *testing.T) {
	for _, v := range append(wiretest.FPDUs(), wiretest.SwappedTerminate()) {
		t.Run(v.Name, func(t *testing.T) {
			u := FPDU{MPA: MPA{InUse: true}}
			n, err := u.MPA.decode(v.Octets)
			require.NoError(t, err)
			require.Equal(t, len(v.Octets), n)
			require.True(t, u.MPA.CRCOK())
			u.decode()
			require.NoError(t, u.Err)
			require.Equal(t, Opcode(v.Opcode), u.RDMAP.Opcode)
			require.Equal(t, u.DDP.Control, u.RDMAP.Control())
			wiretest.RoundTrip(t, v.Octets, func([]byte) ([]byte, error) {
				buf := gopacket.NewSerializeBuffer()
				err := u.serialize(buf)
				return buf.Bytes(), err
			})
			wiretest.Prefixes(t, v.Octets, func(b []byte) bool {
				var u FPDU
				n, err := u.MPA.decode(b)
				return err == nil && n == len(v.Octets)
			})
		})
	}
}

func TestStartups(t *testing.T) {
	for _, v := range wiretest.Startups() {
		t.Run(v.Name, func(t *testing.T) {
			var s Startup
			require.NoError(t, s.decode(v.Octets))
			require.Equal(t, v.Frame.Reply, s.Reply)
			require.Equal(t, v.Frame.Rev, s.Rev)
			require.Equal(t, v.Frame.Flags&wiretest.FlagC != 0, s.CRC)
			require.Equal(t, v.Frame.Flags&wiretest.FlagR != 0, s.Reject)
			buf := gopacket.NewSerializeBuffer()
			require.NoError(t, s.SerializeTo(buf, gopacket.SerializeOptions{}))
			require.Equal(t, v.Octets, buf.Bytes())
			wiretest.Prefixes(t, v.Octets, func(b []byte) bool { return new(Startup).decode(b) == nil })
		})
	}
	t.Run("MPA-36 the enhanced block is no ULP data", func(t *testing.T) {
		var s Startup
		require.NoError(t, s.decode(wiretest.Startups()[0].Octets))
		e, ok := s.Enhanced()
		require.True(t, ok)
		require.Equal(t, Enhanced{A: true, C: true, D: true, IRD: 16, ORD: 8}, e)
		require.Equal(t, []byte{'h', 'i', 0, 1}, s.ULPData())
	})
	for _, w := range []struct {
		name  string
		frame wiretest.Startup
	}{
		{"MPA-07 PD_Length 513", wiretest.Startup{Rev: 1, Private: make([]byte, 513)}},
		{"MPA-31 S=1 with PD_Length 3", wiretest.Startup{Flags: wiretest.FlagS, Rev: 2, Private: make([]byte, 3)}},
	} {
		t.Run(w.name, func(t *testing.T) { require.ErrorIs(t, new(Startup).decode(w.frame.Octets()), ErrStartup) })
	}
	t.Run("MPA-32 with Rev 1 the S bit means nothing", func(t *testing.T) {
		var s Startup
		require.NoError(t, s.decode(wiretest.Startup{Flags: wiretest.FlagS, Rev: 1, Private: make([]byte, 3)}.Octets()))
		_, ok := s.Enhanced()
		require.False(t, ok)
		require.Len(t, s.ULPData(), 3)
	})
}

func TestSwappedTerminate(t *testing.T) {
	for _, row := range []struct {
		octets  string
		want    uint16
		swapped bool
		m, d, r bool
	}{
		{"01 02 e0 00", 0x0102, false, true, true, true},
		{"10 02 07 00", 0x0102, true, true, true, true},
		{"20 06 00 00", 0x2006, false, false, false, false}, // could also be siw's 0x0206: nobody can tell
		{"11 00 c0 00", 0x1100, false, true, true, false},
		{"11 00 03 00", 0x1100, true, true, true, false},
		{"12 02 c0 00", 0x1202, false, true, true, false},
		{"21 02 03 00", 0x1202, true, true, true, false},
		{"20 02 00 00", 0x2002, false, false, false, false},
		{"02 02 00 00", 0x2002, true, false, false, false},
		{"21 02 00 00", 0x1202, true, false, false, false},
		{"10 02 00 00", 0x0102, true, false, false, false},
		{"20 08 00 00", 0x0208, true, false, false, false},
		{"00 00 00 00", 0x0000, false, false, false, false},
		{"10 00 00 00", 0x1000, false, false, false, false},
	} {
		t.Run("IOP-01 "+row.octets, func(t *testing.T) {
			b := wiretest.Hex(row.octets)
			if row.m {
				b = append(b, 0, 46)
			}
			if row.d {
				b = append(b, make([]byte, 18)...)
			}
			if row.r {
				b = append(b, make([]byte, 28)...)
			}
			var r RDMAP
			require.NoError(t, r.decodeTerminate(b))
			require.Equal(t, fmt.Sprintf("%#04x", row.want), fmt.Sprintf("%#04x", r.Terminate.LE()))
			require.Equal(t, row.swapped, r.Terminate.Swapped)
			require.Equal(t, b, r.Terminate.append(nil))
			require.Equal(t, []bool{row.m, row.d, row.r}, []bool{r.Terminate.M, r.Terminate.D, r.Terminate.R})
		})
	}
}

// TestHostileVectors: what breaks the specifications inside one FPDU is malformed, what
// breaks them only in its context is not.
func TestHostileVectors(t *testing.T) {
	malformed := map[string]bool{"N14": true, "N15": true, "N16": true, "N17": true, "N18": true, "N19": true, "N20": true,
		"N21": true, "N28": true, "N29": true, "N30": true, "N32": true, "N35": true, "N36": true}
	for _, v := range wiretest.Hostile() {
		t.Run(v.ID+" "+v.What, func(t *testing.T) {
			u := FPDU{MPA: MPA{InUse: true}}
			n, err := u.MPA.decode(v.Octets)
			require.NoError(t, err)
			require.Equal(t, len(v.Octets), n)
			require.Equal(t, v.ID != "N37", u.MPA.CRCOK())
			u.decode()
			require.Equal(t, malformed[v.ID], u.Err != nil, "%v", u.Err)
			wiretest.RoundTrip(t, v.Octets, func([]byte) ([]byte, error) {
				buf := gopacket.NewSerializeBuffer()
				err := u.serialize(buf)
				return buf.Bytes(), err
			})
		})
	}
}

func TestLayers(t *testing.T) {
	v := wiretest.FPDUs()[0]
	p := gopacket.NewPacket(v.Octets, LayerTypeMPA, gopacket.Default)
	require.Nil(t, p.ErrorLayer())
	var names []string
	for _, l := range p.Layers() {
		names = append(names, l.LayerType().String())
	}
	require.Equal(t, []string{"MPA", "DDP", "RDMAP", "Payload"}, names)
	require.Equal(t, []byte("hello"), p.Layer(gopacket.LayerTypePayload).LayerContents())
	both := append(wiretest.Startups()[0].Octets, v.Octets...)
	p = gopacket.NewPacket(both, LayerTypeStartup, gopacket.Default)
	require.Nil(t, p.ErrorLayer())
	require.NotNil(t, p.Layer(LayerTypeRDMAP))
}

// openCRC starts a conversation with its startup frames.
func openCRC(t *testing.T) *conversation {
	c := newConversation(t)
	c.say(0, 1460, wiretest.Startup{Flags: wiretest.FlagC, Rev: 1}.Octets())
	c.say(1, 1460, wiretest.Startup{Reply: true, Flags: wiretest.FlagC, Rev: 1}.Octets())
	return c
}

// sends makes n Sends of growing size.
func sends(n, from int) (out [][]byte) {
	for i := range n {
		out = append(out, wiretest.Frame(wiretest.Untagged(3, true, 0, 0, uint32(from+i), 0, bytes.Repeat([]byte{byte(i)}, i*37)), true))
	}
	return out
}

func TestReassembly(t *testing.T) {
	check := func(t *testing.T, c *conversation, fpdus int) Sessions {
		s := c.decode()
		require.NoError(t, s.Err())
		require.Equal(t, fpdus, s.FPDUs())
		require.Empty(t, s.All[0].Check())
		return s
	}
	t.Run("MPA-72 one octet a segment", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 1, sends(6, 1)...)
		s := check(t, c, 6)
		require.Equal(t, addrA, s.All[0].Initiator.From)
	})
	t.Run("MPA-73 super-frames", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 65000, sends(80, 1)...)
		check(t, c, 80)
	})
	t.Run("shuffled and repeated", func(t *testing.T) {
		for seed := range uint64(20) {
			c := openCRC(t)
			c.say(0, 100, sends(20, 1)...)
			c.say(1, 333, sends(20, 1)...)
			rnd := rand.New(rand.NewPCG(seed, 1))
			tail := c.packets[4:]
			for range 10 {
				tail = append(tail, tail[rnd.IntN(len(tail))])
			}
			rnd.Shuffle(len(tail), func(i, j int) { tail[i], tail[j] = tail[j], tail[i] })
			c.packets = append(c.packets[:4], tail...)
			c.fin(0)
			c.fin(1)
			s := c.decode()
			require.NoError(t, s.Err())
			require.Equal(t, 40, s.FPDUs())
			require.Equal(t, 10, s.Retransmitted())
			require.True(t, s.All[0].Initiator.FIN)
		}
	})
	t.Run("a retransmission cut otherwise", func(t *testing.T) {
		c := openCRC(t)
		seq := c.seq[0]
		b := bytes.Join(sends(10, 1), nil)
		c.say(0, 100, b[:500])
		c.seq[0] = seq + 250
		c.say(0, 1000, b[250:])
		check(t, c, 10)
	})
	t.Run("a repeated octet with another value", func(t *testing.T) {
		c := openCRC(t)
		seq := c.seq[0]
		b := bytes.Join(sends(3, 1), nil)
		c.say(0, 1000, b)
		c.seq[0] = seq
		b[10] ^= 1
		c.say(0, 1000, b)
		require.Equal(t, 1, c.decode().All[0].Initiator.Counts.Conflicts)
	})
	t.Run("a damaged segment is not believed", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 1000, sends(3, 1)...)
		good := c.packets[len(c.packets)-1]
		bad := bytes.Clone(good)
		bad[len(bad)-6] ^= 4
		c.packets = append(c.packets[:len(c.packets)-1], bad, good)
		s := check(t, c, 3)
		require.Equal(t, 1, s.All[0].Initiator.Counts.BadChecksum)
		// Alone it is better than nothing, and the CRC tells.
		c.packets = c.packets[:len(c.packets)-1]
		require.Equal(t, 1, c.decode().BadCRC())
	})
	t.Run("a checksum left to the device", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 1000, sends(3, 1)...)
		p := c.packets[len(c.packets)-1]
		ip, tcp := p[14:34], p[34:]
		sum := sum16(uint32(6+len(tcp)), ip[12:20])
		binary.BigEndian.PutUint16(tcp[16:], fold(sum))
		s := check(t, c, 3)
		require.Zero(t, s.All[0].Initiator.Counts.BadChecksum)
	})
	t.Run("octets missing", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 100, sends(6, 1)...)
		c.packets = append(c.packets[:6], c.packets[7:]...)
		s := c.decode()
		require.ErrorIs(t, s.Err(), ErrMissing)
		require.Positive(t, s.FPDUs())
	})
	t.Run("no SYN in the file", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 100, sends(6, 1)...)
		c.packets = c.packets[2:]
		check(t, c, 6)
	})
	t.Run("the same ports again", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 100, sends(2, 1)...)
		d := newConversation(t)
		d.seq = [2]uint32{5, 7}
		d.packets = nil
		d.add(0, layers.TCP{SYN: true}, nil)
		d.add(1, layers.TCP{SYN: true, ACK: true}, nil)
		d.say(0, 1460, wiretest.Startup{Rev: 1}.Octets())
		c.packets = append(c.packets, d.packets...)
		require.Len(t, c.decode().All, 2)
	})
	t.Run("an answer of an older connection of the same ports", func(t *testing.T) {
		c := newConversation(t)
		syn := c.packets[0]
		c.packets, c.seq = nil, [2]uint32{70000, 900000} // the older one's numbers
		c.add(1, layers.TCP{ACK: true}, nil)
		c.add(0, layers.TCP{RST: true}, nil)
		late := c.packets
		c = newConversation(t)
		c.packets = slices.Concat([][]byte{syn}, late, c.packets) // the SYN is repeated
		c.say(0, 1460, wiretest.Startup{Rev: 1}.Octets())
		c.say(1, 1460, wiretest.Startup{Rev: 1, Reply: true}.Octets())
		s := c.decode()
		require.NoError(t, s.Err())
		require.Len(t, s.All, 1)
		require.NotNil(t, s.All[0].Responder.Startup)
	})
	t.Run("another protocol", func(t *testing.T) {
		c := newConversation(t)
		c.say(0, 100, []byte("GET / HTTP/1.1\r\n"))
		s := c.decode()
		require.Empty(t, s.All)
		require.Equal(t, 1, s.Foreign)
	})
}

func TestStreamErrors(t *testing.T) {
	t.Run("MPA-78 FIN inside an FPDU", func(t *testing.T) {
		c := openCRC(t)
		c.say(0, 1000, sends(2, 1)[1][:20])
		require.NoError(t, c.decode().Err(), "without FIN the capture just ends there")
		require.Equal(t, 20, c.decode().All[0].Initiator.Tail)
		c.fin(0)
		require.ErrorIs(t, c.decode().Err(), ErrTruncated)
	})
	t.Run("MPA-14 octets after R=1", func(t *testing.T) {
		c := newConversation(t)
		c.say(0, 1460, wiretest.Startup{Rev: 1}.Octets())
		c.say(1, 1460, wiretest.Startup{Reply: true, Rev: 1, Flags: wiretest.FlagR}.Octets())
		require.NoError(t, c.decode().Err())
		require.True(t, c.decode().All[0].Rejected)
		c.say(1, 1460, sends(1, 1)...)
		require.ErrorIs(t, c.decode().Err(), ErrRejected)
	})
	t.Run("MPA-22 the CRC counts when either side asks for it", func(t *testing.T) {
		for _, row := range []struct {
			req, rep uint8
			want     int
		}{{0, 0, 0}, {wiretest.FlagC, 0, 1}, {0, wiretest.FlagC, 1}, {wiretest.FlagC, wiretest.FlagC, 1}} {
			c := newConversation(t)
			c.say(0, 1460, wiretest.Startup{Rev: 1, Flags: row.req}.Octets())
			c.say(1, 1460, wiretest.Startup{Reply: true, Rev: 1, Flags: row.rep}.Octets())
			b := sends(1, 1)[0]
			b[len(b)-1] ^= 1
			c.say(0, 1460, b)
			require.Equal(t, row.want, c.decode().BadCRC())
			agree(t, c.saved(), c.decode(), row.want > 0)
		}
	})
}

func TestNotACapture(t *testing.T) {
	for _, b := range [][]byte{nil, {1, 2, 3}, []byte("not a capture file at all"), {0x0a, 0x0d, 0x0d, 0x0a}} {
		_, err := DecodeFile(bytes.NewReader(b))
		require.Error(t, err)
	}
}
