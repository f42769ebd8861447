package crc32c

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

func (m method) String() string { return [...]string{"std", "sse", "avx512"}[m] }

// methods are those that the processor has.
func methods() (all []method) {
	for m := methodStd; m <= methodAVX512; m++ {
		if m.available() {
			all = append(all, m)
		}
	}
	return all
}

func random(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func TestMethods(t *testing.T) {
	t.Logf("%v of %v", best, methods())
	require.Equal(t, methods()[len(methods())-1], best)
}

// RFC 3720, Appendix B.4. The CRC is written as it goes on the wire.
func TestVectors(t *testing.T) {
	up, down := make([]byte, 32), make([]byte, 32)
	for i := range up {
		up[i], down[31-i] = byte(i), byte(i)
	}
	for _, c := range []struct {
		name string
		b    []byte
		crc  string
	}{
		{"32 octets of zeros", make([]byte, 32), "aa 36 91 8a"},
		{"32 octets of ones", bytes.Repeat([]byte{0xff}, 32), "43 ab a8 62"},
		{"32 octets of 00..1f", up, "4e 79 dd 46"},
		{"32 octets of 1f..00", down, "5c db 3f 11"},
		{"an iSCSI Read command", wiretest.Hex("01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000"), "56 3a 96 d9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, wiretest.Hex(c.crc), binary.LittleEndian.AppendUint32(nil, Update(0, c.b)))
		})
	}
}

// Whatever the length, and wherever the octets lie.
func TestLengths(t *testing.T) {
	const most = 4096
	b := random(most + 64)
	for off := range 64 {
		before := rand.Uint32()
		for n := range most + 1 {
			s := b[off : off+n]
			want := crc32.Update(before, table, s)
			for _, m := range methods() {
				if got := m.update(before, s); got != want {
					t.Fatalf("%v: %08x instead of %08x for %d octets at %d behind %08x", m, got, want, n, off, before)
				}
			}
		}
	}
}

// What is longer is computed in pieces.
func TestLong(t *testing.T) {
	b := random(200 << 10)
	lengths := []int{8191, 8192, 8193, 65535, 65536, len(b)}
	for n := 4096; n < 4700; n++ {
		lengths = append(lengths, n)
	}
	for range 200 {
		lengths = append(lengths, 4096+rand.IntN(len(b)-4096))
	}
	for _, n := range lengths {
		want := crc32.Update(0, table, b[:n])
		for _, m := range methods() {
			require.Equal(t, want, m.update(0, b[:n]), "%v: %d octets", m, n)
		}
	}
}

// The definition, bit by bit, and not what other code makes of it.
func TestDefinition(t *testing.T) {
	b := random(5000)
	for _, n := range []int{0, 1, 127, 128, 129, 1444, 1448, 4095, 4097, 5000} {
		want := wiretest.CRC32C(b[:n])
		for _, m := range methods() {
			require.Equal(t, want, m.update(0, b[:n]), "%v: %d octets", m, n)
		}
	}
}

func TestInPieces(t *testing.T) {
	b := random(10000)
	want := crc32.Checksum(b, table)
	for _, m := range methods() {
		for range 300 {
			crc := uint32(0)
			for rest := b; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(2500))
				crc = m.update(crc, rest[:n])
				rest = rest[n:]
			}
			require.Equal(t, want, crc, "%v", m)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	b := random(10000)
	for _, m := range methods() {
		for _, n := range []int{0, 64, 1448, 10000} {
			require.Zero(t, testing.AllocsPerRun(100, func() { m.update(0, b[:n]) }), "%v: %d octets", m, n)
		}
	}
}

func FuzzUpdate(f *testing.F) {
	for _, n := range []int{0, 7, 127, 128, 231, 232, 1448, 4096, 4097, 9000} {
		f.Add(uint32(n), random(n), uint16(n/3))
	}
	f.Fuzz(func(t *testing.T, crc uint32, b []byte, cut uint16) {
		want := crc32.Update(crc, table, b)
		at := min(len(b), int(cut))
		for _, m := range methods() {
			if got := m.update(crc, b); got != want {
				t.Fatalf("%v: %08x instead of %08x", m, got, want)
			}
			if got := m.update(m.update(crc, b[:at]), b[at:]); got != want {
				t.Fatalf("%v: %08x instead of %08x, cut at %d", m, got, want, at)
			}
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{64, 256, 1448, 8192, 65536} {
		s := random(n)
		for _, m := range methods() {
			b.Run(fmt.Sprintf("%d/%v", n, m), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					m.update(0, s)
				}
			})
		}
	}
}
