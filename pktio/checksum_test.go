package pktio

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSum16(t *testing.T) {
	t.Run("RFC 1071 section 3, the example", func(t *testing.T) {
		require.Equal(t, uint16(0xddf2), sum16([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}))
	})
	r := rand.New(rand.NewPCG(1, 1))
	b := make([]byte, 2100)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	for n := range len(b) + 1 {
		require.Equal(t, slowSum(b[:n]), sum16(b[:n]), "length %d", n)
	}
	for i := range b {
		b[i] = 0xff // every addition carries
	}
	for n := range 200 {
		require.Equal(t, slowSum(b[:n]), sum16(b[:n]), "all ones, length %d", n)
	}
}

func TestFinishChecksum(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, n := range []int{0, 1, 2, 1447, 1448, 9000, 65000} {
			whole := tcpFrame(t, pattern(n), tcpOpts{v6: v6})
			part := tcpFrame(t, pattern(n), tcpOpts{v6: v6, partial: true})
			require.NotEqual(t, whole.Data, part.Data)
			require.True(t, tcpOK(&whole))
			require.True(t, part.FinishChecksum(part.Data[0]))
			require.False(t, part.NeedsCsum)
			require.Equal(t, whole.Data, part.Data, "v6 %v length %d", v6, n)
		}
	}
	b := make([]byte, 40)
	for name, o := range map[string]Offload{
		"not needed":            {CsumStart: 20, CsumOffset: 16},
		"field past the end":    {NeedsCsum: true, CsumStart: 23, CsumOffset: 16},
		"start past the end":    {NeedsCsum: true, CsumStart: 41},
		"sum of the two is big": {NeedsCsum: true, CsumStart: 0xffff, CsumOffset: 0xffff},
	} {
		was := o
		require.False(t, o.FinishChecksum(b), name)
		require.Equal(t, was, o)
		require.Equal(t, make([]byte, 40), b)
	}
	o := Offload{NeedsCsum: true, CsumStart: 22, CsumOffset: 16}
	require.True(t, o.FinishChecksum(b), "a field of the last two octets")
	require.Equal(t, []byte{0xff, 0xff}, b[38:])

	t.Run("RFC 768 a UDP checksum of zero is sent as all ones", func(t *testing.T) {
		for offset, want := range map[uint16]uint16{6: 0xffff, 16: 0} {
			b := make([]byte, 20)
			b[0], b[1] = 0xff, 0xff
			o := Offload{NeedsCsum: true, CsumOffset: offset}
			require.True(t, o.FinishChecksum(b))
			require.Equal(t, want, binary.BigEndian.Uint16(b[offset:]))
		}
	})
}

func TestTCPSegment(t *testing.T) {
	v4 := octets(new(tcpFrame(t, pattern(100), tcpOpts{})))
	v6 := octets(new(tcpFrame(t, pattern(100), tcpOpts{v6: true})))
	edit := func(b []byte, at int, v ...byte) []byte {
		b = append([]byte(nil), b...)
		copy(b[at:], v)
		return b
	}
	withOption := append(append(edit(v4[:34], 14, 0x46), 1, 1, 1, 1), v4[34:]...)
	binary.BigEndian.PutUint16(withOption[16:], 144)
	for _, c := range []struct {
		name string
		b    []byte
		want segment
		ok   bool
	}{
		{"IPv4", v4, segment{34, 54, 154}, true},
		{"IPv6", v6, segment{54, 74, 174}, true},
		{"padding after the segment", append(append([]byte(nil), v4...), 0, 0, 0), segment{34, 54, 154}, true},
		{"IPv4 with options", withOption, segment{38, 58, 158}, true},
		{"TCP with options", edit(v4, 46, 0x80), segment{34, 66, 154}, true},
		{"no TCP payload", edit(v4, 16, 0, 40), segment{34, 54, 54}, true},
		{"UDP", edit(v4, 23, 17), segment{}, false},
		{"first fragment", edit(v4, 20, 0x20, 0), segment{}, false},
		{"later fragment", edit(v4, 20, 0, 1), segment{}, false},
		{"may not be fragmented", edit(v4, 20, 0x40, 0), segment{34, 54, 154}, true},
		{"IPv4 header too short", edit(v4, 14, 0x44), segment{}, false},
		{"IP version 5", edit(v4, 14, 0x55), segment{}, false},
		{"IPv4 longer than the frame", edit(v4, 16, 0, 141), segment{}, false},
		{"IPv4 too short for TCP", edit(v4, 16, 0, 39), segment{}, false},
		{"TCP header too short", edit(v4, 46, 0x40), segment{}, false},
		{"TCP header past the end", edit(edit(v4, 16, 0, 44), 46, 0x70), segment{}, false},
		{"IPv6 extension header", edit(v6, 20, 0), segment{}, false},
		{"IPv6 wrong version", edit(v6, 14, 0x40), segment{}, false},
		{"IPv6 longer than the frame", edit(v6, 18, 0, 121), segment{}, false},
		{"ARP", edit(v4, 12, 8, 6), segment{}, false},
	} {
		s, ok := tcpSegment(c.b, len(c.b))
		require.Equal(t, c.ok, ok, c.name)
		if ok {
			require.Equal(t, c.want, s, c.name)
		}
	}
	for _, whole := range [][]byte{v4, v6} {
		for n := range whole {
			_, ok := tcpSegment(whole[:n], n)
			require.False(t, ok, "prefix of %d octets", n)
		}
	}
}

