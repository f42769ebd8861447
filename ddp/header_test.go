package ddp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// samples are the sample segments of the specification, headers only.
var samples = []struct {
	name, hex string
	put       func(b []byte) Header
}{
	{"untagged first of two", "01 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00",
		func(b []byte) Header { return PutUntagged(b, false, 0x43, 0, QNSend, 1, 0) }},
	{"untagged second, last", "41 43 00 00 00 00 00 00 00 00 00 00 00 01 00 00 05 ca",
		func(b []byte) Header { return PutUntagged(b, true, 0x43, 0, QNSend, 1, 1482) }},
	{"tagged first of two", "81 40 12 34 56 78 00 00 00 00 00 00 40 00",
		func(b []byte) Header { return PutTagged(b, false, 0x40, 0x12345678, 0x4000) }},
	{"tagged second, last", "c1 40 12 34 56 78 00 00 00 00 00 00 45 ce",
		func(b []byte) Header { return PutTagged(b, true, 0x40, 0x12345678, 0x4000+1486) }},
	{"Send with Invalidate", "41 44 0a 0b 0c 0d 00 00 00 00 00 00 00 02 00 00 00 00",
		func(b []byte) Header { return PutUntagged(b, true, 0x44, 0x0a0b0c0d, QNSend, 2, 0) }},
}

func TestHeaderVectors(t *testing.T) {
	for _, c := range samples {
		t.Run("DDP-01 "+c.name, func(t *testing.T) {
			want := unhex(t, c.hex)
			got := c.put(make([]byte, UntaggedLen))
			require.Equal(t, want, []byte(got))
			h, ok := ParseHeader(append(unhex(t, c.hex), 0xee, 0xee, 0xee, 0xee))
			require.True(t, ok)
			require.Equal(t, want, []byte(h))
			require.Equal(t, reencode(h), h)
		})
		t.Run("DDP-05 SEC-37 every shorter "+c.name+" is refused", func(t *testing.T) {
			b := unhex(t, c.hex)
			for n := range b {
				_, ok := ParseHeader(b[:n])
				require.False(t, ok, "length %d", n)
			}
		})
	}
}

func TestHeaderFields(t *testing.T) {
	h, ok := ParseHeader(unhex(t, "41 44 0a 0b 0c 0d 01 02 03 04 05 06 07 08 09 0a 0b 0c"))
	require.True(t, ok)
	require.False(t, h.Tagged())
	require.True(t, h.Last())
	require.Equal(t, uint8(1), h.Version())
	require.Equal(t, byte(0x44), h.ULP())
	require.Equal(t, uint32(0x0a0b0c0d), h.ULPWord())
	require.Equal(t, uint32(0x01020304), h.QN())
	require.Equal(t, MSN(0x05060708), h.MSN())
	require.Equal(t, uint32(0x090a0b0c), h.MO())

	h, ok = ParseHeader(unhex(t, "81 42 0a 0b 0c 0d 01 02 03 04 05 06 07 08"))
	require.True(t, ok)
	require.True(t, h.Tagged())
	require.False(t, h.Last())
	require.Equal(t, byte(0x42), h.ULP())
	require.Equal(t, STag(0x0a0b0c0d), h.STag())
	require.Equal(t, uint64(0x0102030405060708), h.TO())
}

func TestHeaderReserved(t *testing.T) {
	t.Run("DDP-02 reserved bits are ignored and sent zero", func(t *testing.T) {
		for rsvd := byte(0); rsvd <= 0x3c; rsvd += 4 {
			b := unhex(t, "c1 40 12 34 56 78 00 00 00 00 00 00 45 ce")
			b[0] |= rsvd
			h, ok := ParseHeader(b)
			require.True(t, ok)
			require.True(t, h.Tagged())
			require.True(t, h.Last())
			require.Equal(t, uint8(1), h.Version())
			require.Equal(t, byte(0xc1), reencode(h)[0])
		}
	})
}

func TestMSN(t *testing.T) {
	t.Run("DDP-07 MSN arithmetic is modulo 2^32", func(t *testing.T) {
		require.Equal(t, MSN(0), MSN(0xffffffff).Next())
		require.Equal(t, MSN(1), MSN(0).Next())
	})
}

func reencode(h Header) Header {
	b := make([]byte, UntaggedLen)
	if h.Tagged() {
		return PutTagged(b, h.Last(), h.ULP(), h.STag(), h.TO())
	}
	return PutUntagged(b, h.Last(), h.ULP(), h.ULPWord(), h.QN(), h.MSN(), h.MO())
}

func FuzzSegment(f *testing.F) {
	for _, c := range samples {
		f.Add(unhex(f, c.hex))
	}
	f.Add([]byte{})
	f.Add([]byte{0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, ok := ParseHeader(b)
		if !ok {
			if len(b) >= UntaggedLen || len(b) >= TaggedLen && b[0]&0x80 != 0 {
				t.Fatalf("refused %d octets", len(b))
			}
			return
		}
		want := UntaggedLen
		if b[0]&0x80 != 0 {
			want = TaggedLen
		}
		require.Len(t, h, want)
		again := reencode(h)
		require.Equal(t, h[0]&0xc0|Version, again[0])
		require.Equal(t, h[1:], again[1:])
		require.Equal(t, b[0]&3, h.Version())
	})
}
