package main

import (
	"bufio"
	"encoding/gob"
	"net"
	"sync"
	"time"
)

// message is what the ends tell each other beside the traffic, over a stream that
// the tested link has no part in.
type message struct {
	Kind msgKind
	Lane int
	Gen  uint32
	N    int
	Text string
}

type msgKind uint8

const (
	msgGrant   msgKind = iota // N rounds may be sent in all: so many receives stand
	msgFinal                  // N rounds were sent, and that is all
	msgThrough                // all of yours has come, all of mine is completed
	msgAbort                  // ending N follows, in the midst of traffic
	msgEnded                  // this generation is over and done with here
	msgOver                   // no generation follows on this lane
	msgStop                   // time is up: finish the rounds under way
	msgReady                  // the device is open, Text is where it listens
	msgGone                   // the device is closed
	msgFailed                 // Text says what went wrong
)

// control is one end of that stream. Messages never wait for the peer to take
// them, so that who tells something may hold locks.
type control struct {
	conn net.Conn
	mu   sync.Mutex
	out  []message
	wake sync.Cond
	shut bool
	done sync.WaitGroup
}

// newControl takes conn. Each message of the peer goes to got, one at a time;
// at the end lost is told why.
func newControl(conn net.Conn, got func(message), lost func(error)) *control {
	c := &control{conn: conn}
	c.wake.L = &c.mu
	c.done.Go(c.write)
	c.done.Go(func() {
		d := gob.NewDecoder(bufio.NewReader(conn))
		for {
			var m message
			if err := d.Decode(&m); err != nil {
				lost(err)
				return
			}
			got(m)
		}
	})
	return c
}

func (c *control) tell(m message) {
	c.mu.Lock()
	c.out = append(c.out, m)
	c.mu.Unlock()
	c.wake.Signal()
}

// write ends with the stream's outgoing half, so that the peer's reader ends too.
func (c *control) write() {
	if half, ok := c.conn.(*net.UnixConn); ok {
		defer half.CloseWrite()
	}
	w := bufio.NewWriter(c.conn)
	e := gob.NewEncoder(w)
	for {
		c.mu.Lock()
		for len(c.out) == 0 && !c.shut {
			c.wake.Wait()
		}
		out := c.out
		c.out = nil
		c.mu.Unlock()
		if len(out) == 0 {
			return
		}
		for i := range out {
			if e.Encode(&out[i]) != nil {
				return // the reader hears of it too
			}
		}
		if w.Flush() != nil {
			return
		}
	}
}

// close ends the stream when all is said and the peer has closed it too, or takes
// too long for that.
func (c *control) close() {
	c.mu.Lock()
	c.shut = true
	c.mu.Unlock()
	c.wake.Signal()
	_ = c.conn.SetReadDeadline(time.Now().Add(10 * time.Second)) // fails on a stream that is dead already
	c.done.Wait()
	_ = c.conn.Close()
}
