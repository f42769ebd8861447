package netstack

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/softrdma/softrdma/internal/yield"
	"github.com/softrdma/softrdma/pktio"
)

// Receiving frames is the work of whoever calls Poll: it looks at the port each time, and again and again while it
// spins, so that the thread that waits for octets is the one that takes them off the port. Two goroutines spinning for
// the same octets would cost a core and gain nothing.
//
// The pump is the goroutine that receives when Poll cannot. While Poll sleeps the pump waits in the port. While Poll is
// awake the pump waits for Poll to come by no more: a caller busy with what he got must not hold up TCP.

const (
	// rxBatch is how many frames are taken from the port at once.
	rxBatch = 64
	// watch is how long the port may go without anyone looking at it while Poll is awake. The runtime's poller, which keeps
	// the time for it, may add as much.
	watch = 500 * time.Microsecond
	// putOff is after how many looks the timer for it is set anew. So it does not go off while Poll keeps coming by, for
	// then a thread wakes up for nothing and takes a core from somebody, where they are few.
	putOff = 256
)

// start begins to receive. fail is called once if the port gives up by itself.
func (l *link) start(spin time.Duration, fail func(error)) {
	l.rx.frames = make([]pktio.Frame, rxBatch)
	l.rx.spin = spin
	l.rx.fail = fail
	if l.hostGSO() {
		l.rx.rooms.init(l.rx.frames)
	}
	l.rx.timer = time.NewTimer(watch)
	l.rx.roused = make(chan struct{}, 1)
	l.rx.stop = make(chan struct{})
	l.rx.done = make(chan struct{})
	go l.pump()
}

// stop closes the port and waits for the pump to end.
func (l *link) stop() error {
	err := l.port.Close()
	if l.others.again != nil {
		l.others.again.Stop()
	}
	if l.rx.done != nil {
		close(l.rx.stop)
		<-l.rx.done
		l.rx.mu.Lock()
		l.rx.rooms.release()
		l.rx.mu.Unlock()
	}
	return err
}

// look receives what the port has, for Poll, and returns the number of frames, and whether they were more than inline
// can do. With the pump at it already there is nothing to do.
func (l *link) look() (n int, handed bool) {
	if !l.rx.polled.Load() {
		l.rx.polled.Store(true)
	}
	if !l.rx.mu.TryLock() {
		return 0, false
	}
	defer l.rx.mu.Unlock()
	if l.rx.looks.Add(1)%putOff == 0 {
		l.rx.timer.Reset(watch)
	}
	n, err := l.port.Recv(l.rx.frames, 0)
	if n == 0 {
		l.rx.inline.settle(false)
	}
	l.take(n, err)
	l.rx.inline.acknowledge(false)
	return n, l.handedOver()
}

// streamFrom is after how many octets that came without one that went this is a stream.
const streamFrom = 4 << 20

// streams reports whether octets have come for some time and nobody here has answered: a peer writes all it can. For Poll,
// which has found nothing. What comes while it rests comes together then: that takes fewer looks, acknowledgements and
// turns, and nobody waits for an answer.
func (l *link) streams() bool {
	s, in := &l.rx.stream, l.count.octetsIn.Load()
	if said := l.said.Load(); s.said != said {
		s.said, s.from = said, in
	}
	return in-s.from >= streamFrom
}

// leave tells the pump that Poll goes to sleep.
func (l *link) leave() {
	l.rx.polled.Store(false)
	// With the pump at it already, it does that before it waits.
	if l.rx.mu.TryLock() {
		l.rx.inline.acknowledge(true)
		l.rx.mu.Unlock()
	}
	select {
	case l.rx.roused <- struct{}{}:
	default:
	}
}

// pump receives while Poll does not, until the port is closed or gives up.
func (l *link) pump() {
	defer close(l.rx.done)
	defer l.rx.timer.Stop()
	for ok := true; ok; {
		if !l.rx.polled.Load() {
			ok = l.wait()
			continue
		}
		looks := l.rx.looks.Load()
		l.rx.timer.Reset(watch)
		select {
		case <-l.rx.stop:
			ok = l.catchUp() // the port takes back what it lent
		case <-l.rx.roused:
		case <-l.rx.timer.C:
			if l.rx.looks.Load() == looks {
				ok = l.catchUp()
			}
		}
	}
}

// wait receives once, as long as that may take, unless Poll comes back. It returns false when the port is closed.
func (l *link) wait() bool {
	l.rx.mu.Lock()
	defer l.rx.mu.Unlock()
	l.rx.inline.acknowledge(true)
	n, err := l.port.Recv(l.rx.frames, 0)
	for sp := newSpinner(l.rx.spin); n == 0 && err == nil && sp.again(); {
		if l.rx.polled.Load() {
			return true
		}
		n, err = l.port.Recv(l.rx.frames, 0)
	}
	if n == 0 && err == nil {
		n, err = l.port.Recv(l.rx.frames, -1)
	}
	ok := l.take(n, err)
	if l.handedOver() {
		runtime.Gosched()
	} else {
		yield.Now() // to Poll, if there is something for it
	}
	return ok
}

// handedOver reports whether goroutines of gVisor have work since it was asked last. On this P they start sooner than on
// another, so let them. Caller holds rx.mu.
func (l *link) handedOver() bool {
	handed := l.rx.handed
	l.rx.handed = false
	return handed
}

// catchUp receives all there is. It returns false when the port is closed.
func (l *link) catchUp() bool {
	l.rx.mu.Lock()
	defer l.rx.mu.Unlock()
	defer l.rx.inline.acknowledge(true)
	for {
		n, err := l.port.Recv(l.rx.frames, 0)
		if !l.take(n, err) || n == 0 {
			return err == nil
		}
		l.rx.inline.acknowledge(false) // what keeps coming may be of others
		if l.handedOver() {
			runtime.Gosched()
		}
	}
}

// take hands the n frames just received to gVisor. It returns false if err says that there will be no more. Caller
// holds rx.mu.
func (l *link) take(n int, err error) bool {
	if err != nil {
		if !errors.Is(err, net.ErrClosed) && !l.rx.failed {
			l.rx.failed = true
			l.rx.fail(fmt.Errorf("netstack: interface %s: %w", l.info.Name, err))
		}
		return false
	}
	if n > 0 {
		l.clock.hold()
		defer l.clock.release()
	}
	l.rx.join = n > 1
	for i := range n {
		l.deliver(&l.rx.frames[i])
	}
	l.endRuns()
	l.rx.inline.process(l.rx.polled.Load())
	return true
}
