package ring

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Queue is a bounded queue of fixed-size records between one producer and one
// consumer at a time. The two sides may run at once; several goroutines on one
// side need a lock of their own around its methods.
//
// Records are named by sequence numbers that never wrap in practice: those in
// [Head, Tail) are published and not yet released. A consumer may look at them
// in any order, work ahead, and release later.
type Queue struct {
	region []byte
	recs   []byte // the records of region
	stride uint64
	mask   uint64 // depth - 1

	tail *atomic.Uint64 // in region
	head *atomic.Uint64 // in region
	arm  *atomic.Uint32 // in region; used by CQ alone

	_ [64]byte
	// producer's own
	next uint64 // first record not yet reserved
	seen uint64 // head as last read
	_    [64]byte
	// consumer's own: the true head. The one in region is only a report.
	done   atomic.Uint64
	broken atomic.Bool
}

// New makes a queue of at least depth records of stride octets each in memory
// of its own. Stride is a multiple of 8. Errors match [ErrGeometry].
func New(depth, stride int) (*Queue, error) {
	n, err := Size(depth, stride)
	if err != nil {
		return nil, err
	}
	return Create(allocate(n), depth, stride)
}

// Create makes an empty queue in region, which it keeps and whose header it
// overwrites. The region is at least [Size] octets and aligned to 8.
func Create(region []byte, depth, stride int) (*Queue, error) {
	d, err := geometry(depth, stride)
	if err != nil {
		return nil, err
	}
	if need := HeaderSize + d*stride; len(region) < need {
		return nil, fmt.Errorf("%w: %d octets, need %d", ErrLayout, len(region), need)
	}
	if !aligned(region, 8) {
		return nil, fmt.Errorf("%w: region not aligned to 8 octets", ErrLayout)
	}
	format(region, d, stride)
	return attach(region, d, stride), nil
}

// Open joins the queue that another side made in region, which it keeps. The
// header is checked in full; errors match [ErrLayout].
func Open(region []byte) (*Queue, error) {
	depth, stride, err := parse(region)
	if err != nil {
		return nil, err
	}
	q := attach(region, depth, stride)
	t, h := q.tail.Load(), q.head.Load()
	if t-h > q.mask+1 {
		return nil, fmt.Errorf("%w: tail %d, head %d", ErrLayout, t, h)
	}
	q.next, q.seen = t, h
	q.done.Store(h)
	return q, nil
}

func attach(region []byte, depth, stride int) *Queue {
	return &Queue{
		region: region,
		recs:   region[HeaderSize : HeaderSize+depth*stride],
		stride: uint64(stride),
		mask:   uint64(depth - 1),
		tail:   (*atomic.Uint64)(unsafe.Pointer(&region[offTail])),
		head:   (*atomic.Uint64)(unsafe.Pointer(&region[offHead])),
		arm:    (*atomic.Uint32)(unsafe.Pointer(&region[offArm])),
	}
}

// Cap returns how many records fit: what was asked for, rounded up.
func (q *Queue) Cap() int { return int(q.mask + 1) }

// Stride returns the size of a record in octets.
func (q *Queue) Stride() int { return int(q.stride) }

// Region returns the queue's memory, for sharing.
func (q *Queue) Region() []byte { return q.region }

// Broken reports that the other side wrote an impossible index. It never
// becomes false again. The owner should end what uses the queue.
func (q *Queue) Broken() bool { return q.broken.Load() }

// Slot reserves the next free record for the producer to fill, or returns nil
// when the queue is full. Reserved records become visible together at the next
// Publish. The record holds stale octets.
func (q *Queue) Slot() []byte {
	if q.next-q.seen > q.mask {
		h := q.head.Load()
		if h-q.seen > q.next-q.seen { // outside [seen, next]
			q.broken.Store(true)
			return nil
		}
		q.seen = h
		if q.next-h > q.mask {
			return nil
		}
	}
	rec := q.Record(q.next)
	q.next++
	return rec
}

// Publish makes all reserved records visible to the consumer.
func (q *Queue) Publish() { q.tail.Store(q.next) }

// Head returns the sequence number of the oldest record not yet released. Any
// goroutine of the consumer's side may ask.
func (q *Queue) Head() uint64 { return q.done.Load() }

// Tail returns the sequence number after the youngest published record. Any
// goroutine of the consumer's side may ask. Against a hostile producer the
// caller compares with <, since Tail may step back.
func (q *Queue) Tail() uint64 {
	_, t := q.span()
	return t
}

// Len returns how many records are published and not released.
func (q *Queue) Len() int {
	h, t := q.span()
	return int(t - h)
}

// span returns a head and a tail that were true at once, or nearly so: their
// distance is at most the depth.
func (q *Queue) span() (head, tail uint64) {
	for {
		h := q.done.Load()
		t := q.tail.Load()
		if t-h <= q.mask+1 {
			return h, t
		}
		if q.done.Load() == h { // nothing was released meanwhile: t is wrong
			q.broken.Store(true)
			return h, h
		}
	}
}

// Record returns the record with number seq, which the caller knows to be in
// [Head, Tail). It stays in the queue's memory: a consumer that does not trust
// the producer copies it first.
func (q *Queue) Record(seq uint64) []byte {
	i := (seq & q.mask) * q.stride
	return q.recs[i : i+q.stride : i+q.stride]
}

// Load copies the record with number seq, which the caller knows to be in [Head,
// Tail), into dst and returns how many octets: the first step of a consumer that
// does not trust the producer.
func (q *Queue) Load(seq uint64, dst []byte) int { return copy(dst, q.Record(seq)) }

// Next returns the oldest record, or nil when there is none.
func (q *Queue) Next() []byte {
	h, t := q.span()
	if h == t {
		return nil
	}
	return q.Record(h)
}

// Release gives all records before seq back to the producer. One caller at a
// time; seq never decreases and is at most Tail (anything else panics).
func (q *Queue) Release(seq uint64) {
	h := q.done.Load()
	if seq-h > q.mask+1 {
		panic(fmt.Sprintf("ring: Release(%d) with head %d and depth %d", seq, h, q.mask+1))
	}
	q.done.Store(seq)
	q.head.Store(seq)
}
