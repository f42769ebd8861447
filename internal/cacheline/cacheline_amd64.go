package cacheline

import "unsafe"

// CanFlush says whether Flush does anything.
var CanFlush = hasCLFLUSHOPT()

// Flush writes the lines that b touches to memory, if they have changed, and drops them from all caches. It does not wait
// for that. It costs some nanoseconds a line.
func Flush(b []byte) {
	if CanFlush && len(b) > 0 {
		flush(unsafe.SliceData(b), len(b))
	}
}

//go:noescape
func flush(p *byte, n int)

func hasCLFLUSHOPT() bool
