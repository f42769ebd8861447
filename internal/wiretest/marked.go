package wiretest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Marks is one direction of a connection with markers (RFC 5044, Section 4.3), in the
// plainest way: word by word. Pos is the position of the next octet since the direction
// entered FPDU mode.
type Marks struct {
	Pos uint64
	CRC bool
}

// Frame makes the next FPDU of the direction, markers included.
func (m *Marks) Frame(ulpdu []byte) []byte {
	var b []byte
	header := -1
	put := func(word []byte) {
		if m.Pos%512 == 0 {
			ptr := 0
			if header >= 0 {
				ptr = len(b) - header
			}
			b = append(b, 0, 0, byte(ptr>>8), byte(ptr))
			m.Pos += 4
		}
		if header < 0 {
			header = len(b)
		}
		if word == nil {
			word = []byte{0, 0, 0, 0}
			if m.CRC {
				word = appendCRC(nil, b)
			}
		}
		b = append(b, word...)
		m.Pos += 4
	}
	plain := Frame(ulpdu, false)
	for i := 0; i < len(plain)-4; i += 4 {
		put(plain[i : i+4])
	}
	put(nil)
	return b
}

// Read reads one FPDU by take, which returns the next octets of the direction, checks
// every marker, the padding and the CRC, and returns the ULPDU and how many markers were
// in the FPDU.
func (m *Marks) Read(t testing.TB, take func(n int) []byte) (ulpdu []byte, markers int) {
	t.Helper()
	var covered, plain []byte
	header := uint64(0)
	word := func(start bool) []byte {
		if m.Pos%512 == 0 {
			w := take(4)
			ptr := m.Pos - header
			if start {
				ptr = 0
			}
			require.Equal(t, fmt.Sprintf("00 00 %02x %02x", byte(ptr>>8), byte(ptr)), fmt.Sprintf("% x", w), "the marker at %d", m.Pos)
			covered = append(covered, w...)
			m.Pos += 4
			markers++
		}
		if start {
			header = m.Pos
		}
		w := take(4)
		m.Pos += 4
		return w
	}
	for more := true; more; {
		w := word(plain == nil)
		covered, plain = append(covered, w...), append(plain, w...)
		more = len(plain) < 2+int(binary.BigEndian.Uint16(plain))
	}
	end := 2 + int(binary.BigEndian.Uint16(plain))
	require.Equal(t, make([]byte, len(plain)-end), plain[end:], "padding is zero")
	crc := word(false) // a marker in front of it is covered
	want := []byte{0, 0, 0, 0}
	if m.CRC {
		want = appendCRC(nil, covered)
	}
	require.Equal(t, want, crc, "CRC of an FPDU of %d octets", end-2)
	return plain[2:end], markers
}

// NextMarked reads one FPDU with markers, checks it and returns its ULPDU.
func (p *Peer) NextMarked(m *Marks) []byte {
	p.t.Helper()
	u, _ := m.Read(p.t, func(n int) []byte { return p.take(n, "a word of an FPDU with markers") })
	return u
}
