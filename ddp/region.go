package ddp

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
	size := uint64(len(r.mem))
	switch {
	case r.view != nil && r.view.foreign(by):
		kind = FaultPD
	case Wraps(to, n):
		kind = FaultWrap
	case to < r.base || n > size || to-r.base > size-n:
		kind = FaultBounds
	case r.access&need != need:
		kind = FaultAccess
	default:
		off := to - r.base
		return Region{t, r, r.mem[off : off+n : off+n], to}, nil
	}
	t.drop(r)
	return Region{}, &Fault{kind, s}
}

// Local is Check with a position counted from the start of the region, as an
// SGE gives it. A window is no local memory: its STag is not known here.
func (t *Table) Local(s STag, pd PD, off, n uint64, need Access) (Region, error) {
	r, kind := t.use(s, pd)
	if kind != 0 {
		return Region{}, &Fault{kind, s}
	}
	size := uint64(len(r.mem))
	switch {
	case r.kind.window():
		kind = FaultSTag
	case n > size || off > size-n:
		kind = FaultBounds
	case r.access&need != need:
		kind = FaultAccess
	default:
		return Region{t, r, r.mem[off : off+n : off+n], r.base + off}, nil
	}
	t.drop(r)
	return Region{}, &Fault{kind, s}
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
