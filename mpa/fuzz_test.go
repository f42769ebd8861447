package mpa

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/internal/wiretest"
)

// reference is a de-framer that is slow and plain.
func reference(b []byte, crc bool) (ulpdus [][]byte, code Code) {
	for len(b) > 0 {
		if len(b) < 2 {
			return ulpdus, CodeClosed
		}
		n := int(b[0])<<8 + int(b[1])
		padded := 2 + n
		for padded%4 != 0 {
			padded++
		}
		if len(b) < padded+4 {
			return ulpdus, CodeClosed
		}
		sum := wiretest.CRC32C(b[:padded])
		if crc && !bytes.Equal(b[padded:padded+4], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)}) {
			return ulpdus, CodeCRC
		}
		ulpdus = append(ulpdus, b[2:2+n])
		b = b[padded+4:]
	}
	return ulpdus, 0
}

func FuzzNext(f *testing.F) {
	stream, _ := vectorStream()
	for _, crc := range []bool{false, true} {
		f.Add(stream, uint64(1), uint8(7), crc)
		f.Add(stream[:len(stream)-5], uint64(2), uint8(0), crc)
		f.Add(wiretest.Frame(count(3000), true), uint64(3), uint8(200), crc)
		f.Add([]byte{0xff, 0xff, 1}, uint64(4), uint8(1), crc)
		f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0}, uint64(5), uint8(3), crc)
	}
	for _, v := range wiretest.Hostile() {
		f.Add(v.Octets, uint64(6), uint8(5), true)
	}
	pool := newPool(f, poolConfig)
	f.Fuzz(func(t *testing.T, b []byte, seed uint64, largest uint8, crc bool) {
		if len(b) > wideBuffer {
			return
		}
		room := len(b) + FPDUSize(0) // small buffers make for many runs
		near, far := simnet.StreamPair(testMSS, room)
		near.Rechunk(seed, int(largest))
		c := open(NewConn(near, pool), Params{CRC: crc})
		require.NoError(t, far.Writev([][]byte{b}))
		require.NoError(t, far.CloseWrite())
		var got [][]byte
		var err error
		for err == nil {
			var more [][]byte
			more, err = drain(t, c)
			got = append(got, more...)
		}
		want, bad := reference(b, crc)
		require.Equal(t, len(want), len(got))
		for i := range want {
			require.True(t, bytes.Equal(want[i], got[i]))
		}
		if bad == 0 {
			require.Equal(t, io.EOF, err)
		} else {
			require.Equal(t, bad, code(t, err), "%v", err)
		}

		// What was read can be written and read again.
		x, y := simnet.StreamPair(testMSS, room)
		cx, cy := NewConn(x, pool), NewConn(y, pool)
		open(cx, Params{CRC: crc})
		open(cy, Params{CRC: crc})
		for _, u := range got {
			if len(u) > MaxULPDU {
				continue
			}
			require.True(t, cx.CanWrite(len(u)))
			require.NoError(t, cx.Write(u, nil))
			require.NoError(t, cx.Flush())
			again, ok, err := cy.Next()
			require.NoError(t, err)
			require.True(t, ok)
			require.True(t, bytes.Equal(u, octets(t, again)))
		}
	})
}
