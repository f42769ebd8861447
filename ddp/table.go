package ddp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"unsafe"
)

// STag is a steering tag: a 24-bit random index and an 8-bit key that name one
// region of a [Table]. 0 is never valid.
type STag uint32

func (s STag) index() uint32 { return uint32(s) >> 8 }

// PD is a protection domain: a region serves only streams of the same PD.
type PD uint32

// StreamID says who asks the table: a stream is known by its protection domain
// and by the number of its queue pair, which a window may be bound to. Number 0 is
// no queue pair.
type StreamID struct {
	PD PD
	QP uint32
}

// Access is a set of rights. Reading locally is always allowed.
type Access uint8

// Rights of a region, with the numbers of libibverbs.
const (
	LocalWrite   Access = 1 << iota // receives and read responses may be placed
	RemoteWrite                     // the peer may write
	RemoteRead                      // the peer may read
	RemoteAtomic                    // the peer may run atomic operations
	MWBind                          // memory windows may be bound
	ZeroBased                       // tagged offsets count from 0, not from the address
)

// Errors of the calls of an owner of regions.
var (
	ErrNoMemory    = errors.New("ddp: a region needs at least one octet")
	ErrRange       = errors.New("ddp: region reaches past 2^64")
	ErrTableFull   = errors.New("ddp: no free STag")
	ErrUnknownSTag = errors.New("ddp: no region has that STag")
	ErrBound       = errors.New("ddp: memory windows are bound to the region")
)

// resting is how many freed STag indices wait before one can be handed out
// again, so that a peer which still knows an old STag meets nothing by it.
const resting = 4096

// maxRegions leaves enough of the 2^24 indices free that a random one is found
// in a few tries.
const maxRegions = 1 << 23

// dead is added to a region's user count when it becomes invalid: the count is
// negative from then on, whatever comes and goes.
const dead = -1 << 62

// Table holds the memory regions and windows of a device and finds them by STag.
// Lookups take no lock and do not allocate; registration takes the lock of one of
// many shards, so that neither slows down as regions become many. Any goroutine
// may call any method.
type Table struct {
	shards [256]shard
	gone   *region // marks a slot that was freed
	live   atomic.Int64
	seed   maphash.Seed

	restMu sync.Mutex
	rest   []STag // guarded by restMu: ring of freed STags, oldest at restAt
	restAt int    // guarded by restMu
	frees  uint64 // guarded by restMu
	epoch  atomic.Uint32

	idleMu sync.Mutex
	idle   sync.Cond // on idleMu: the last user of some dead region has left

	boundMu sync.Mutex
	bound   map[uint32]map[*region]struct{} // guarded by boundMu: windows bound to a queue pair
}

// region is one registration, or what a window shows. All but the counts and the
// owner's state is fixed before it is published; to give a window or a fast region
// another key, rights or memory is to put another region in its place.
type region struct {
	users   atomic.Int64 // uses that hold the memory; dead added once invalid
	base    uint64       // tagged offset of the first octet
	size    uint64       // octets
	mem     *byte        // the first octet; cleared when the last user of a freed region has left
	view    *view        // what makes it a bound window; apart, for the rest to fill one cache line
	stag    STag
	pd      PD
	windows atomic.Int32 // bound to it; noMore once it is closed for them
	access  Access
	kind    kind
	revoke  bool // guarded by the shard's lock: the peer may invalidate it
	retired bool // guarded by the shard's lock: deregistered
}

// view is what a bound window has besides a region's parts.
type view struct {
	parent  *region // what it is bound to
	qp      uint32  // of a type 2 window: bound for this queue pair alone
	settled bool    // guarded by the table's boundMu: no longer counted as a window of its parent
}

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{gone: &region{}, seed: maphash.MakeSeed(), bound: map[uint32]map[*region]struct{}{}}
	t.idle.L = &t.idleMu
	return t
}

// Register makes mem known under a new STag and returns it with the tagged
// offset of the first octet: the address of mem, or 0 with [ZeroBased]. The
// table keeps mem until Deregister.
func (t *Table) Register(mem []byte, pd PD, a Access) (STag, uint64, error) {
	if len(mem) == 0 {
		return 0, 0, ErrNoMemory
	}
	r := &region{pd: pd, access: a}
	r.show(mem)
	if a&ZeroBased == 0 {
		r.base = uint64(uintptr(unsafe.Pointer(r.mem)))
	}
	s, err := t.add(r)
	if err != nil {
		return 0, 0, err
	}
	return s, r.base, nil
}

// add publishes r under a new STag.
func (t *Table) add(r *region) (STag, error) {
	if t.live.Load() >= maxRegions {
		return 0, ErrTableFull
	}
	for {
		r.stag = t.newSTag()
		if t.shard(r.stag).insert(t, r) {
			t.live.Add(1)
			return r.stag, nil
		}
	}
}

