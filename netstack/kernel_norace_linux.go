//go:build !race && !netstack_portable

package netstack

func beforeWrite() {}
func afterRead()   {}
