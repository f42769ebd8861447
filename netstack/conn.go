package netstack

import (
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is one TCP connection. See the package comment for which goroutine may call what.
type Conn struct {
	st   *Stack
	user *userConn   // one of the two carriers
	kern *kernelConn // is not nil
	mark mark        // guarded by st.ready.mu

	out outbox // send half, and Poll

	local, remote netip.AddrPort

	// Receive half.
	owner any
	over  bool // Abort or Close was called

	deadline *time.Timer // ends an attempt to connect; nil on accepted connections
	late     atomic.Bool // it has
}

// Connected reports whether the connection is established. While it is being set up it returns false, nil. When it
// could not be, the error matches syscall.ECONNREFUSED, EHOSTUNREACH, ENETUNREACH or ETIMEDOUT; the Conn then still
// has to be closed. Receive half.
func (c *Conn) Connected() (bool, error) {
	if c.over {
		return false, errClosed("connection to " + c.remote.String())
	}
	var ok bool
	var err error
	if c.user != nil {
		ok, err = c.user.connected()
	} else {
		ok, err = c.kern.connected()
	}
	if (ok || err != nil) && c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
	return ok, err
}

// Peek returns what has arrived and was not discarded: pieces in order, borrowed as the package comment says, the
// slice of pieces itself until the next call of Peek or Discard. It may hold back octets past the first 128 KiB until
// some are discarded. With nothing there it returns nil, nil.
//
// Once the stream has ended and the pieces are all that is left of it, the error says so: io.EOF after the peer's
// FIN, else one that matches syscall.ECONNRESET, ETIMEDOUT and so on. Pieces returned with an error are good. Receive
// half.
func (c *Conn) Peek() ([][]byte, error) {
	if c.over {
		return nil, errClosed("connection to " + c.remote.String())
	}
	if c.user != nil {
		return c.user.peek()
	}
	return c.kern.peek()
}

// Discard drops the first n octets of what Peek returned, and the loan of them. It panics if Peek has not returned as
// many. Receive half.
func (c *Conn) Discard(n int) {
	if n == 0 {
		return
	}
	if c.user != nil {
		c.user.discard(n)
		return
	}
	c.kern.discard(n)
}

// Room returns how many octets Writev takes now. When it is too little an event follows once there is more. It is 0
// before the connection is established and after CloseWrite, Close, Abort or a failure. Send half.
func (c *Conn) Room() int {
	return c.out.room()
}

// Writev sends the parts in order, all or nothing. It borrows them for the call. More than Room allows is ErrNoRoom
// and changes nothing; any other error means that the stream is dead, or was never alive. Send half.
func (c *Conn) Writev(parts [][]byte) error {
	return c.out.writev(parts)
}

// Stage lends memory of TCP's own, StageSize octets of it, for Commit to send without a further copy. It returns nil
// if there is none, as with the system's TCP. Send half.
func (c *Conn) Stage() []byte {
	if c.user == nil {
		return nil
	}
	return c.user.lend()
}

// Commit sends the first n octets of what Stage lent, and takes all of it back; with n 0 it does only that. It takes no
// more than Room allows, and fails as Writev does. Send half.
func (c *Conn) Commit(n int) error { return c.user.commit(n) }

// MSS returns how many octets of the stream one TCP segment carries, options counted off (the EMSS of RFC 5044). It
// may change while the connection lives; before anything is known of the peer it is a low estimate. Send half.
func (c *Conn) MSS() int {
	if c.user != nil {
		return c.user.mss()
	}
	return c.kern.mss()
}

// CloseWrite sends FIN behind what was written. The other direction stays open. Calling it again changes nothing.
// Send half.
func (c *Conn) CloseWrite() error {
	return c.out.closeWrite()
}

// Abort resets the connection and gives up all it holds, octets not yet discarded included. A Writev that runs at the
// same time returns an error. No event follows. It may be called again, also after Close. Receive half.
func (c *Conn) Abort() { c.end(true) }

// Close lets go of the connection: what was written is still sent, then FIN unless CloseWrite did that, and TCP ends
// in its own time. Octets not yet discarded are given up, and if there are some TCP resets the connection, as RFC 2525
// Section 2.17 asks, for the peer to know. No event follows. It may be called again. Receive half.
func (c *Conn) Close() { c.end(false) }

func (c *Conn) end(abort bool) {
	if c.over {
		return
	}
	c.over = true
	if c.deadline != nil {
		c.deadline.Stop()
		c.deadline = nil
	}
	c.owner = nil
	if c.user != nil {
		c.user.end(abort)
		return
	}
	c.kern.end(abort)
}

// LocalAddr returns our address and port. It is known for certain once the connection is established. Receive half.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr returns the peer's address and port. Any goroutine.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// SetOwner leaves a value with the connection for Owner to return. Close and Abort forget it. Receive half.
func (c *Conn) SetOwner(owner any) { c.owner = owner }

// Owner returns what SetOwner left. Receive half.
func (c *Conn) Owner() any { return c.owner }

// startDeadline lets the attempt to connect fail after d.
func (c *Conn) startDeadline(d time.Duration) {
	c.deadline = time.AfterFunc(d, func() {
		c.late.Store(true)
		c.st.ready.push(Event{Conn: c})
	})
}

// serve does the work an event of c stands for and reports whether the user wants to see the event. Poll calls it.
func (c *Conn) serve() bool {
	c.out.serve()
	return !c.over
}

// happened reports whether there was something to tell before events of c were let through.
func (c *Conn) happened() bool {
	if c.st.Err() != nil || c.late.Load() {
		return true
	}
	if c.user != nil {
		return c.user.fresh.Load() || c.out.writable.Load()
	}
	return c.kern.happened()
}

// gone takes c out of everything the Stack knows. No event of it comes after that.
func (c *Conn) gone() {
	c.st.ready.drop(Event{Conn: c})
	c.st.mu.Lock()
	if _, ok := c.st.conns[c]; ok {
		delete(c.st.conns, c)
		c.st.peers.drop(c.remote)
	}
	c.st.mu.Unlock()
}

// deadBefore is the error of a connection that was reset before anyone looked at it.
const deadBefore = syscall.ECONNRESET
