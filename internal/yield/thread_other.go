//go:build !linux

package yield

// Thread lets another thread have the CPU if one waits for it. Here that is left to the system.
func Thread() {}
