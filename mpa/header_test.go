package mpa

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softrdma/softrdma/internal/wiretest"
)

func TestStartupVectors(t *testing.T) {
	want := map[string]Frame{
		"MPA-REQ-V2": {CRC: true, Enhanced: true, Rev: 2, PeerToPeer: true, IRD: 16,
			RTRWrite: true, RTRRead: true, ORD: 8, Private: wiretest.Hex("68 69 00 01")},
		"MPA-REP-V2":        {Reply: true, CRC: true, Enhanced: true, Rev: 2, PeerToPeer: true, IRD: 8, RTRRead: true, ORD: 16},
		"MPA-REQ-V1":        {CRC: true, Rev: 1},
		"MPA-REP-V1":        {Reply: true, CRC: true, Rev: 1},
		"MPA-REP-V1-M":      {Reply: true, CRC: true, Markers: true, Rev: 1},
		"MPA-REP-V2-REJECT": {Reply: true, CRC: true, Reject: true, Enhanced: true, Rev: 2, Private: []byte("no")},
	}
	vectors := wiretest.Startups()
	require.Len(t, vectors, len(want))
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			f, n, err := ParseFrame(v.Octets)
			require.NoError(t, err)
			require.Equal(t, len(v.Octets), n)
			require.Equal(t, want[v.Name], f)
			wiretest.Prefixes(t, v.Octets, func(b []byte) bool {
				_, n, err := ParseFrame(b)
				require.NoError(t, err)
				return n != 0
			})
			wiretest.RoundTrip(t, v.Octets, func([]byte) ([]byte, error) { return f.Append(nil) })
		})
	}
	t.Run("MPA-01 the frame ends at 20+PD_Length", func(t *testing.T) {
		for _, v := range vectors {
			f, n, err := ParseFrame(append(bytes.Clone(v.Octets), 0x00, 0x17, 0x41, 0x43))
			require.NoError(t, err)
			require.Equal(t, len(v.Octets), n)
			require.Equal(t, want[v.Name], f)
		}
	})
}

// startupOctets is a Request or Reply with the given flags, revision and
// PD_Length, followed by behind octets.
func startupOctets(key string, flags, rev byte, length uint16, behind int) []byte {
	b := append([]byte(key), flags, rev)
	b = binary.BigEndian.AppendUint16(b, length)
	return append(b, count(behind)...)
}

func TestParseFrameChecks(t *testing.T) {
	t.Run("MPA-02 every key octet counts, as soon as it is there", func(t *testing.T) {
		for _, key := range []string{keyRequest, keyReply} {
			good := startupOctets(key, 0, 1, 0, 0)
			for i := range keyLen {
				for bit := range 8 {
					b := bytes.Clone(good)
					b[i] ^= 1 << bit
					if k := string(b[:keyLen]); k == keyRequest || k == keyReply {
						continue // one bit apart
					}
					_, _, err := ParseFrame(b)
					require.ErrorIs(t, err, ErrKey)
					_, _, err = ParseFrame(b[:i+1])
					require.ErrorIs(t, err, ErrKey)
					_, n, err := ParseFrame(b[:i])
					require.NoError(t, err)
					require.Zero(t, n)
				}
			}
		}
	})
	t.Run("MPA-04 Res is kept and never refused", func(t *testing.T) {
		for res := range byte(16) {
			f, _, err := ParseFrame(startupOctets(keyReply, flagCRC|res, 2, 0, 0))
			require.NoError(t, err)
			require.Equal(t, Frame{Reply: true, CRC: true, Rev: 2, Res: res}, f)
		}
	})
	t.Run("MPA-06 revisions 1 and 2 alone", func(t *testing.T) {
		for rev := range 256 {
			_, n, err := ParseFrame(startupOctets(keyRequest, flagCRC, byte(rev), 0, 0))
			if rev == 1 || rev == 2 {
				require.NoError(t, err)
				require.Equal(t, startupLen, n)
			} else {
				require.ErrorIs(t, err, ErrRevision)
			}
		}
	})
	t.Run("MPA-07 SEC-39 PD_Length", func(t *testing.T) {
		for length := range 600 {
			for _, flags := range []byte{0, flagEnhanced} {
				b := startupOctets(keyRequest, flags, 2, uint16(length), length)
				f, n, err := ParseFrame(b[:len(b):len(b)])
				least := 0
				if flags != 0 {
					least = enhancedLen
				}
				if length > MaxPrivate || length < least {
					require.ErrorIs(t, err, ErrLength, "PD_Length %d, flags %#x", length, flags)
					_, _, err = ParseFrame(b[:startupLen])
					require.ErrorIs(t, err, ErrLength, "before any private data is there")
					continue
				}
				require.NoError(t, err)
				require.Equal(t, len(b), n)
				require.Len(t, f.Private, length-least)
			}
		}
		_, _, err := ParseFrame(startupOctets(keyReply, 0, 1, 65535, 600))
		require.ErrorIs(t, err, ErrLength)
	})
	t.Run("MPA-31 S=1 with PD_Length below 4 is malformed", func(t *testing.T) {
		for length := range uint16(4) {
			_, _, err := ParseFrame(startupOctets(keyReply, flagEnhanced, 2, length, 8))
			require.ErrorIs(t, err, ErrLength)
		}
	})
	t.Run("MPA-32 with revision 1 the S bit means nothing", func(t *testing.T) {
		f, n, err := ParseFrame(startupOctets(keyRequest, flagCRC|flagEnhanced, 1, 3, 3))
		require.NoError(t, err)
		require.Equal(t, startupLen+3, n)
		require.Equal(t, Frame{CRC: true, Rev: 1, Private: count(3)}, f)
	})
}

