package peer

import (
	"encoding/binary"
	"fmt"
)

// MinSize is the smallest message that says which one it is, in octets.
const MinSize = 8

// Fill makes b message number k of a connection: both numbers, then octets that follow
// from them.
func Fill(b []byte, conn, k int) {
	binary.BigEndian.PutUint32(b, uint32(conn))
	binary.BigEndian.PutUint32(b[4:], uint32(k))
	x := uint32(conn)*0x9e3779b1 ^ uint32(k)*0x85ebca6b ^ 0x5bd1e995
	for i := MinSize; i < len(b); i++ {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
}

// Parse tells which message b is. It returns an error if any octet is not as Fill makes
// it.
func Parse(b []byte) (conn, k int, err error) {
	if len(b) < MinSize {
		return 0, 0, fmt.Errorf("a message of %d octets is none of ours", len(b))
	}
	conn, k = int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:]))
	want := make([]byte, len(b))
	Fill(want, conn, k)
	for i := range b {
		if b[i] != want[i] {
			return conn, k, fmt.Errorf("message %d of connection %d: octet %d is 0x%02x and should be 0x%02x", k, conn, i, b[i], want[i])
		}
	}
	return conn, k, nil
}
