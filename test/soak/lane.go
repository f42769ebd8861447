package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// lane is one end of a queue pair that connects again and again.
type lane struct {
	*end
	num    int
	memory *memory
	calls  chan *rdmacm.Request // of the peer, at the listening end

	last  atomic.Int64 // when there was progress, in nanoseconds since the epoch
	doing atomic.Pointer[string]

	mu    sync.Mutex // guards what follows
	gen   *generation
	early []message // for a generation that is not there yet
	ended uint32    // the last generation that is over at the peer
	over  bool      // the peer begins no further one
	news  sync.Cond
}

func newLane(e *end, num int) *lane {
	l := &lane{end: e, num: num, memory: newMemory(e.o, e.side, num), calls: make(chan *rdmacm.Request, 4)}
	l.news.L = &l.mu
	l.stage("idle")
	return l
}

// stage says what the lane does, for reports of a hang.
func (l *lane) stage(s string) {
	l.doing.Store(&s)
	l.touch()
}

func (l *lane) touch() { l.last.Store(time.Now().UnixNano()) }

// run connects, moves traffic and ends, over and over.
func (l *lane) run() {
	defer l.stage("")
	for num := uint32(1); !l.failed(); num++ {
		if l.side == dialing && l.stopping.Load() {
			l.ctl.tell(message{Kind: msgOver, Lane: l.num})
			return
		}
		g, err := l.newGeneration(num)
		if err != nil {
			l.fail(fmt.Errorf("end %s, lane %d, generation %d: %w", sideName(l.side), l.num, num, err))
			return
		}
		l.begin(g)
		more := l.connect(g)
		if more && g.conn != nil {
			l.stage("moving traffic")
			g.run(l.ctx)
		}
		g.close()
		if !more {
			return
		}
		l.ctl.tell(message{Kind: msgEnded, Lane: l.num, Gen: num})
		l.stage("waiting for the peer to end generation " + fmt.Sprint(num))
		l.await(num)
	}
}

// begin makes g the generation that messages go to.
func (l *lane) begin(g *generation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gen = g
	for _, m := range l.early {
		if m.Gen == g.plan.gen {
			g.got(m)
		}
	}
	l.early = nil
	g.look() // at what was told before
}

// await waits until the peer is through with a generation, too.
func (l *lane) await(num uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gen = nil
	for l.ended < num && !l.over && !l.failed() {
		l.news.Wait()
	}
}

// wake makes await look again.
func (l *lane) wake() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news.Broadcast()
}

// got takes a message of the peer about this lane.
func (l *lane) got(m message) {
	l.touch()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case m.Kind == msgEnded:
		l.ended = m.Gen
		l.news.Broadcast()
	case m.Kind == msgOver:
		l.over = true
		l.news.Broadcast()
		if l.gen != nil {
			l.gen.look()
		}
	case l.gen != nil && l.gen.plan.gen == m.Gen:
		l.gen.got(m)
	default:
		l.early = append(l.early, m)
	}
}

// connect connects g; false when no generation follows. Without a connection g.conn
// stays nil: the link has lost it.
func (l *lane) connect(g *generation) bool {
	if l.side == dialing {
		l.stage("dialing")
		return l.dial(g)
	}
	l.stage("waiting for a call")
	return l.accept(g)
}

const dialing, listening = 0, 1

// dial calls the other end.
func (l *lane) dial(g *generation) bool {
	d := rdmacm.Dialer{
		Device: l.dev, PD: g.pd, QP: g.config(), Prepare: g.prepare,
		PrivateData: g.offer(), IRD: g.plan.ends[l.side].reads, ORD: g.plan.ends[l.side].reads,
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.o.Hang)
	defer cancel()
	conn, err := d.Dial(ctx, l.target)
	if g.plan.reject && g.refused(err) {
		l.dropped(g)
		g.reset()
		conn, err = d.Dial(ctx, l.target)
	}
	switch {
	case err == nil:
	case l.failed():
		return false
	case l.o.lossy() && !errors.Is(err, context.DeadlineExceeded):
		l.stats.dialsLost.Add(1)
		l.dropped(g)
		g.tell(msgAbort, int(endClose))
		return true
	default:
		g.fail(fmt.Errorf("dialing %s: %w", l.target, err))
		return false
	}
	g.conn = conn
	if err := g.accepted(conn.PrivateData()); err != nil {
		g.fail(fmt.Errorf("the peer's Reply: %w", err))
	}
	return true
}

// refused reports whether err is the peer's refusal as it was planned.
func (g *generation) refused(err error) bool {
	var r *verbs.RejectError
	if !errors.As(err, &r) {
		if err == nil {
			g.fail(errors.New("the call was to be refused, and was not"))
		}
		return false
	}
	if string(r.PrivateData) != string(g.filling(1-g.side)) {
		g.fail(fmt.Errorf("the private data of the refusal are not what was sent: % x", r.PrivateData))
	}
	return true
}

// accept waits for the other end to call.
func (l *lane) accept(g *generation) bool {
	rejected := false
	for {
		select {
		case r := <-l.calls:
			if num, err := callOf(r.PrivateData(), l.num); err != nil || num != g.plan.gen {
				// A call that was given up and comes late.
				if err != nil || num > g.plan.gen {
					g.fail(fmt.Errorf("a call for generation %d: %w", num, err))
				}
				_ = r.Reject(l.ctx, nil) // it is dead
				continue
			}
			if g.plan.reject && !rejected {
				rejected = true
				l.stats.rejects.Add(1)
				if err := r.Reject(l.ctx, g.filling(l.side)); err != nil && !l.o.lossy() {
					g.fail(fmt.Errorf("rejecting: %w", err))
				}
				continue
			}
			return l.take(g, r)
		case <-g.news:
			l.mu.Lock()
			over := l.over
			l.mu.Unlock()
			if over {
				return false
			}
			if g.announced() { // the call got lost
				return true
			}
		case <-l.ctx.Done():
			return false
		}
	}
}

// take accepts a call.
func (l *lane) take(g *generation, r *rdmacm.Request) bool {
	if err := g.accepted(r.PrivateData()); err != nil {
		g.fail(fmt.Errorf("the peer's Request: %w", err))
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, l.o.Hang)
	defer cancel()
	conn, err := r.Accept(ctx, rdmacm.AcceptConfig{
		PD: g.pd, QP: g.config(), Prepare: g.prepare, PrivateData: g.offer(),
		IRD: g.plan.ends[l.side].reads, ORD: g.plan.ends[l.side].reads,
	})
	if err == nil {
		g.conn = conn
		return true
	}
	if l.failed() {
		return false
	}
	// The initiator may have ended it already, before its first message was seen here.
	if !g.noticed(10 * time.Second) {
		g.fail(fmt.Errorf("accepting: %w", err))
		return false
	}
	l.stats.dialsLost.Add(1)
	l.dropped(g)
	return true
}

// dropped accounts for the queue pair of a connection that was not made: package
// rdmacm has closed it.
func (l *lane) dropped(g *generation) {
	if g.qp == nil {
		return
	}
	g.out.stop()
	g.in.stop()
	g.check()
}
