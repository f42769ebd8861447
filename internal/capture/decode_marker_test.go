package capture

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// marked is a conversation of revision 1 whose initiator (side 0) and responder (side 1)
// send with markers as the flags M of the other side ask for.
func marked(t *testing.T, req, rep uint8) *conversation {
	c := newConversation(t)
	c.say(0, 1460, wiretest.Startup{Rev: 1, Flags: wiretest.FlagC | req}.Octets())
	c.say(1, 1460, wiretest.Startup{Reply: true, Rev: 1, Flags: wiretest.FlagC | rep}.Octets())
	return c
}

// messages are Sends of many lengths from MSN 1 on, in one direction.
func messages(m *wiretest.Marks) (b []byte, n int) {
	for i, length := range []int{0, 5, 430, 440, 470, 480, 490, 500, 1420, 1424, 3, 1424, 1424, 100} {
		u := wiretest.Untagged(3, true, 0, 0, uint32(i+1), 0, bytes.Repeat([]byte{byte(i)}, length))
		if m == nil {
			b = append(b, wiretest.Frame(u, true)...)
		} else {
			b = append(b, m.Frame(u)...)
		}
		n++
	}
	return b, n
}

func TestMarkers(t *testing.T) {
	for _, v := range wiretest.Marked() {
		t.Run("MPA-58 MPA-62 "+v.Name, func(t *testing.T) {
			pos, b := 0, v.Octets
			for _, want := range v.ULPDUs {
				u := MPA{InUse: true}
				n, err := u.decodeMarked(b, pos)
				require.NoError(t, err)
				require.Equal(t, want, u.Payload)
				require.True(t, u.CRCOK())
				for cut := range n {
					_, err := new(MPA).decodeMarked(b[:cut:cut], pos)
					require.ErrorIs(t, err, errShort)
				}
				pos, b = pos+n, b[n:]
			}
			require.Empty(t, b)
		})
	}
	t.Run("MPA-20 each direction as the other side asked, agreed with tshark", func(t *testing.T) {
		for _, row := range [][2]uint8{{0, wiretest.FlagM}, {wiretest.FlagM, 0}, {wiretest.FlagM, wiretest.FlagM}} {
			for _, mss := range []int{1460, 536, 700} {
				c := marked(t, row[0], row[1])
				count := 0
				for side, asked := range []bool{row[1] != 0, row[0] != 0} {
					var m *wiretest.Marks
					if asked {
						m = &wiretest.Marks{CRC: true}
					}
					b, n := messages(m)
					c.say(side, mss, b)
					count += n
				}
				c.fin(0)
				c.fin(1)
				s := c.decode()
				require.NoError(t, s.Err())
				require.Equal(t, count, s.FPDUs())
				require.Empty(t, s.All[0].Check())
				alignedAgree(t, s.All[0])
				for i, f := range []*Flow{&s.All[0].Initiator, &s.All[0].Responder} {
					again, err := f.Encode()
					require.NoError(t, err)
					require.True(t, bytes.Equal(f.Stream(), again), "the same octets when built again")
					markers := 0
					for _, u := range f.FPDUs {
						markers += len(u.MPA.Markers)
					}
					want := 0
					if row[1-i] != 0 {
						want = (len(f.Stream()) - len(f.Startup.Contents) + 511) / 512
					}
					require.Equal(t, want, markers)
				}
			}
		}
	})
	t.Run("MPA-67 a marker that points elsewhere, under a CRC that is right", func(t *testing.T) {
		m := wiretest.Marks{CRC: true}
		b, n := messages(&m)
		for at := 0; at < len(b); at += 512 {
			f := marked(t, wiretest.FlagM, 0)
			f.say(0, 1460, wiretest.Frame(wiretest.Untagged(3, true, 0, 0, 1, 0, nil), true))
			bent := bytes.Clone(b)
			bent[at+3] ^= 8
			mend(bent, at)
			f.say(1, 1460, bent)
			s := f.decode()
			require.ErrorIs(t, s.Err(), ErrMarkers)
			require.Equal(t, 1, s.Malformed(), "the marker at %d", at)
			require.Zero(t, s.BadCRC())
			require.Equal(t, n+1, s.FPDUs())
		}
	})
	t.Run("MPA-58 a marker that was changed and not its CRC", func(t *testing.T) {
		m := wiretest.Marks{CRC: true}
		b, _ := messages(&m)
		b[513] = 1
		f := marked(t, wiretest.FlagM, 0)
		f.say(1, 1460, b)
		s := f.decode()
		require.Equal(t, 1, s.BadCRC())
		require.Zero(t, s.Malformed())
	})
	t.Run("MPA-61 the reserved half and the low bits of FPDUPTR are for the sender to leave zero", func(t *testing.T) {
		for _, i := range []int{0, 1, 3} {
			m := wiretest.Marks{CRC: true}
			b, _ := messages(&m)
			b[512+i] |= 1
			mend(b, 512)
			f := marked(t, wiretest.FlagM, 0)
			f.say(0, 1460, wiretest.Frame(wiretest.Untagged(3, true, 0, 0, 1, 0, nil), true))
			f.say(1, 1460, b)
			s := f.decode()
			require.NoError(t, s.Err())
			require.Len(t, s.All[0].Check(), 1)
		}
	})
	t.Run("MPA-20 M in the Request marks the responder's stream alone", func(t *testing.T) {
		c := marked(t, wiretest.FlagM, 0)
		c.say(0, 1460, wiretest.Marked()[0].Octets)
		s := c.decode()
		require.Error(t, s.Err())
		require.Equal(t, 0, len(s.All[0].Initiator.FPDUs)-s.BadCRC())
	})
}

