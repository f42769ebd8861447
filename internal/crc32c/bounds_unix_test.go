//go:build linux || darwin

package crc32c

import (
	"hash/crc32"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Nothing before or behind the octets is read: it would fault.
func TestBounds(t *testing.T) {
	page := os.Getpagesize()
	size := 8 * page
	mem, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mem)) })
	require.NoError(t, syscall.Mprotect(mem[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(mem[page+size:], syscall.PROT_NONE))
	b := mem[page : page+size]
	copy(b, random(size))
	for n := range 5000 {
		for _, s := range [][]byte{b[:n], b[size-n:]} {
			want := crc32.Checksum(s, table)
			for _, m := range methods() {
				if m.update(0, s) != want {
					t.Fatalf("%v: %d octets", m, n)
				}
			}
		}
	}
}
