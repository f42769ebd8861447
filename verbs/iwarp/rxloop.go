package iwarp

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/internal/yield"
	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
)

// receiver is the role of the receive goroutine: to poll the stack, parse,
// place and complete. One goroutine at a time has it, whoever holds mu. An
// application that polls a completion queue takes it over, because a second
// goroutine that waits for the same octets would cost a processor and gain
// nothing; the device's own goroutine naps meanwhile and comes back when the
// polling stops. In this package's comments "receive goroutine" means whoever
// has the role. Under ThreadsIO and ThreadsSplit that is always the device's own.
type receiver struct {
	mu     sync.Mutex
	events [64]netstack.Event // guarded by mu
	over   bool               // guarded by mu: the device is closed

	polled atomic.Bool   // applications poll
	polls  atomic.Uint64 // how often they did
	due    atomic.Bool   // their next turn has to look at deadlines, for want of the device's own
	bell   chan struct{} // one token ends a nap
	timer  *time.Timer   // ends one too

	own, apps atomic.Uint64 // turns that found something, of the device's goroutine and of applications
}

// nap is how long the receive goroutine leaves a device to polling
// applications before it looks whether they still do.
const nap = 500 * time.Microsecond

// napPolls is after how many polls the nap begins anew, deadlines are looked at
// and other goroutines get their turn. So no nap ends while applications keep
// polling, for then a thread wakes up for nothing and takes a core from
// somebody, where they are few.
const napPolls = 256

func (r *receiver) init() {
	r.bell, r.timer = make(chan struct{}, 1), time.NewTimer(nap)
}

// rouse ends a nap.
func (r *receiver) rouse() {
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// rxLoop is the device's own receive goroutine; under ThreadsIO it sends, too.
func (d *device) rxLoop() {
	r := &d.role
	defer r.timer.Stop()
	quiet := 0 // naps in a row without a poll
	for {
		seen := r.polls.Load()
		if d.receive(true) {
			// A peer that ended the connection, too, has yet to receive our side of it.
			d.stack.Linger(d.proto.DrainTimeout)
			return
		}
		if d.model == ThreadsIO {
			d.sendQueued(1, &d.txq.own, true) // it receives in between: nobody's transfer keeps it to itself
		}
		if !r.polled.Load() {
			quiet = 0
			continue
		}
		d.txq.resume()
		r.timer.Reset(nap)
		select {
		case <-r.bell:
		case <-r.timer.C:
			if quiet++; r.polls.Load() != seen {
				quiet = 0
			}
			if quiet >= d.model.standInAfter() {
				r.polled.Store(false)
			}
		}
	}
}

// receive does one turn of the role. The device's own goroutine waits for
// something to do if no application polls, and may then send what that, or a
// peer's window, has made ready: another goroutine would have to wait for a
// processor first. It reports whether the device is closed.
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
	polled := own && r.polled.Load()
	wait := time.Duration(0)
	if own && !polled {
		wait = d.pollWait()
	}
	sends := own && d.model == ThreadsAdaptive
	if !polled || d.model != ThreadsRunToCompletion { // where it is the application's, all of it is
		n := d.stack.Poll(r.events[:], wait)
		if sends {
			d.txq.begin()
			defer d.txq.pause()
		}
		d.arrived(r.events[:n], own)
	}
	if err := d.stack.Err(); err != nil && !d.dead {
		d.died(err)
	}
	if met := d.stack.Conflict(); met != nil {
		d.conflict(met)
	}
	if own || r.due.Load() {
		r.due.Store(false)
		d.timers.expire(time.Now())
	}
	closed = d.commands()
	r.over = closed
	r.mu.Unlock()
	if sends && !closed {
		d.sendQueued(1, &d.txq.own, true) // it receives in between, as under ThreadsIO
	}
	return closed
}

// arrived receives what the stack told of.
func (d *device) arrived(events []netstack.Event, own bool) {
	r := &d.role
	if len(events) > 0 {
		if own {
			r.own.Add(1)
		} else {
			r.apps.Add(1)
		}
	}
	for _, e := range events {
		if e.Listener != nil {
			if l := d.listeners[e.Listener]; l != nil {
				l.arrived()
			}
		} else if c, ok := e.Conn.Owner().(*conn); ok {
			c.ready()
		}
	}
	clear(events)
	if len(d.again) > 0 {
		d.turns()
	}
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

// progress is the turn of an application that has polled in vain. It also
// sends what the turn, or a peer's window, has made ready: the application's
// goroutine is the sending one of the two.
func (d *device) progress() {
	if r := &d.role; r.polls.Add(1)%napPolls == 0 {
		r.timer.Reset(nap)
		r.due.Store(true)
		yield.Now()
		if d.model == ThreadsSplit {
			yield.Thread() // as giveWay
		}
	}
	d.txq.leave()
	d.txq.begin()
	defer d.txq.end()
	if d.model.pollsReceive() && d.takeRole() {
		return
	}
	d.sendQueued(progressTurns, &d.txq.apps, false)
}

// giveWay is the turn of an application that has polled in vain and has others do
// all the work: they may be waiting for its processor, which they get at the
// scheduler's next tick otherwise, after milliseconds.
func (d *device) giveWay() {
	if d.role.polls.Add(1)%napPolls == 0 {
		yield.Now()
		yield.Thread()
	}
}

// takeRole does a turn of the receive goroutine, which leaves the stack to us. It
// reports whether the device is closed.
func (d *device) takeRole() bool {
	r := &d.role
	if !r.polled.Load() {
		r.polled.Store(true)
		d.stack.Wake()
	}
	over := d.receive(false)
	if over {
		r.rouse()
	}
	return over
}

// sendQueued serves queue pairs that wait to send, most at most; turns counts them.
// The receive goroutine is brief, as it has to look at the port again.
func (d *device) sendQueued(most int, turns *atomic.Uint64, brief bool) {
	for range most {
		q := d.txq.tryPop()
		if q == nil {
			return
		}
		q.send(turns, brief)
	}
}

// progressTurns bounds the queue pairs that are served before the port, or an
// application's completion, is looked for again.
const progressTurns = 4

// parked tells that an application goes to sleep: nobody else may be polling.
func (d *device) parked() {
	d.role.polled.Store(false)
	d.role.rouse()
	d.txq.recall()
}

// pollWait is how long the stack may park the receive goroutine.
func (d *device) pollWait() time.Duration {
	if len(d.again) > 0 || (d.model == ThreadsIO || d.model == ThreadsAdaptive) && d.txq.some.Load() {
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
