package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// pollMode is how completions are taken: every way that there is.
type pollMode uint8

const (
	pollWait      pollMode = iota // CQ.Wait
	pollNotified                  // CQ.Notify, Poll, then the channel
	pollSolicited                 // the same, woken by solicited completions alone
	pollAll                       // CQ.All
	pollBusy                      // CQ.Poll over and over, with naps
	pollModes
)

// poller takes the completions of one queue.
type poller struct {
	cq   *verbs.CQ
	mode pollMode
	fail func(error)
	gone sync.WaitGroup

	mu     sync.Mutex
	qps    map[uint32]*generation
	turn   context.Context // ends when something is asked
	end    context.CancelFunc
	asked  []chan struct{}
	closed bool
}

func newPoller(cq *verbs.CQ, mode pollMode, fail func(error)) *poller {
	p := &poller{cq: cq, mode: mode, fail: fail, qps: map[uint32]*generation{}}
	p.turn, p.end = context.WithCancel(context.Background())
	p.gone.Go(p.run)
	return p
}

func (p *poller) add(g *generation, qp *verbs.QP) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.qps[qp.Num()] = g
}

func (p *poller) remove(qp *verbs.QP) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.qps, qp.Num())
}

// barrier returns when every completion that is in the queue now has been dealt with.
func (p *poller) barrier() {
	answer := make(chan struct{})
	p.ask(answer, false)
	<-answer
}

// close stops polling and closes the queue.
func (p *poller) close() error {
	p.ask(make(chan struct{}), true)
	p.gone.Wait()
	return p.cq.Close()
}

func (p *poller) ask(answer chan struct{}, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, answer)
	p.closed = p.closed || closed
	p.end()
}

func (p *poller) run() {
	wcs := make([]verbs.WC, 16)
	for {
		p.mu.Lock()
		ctx := p.turn
		p.mu.Unlock()
		if err := p.serve(ctx, wcs); ctx.Err() == nil {
			p.fail(fmt.Errorf("polling %v: %w", p.cq, err))
			<-ctx.Done()
		}
		p.mu.Lock()
		asked, closed := p.asked, p.closed
		p.asked = nil
		p.turn, p.end = context.WithCancel(context.Background())
		p.mu.Unlock()
		for {
			n, _ := p.cq.Poll(wcs) // an error shows in serve, too
			if n == 0 {
				break
			}
			p.handle(wcs[:n])
		}
		for _, a := range asked {
			close(a)
		}
		if closed {
			p.end()
			return
		}
	}
}

// serve takes completions until ctx ends.
func (p *poller) serve(ctx context.Context, wcs []verbs.WC) error {
	switch p.mode {
	case pollAll:
		for wc, err := range p.cq.All(ctx) {
			if err != nil {
				return err
			}
			wcs[0] = wc
			p.handle(wcs[:1])
		}
		return nil
	case pollBusy:
		return p.busy(ctx, wcs)
	case pollNotified, pollSolicited:
		return p.notified(ctx, wcs)
	}
	for {
		n, err := p.cq.Wait(ctx, wcs)
		if err != nil {
			return err
		}
		p.handle(wcs[:n])
	}
}

func (p *poller) notified(ctx context.Context, wcs []verbs.WC) error {
	for {
		event := p.cq.Notify(p.mode == pollSolicited)
		n, err := p.cq.Poll(wcs)
		if err != nil {
			return err
		}
		if n > 0 {
			p.handle(wcs[:n])
			continue
		}
		select {
		case <-event:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *poller) busy(ctx context.Context, wcs []verbs.WC) error {
	for empty := 0; ctx.Err() == nil; empty++ {
		n, err := p.cq.Poll(wcs)
		if err != nil {
			return err
		}
		if n > 0 {
			empty = 0
		}
		p.handle(wcs[:n])
		runtime.Gosched()
		if empty > 100 { // the processors are few
			time.Sleep(300 * time.Microsecond)
		}
	}
	return nil
}

func (p *poller) handle(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		p.mu.Lock()
		g := p.qps[wc.QP]
		p.mu.Unlock()
		if g == nil {
			p.fail(fmt.Errorf("%v: completion of a queue pair that is not there: %+v", p.cq, *wc))
			continue
		}
		g.completed(wc)
	}
}
