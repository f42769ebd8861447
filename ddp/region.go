package ddp

import "unsafe"

// Region is a checked range of a registered region, held until Release.
type Region struct {
	t   *Table
	r   *region
	mem []byte
	to  uint64
}

// Bytes returns exactly the octets that were checked. They must not be touched
// after Release.
func (g *Region) Bytes() []byte { return g.mem }

// TO returns the tagged offset of the first octet.
func (g *Region) TO() uint64 { return g.to }

// Release ends the use. A Region is released once; the zero value needs none.
func (g *Region) Release() {
	if g.r != nil {
		g.t.drop(g.r)
		*g = Region{}
	}
}

// Check finds the n octets at tagged offset to of region s and takes a use of
// them, for stream by, which needs the rights in need. An error is a *[Fault]; of
// several faults the first in the order of FaultKind is told.
func (t *Table) Check(s STag, by StreamID, to, n uint64, need Access) (Region, error) {
	r, kind := t.use(s, by.PD)
	if kind != 0 {
		return Region{}, &Fault{kind, s}
	}
	if kind = r.check(by, to, n, need); kind != 0 {
		t.drop(r)
		return Region{}, &Fault{kind, s}
	}
	return Region{t, r, r.bytes(to-r.base, n), to}, nil
}

// Local is Check with a position counted from the start of the region, as an
// SGE gives it. A window is no local memory: its STag is not known here.
func (t *Table) Local(s STag, pd PD, off, n uint64, need Access) (Region, error) {
	r, kind := t.use(s, pd)
	if kind != 0 {
		return Region{}, &Fault{kind, s}
	}
	if kind = r.checkLocal(off, n, need); kind != 0 {
		t.drop(r)
		return Region{}, &Fault{kind, s}
	}
	return Region{t, r, r.bytes(off, n), r.base + off}, nil
}

// look returns what speaks against a Local of r, found by s, at this moment and
// without a use.
func (r *region) look(s STag, pd PD, off, n uint64, need Access) FaultKind {
	switch {
	case r == nil, r.stag != s, r.users.Load() < 0:
		return FaultSTag
	case r.pd != pd:
		return FaultPD
	}
	return r.checkLocal(off, n, need)
}

// check returns what speaks against n octets at tagged offset to, for stream by of
// the region's domain.
func (r *region) check(by StreamID, to, n uint64, need Access) FaultKind {
	switch {
	case r.view != nil && r.view.foreign(by):
		return FaultPD
	case Wraps(to, n):
		return FaultWrap
	case to < r.base || n > r.size || to-r.base > r.size-n:
		return FaultBounds
	case r.access&need != need:
		return FaultAccess
	}
	return 0
}

// checkLocal is check for octets named by their position.
func (r *region) checkLocal(off, n uint64, need Access) FaultKind {
	switch {
	case r.kind.window():
		return FaultSTag
	case n > r.size || off > r.size-n:
		return FaultBounds
	case r.access&need != need:
		return FaultAccess
	}
	return 0
}

// show makes mem the memory of a region that nobody knows yet.
func (r *region) show(mem []byte) {
	r.mem, r.size = unsafe.SliceData(mem), uint64(len(mem))
}

// bytes returns n octets from octet off on, for who has a use.
func (r *region) bytes(off, n uint64) []byte {
	return unsafe.Slice(r.mem, r.size)[off : off+n : off+n]
}

// use finds a valid region of pd and counts a user, who calls drop.
func (t *Table) use(s STag, pd PD) (*region, FaultKind) {
	r := t.shard(s).find(s)
	if r == nil || r.stag != s {
		return nil, FaultSTag
	}
	if r.users.Add(1) < 0 {
		t.drop(r)
		return nil, FaultSTag
	}
	if r.pd != pd {
		t.drop(r)
		return nil, FaultPD
	}
	return r, 0
}

// drop ends a use and wakes who waits for the last one.
func (t *Table) drop(r *region) {
	if r.users.Add(-1) == dead {
		t.idleMu.Lock()
		t.idle.Broadcast()
		t.idleMu.Unlock()
	}
}
