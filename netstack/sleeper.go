package netstack

import "time"

// sleeper is where Poll sleeps when it does not sleep in the kernel.
type sleeper struct {
	bed   chan struct{} // one token ends the sleep
	alarm *time.Timer   // Poll's own
}

func newSleeper() *sleeper {
	s := &sleeper{bed: make(chan struct{}, 1), alarm: time.NewTimer(time.Hour)}
	s.alarm.Stop()
	return s
}

// kick ends a sleep, or keeps the next one from beginning.
func (s *sleeper) kick() {
	select {
	case s.bed <- struct{}{}:
	default:
	}
}

// sleep blocks until kick, or for d unless d is below 0.
func (s *sleeper) sleep(d time.Duration) {
	if d < 0 {
		<-s.bed
		return
	}
	s.alarm.Reset(d)
	select {
	case <-s.bed:
	case <-s.alarm.C:
	}
	s.alarm.Stop()
}
