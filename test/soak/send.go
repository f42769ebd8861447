package main

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// sender is the outgoing direction of a generation at one end: it posts the rounds
// of its plan and checks what its reads have brought.
type sender struct {
	g *generation

	mu       sync.Mutex // guards what follows
	wake     sync.Cond
	ledger   ledger
	rounds   [maxWindow]*round // under way, by number modulo the window
	starts   [maxWindow]int    // the number of their first request
	granted  int               // rounds that the peer is ready for
	begun    int
	done     int // rounds, all requests completed
	final    int // how many there will be, once known; else -1
	verified int // requests whose reads were checked
	stopped  bool

	wrs []verbs.SendWR
}

func (s *sender) init(g *generation) {
	s.g, s.final, s.granted = g, -1, g.plan.window
	s.wake.L = &s.mu
	s.ledger = newLedger(g.lane.num, g.plan.gen, false)
}

// run posts round after round.
func (s *sender) run() {
	for num := 0; s.begin(num); num++ {
		p := planRound(s.g.o, s.g.plan, s.g.side, num)
		s.fill(p)
		if !s.post(p) {
			return
		}
		s.g.idle(num)
	}
}

// begin waits until round num may be sent; false when there is none.
func (s *sender) begin(num int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.stopped:
			return false
		case num >= s.g.plan.rounds[s.g.side] || s.g.end.stopping.Load():
			s.final = num
			s.g.tell(msgFinal, num)
			s.g.look()
			return false
		case num < s.granted && num-s.done < s.g.plan.window:
			s.begun++
			s.g.reached(num)
			return true
		}
		s.wake.Wait()
	}
}

// fill puts the payload of a round in place.
func (s *sender) fill(p *round) {
	m := s.g.memory
	for i := range p.ops {
		x := &p.ops[i]
		if x.kind != opSend && x.kind != opWrite {
			continue
		}
		at := x.from
		for _, q := range x.local {
			m.pat.fill(m.at(areaSource, s.slot(p)+q.off, q.n), x.what, at)
			at += q.n
		}
	}
}

func (s *sender) slot(p *round) int { return p.num % s.g.plan.window * s.g.o.slot() }

// post posts a round; false when the generation has ended.
func (s *sender) post(p *round) bool {
	s.mu.Lock()
	i := p.num % s.g.plan.window
	s.rounds[i], s.starts[i] = p, s.ledger.next+len(s.ledger.pending)
	s.mu.Unlock()
	ops := p.ops
	for _, k := range p.batches {
		if !s.batch(p, ops[:k]) {
			return false
		}
		ops = ops[k:]
	}
	return true
}

// batch posts requests in as few calls as the queue allows.
func (s *sender) batch(p *round, ops []op) bool {
	s.mu.Lock()
	s.wrs = s.wrs[:0]
	for i := range ops {
		x := &ops[i]
		wr := s.request(p, x)
		wr.ID = s.ledger.id()
		s.ledger.post(entry{
			signaled: x.flags&verbs.SendSignaled != 0 || s.g.plan.ends[s.g.side].qp.SignalAll,
			op:       x.kind.verb(), n: x.n, lenKnown: x.kind.reads(),
		})
		s.wrs = append(s.wrs, wr)
	}
	s.mu.Unlock()
	wrs := s.wrs
	for len(wrs) > 0 {
		n, err := s.g.qp.PostSend(wrs)
		if n < len(wrs) && err == nil {
			err = fmt.Errorf("PostSend took %d of %d requests and gave no error", n, len(wrs))
		}
		for i := range n {
			s.taken(p, &ops[i])
		}
		wrs, ops = wrs[n:], ops[n:]
		switch {
		case errors.Is(err, verbs.ErrQueueFull):
			s.g.stats.queueFull.Add(1)
			time.Sleep(50 * time.Microsecond)
		case err != nil:
			s.mu.Lock()
			s.ledger.unpost(len(wrs))
			s.mu.Unlock()
			s.g.trouble(fmt.Errorf("round %d: %w", p.num, err))
			return false
		}
	}
	s.g.stats.batches.Add(1)
	return true
}

// request makes the work request of x, without an ID.
func (s *sender) request(p *round, x *op) verbs.SendWR {
	m, slot := s.g.memory, s.slot(p)
	wr := verbs.SendWR{Op: x.kind.verb(), Flags: x.flags}
	switch {
	case x.plain && x.n > 0:
		wr.Inline = m.at(areaSource, slot+x.local[0].off, x.n)
		wr.Flags &^= verbs.SendInline // it goes without saying
	default:
		for _, q := range x.local {
			wr.SGL = append(wr.SGL, m.mr[x.area].SGE(slot+q.off, q.n))
		}
		if !x.kind.reads() && x.n%3 == 0 { // an element that stands for nothing
			wr.SGL = append(wr.SGL, verbs.SGE{})
		}
	}
	switch {
	case x.kind == opRead:
		wr.Remote = s.g.peer[areaExport].Slice(x.there, x.n)
	case x.kind == opReadBack || x.kind.writes():
		wr.Remote = s.g.peer[areaTarget].Slice(slot+x.there, x.n)
	}
	return wr
}

