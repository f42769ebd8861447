//go:build !amd64

package cacheline

// CanFlush says whether Flush does anything.
const CanFlush = false

// Flush does nothing here.
func Flush([]byte) {}
