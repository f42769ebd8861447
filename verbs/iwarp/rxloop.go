package iwarp

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
)

// receiver is the role of the receive goroutine: to poll the stack, parse,
// place and complete. One goroutine at a time has it, whoever holds mu. An
// application that polls a completion queue takes it over, because a second
// goroutine that waits for the same octets would cost a processor and gain
// nothing; the device's own goroutine naps meanwhile and comes back when the
// polling stops. In this package's comments "receive goroutine" means whoever
// has the role.
type receiver struct {
	mu     sync.Mutex
	events [64]netstack.Event // guarded by mu
	over   bool               // guarded by mu: the device is closed

	polled atomic.Bool   // applications poll
	polls  atomic.Uint64 // how often they did
	bell   chan struct{} // one token ends a nap
}

// nap is how long the receive goroutine leaves a device to polling
// applications before it looks whether they still do.
const nap = 500 * time.Microsecond

func (r *receiver) init() { r.bell = make(chan struct{}, 1) }

// rouse ends a nap.
func (r *receiver) rouse() {
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// rxLoop is the device's own receive goroutine.
func (d *device) rxLoop() {
	r := &d.role
	timer := time.NewTimer(nap)
	defer timer.Stop()
	for {
		seen := r.polls.Load()
		if d.receive(true) {
			// A peer that ended the connection, too, has yet to receive our side of it.
			d.stack.Linger(d.proto.DrainTimeout)
			return
		}
		if !r.polled.Load() {
			continue
		}
		timer.Reset(nap)
		select {
		case <-r.bell:
		case <-timer.C:
			if r.polls.Load() == seen {
				r.polled.Store(false)
			}
		}
	}
}

// receive does one turn of the role, and then sends what that or a peer's window
// has made ready: on a goroutine of its own it would only have to wait for a
// processor. The device's own goroutine waits for something to do if no
// application polls. It reports whether the device is closed.
func (d *device) receive(own bool) (closed bool) {
	r := &d.role
	if own {
		r.mu.Lock()
	} else if !r.mu.TryLock() {
		return false
	}
	if r.over {
		r.mu.Unlock()
		return true
	}
	wait := time.Duration(0)
	if own && !r.polled.Load() {
		wait = d.pollWait()
	}
	n := d.stack.Poll(r.events[:], wait)
	d.txq.begin()
	defer d.txq.end()
	for _, e := range r.events[:n] {
		if e.Listener != nil {
			if l := d.listeners[e.Listener]; l != nil {
				l.arrived()
			}
		} else if c, ok := e.Conn.Owner().(*conn); ok {
			c.ready()
		}
	}
	clear(r.events[:n])
	if err := d.stack.Err(); err != nil && !d.dead {
		d.died(err)
	}
	if met := d.stack.Conflict(); met != nil {
		d.conflict(met)
	}
	if len(d.again) > 0 {
		d.turns()
	}
	if own {
		d.timers.expire(time.Now())
	}
	closed = d.commands()
	r.over = closed
	r.mu.Unlock()
	d.serveQueued()
	return closed
}

// died ends what a stack without a link cannot serve any more.
func (d *device) died(err error) {
	d.dead = true
	d.event(verbs.AsyncEvent{Type: verbs.EventDeviceFatal, Err: err, Time: time.Now().UnixNano()})
	for _, l := range d.listeners {
		l.shut()
	}
	for c := range d.conns {
		c.failDial(err)
		c.reset(err)
	}
}

// conflict tells that another host uses an address of ours. Connections go on,
// as far as that host lets them.
func (d *device) conflict(met *netstack.Conflict) {
	d.event(verbs.AsyncEvent{Type: verbs.EventGIDChange, Err: met, Time: time.Now().UnixNano()})
	d.log.log(slog.LevelWarn, met.Error(), "frames", met.Count)
}

// progress is the turn of an application that has polled in vain.
func (d *device) progress() {
	r := &d.role
	r.polls.Add(1)
	if !r.polled.Load() {
		r.polled.Store(true)
		d.stack.Wake() // the device's own goroutine leaves the stack to us
	}
	if d.receive(false) {
		r.rouse()
	}
}

// serveQueued sends what is ready to be sent.
func (d *device) serveQueued() {
	for range progressTurns {
		q := d.txq.tryPop()
		if q == nil {
			return
		}
		q.doorbell()
	}
}

// progressTurns bounds the queue pairs that are served before the port, or an
// application's completion, is looked for again.
const progressTurns = 4

// parked tells that an application goes to sleep: nobody else may be polling.
func (d *device) parked() {
	d.role.polled.Store(false)
	d.role.rouse()
}

// pollWait is how long the stack may park the receive goroutine.
func (d *device) pollWait() time.Duration {
	if len(d.again) > 0 {
		return 0
	}
	return d.timers.next()
}

// turnAgain gives c another turn after its neighbours.
func (d *device) turnAgain(c *conn) {
	if !c.queued {
		c.queued = true
		d.again = append(d.again, c)
	}
}

// turns gives those that had more to do another turn.
func (d *device) turns() {
	runtime.Gosched() // as at the end of a turn to send
	now := d.again
	d.again, d.before = d.before, nil
	for _, c := range now {
		c.queued = false
		c.ready()
	}
	clear(now)
	d.before = now[:0]
}

// commands runs what other goroutines asked for; true when the loop shall end.
func (d *device) commands() bool {
	if !d.asked.Load() && !d.stopping {
		return false
	}
	for {
		d.mu.Lock()
		cmds := d.cmds
		d.cmds = nil
		d.asked.Store(false)
		if len(cmds) == 0 {
			d.ended = d.stopping && len(d.conns) == 0
			end := d.ended
			d.mu.Unlock()
			return end
		}
		d.mu.Unlock()
		for _, f := range cmds {
			f()
		}
	}
}
