//go:build race

package mpa

import (
	"sync/atomic"
	"unsafe"
)

// copyOut places received octets in memory of the ULP. A ULP may watch memory
// that its peer writes, by atomic loads of aligned words; so that the race
// detector sees these ordered, whole words are stored atomically.
func copyOut(dst, src []byte) int {
	n := min(len(dst), len(src))
	i := 0
	for ; i < n && uintptr(unsafe.Pointer(&dst[i]))%8 != 0; i++ {
		dst[i] = src[i]
	}
	for ; i+8 <= n; i += 8 {
		var w uint64
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&w)), 8), src[i:i+8])
		(*atomic.Uint64)(unsafe.Pointer(&dst[i])).Store(w)
	}
	return i + copy(dst[i:n], src[i:n])
}
