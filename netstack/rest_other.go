//go:build !linux

package netstack

// osRest is of no use where sleeping takes a millisecond.
func osRest() {}
