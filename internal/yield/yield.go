// Package yield lets others run in between the looks of a loop that waits for something.
//
// runtime.Gosched puts its caller into the queue of all processors and wakes an idle one to take it from there. A loop
// that calls it again and again has a second thread wake up for nothing all the time, and where cores are few that one
// takes a core from somebody: from the peer, maybe, whose answer the loop waits for.
package yield

import _ "unsafe" // for go:linkname

// Now lets the other goroutines of this processor of Go's have it, and wakes nobody.
//
//go:linkname Now runtime.goyield
func Now()