// RegisterBase is Register with a chosen base and STag, for tests that replay
// recorded octets. It fails if the STag's index is taken or still resting.
func (t *Table) RegisterBase(mem []byte, pd PD, a Access, base uint64, s STag) error {
	switch {
	case len(mem) == 0:
		return ErrNoMemory
	case uint64(len(mem)-1) > ^uint64(0)-base:
		return ErrRange
	case s.index() == 0:
		return ErrUnknownSTag
	}
	r := &region{stag: s, pd: pd, access: a, base: base}
	r.show(mem)
	if !t.shard(s).insert(t, r) {
		return ErrTableFull
	}
	t.live.Add(1)
	return nil
}

// newSTag draws an index other than 0 from the system's random source. The key
// is a secret function of the index plus the number of the current epoch: an
// index rests for at least one epoch after it was freed, so it comes back with
// another key.
func (t *Table) newSTag() STag {
	for {
		var b [4]byte
		rand.Read(b[:]) // never fails: it ends the program instead
		index := binary.LittleEndian.Uint32(b[:]) >> 8
		if index == 0 {
			continue
		}
		key := uint8(maphash.Comparable(t.seed, index)) + uint8(t.epoch.Load())
		return STag(index<<8 | uint32(key))
	}
}

// AllowInvalidate permits the peer of a stream in the region's PD to invalidate
// it by a Send with Invalidate. The owner promises that no other stream relies
// on the region.
func (t *Table) AllowInvalidate(s STag) error {
	sh := t.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.owned(s)
	if r == nil {
		return ErrUnknownSTag
	}
	r.revoke = true
	return nil
}

// Deregister ends the region or window. It waits for uses in progress, each no
// longer than it takes to move one segment: after it has returned no access through
// s happens any more. The caller must not hold a [Region] or [Lease] of s itself. The
// key of s matters only for a region of [Table.Register], as those of others change.
// The error is [ErrUnknownSTag] or, with nothing changed, [ErrBound].
func (t *Table) Deregister(s STag) error {
	sh := t.shard(s)
	sh.mu.Lock()
	r := sh.find(s)
	if r == nil || r.retired || r.kind == plain && r.stag != s {
		sh.mu.Unlock()
		return ErrUnknownSTag
	}
	if !r.refuseWindows() {
		sh.mu.Unlock()
		return ErrBound
	}
	r.retired = true
	r.kill()
	sh.mu.Unlock()
	t.settle(r)
	r.mem = nil // nobody looks at it any more: users failed since, or have left
	t.live.Add(-1)
	t.retire(r.stag)
	return nil
}

// Invalidate makes the region unusable on behalf of a peer, as Deregister does,
// but the owner still has to deregister it. A peer may invalidate a type 2 window
// that is bound for its stream, and a fast region with remote rights. An error is
// a *[Fault]: unknown STag, another stream, or one that the peer may not
// invalidate: a plain region, a type 1 window, a region with windows. Doing it
// twice is no error.
func (t *Table) Invalidate(s STag, by StreamID) error {
	sh := t.shard(s)
	sh.mu.Lock()
	r, kind := sh.revocable(s, by)
	if kind == 0 && !r.refuseWindows() {
		kind = FaultKept
	}
	return t.end(sh, r, s, kind)
}

// end makes r, the region of s, invalid and returns when no use of it is left,
// unless kind speaks against it. The shard's lock is held, and let go.
func (t *Table) end(sh *shard, r *region, s STag, kind FaultKind) error {
	if kind != 0 {
		sh.mu.Unlock()
		return &Fault{kind, s}
	}
	r.kill()
	sh.mu.Unlock()
	t.settle(r)
	return nil
}

// CanInvalidate returns what Invalidate would, and changes nothing.
func (t *Table) CanInvalidate(s STag, by StreamID) error {
	sh := t.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, kind := sh.revocable(s, by); kind != 0 {
		return &Fault{kind, s}
	}
	return nil
}

// kill makes the region invalid for new uses, once. The shard's lock is held.
func (r *region) kill() {
	if r.users.Load() >= 0 {
		r.users.Add(dead)
	}
}

// Len returns how many regions are registered.
func (t *Table) Len() int { return int(t.live.Load()) }

// wait returns when a dead region has no user.
func (t *Table) wait(r *region) {
	if r.users.Load() == dead {
		return
	}
	t.idleMu.Lock()
	for r.users.Load() != dead {
		t.idle.Wait()
	}
	t.idleMu.Unlock()
}

// retire lays a freed STag to rest and frees the slot of the one that has
// rested longest.
func (t *Table) retire(s STag) {
	t.restMu.Lock()
	var old STag
	if len(t.rest) < resting {
		t.rest = append(t.rest, s)
	} else {
		old, t.rest[t.restAt] = t.rest[t.restAt], s
		t.restAt = (t.restAt + 1) % resting
	}
	t.frees++
	t.epoch.Store(uint32(t.frees / resting))
	t.restMu.Unlock()
	if old != 0 {
		t.shard(old).remove(t, old)
	}
}
