package main

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/softrdma/softrdma/verbs"
)

// receiver is the incoming direction of a generation at one end: it keeps receives
// posted for the rounds of the peer's plan and checks all that comes.
type receiver struct {
	g *generation

	mu      sync.Mutex // guards what follows
	r       *rand.Rand // for what the peer need not know
	ledger  ledger
	rounds  [maxWindow]*round // expected, by number modulo the window
	now     int               // the round that is coming in
	op      int               // its first request that has not come
	final   int               // how many rounds the peer sends, once known; else -1
	stopped bool
}

func (v *receiver) init(g *generation) {
	v.g, v.final = g, -1
	v.r = rand.New(rand.NewPCG(g.o.Seed, uint64(g.lane.num)<<32|uint64(g.plan.gen)))
	v.ledger = newLedger(g.lane.num, g.plan.gen, true)
}

// prepare posts the receives of the first rounds.
func (v *receiver) prepare() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for num := range v.g.plan.window {
		if err := v.post(num); err != nil {
			return err
		}
	}
	return nil
}

// post posts the receives of a round.
func (v *receiver) post(num int) error {
	p := planRound(v.g.o, v.g.plan, 1-v.g.side, num)
	v.rounds[num%v.g.plan.window] = p
	var wrs []verbs.RecvWR
	for i := range p.ops {
		x := &p.ops[i]
		if !x.kind.sends() {
			continue
		}
		wr := verbs.RecvWR{ID: v.ledger.id()}
		for _, q := range x.recv {
			wr.SGL = append(wr.SGL, v.g.memory.mr[areaInbox].SGE(v.slot(p)+q.off, q.n))
		}
		v.ledger.post(entry{signaled: true, op: verbs.OpRecv, n: x.n, lenKnown: true})
		wrs = append(wrs, wr)
	}
	for len(wrs) > 0 {
		k := 1 + v.r.IntN(len(wrs))
		n, err := v.g.qp.PostRecv(wrs[:k])
		if err != nil || n != k {
			v.ledger.unpost(len(wrs) - n)
			return fmt.Errorf("receives for round %d, %d of %d taken: %w", num, n, k, err)
		}
		wrs = wrs[k:]
	}
	return nil
}

func (v *receiver) slot(p *round) int { return p.num % v.g.plan.window * v.g.o.slot() }

// completed takes a completion of the receive queue.
func (v *receiver) completed(wc *verbs.WC) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := v.ledger.complete(wc)
	if err != nil {
		v.g.fail(fmt.Errorf("receive queue: %w", err))
		return
	}
	if wc.Status != verbs.WCSuccess {
		v.g.flushed(wc)
		return
	}
	v.g.stats.completions.Add(1)
	v.g.stats.received.Add(1)
	v.g.touch()
	p := v.rounds[v.now%v.g.plan.window]
	for {
		x := &p.ops[v.op]
		if err := v.verify(p, x); err != nil {
			v.g.fail(fmt.Errorf("round %d, operation %d, %s of %d octets: %w", p.num, v.op, opNames[x.kind], x.n, err))
			return
		}
		v.op++
		if x.kind.sends() {
			break
		}
	}
	if v.op == len(p.ops) {
		v.finish(p)
	}
}

// verify checks what x has left here. A Write is known to have come with the Send
// behind it.
func (v *receiver) verify(p *round, x *op) error {
	m, slot := v.g.memory, v.slot(p)
	switch {
	case x.kind.writes():
		v.g.stats.octets.Add(uint64(x.n))
		return m.want(areaTarget, slot+x.there, x.n, x.what, x.from)
	case x.kind.sends():
		v.g.stats.octets.Add(uint64(x.n))
		return x.scatter(func(q piece, from int) error {
			return m.want(areaInbox, slot+q.off, q.n, x.what, from)
		})
	}
	return nil
}

// scatter calls f for each piece of a receive as far as the message fills it.
func (x *op) scatter(f func(q piece, from int) error) error {
	left := x.n
	for _, q := range x.recv {
		n := min(q.n, left)
		if err := f(piece{q.off, n}, x.from+x.n-left); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// finish ends a round: nothing but its requests may have touched inbox and target.
// Then it makes room for a further one.
func (v *receiver) finish(p *round) {
	m, slot := v.g.memory, v.slot(p)
	for i := range p.ops {
		x := &p.ops[i]
		if x.kind.writes() {
			m.restore(areaTarget, slot+x.there, x.n)
		}
		_ = x.scatter(func(q piece, _ int) error {
			m.restore(areaInbox, slot+q.off, q.n)
			return nil
		})
	}
	for _, a := range []int{areaInbox, areaTarget} {
		if err := m.untouched(a, slot, p.used[a]); err != nil {
			v.g.fail(fmt.Errorf("beside what round %d has brought: %w", p.num, err))
			return
		}
	}
	v.now, v.op = v.now+1, 0
	if v.stopped {
		return
	}
	if err := v.post(p.num + v.g.plan.window); err != nil {
		v.g.trouble(err)
		return
	}
	v.g.tell(msgGrant, v.now+v.g.plan.window)
	v.g.look()
}

// last tells how many rounds the peer has sent in all.
func (v *receiver) last(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.final = n
}

// through reports whether all has come.
func (v *receiver) through() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now == v.final
}

// stop keeps the receiver from posting more.
func (v *receiver) stop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopped = true
}

// settle is called when the queue pair is closed and all completions are in. What
// has come must be a prefix of what was sent.
func (v *receiver) settle() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ledger.open() {
		return fmt.Errorf("receive queue: %d receives have no completion, the first is number %d", len(v.ledger.pending), v.ledger.next)
	}
	m := v.g.memory
	f := prefix{m: m}
	for num := v.now; num < v.now+v.g.plan.window; num++ {
		p := v.rounds[num%v.g.plan.window]
		if p == nil || p.num != num {
			break // its receives were refused
		}
		for i := range p.ops {
			x := &p.ops[i]
			var err error
			switch {
			case x.kind.writes() && x.n > 0:
				err = f.next(areaTarget, piece{v.slot(p) + x.there, x.n}, x.what, x.from)
			case x.kind.sends():
				err = x.scatter(func(q piece, from int) error {
					return f.next(areaInbox, piece{v.slot(p) + q.off, q.n}, x.what, from)
				})
			}
			if err != nil {
				return fmt.Errorf("round %d, operation %d, %s of %d octets: %w", p.num, i, opNames[x.kind], x.n, err)
			}
		}
	}
	return nil
}
