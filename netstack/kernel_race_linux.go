//go:build race && !netstack_portable

package netstack

import "sync/atomic"

// The race detector does not see that octets read from a socket were written before. Programs that talk to themselves
// over loopback would have races reported that are none, so that reads come after writes is told by this.
var socketOrder atomic.Uint32

func beforeWrite() { socketOrder.Add(1) }
func afterRead()   { socketOrder.Load() }