// alignedAgree asks tshark about the connection, cut as it needs.
func alignedAgree(t *testing.T, ses *Session) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "aligned.pcap")
	f, err := os.Create(name)
	require.NoError(t, err)
	require.NoError(t, ses.WriteAligned(f))
	require.NoError(t, f.Close())
	again := decodeFile(t, name)
	require.NoError(t, again.Err(), "nothing was lost")
	agree(t, name, again, ses.CRC)
	require.Equal(t, []bool{ses.Initiator.marked(), ses.Responder.marked()},
		[]bool{again.All[0].Initiator.marked(), again.All[0].Responder.marked()})
	for i, f := range []*Flow{&again.All[0].Initiator, &again.All[0].Responder} {
		if was := []*Flow{&ses.Initiator, &ses.Responder}[i]; f.marked() {
			require.True(t, bytes.HasPrefix(was.Stream(), f.Stream()), "the same octets")
			require.NotEmpty(t, f.FPDUs)
		}
	}
}

// mend puts right the CRC of the FPDU around the marker at stream position at.
func mend(b []byte, at int) {
	for pos := 0; pos < len(b); {
		n, _ := new(MPA).decodeMarked(b[pos:], pos)
		if at < pos+n {
			f := b[pos : pos+n-4]
			binary.LittleEndian.PutUint32(b[pos+n-4:], wiretest.CRC32C(f))
			return
		}
		pos += n
	}
}

// FuzzDecodeMarked: what was taken apart is built again, wherever it stands.
func FuzzDecodeMarked(f *testing.F) {
	for _, v := range wiretest.Marked() {
		f.Add(v.Octets, 0)
		f.Add(v.Octets[4:], 4)
	}
	f.Add(make([]byte, 1200), 508)
	f.Fuzz(func(t *testing.T, b []byte, pos int) {
		u := FPDU{MPA: MPA{InUse: true}}
		n, err := u.MPA.decodeMarked(b, pos&0xffffff&^3)
		if n == 0 {
			if err == nil {
				t.Fatal("nothing, and no error")
			}
			return
		}
		u.decode()
		buf := gopacket.NewSerializeBuffer()
		if err := u.serialize(buf); err != nil {
			t.Fatal(err)
		}
		if again := u.MPA.weave(buf.Bytes()); !bytes.Equal(b[:n], again) {
			t.Fatalf("took apart % x\nbuilt      % x", b[:n], again)
		}
	})
}
