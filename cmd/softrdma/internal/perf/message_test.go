package perf

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// vectors are one message of each type.
var vectors = []struct {
	name string
	hex  string
	m    message
}{
	{"open", "01010020" + "02020001" + "00010000" + "0001" + "0080" + "0000000a" + "1122334455667788" + "00000000",
		message{typ: msgOpen, op: Write, kind: Latency, verify: true, size: 65536, qps: 1, depth: 128, limit: 10, seed: 0x1122334455667788}},
	{"ready", "0102002a" + "000000000000002a" + "0200" + "0080" + "0040" + "00010000" + "00007f0000001000" + "12345678" + "0000000000400000",
		message{typ: msgReady, session: 42, receives: 512, step: 128, slots: 64, stride: 65536, addr: 0x7f0000001000, key: 0x12345678, len: 4 << 20}},
	{"refused", "0103000a" + "0004" + "66756c6c", message{typ: msgRefused, text: "full"}},
	{"start", "01040018" + "00007f0000001000" + "12345678" + "0000000000000008", message{typ: msgStart, addr: 0x7f0000001000, key: 0x12345678, len: 8}},
	{"go", "01050004", message{typ: msgGo}},
	{"stop", "01060016" + "0002" + "0000000000000005" + "0000000000000006", message{typ: msgStop, counts: []uint64{5, 6}}},
	{"result", "01070026" + "0000000000000001" + "0000000000000002" + "0000000000000003" + "0000000000000004" + "0000",
		message{typ: msgResult, messages: 1, octets: 2, wrong: 3, cpu: 4}},
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

func TestMessages(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			b := unhex(t, v.hex)
			require.Equal(t, v.hex, hex.EncodeToString(v.m.append(nil)))
			m, err := parseMessage(b)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(v.m, m, cmp.AllowUnexported(message{})))
			for n := range b {
				_, err := parseMessage(b[:n])
				require.Error(t, err, "cut to %d octets", n)
				if n >= headLen {
					cut := append([]byte(nil), b[:n]...)
					cut[3] = byte(n)
					_, err = parseMessage(cut)
					require.Error(t, err, "cut to %d octets with the length made right", n)
				}
			}
			_, err = parseMessage(append(b, 0))
			require.Error(t, err, "an octet too many")
		})
	}
}

func TestMessageFromAnotherVersion(t *testing.T) {
	_, err := parseMessage([]byte{2, 5, 0, 4})
	require.ErrorContains(t, err, "version 2")
}

func TestHostileMessages(t *testing.T) {
	for name, s := range map[string]string{
		"empty":                    "",
		"type 0":                   "01000004",
		"type 8":                   "01080004",
		"text longer than message": "01030006" + "0001",
		"text longer than allowed": "01030106" + "0101" + strings.Repeat("41", 256),
		"more counts than there":   "0106000e" + "0002" + "0000000000000005",
		"more counts than allowed": "0106020e" + "0041" + strings.Repeat("0000000000000005", 65),
		"too long":                 "01030401" + strings.Repeat("00", 1021),
	} {
		_, err := parseMessage(unhex(t, s))
		require.ErrorIs(t, err, errGarbage, name)
	}
}

func TestRefusalCannotReachTheTerminal(t *testing.T) {
	m := message{typ: msgRefused, text: "\x1b[2Jgone\n"}
	require.NotContains(t, m.refusal().Error(), "\x1b")
	require.ErrorIs(t, m.refusal(), ErrRefused)
}

func TestTextIsCut(t *testing.T) {
	m := message{typ: msgRefused, text: strings.Repeat("x", 10000)}
	got, err := parseMessage(m.append(nil))
	require.NoError(t, err)
	require.Len(t, got.text, maxText)
}

func TestRole(t *testing.T) {
	r := role{data: true, number: 3, session: 0x0102030405060708}
	b := r.append(nil)
	require.Equal(t, "53525046"+"01"+"02"+"0003"+"0102030405060708", hex.EncodeToString(b))
	got, err := parseRole(b)
	require.NoError(t, err)
	require.Equal(t, r, got)
	got, err = parseRole(role{}.append(nil))
	require.NoError(t, err)
	require.Equal(t, role{}, got)

	for n := range b {
		_, err := parseRole(b[:n])
		require.Error(t, err)
	}
	b[4] = 9
	_, err = parseRole(b)
	require.ErrorContains(t, err, "version 9")
	b[4], b[5] = Version, 3
	_, err = parseRole(b)
	require.ErrorContains(t, err, "role")
}

func FuzzMessage(f *testing.F) {
	for _, v := range vectors {
		f.Add(unhex(f, v.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMessage(b)
		if err != nil {
			return
		}
		again, err := parseMessage(m.append(nil))
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(m, again, cmp.AllowUnexported(message{})))
	})
}

func FuzzRole(f *testing.F) {
	f.Add(role{data: true, session: 1}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRole(b); err == nil {
			require.Equal(t, b[:roleLen], r.append(nil))
		}
	})
}
