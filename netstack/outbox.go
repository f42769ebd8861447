package netstack

import (
	"net"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
)

// writeMax is what Room promises while TCP keeps up: the most one Writev takes, and so the most that can be left over.
const writeMax = 256 << 10

// outbox is the send half of a connection, on either carrier. It makes a Writev whole where TCP took only its first
// part: it keeps the rest, promises no more room, and passes the rest on when TCP has room. So Room need not know how
// full TCP's own buffer is, which neither gVisor nor a portable system call tells.
//
// mu is held across the (never blocking) calls into TCP: the order of the octets depends on it, as both the send side
// and Poll pass on what is left.
type outbox struct {
	tcp  sender
	pool *sync.Pool // of *[]byte with writeMax octets of room

	writable atomic.Bool // TCP had no room and said since that it has. Set by the carrier
	owing    atomic.Bool // rest is not empty. Written under mu; Poll reads it without

	mu     sync.Mutex   // guards what follows
	up     bool         // connected
	fin    bool         // nothing may be written any more
	ended  bool         // FIN was handed to TCP
	closed bool         // the receive half let go: release TCP when all is passed on
	err    error        // what ended the send side
	chunk  *buffer.View // octets TCP has not taken, in memory of its own; nothing else is left then
	rest   []byte       // octets TCP has not taken, the tail of *buf
	buf    *[]byte      // from pool
	one    [1][]byte    // rest, as the parts of a write
}

// sender is what an outbox asks of its carrier. Functions rather than an interface: set once, per connection.
type sender struct {
	// write gives TCP as many of the n octets in parts as it takes, without blocking, and returns how many.
	write func(parts [][]byte, n int) (int, error)
	// give lets TCP have octets in memory of its own, all or none, without blocking, and reports whether it took them.
	give func(chunk *buffer.View) (bool, error)
	// finish sends FIN.
	finish func() error
	// release lets go of a connection the user has closed. Called without mu.
	release func()
}

// open lets writes through.
func (o *outbox) open() {
	o.mu.Lock()
	o.up = true
	o.mu.Unlock()
}

// isUp reports whether the connection is established and has not failed.
func (o *outbox) isUp() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.up && o.err == nil
}

// check returns why nothing can be written, or nil. Caller holds mu.
func (o *outbox) check() error {
	switch {
	case o.err != nil:
		return o.err
	case o.fin:
		return errFIN
	case !o.up:
		return errNotConnected
	}
	return nil
}

// room is Conn.Room.
func (o *outbox) room() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.check() != nil || !o.passOn() {
		return 0
	}
	return writeMax
}

// writev is Conn.Writev.
func (o *outbox) writev(parts [][]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.check(); err != nil {
		return err
	}
	if n == 0 {
		return nil
	}
	if n > writeMax || !o.passOn() {
		return ErrNoRoom
	}
	took, err := o.write(parts, n)
	if err == nil && took < n {
		o.keep(parts, took)
		// TCP may have had room again before there was a rest: Poll, which was told, had nothing to pass on then, and is
		// not told twice.
		o.passOn()
	}
	return err
}

// commit is Conn.Commit for octets in memory of TCP's own.
func (o *outbox) commit(chunk *buffer.View) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.check()
	if err == nil && !o.passOn() {
		err = ErrNoRoom
	}
	if err != nil {
		chunk.Release()
		return err
	}
	o.chunk = chunk
	o.owing.Store(true)
	o.writable.Store(true)
	o.passOn()
	if o.owing.Load() && o.err == nil {
		o.passOn() // TCP may have had room again before it was known that something is left, as in writev
	}
	return o.err
}

// write hands TCP the n octets in parts, and notes if that was the end. Caller holds mu.
func (o *outbox) write(parts [][]byte, n int) (took int, err error) {
	// If TCP takes less its buffer is full, and its notice of room comes after this.
	o.writable.Store(false)
	if took, err = o.tcp.write(parts, n); err != nil {
		o.failLocked(err)
	}
	return took, err
}

// passOn hands TCP what earlier writes left, once it said that it has room, and reports whether nothing is left.
// Caller holds mu.
func (o *outbox) passOn() bool {
	if !o.owing.Load() {
		return true
	}
	if !o.writable.Load() {
		return false
	}
	if !o.passOnChunk() && !o.passOnRest() {
		return false
	}
	o.empty()
	if o.fin {
		_ = o.finish()
	}
	return true
}

// passOnChunk reports whether there was a chunk and TCP has it now.
func (o *outbox) passOnChunk() bool {
	if o.chunk == nil {
		return false
	}
	o.writable.Store(false) // as in write
	took, err := o.tcp.give(o.chunk)
	if took {
		o.chunk = nil
	}
	if err != nil {
		o.failLocked(err)
	}
	return took
}

// passOnRest reports whether there was a rest and TCP has it now.
func (o *outbox) passOnRest() bool {
	if len(o.rest) == 0 {
		return false
	}
	o.one[0] = o.rest
	took, err := o.write(o.one[:], len(o.rest))
	o.one[0] = nil
	if err != nil {
		return false
	}
	o.rest = o.rest[took:]
	return len(o.rest) == 0
}

// closeWrite is Conn.CloseWrite.
func (o *outbox) closeWrite() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fin && o.err == nil {
		return nil
	}
	if err := o.check(); err != nil {
		return err
	}
	o.fin = true
	if o.passOn() {
		return o.finish()
	}
	return nil
}

// finish sends FIN, once. Caller holds mu.
func (o *outbox) finish() error {
	if o.ended {
		return nil
	}
	o.ended = true
	err := o.tcp.finish()
	if err != nil {
		o.failLocked(err)
	}
	return err
}

// serve passes on what is left, for Poll, and releases a closed connection when that is done.
func (o *outbox) serve() {
	if !o.owing.Load() {
		return
	}
	o.mu.Lock()
	o.passOn()
	release := o.closed && !o.owing.Load()
	o.mu.Unlock()
	if release {
		o.tcp.release()
	}
}

// let is the send half's part in Conn.Close. It returns true if the connection can be released now; if not, serve
// will.
func (o *outbox) let() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fin, o.closed = true, true
	return !o.owing.Load()
}

// leaving reports whether the connection is closed and has something to pass on.
func (o *outbox) leaving() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed && o.owing.Load()
}

// keep stores the octets of parts past the first n. Caller holds mu.
func (o *outbox) keep(parts [][]byte, n int) {
	o.buf, _ = o.pool.Get().(*[]byte)
	if o.buf == nil {
		b := make([]byte, 0, writeMax)
		o.buf = &b
	}
	rest := (*o.buf)[:0]
	for _, p := range parts {
		if n >= len(p) {
			n -= len(p)
			continue
		}
		rest = append(rest, p[n:]...)
		n = 0
	}
	o.rest = rest
	o.owing.Store(true)
}

// empty gives the memory of what was left back. Caller holds mu.
func (o *outbox) empty() {
	if o.chunk != nil {
		o.chunk.Release()
		o.chunk = nil
	}
	if o.buf != nil {
		o.pool.Put(o.buf)
		o.buf = nil
	}
	o.rest = nil
	o.owing.Store(false)
}

// fail ends the send side for good. The first error stays.
func (o *outbox) fail(err error) {
	o.mu.Lock()
	o.failLocked(err)
	o.mu.Unlock()
}

func (o *outbox) failLocked(err error) {
	if o.err == nil {
		o.err = err
	}
	o.empty()
}

// why returns what ended the send side, if something did.
func (o *outbox) why() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// shut is fail for a connection its user let go of.
func (o *outbox) shut() { o.fail(net.ErrClosed) }