// taken notes a request that is in. Inline data are ours again at once.
func (s *sender) taken(p *round, x *op) {
	s.g.stats.posted[x.kind].Add(1)
	if x.flags&verbs.SendInline == 0 {
		return
	}
	s.g.stats.inline.Add(1)
	m := s.g.memory
	for _, q := range x.local {
		m.pat.fill(m.at(areaSource, s.slot(p)+q.off, q.n), mark{kind: markTaken, side: m.side, lane: m.lane}, 0)
	}
}

// completed takes a completion of the send queue.
func (s *sender) completed(wc *verbs.WC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	num, err := s.ledger.complete(wc)
	if err != nil {
		s.g.fail(fmt.Errorf("send queue: %w", err))
		return
	}
	if wc.Status != verbs.WCSuccess {
		s.g.flushed(wc)
		return
	}
	s.g.stats.completions.Add(1)
	s.g.touch()
	for ; s.verified <= num; s.verified++ {
		p, i := s.find(s.verified)
		if err := s.verify(p, &p.ops[i]); err != nil {
			s.g.fail(fmt.Errorf("round %d, operation %d, %s of %d octets: %w", p.num, i, opNames[p.ops[i].kind], p.ops[i].n, err))
			return
		}
		if i == len(p.ops)-1 {
			s.finish(p)
		}
	}
}

// find returns the round of a request and which of it that is.
func (s *sender) find(num int) (*round, int) {
	k := s.done % s.g.plan.window
	return s.rounds[k], num - s.starts[k]
}

// verify checks what a completed request has left here.
func (s *sender) verify(p *round, x *op) error {
	m, slot := s.g.memory, s.slot(p)
	switch {
	case x.kind.reads():
		s.g.stats.octets.Add(uint64(x.n))
		return m.want(areaSink, slot+x.local[0].off, x.n, x.what, x.from)
	case x.area == areaSource && x.flags&verbs.SendInline == 0 && p.num%4 == 0:
		at := x.from
		for _, q := range x.local {
			if err := m.want(areaSource, slot+q.off, q.n, x.what, at); err != nil {
				return fmt.Errorf("the source was changed: %w", err)
			}
			at += q.n
		}
	}
	return nil
}

// finish ends a round: nothing but its reads may have touched the sink.
func (s *sender) finish(p *round) {
	m, slot := s.g.memory, s.slot(p)
	for i := range p.ops {
		if x := &p.ops[i]; x.kind.reads() && x.n > 0 {
			m.restore(areaSink, slot+x.local[0].off, x.n)
		}
	}
	if err := m.untouched(areaSink, slot, p.used[areaSink]); err != nil {
		s.g.fail(fmt.Errorf("beside the reads of round %d: %w", p.num, err))
	}
	s.done++
	s.g.stats.rounds.Add(1)
	s.wake.Broadcast()
	s.g.look()
}

// grant lets the sender go on until it has sent n rounds.
func (s *sender) grant(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted = max(s.granted, n)
	s.wake.Broadcast()
}

// through reports whether all is sent and completed.
func (s *sender) through() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done == s.final
}

// stop keeps the sender from posting more.
func (s *sender) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.wake.Broadcast()
}

// settle is called when the queue pair is closed and all completions are in. What
// reads have brought must be a prefix of what they should.
func (s *sender) settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.open() {
		return fmt.Errorf("send queue: %d requests have no completion, the first is number %d", len(s.ledger.pending), s.ledger.next)
	}
	m := s.g.memory
	prefix := prefix{m: m}
	for num := s.done; num < s.begun; num++ {
		p := s.rounds[num%s.g.plan.window]
		if p == nil || p.num != num {
			break // begun, not posted
		}
		for i := range p.ops {
			if x := &p.ops[i]; x.kind.reads() && x.n > 0 {
				piece := piece{s.slot(p) + x.local[0].off, x.n}
				if err := prefix.next(areaSink, piece, x.what, x.from); err != nil {
					return fmt.Errorf("reads of round %d, operation %d: %w", p.num, i, err)
				}
			}
		}
	}
	return nil
}

// prefix checks that of octets that come one after the other those that have come are
// the first ones, and makes all untouched again.
type prefix struct {
	m     *memory
	ended bool
}

func (f *prefix) next(area int, p piece, what mark, from int) error {
	n := 0
	var err error
	if f.ended {
		err = f.m.untouched(area, p.off, p.n)
	} else {
		n, err = f.m.placed(area, p.off, p.n, what, from)
	}
	if err != nil {
		return fmt.Errorf("what came before the end is no prefix of what was sent, or was changed: %w", err)
	}
	f.ended = f.ended || n < p.n
	f.m.restore(area, p.off, n)
	return nil
}
