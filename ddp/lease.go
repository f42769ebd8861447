package ddp

// Lease keeps the use of the region that was asked for last, so that what follows in
// it needs no look-up and no count. All checks are made every time: a region that has
// become invalid meanwhile is let go, and refused.
//
// Whoever makes an STag invalid waits for a Lease of it. So its holder goes on with
// segments or calls End: it must not wait for anything, nor make an STag invalid. The
// zero value holds nothing.
type Lease struct {
	t    *Table
	r    *region // asked for last; nil: none
	held bool    // there is a use of r
}

// Check is [Table.Check]. The octets may be touched until the next call.
func (l *Lease) Check(t *Table, s STag, by StreamID, to, n uint64, need Access) ([]byte, error) {
	r, kind := l.use(t, s, by.PD)
	if kind == 0 {
		kind = r.check(by, to, n, need)
	}
	if kind != 0 {
		l.End()
		return nil, &Fault{kind, s}
	}
	return r.bytes(to-r.base, n), nil
}

// local is [Table.Local].
func (l *Lease) local(t *Table, s STag, pd PD, off, n uint64, need Access) ([]byte, error) {
	r, kind := l.use(t, s, pd)
	if kind == 0 {
		kind = r.checkLocal(off, n, need)
	}
	if kind != 0 {
		l.End()
		return nil, &Fault{kind, s}
	}
	return r.bytes(off, n), nil
}

// use is [Table.use].
func (l *Lease) use(t *Table, s STag, pd PD) (*region, FaultKind) {
	if r := l.r; r != nil && r.stag == s && r.pd == pd && l.t == t {
		if l.held && r.users.Load() >= 0 {
			return r, 0
		}
		if !l.held {
			// A valid region is the one in the table. One that was never is again.
			if l.held = true; r.users.Add(1) > 0 {
				return r, 0
			}
		}
	}
	l.End()
	r, kind := t.use(s, pd)
	l.t, l.r, l.held = t, r, r != nil // none with a fault
	return r, kind
}

// find is [shard.find] for a look that takes no use.
func (l *Lease) find(t *Table, s STag) *region {
	if r := l.r; r != nil && r.stag == s && l.t == t && r.users.Load() >= 0 {
		return r
	}
	return t.shard(s).find(s)
}

// End ends the use.
func (l *Lease) End() {
	if l.held {
		l.held = false
		l.t.drop(l.r)
	}
}
