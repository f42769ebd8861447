package verbs

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Leak tells of an object that became unreachable without Close. It is a report
// alone: the object's resources stay taken until its parent is closed.
type Leak struct {
	Kind  string // "device", "pd", "mr", "mw", "cq", "qp", "srq"
	Num   uint32 // its number; for an MR or MW the key
	Stack string // of its creation, with Provider.TraceLeaks
}

func (l Leak) String() string {
	s := fmt.Sprintf("%s %d was dropped without Close", l.Kind, l.Num)
	if l.Stack != "" {
		s += "; created at:\n" + l.Stack
	}
	return s
}

// watch reports handle as a leak to d should the garbage collector find it
// unreachable before stop is called on the result. Handles hold the state that
// matters by pointer, so nothing but other handles keeps one alive.
func watch[T any](d *device, handle *T, kind string, num uint32) runtime.Cleanup {
	l := Leak{Kind: kind, Num: num}
	if d.p.TraceLeaks {
		l.Stack = string(debug.Stack())
	}
	return runtime.AddCleanup(handle, d.leaked, l)
}

func (d *device) leaked(l Leak) {
	d.leaks.Add(1)
	if d.p.Leaked != nil {
		d.p.Leaked(l)
	}
}
