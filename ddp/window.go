package ddp

import "unsafe"

// kind says how the owner uses an STag.
type kind uint8

const (
	plain   kind = iota // valid from registration to deregistration
	fast                // made valid and invalid through the send queue
	window1             // shows a part of a region to all streams of the domain
	window2             // shows it to the stream of one queue pair, under a key of its owner's choice
)

func (k kind) window() bool { return k >= window1 }

// noMore is the window count of a region that no window can be bound to any
// more.
const noMore = -1

// windowRights are the rights a window may grant.
const windowRights = RemoteWrite | RemoteRead | RemoteAtomic

// AllocWindow makes a memory window of type 1 or 2 and returns its STag, which is
// invalid until [Table.Bind]. Deregister ends it.
func (t *Table) AllocWindow(pd PD, typ int) (STag, error) {
	r := &region{pd: pd, kind: window1}
	if typ == 2 {
		r.kind, r.revoke = window2, true
	}
	r.users.Store(dead)
	return t.add(r)
}

// AllocFast is Register of a region that is invalid until [Table.Renew] gives it
// rights. The tagged offset of its first octet is its address.
func (t *Table) AllocFast(mem []byte, pd PD) (STag, uint64, error) {
	if len(mem) == 0 {
		return 0, 0, ErrNoMemory
	}
	r := &region{pd: pd, kind: fast, revoke: true}
	r.show(mem)
	r.base = uint64(uintptr(unsafe.Pointer(r.mem)))
	r.users.Store(dead)
	s, err := t.add(r)
	return s, r.base, err
}

// Binding says what a window shall show: Len octets from octet Off of a region.
type Binding struct {
	Window STag // its index names the window, its key is the one the window gets
	Region STag
	Off    uint64
	Len    uint64
	Access Access // some of RemoteWrite, RemoteRead, RemoteAtomic
}

// Bind makes a window show b, on behalf of stream by. A type 1 window stops to
// show what it showed before, and shows nothing if b.Len is 0; its former key is
// invalid when Bind returns. A type 2 window must be invalid, and serves by's
// queue pair alone. The region needs MWBind, and LocalWrite for a window to write
// by; its own remote rights do not matter, and it must not be ZeroBased. An error
// is a *[Fault] with the STag at fault and leaves everything as it was.
func (t *Table) Bind(b Binding, by StreamID) error {
	next := &region{stag: b.Window, pd: by.PD, access: b.Access}
	if b.Len == 0 {
		next.users.Store(dead) // a type 1 window that shows nothing; the other type refuses it
	} else if kind := t.part(next, &b); kind != 0 {
		return &Fault{kind, b.Region}
	}
	kind := t.renew(next, by, func(old *region) FaultKind {
		switch {
		case !old.kind.window():
			return FaultSTag
		case old.kind == window1:
			old.kill()
		case old.users.Load() >= 0:
			return FaultBound
		case b.Len == 0:
			return FaultBounds
		case by.QP == 0:
			return FaultPD
		default:
			next.view.qp, next.revoke = by.QP, true
		}
		next.kind = old.kind
		return 0
	})
	if kind != 0 {
		if next.view != nil {
			next.view.parent.windows.Add(-1)
		}
		return &Fault{kind, b.Window}
	}
	return nil
}

// part lets next show the part of a region that b names, which counts it as a
// window from then on.
func (t *Table) part(next *region, b *Binding) FaultKind {
	r, kind := t.use(b.Region, next.pd)
	if kind != 0 {
		return kind
	}
	defer t.drop(r)
	switch {
	case r.kind.window():
		return FaultSTag
	case b.Len > r.size || b.Off > r.size-b.Len:
		return FaultBounds
	case r.access&(MWBind|ZeroBased) != MWBind, b.Access&^windowRights != 0,
		b.Access&(RemoteWrite|RemoteAtomic) != 0 && r.access&LocalWrite == 0:
		return FaultAccess
	case !r.addWindow():
		return FaultSTag // it is just going
	}
	next.view, next.base = &view{parent: r}, r.base+b.Off
	next.show(r.bytes(b.Off, b.Len))
	return 0
}