func FuzzTCPSegment(f *testing.F) {
	f.Add(octets(new(tcpFrame(f, pattern(3), tcpOpts{}))))
	f.Add(octets(new(tcpFrame(f, pattern(3), tcpOpts{v6: true}))))
	for _, s := range []string{"", "000000000000000000000000080045000028000040004006", "000000000000000000000000080046000028000000004006000000000000000000000000000000000000000000005000"} {
		b, _ := hex.DecodeString(s)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := tcpSegment(b, len(b))
		if ok && !(EthernetHeader+20 <= s.start && s.start+20 <= s.payload && s.payload <= s.end && s.end <= len(b)) {
			t.Fatalf("%+v in %d octets", s, len(b))
		}
		const start, field = 34, 16
		o := Offload{NeedsCsum: true, CsumStart: start, CsumOffset: field}
		before := bytes.Clone(b)
		if o.FinishChecksum(b) {
			require.False(t, o.NeedsCsum)
			require.Equal(t, ^slowSum(before[start:]), binary.BigEndian.Uint16(b[start+field:]), "the sum over what was there")
			copy(b[start+field:], before[start+field:][:2])
		}
		require.Equal(t, before, b, "nothing but the checksum has changed")

		faults := Faults{CorruptAnywhere: len(b)%2 == 0, FixChecksum: len(b)%3 == 0}
		hit := faults.flip(b, &Offload{}, rand.New(rand.NewPCG(1, uint64(len(b)))))
		var at []int
		for i := range b {
			if b[i] != before[i] && !(ok && faults.FixChecksum && (i == s.start+field || i == s.start+field+1)) {
				at = append(at, i)
			}
		}
		switch {
		case !hit:
			require.Equal(t, before, b)
		case len(at) == 0: // it hit the checksum itself, or a twin of it that was made good
			require.True(t, faults.CorruptAnywhere && ok && faults.FixChecksum)
		default:
			require.Len(t, at, 1)
			require.Equal(t, 1, bits.OnesCount8(b[at[0]]^before[at[0]]), "one bit")
			if !faults.CorruptAnywhere {
				require.True(t, ok && at[0] >= s.payload && at[0] < s.end, "outside of the payload")
			}
			if ok && faults.FixChecksum && at[0] >= s.start && at[0] < s.end {
				was, now := slowSum(before[s.start:s.end]), slowSum(b[s.start:s.end])
				require.Equal(t, was%0xffff, now%0xffff, "the sum over the segment is what it was")
			}
		}
	})
}

func BenchmarkFinishChecksum(b *testing.B) {
	for name, n := range map[string]int{"1448": 1448, "64KiB": 65000} {
		b.Run(name, func(b *testing.B) {
			f := tcpFrame(b, pattern(n), tcpOpts{partial: true})
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				o := f.Offload
				o.FinishChecksum(f.Data[0])
			}
		})
	}
}
