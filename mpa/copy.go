//go:build !race

package mpa

// copyOut places received octets in memory of the ULP.
func copyOut(dst, src []byte) int { return copy(dst, src) }