// Renew makes the invalid fast region of s valid, on behalf of stream by, with the
// key of s and the rights a. With a remote right the peer may invalidate it again.
// An error is a *[Fault] and leaves everything as it was.
func (t *Table) Renew(s STag, by StreamID, a Access) error {
	next := &region{stag: s, pd: by.PD, access: a, kind: fast, revoke: a&windowRights != 0}
	kind := t.renew(next, by, func(old *region) FaultKind {
		switch {
		case old.kind != fast:
			return FaultSTag
		case old.users.Load() >= 0:
			return FaultBound
		case a&ZeroBased != 0:
			return FaultAccess
		}
		next.mem, next.size, next.base = old.mem, old.size, old.base
		return 0
	})
	if kind != 0 {
		return &Fault{kind, s}
	}
	return nil
}

// renew puts next in the place of the window or fast region with its index, if
// that is of by's protection domain and check has no objection. check runs under
// the shard's lock, perhaps more than once; if it has none the old one is dead.
func (t *Table) renew(next *region, by StreamID, check func(old *region) FaultKind) FaultKind {
	sh := t.shard(next.stag)
	for {
		sh.mu.Lock()
		old := sh.find(next.stag)
		kind := FaultSTag
		if old != nil && !old.retired {
			if kind = FaultPD; old.pd == by.PD {
				kind = check(old)
			}
		}
		if kind != 0 {
			sh.mu.Unlock()
			return kind
		}
		if old.users.Load() == dead {
			if next.view != nil && next.view.qp != 0 {
				t.enter(next)
			}
			sh.replace(old, next)
			sh.mu.Unlock()
			t.settle(old)
			return 0
		}
		sh.mu.Unlock()
		t.wait(old) // its last users are about to leave
	}
}

// InvalidateLocal is Invalidate on behalf of the owner, through the send queue of
// stream by: windows of type 2 and fast regions. Windows bound to it are
// FaultBound, a window of type 1 or a region of Register is FaultKept.
func (t *Table) InvalidateLocal(s STag, by StreamID) error {
	sh := t.shard(s)
	sh.mu.Lock()
	r := sh.owned(s)
	kind := FaultKind(0)
	switch {
	case r == nil:
		kind = FaultSTag
	case r.pd != by.PD, r.foreign(by):
		kind = FaultPD
	case r.kind != fast && r.kind != window2:
		kind = FaultKept
	case !r.refuseWindows():
		kind = FaultBound
	}
	return t.end(sh, r, s, kind)
}

// Valid reports whether s can be used by some stream, at this moment.
func (t *Table) Valid(s STag) bool {
	r := t.shard(s).find(s)
	return r != nil && r.stag == s && r.users.Load() >= 0
}

// Unbind makes all windows invalid that are bound for a queue pair, which is gone.
func (t *Table) Unbind(qp uint32) {
	t.boundMu.Lock()
	list := make([]*region, 0, len(t.bound[qp]))
	for r := range t.bound[qp] {
		list = append(list, r)
	}
	t.boundMu.Unlock()
	for _, r := range list {
		sh := t.shard(r.stag)
		sh.mu.Lock()
		r.kill()
		sh.mu.Unlock()
		t.settle(r)
	}
}

// foreign reports whether r is bound for another queue pair than by's.
func (r *region) foreign(by StreamID) bool {
	return r.view != nil && r.view.foreign(by) && r.users.Load() >= 0
}

func (v *view) foreign(by StreamID) bool { return v.qp != 0 && v.qp != by.QP }

// addWindow counts one more window; false if the region takes none any more.
func (r *region) addWindow() bool {
	for {
		n := r.windows.Load()
		if n == noMore {
			return false
		}
		if r.windows.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// refuseWindows closes the region for windows; false if some are bound.
func (r *region) refuseWindows() bool {
	return r.windows.CompareAndSwap(0, noMore) || r.windows.Load() == noMore
}

// enter notes a window as bound for its queue pair.
func (t *Table) enter(r *region) {
	t.boundMu.Lock()
	defer t.boundMu.Unlock()
	qp := r.view.qp
	if t.bound[qp] == nil {
		t.bound[qp] = map[*region]struct{}{}
	}
	t.bound[qp][r] = struct{}{}
}

// settle waits for the last user of a dead region and, if it is a window, takes it
// from its parent. Whoever made it invalid, once, or wants to be sure calls it.
func (t *Table) settle(r *region) {
	t.wait(r)
	v := r.view
	if v == nil {
		return
	}
	t.boundMu.Lock()
	defer t.boundMu.Unlock()
	if v.settled {
		return
	}
	v.settled = true
	v.parent.windows.Add(-1)
	r.mem = nil // not to keep the memory of a region that is deregistered
	if v.qp != 0 {
		if delete(t.bound[v.qp], r); len(t.bound[v.qp]) == 0 {
			delete(t.bound, v.qp)
		}
	}
}
