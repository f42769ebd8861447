package verbs

import (
	"errors"
	"sync"
	"syscall"

	"github.com/softrdma/softrdma/internal/ring"
)

// workQueue is the posting side of a send, receive or shared receive queue.
type workQueue struct {
	mu     sync.Mutex  // serialises posts; guards closed
	ring   *ring.Queue // nil for the receive queue of a queue pair with an SRQ
	maxSGE int
	closed bool
}

// close ends posting: a post in progress ends first, none begins after.
func (w *workQueue) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
}

// cap returns how many work requests fit; 0 where there is no queue.
func (w *workQueue) cap() int {
	if w.ring == nil {
		return 0
	}
	return w.ring.Cap()
}

// posted returns how many work requests were ever posted.
func (w *workQueue) posted() uint64 {
	if w.ring == nil {
		return 0
	}
	return w.ring.Tail()
}

// failed is the error of an operation that makes an object. It counts those that
// a limit refused.
func (d *device) failed(op, object string, err error) error {
	if errors.Is(err, syscall.ENOMEM) {
		d.refused.Add(1)
	}
	return &OpError{op, object, err}
}

// make makes the ring of w, within what d has left for queues. Drop undoes it.
func (w *workQueue) make(d *device, depth, stride int) error {
	if err := d.takeQueue(depth, stride); err != nil {
		return err
	}
	r, err := ring.New(depth, stride)
	if err != nil {
		d.dropQueue(depth, stride)
		return invalidf("%v", err)
	}
	w.ring = r
	return nil
}

// drop gives the memory of w back. The ring stays, for its counters.
func (w *workQueue) drop(d *device) {
	if w.ring != nil {
		d.dropQueue(w.ring.Cap(), w.ring.Stride())
	}
}

// takeQueue reserves the memory of a queue of depth records of stride octets
// before it is allocated, so that too much is an error and not the end of the
// process.
func (d *device) takeQueue(depth, stride int) error {
	n, err := ring.Size(depth, stride)
	if err != nil {
		return invalidf("%v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(n) > d.attr.MaxQueueBytes-d.queueLen {
		return roomf("no room for a queue of %d octets: the device allows %d octets in queues, %d are taken", n, d.attr.MaxQueueBytes, d.queueLen)
	}
	d.queueLen += int64(n)
	return nil
}

// dropQueue gives back what takeQueue reserved; depth may be what it was rounded
// up to.
func (d *device) dropQueue(depth, stride int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lessQueue(depth, stride)
}

// lessQueue is dropQueue under d.mu.
func (d *device) lessQueue(depth, stride int) {
	n, err := ring.Size(depth, stride)
	if err != nil {
		panic(err) // takeQueue took it
	}
	d.queueLen -= int64(n)
}
