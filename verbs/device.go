package verbs

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
)

// Device is an open RDMA device. Package verbs/iwarp opens one. It owns all
// objects made from it; [Device.Close] closes them.
type Device struct {
	d    *device
	leak runtime.Cleanup
}

// device is the state behind a Device handle. Handles point to states and states
// to each other, never back to a handle, so that a dropped handle can be noticed.
type device struct {
	p    Provider
	attr DeviceAttr

	// life is held for reading while an object is being made and for writing to
	// mark an object as closing. So whoever closes a parent finds no child half
	// made, and none is made after.
	life    sync.RWMutex
	closing bool // guarded by life

	mu       sync.Mutex // guards what follows, and the sets of children of all objects
	pds      map[*pd]struct{}
	cqs      map[*cq]struct{}
	qps      map[uint32]*qp
	srqs     map[*srq]struct{}
	numPD    uint32
	numCQ    uint32
	numQP    uint32
	numSRQ   uint32
	mrs      int
	mws      int
	mrLen    int64         // octets in open memory regions
	queueLen int64         // octets in open work and completion queues
	gone     Stats         // posts and completions of objects that are closed
	refused  atomic.Uint64 // objects that a limit did not allow
	leaks    atomic.Uint64
	closed   chan struct{} // closed first thing in close

	once sync.Once
}

const maxQPNum = 1<<24 - 1

// NewDevice makes a device on the provider p. It panics if p lacks a function
// that is not optional.
func NewDevice(p Provider) *Device {
	if p.RegMR == nil || p.DeregMR == nil || p.CreateQP == nil || p.Close == nil {
		panic("verbs: provider without RegMR, DeregMR, CreateQP or Close")
	}
	d := &device{
		p:      p,
		attr:   p.Attr.withDefaults(),
		pds:    make(map[*pd]struct{}),
		cqs:    make(map[*cq]struct{}),
		qps:    make(map[uint32]*qp),
		srqs:   make(map[*srq]struct{}),
		numQP:  1, // 0 and 1 mean something on InfiniBand
		closed: make(chan struct{}),
	}
	h := &Device{d: d}
	h.leak = watch(d, h, "device", 0)
	return h
}

// Provider returns the seam to the transport, for connection managers. Its
// fields must not be changed.
func (d *Device) Provider() *Provider { return &d.d.p }

// Attr returns the device's description and limits.
func (d *Device) Attr() DeviceAttr { return d.d.attr }

func (d *Device) String() string { return d.d.name() }

func (d *device) name() string {
	if d.attr.Name == "" {
		return "device"
	}
	return d.attr.Name
}

// AllocPD makes a protection domain: queue pairs and memory regions work
// together only within one. The error matches ErrClosed, or syscall.ENOMEM when
// there are as many as the device allows.
func (d *Device) AllocPD() (*PD, error) {
	d.d.life.RLock()
	defer d.d.life.RUnlock()
	if d.d.closing {
		return nil, &OpError{"alloc pd", d.d.name(), ErrClosed}
	}
	d.d.mu.Lock()
	defer d.d.mu.Unlock()
	if len(d.d.pds) >= d.d.attr.MaxPD {
		return nil, d.d.failed("alloc pd", d.d.name(), noRoom("protection domains", d.d.attr.MaxPD))
	}
	d.d.numPD++
	p := &pd{d: d.d, num: d.d.numPD, mrs: make(map[*mr]struct{}), mws: make(map[*mw]struct{}), qps: make(map[*qp]struct{}), srqs: make(map[*srq]struct{})}
	d.d.pds[p] = struct{}{}
	h := &PD{p: p, dev: d}
	h.leak = watch(d.d, h, "pd", p.num)
	return h, nil
}

func noRoom(what string, limit int) error {
	return roomf("no more %s: the device allows %d", what, limit)
}

// Events returns the asynchronous events of the device as they come, each to one
// of the goroutines that range over them. The last step carries the error that
// ended it: ctx.Err(), or ErrClosed once the device is closed.
func (d *Device) Events(ctx context.Context) iter.Seq2[AsyncEvent, error] {
	return func(yield func(AsyncEvent, error) bool) {
		for {
			select {
			case ev, ok := <-d.d.p.Events: // a nil channel blocks
				if !ok {
					yield(AsyncEvent{}, &OpError{"events", d.d.name(), ErrClosed})
					return
				}
				if d.d.p.EventTaken != nil {
					d.d.p.EventTaken(ev)
				}
				if !yield(ev, nil) {
					return
				}
			case <-ctx.Done():
				yield(AsyncEvent{}, ctx.Err())
				return
			case <-d.d.closed:
				yield(AsyncEvent{}, &OpError{"events", d.d.name(), ErrClosed})
				return
			}
		}
	}
}

// Stats returns a snapshot of the device's counters.
func (d *Device) Stats() Stats {
	var s Stats
	if d.d.p.Stats != nil {
		s = d.d.p.Stats()
	}
	d.d.mu.Lock()
	defer d.d.mu.Unlock()
	s.PDs, s.MRs, s.MWs, s.CQs, s.QPs, s.SRQs = len(d.d.pds), d.d.mrs, d.d.mws, len(d.d.cqs), len(d.d.qps), len(d.d.srqs)
	s.MRBytes, s.QueueBytes = d.d.mrLen, d.d.queueLen
	s.SendsPosted, s.RecvsPosted = d.d.gone.SendsPosted, d.d.gone.RecvsPosted
	s.Completions, s.CompletionsLost = d.d.gone.Completions, d.d.gone.CompletionsLost
	for _, q := range d.d.qps {
		q.count(&s)
	}
	for r := range d.d.srqs {
		r.count(&s)
	}
	for c := range d.d.cqs {
		c.count(&s)
	}
	s.Refused = d.d.refused.Load()
	s.Leaks = d.d.leaks.Load()
	return s
}

// Close closes everything made from the device, queue pairs first, and then the
// device. It returns the errors met, joined. A second Close waits for the first
// and returns nil.
func (d *Device) Close() error {
	d.leak.Stop()
	return d.d.close()
}

func (d *device) close() (err error) {
	d.once.Do(func() {
		d.life.Lock()
		d.closing = true
		d.life.Unlock()
		close(d.closed)

		d.mu.Lock()
		qps, cqs, pds := values(d.qps), keys(d.cqs), keys(d.pds)
		d.mu.Unlock()
		var errs []error
		for _, q := range qps {
			errs = append(errs, q.close())
		}
		for _, p := range pds {
			errs = append(errs, p.close())
		}
		for _, c := range cqs {
			errs = append(errs, c.close())
		}
		errs = append(errs, d.p.Close())
		if err = errors.Join(errs...); err != nil {
			err = &OpError{"close", d.name(), err}
		}
	})
	return err
}

func keys[K comparable, V any](m map[K]V) []K {
	s := make([]K, 0, len(m))
	for k := range m {
		s = append(s, k)
	}
	return s
}

func values[K comparable, V any](m map[K]V) []V {
	s := make([]V, 0, len(m))
	for _, v := range m {
		s = append(s, v)
	}
	return s
}