func TestAppendRefuses(t *testing.T) {
	for name, f := range map[string]Frame{
		"revision 0":                {},
		"revision 3":                {Rev: 3},
		"enhanced in revision 1":    {Rev: 1, Enhanced: true},
		"IRD of 15 bits":            {Rev: 2, Enhanced: true, IRD: 0x4000},
		"ORD of 16 bits":            {Rev: 2, Enhanced: true, ORD: 0x8000},
		"Res of 5 bits":             {Rev: 1, Res: 0x10},
		"513 octets":                {Rev: 1, Private: count(513)},
		"509 octets with the block": {Rev: 2, Enhanced: true, Private: count(509)},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := f.Append([]byte{1})
			require.Error(t, err)
			require.Equal(t, []byte{1}, b)
			if len(f.Private) > 0 {
				require.ErrorIs(t, err, ErrPrivateData)
			}
		})
	}
}

func genFrame(t *rapid.T) Frame {
	f := Frame{
		Reply: rapid.Bool().Draw(t, "reply"), Markers: rapid.Bool().Draw(t, "M"), CRC: rapid.Bool().Draw(t, "C"),
		Reject: rapid.Bool().Draw(t, "R"), Rev: rapid.SampledFrom([]byte{1, 2}).Draw(t, "Rev"),
		Res: rapid.ByteMax(15).Draw(t, "Res"),
	}
	most := MaxPrivate
	if f.Rev == 2 && rapid.Bool().Draw(t, "S") {
		most = MaxPrivateEnhanced
		f.Enhanced = true
		f.PeerToPeer = rapid.Bool().Draw(t, "A")
		f.RTRSend, f.RTRWrite, f.RTRRead = rapid.Bool().Draw(t, "B"), rapid.Bool().Draw(t, "RTR C"), rapid.Bool().Draw(t, "D")
		f.IRD, f.ORD = rapid.Uint16Max(0x3fff).Draw(t, "IRD"), rapid.Uint16Max(0x3fff).Draw(t, "ORD")
	}
	if p := rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, "private"); len(p) > 0 {
		f.Private = p
	}
	return f
}

func TestAppendParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := genFrame(t)
		b, err := f.Append(nil)
		require.NoError(t, err)
		got, n, err := ParseFrame(b)
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		require.Equal(t, f, got)
	})
}

func FuzzParseFrame(f *testing.F) {
	for _, v := range wiretest.Startups() {
		f.Add(v.Octets)
		f.Add(v.Octets[:len(v.Octets)-1])
	}
	f.Add(startupOctets(keyRequest, 0xff, 2, 512, 512))
	f.Add(startupOctets(keyReply, 0xff, 1, 65535, 9))
	f.Fuzz(func(t *testing.T, b []byte) { checkFrame(t, b) })
}

// checkFrame parses any octets, and builds again what was parsed.
func checkFrame(t require.TestingT, b []byte) {
	b = bytes.Clone(b)[:len(b):len(b)]
	frame, n, err := ParseFrame(b)
	if err != nil || n == 0 {
		require.Zero(t, n)
		require.Equal(t, Frame{}, frame)
		if err == nil {
			require.Less(t, len(b), startupLen+MaxPrivate)
		}
		return
	}
	again, err := frame.Append(nil)
	require.NoError(t, err)
	require.Len(t, again, n)
	frame2, n2, err := ParseFrame(again)
	require.NoError(t, err)
	require.Equal(t, n, n2)
	require.Equal(t, frame, frame2)
	again[16] |= b[16] & flagEnhanced // revision 1 does not keep that bit
	require.Equal(t, b[:n], again)
}
