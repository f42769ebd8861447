//go:build !linux || netstack_portable

package netstack

const portable = true
