package crc32c

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

// Octets that are folded at once. Fewer than minFold are not worth it; for more
// than maxFold shift has no constants.
const (
	minFold = 128
	maxFold = 8 * maxShift
)

var best = choose()

func choose() method {
	for _, m := range []method{methodAVX512, methodSSE} {
		if m.available() {
			return m
		}
	}
	return methodStd
}

// available reports whether the processor has the instructions. Those on wide
// registers count only if the operating system saves these.
func (m method) available() bool {
	x := &cpu.X86
	sse := x.HasSSE42 && x.HasPCLMULQDQ
	switch m {
	case methodSSE:
		return sse
	case methodAVX512:
		return sse && x.HasAVX2 && x.HasAVX512F && x.HasAVX512VL && x.HasAVX512VPCLMULQDQ
	}
	return m == methodStd
}

// update is Update by this method. An FPDU of ordinary length takes the shortest
// way.
func (m method) update(crc uint32, b []byte) uint32 {
	switch {
	case m == methodStd:
		return crc32.Update(crc, table, b)
	case len(b) < minFold:
		return ^oneStream(^crc, b)
	case m == methodAVX512 && len(b) <= maxFold:
		return ^foldAVX512(^crc, b)
	}
	return ^m.foldPieces(^crc, b)
}

func (m method) foldPieces(crc uint32, b []byte) uint32 {
	for len(b) > maxFold {
		n := min(maxFold, len(b)-minFold) // leaves enough
		crc = m.fold(crc, b[:n])
		b = b[n:]
	}
	return m.fold(crc, b)
}

// fold takes minFold to maxFold octets. Its CRCs, as those of the functions in
// assembly, are not inverted.
func (m method) fold(crc uint32, b []byte) uint32 {
	if m == methodAVX512 {
		return foldAVX512(crc, b)
	}
	return foldSSE(crc, b)
}

//go:noescape
func oneStream(crc uint32, b []byte) uint32

//go:noescape
func foldAVX512(crc uint32, b []byte) uint32

//go:noescape
func foldSSE(crc uint32, b []byte) uint32
