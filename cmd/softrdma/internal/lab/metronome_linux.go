package lab

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// beat is how late a frame may leave because of the clock.
const beat = 100 * time.Microsecond

// metronome makes Go's timers fine while frames wait for their time: an idle
// program is woken for one by epoll, which counts in milliseconds, so that a
// delay of half of one would become a whole one. A timer of the kernel's own is
// exact, and when it wakes the program the others are looked at.
type metronome struct {
	timer *os.File
	hold  time.Duration // how long a frame may wait
	last  atomic.Int64  // when one came in, in nanoseconds since start
	start time.Time
	wake  chan struct{}
	done  chan struct{}
	ended sync.WaitGroup
}

// newMetronome starts one for frames that wait at most so long. It is nil, which
// does nothing, if they do not wait.
func newMetronome(hold time.Duration) (*metronome, error) {
	if hold == 0 {
		return nil, nil
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("no timer to be had: %w", err)
	}
	m := &metronome{
		timer: os.NewFile(uintptr(fd), "timer"), hold: hold + time.Millisecond,
		start: time.Now(), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	m.ended.Go(m.run)
	return m, nil
}

// frame tells that one came in.
func (m *metronome) frame() {
	if m == nil {
		return
	}
	m.last.Store(int64(time.Since(m.start)))
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run beats for as long as frames may be waiting.
func (m *metronome) run() {
	buf := make([]byte, 8)
	for {
		select {
		case <-m.wake:
		case <-m.done:
			return
		}
		if m.set(beat) != nil {
			return
		}
		for time.Since(m.start)-time.Duration(m.last.Load()) < m.hold {
			if _, err := m.timer.Read(buf); err != nil {
				return // closed
			}
		}
		_ = m.set(0)
	}
}

// set makes the timer come every so often, or never.
func (m *metronome) set(every time.Duration) error {
	t := unix.NsecToTimespec(int64(every))
	raw, err := m.timer.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) {
		_ = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Interval: t, Value: t}, nil)
	})
}

// close ends it.
func (m *metronome) close() {
	if m == nil {
		return
	}
	close(m.done)
	_ = m.timer.Close()
	m.ended.Wait()
}
