package main

import (
	"runtime"
	"sync"
)

// processors is what goroutines run on. With our own TCP/IP stack one goroutine at a time has most of the work, and where
// the host has two processors, the kernel and maybe the peer need the other one. Go's scheduler spreads goroutines over
// all there are, and each that wakes up there takes the processor from somebody: bulk data go a third faster on one.
type processors struct {
	all int // that Go had at first

	mu   sync.Mutex
	few  bool // our own stack is in use
	wide int  // calls of widen that are not over
}

// newProcessors leaves all as it is if the user has said how many there are to be.
func newProcessors(env func(string) string) *processors {
	p := &processors{all: runtime.GOMAXPROCS(0)}
	if env("GOMAXPROCS") != "" {
		p.all = 0
	}
	return p
}

// narrow is for a process with our own stack. A nil processors does nothing.
func (p *processors) narrow() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.few = p.all == 2
	p.set()
}

// widen is for what is not ours to judge, the baseline of the kernel's TCP: it has what Go has by itself until back is
// called.
func (p *processors) widen() (back func()) {
	if p == nil {
		return func() {}
	}
	add := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wide += n
		p.set()
	}
	add(1)
	return func() { add(-1) }
}

func (p *processors) set() {
	n := p.all
	if p.few && p.wide == 0 {
		n = 1
	}
	if p.all == 2 && runtime.GOMAXPROCS(0) != n {
		runtime.GOMAXPROCS(n)
	}
}
