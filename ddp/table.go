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

// Table holds the memory regions of a device and finds them by STag. Lookups
// take no lock and do not allocate; registration takes the lock of one of many
// shards, so that neither slows down as regions become many. Any goroutine may
// call any method.
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
}

// region is one registration. All but users and the owner's state is fixed
// before it is published.
type region struct {
	users   atomic.Int64 // uses that hold the memory; dead added once invalid
	base    uint64       // tagged offset of mem[0]
	mem     []byte       // cleared when the last user of a freed region has left
	stag    STag
	pd      PD
	access  Access
	revoke  bool // guarded by the shard's lock: the peer may invalidate it
	retired bool // guarded by the shard's lock: deregistered
}

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{gone: &region{}, seed: maphash.MakeSeed()}
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
	base := uint64(0)
	if a&ZeroBased == 0 {
		base = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	}
	if t.live.Load() >= maxRegions {
		return 0, 0, ErrTableFull
	}
	for {
		s := t.newSTag()
		r := &region{stag: s, pd: pd, access: a, base: base, mem: mem}
		if t.shard(s).insert(t, r) {
			t.live.Add(1)
			return s, base, nil
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
	if !t.shard(s).insert(t, &region{stag: s, pd: pd, access: a, base: base, mem: mem}) {
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

// Deregister ends the region. It waits for uses in progress, each no longer
// than the copy of one segment: after it has returned no access through s
// happens any more. The caller must not hold a [Region] of s itself.
func (t *Table) Deregister(s STag) error {
	sh := t.shard(s)
	sh.mu.Lock()
	r := sh.owned(s)
	if r == nil {
		sh.mu.Unlock()
		return ErrUnknownSTag
	}
	r.retired = true
	r.kill()
	sh.mu.Unlock()
	t.wait(r)
	r.mem = nil // nobody looks at it any more: users failed since, or have left
	t.live.Add(-1)
	t.retire(s)
	return nil
}

// Invalidate makes the region unusable on behalf of a peer, as Deregister does,
// but the owner still has to deregister it. An error is a *[Fault]: unknown
// STag, another PD, or a region whose owner did not permit it. Doing it twice is
// no error.
func (t *Table) Invalidate(s STag, pd PD) error {
	sh := t.shard(s)
	sh.mu.Lock()
	r, kind := sh.revocable(s, pd)
	if kind != 0 {
		sh.mu.Unlock()
		return &Fault{kind, s}
	}
	r.kill()
	sh.mu.Unlock()
	t.wait(r)
	return nil
}

// CanInvalidate returns what Invalidate would, and changes nothing.
func (t *Table) CanInvalidate(s STag, pd PD) error {
	sh := t.shard(s)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if _, kind := sh.revocable(s, pd); kind != 0 {
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
