//go:build !linux

package netstack

// osYield lets another thread have the CPU if one waits for it. Here that is left to the system.
func osYield() {}

// osRest is of no use where sleeping takes a millisecond.
func osRest() {}
