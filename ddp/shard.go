package ddp

import (
	"sync"
	"sync/atomic"
)

// shard is one part of the hash table: open addressing, linear probing. Readers
// probe without a lock in the array they find published; writers hold mu. A
// reader that still probes a replaced array can only meet regions that were
// registered before and, if they were freed since, are dead.
type shard struct {
	slots atomic.Pointer[[]atomic.Pointer[region]]
	mu    sync.Mutex
	used  int // guarded by mu: slots that are not empty
	live  int // guarded by mu: slots that hold a region
}

const minSlots = 8

// shard chooses by the low octet of the index, the slot follows from the rest:
// the indices are random already.
func (t *Table) shard(s STag) *shard { return &t.shards[uint8(s.index())] }

func slot(s STag, mask int) int { return int(s.index()>>8) & mask }

// find returns the region with the index of s, whatever its key, or nil.
func (sh *shard) find(s STag) *region {
	p := sh.slots.Load()
	if p == nil || s.index() == 0 {
		return nil
	}
	slots := *p
	mask := len(slots) - 1
	for i := slot(s, mask); ; i = (i + 1) & mask {
		r := slots[i].Load()
		if r == nil {
			return nil
		}
		if r.stag.index() == s.index() {
			return r
		}
	}
}

// owned returns the region of s unless it has been deregistered. mu is held.
func (sh *shard) owned(s STag) *region {
	if r := sh.find(s); r != nil && r.stag == s && !r.retired {
		return r
	}
	return nil
}

// revocable returns the region of s if the peer of stream by may invalidate
// it. mu is held.
func (sh *shard) revocable(s STag, by StreamID) (*region, FaultKind) {
	switch r := sh.owned(s); {
	case r == nil:
		return nil, FaultSTag
	case r.pd != by.PD, r.foreign(by):
		return nil, FaultPD
	case !r.revoke, r.windows.Load() > 0:
		return nil, FaultKept
	default:
		return r, 0
	}
}

// insert publishes r. It reports false if the index is taken.
func (sh *shard) insert(t *Table, r *region) bool {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.find(r.stag) != nil {
		return false
	}
	p := sh.slots.Load()
	if p == nil || 2*(sh.used+1) > len(*p) {
		p = sh.rebuild(t)
	}
	slots := *p
	mask := len(slots) - 1
	for i := slot(r.stag, mask); ; i = (i + 1) & mask {
		switch slots[i].Load() {
		case nil:
			sh.used++
		case t.gone:
		default:
			continue
		}
		sh.live++
		slots[i].Store(r)
		return true
	}
}

// replace publishes next in the slot of old, which is dead and has the same index.
// mu is held.
func (sh *shard) replace(old, next *region) {
	slots := *sh.slots.Load()
	mask := len(slots) - 1
	for i := slot(old.stag, mask); ; i = (i + 1) & mask {
		if slots[i].Load() == old {
			slots[i].Store(next)
			return
		}
	}
}

// remove frees the slot of s. The mark left behind keeps probes going.
func (sh *shard) remove(t *Table, s STag) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slots := *sh.slots.Load()
	mask := len(slots) - 1
	for i := slot(s, mask); ; i = (i + 1) & mask {
		r := slots[i].Load()
		if r == nil {
			return
		}
		if r.stag == s {
			slots[i].Store(t.gone)
			sh.live--
			return
		}
	}
}

// rebuild moves the regions to a new array with at least half of it free, and
// leaves the marks of removed ones behind.
func (sh *shard) rebuild(t *Table) *[]atomic.Pointer[region] {
	n := minSlots
	for n < 4*(sh.live+1) {
		n *= 2
	}
	slots := make([]atomic.Pointer[region], n)
	if old := sh.slots.Load(); old != nil {
		for i := range *old {
			r := (*old)[i].Load()
			if r == nil || r == t.gone {
				continue
			}
			j := slot(r.stag, n-1)
			for slots[j].Load() != nil {
				j = (j + 1) & (n - 1)
			}
			slots[j].Store(r)
		}
	}
	sh.used = sh.live
	sh.slots.Store(&slots)
	return &slots
}
