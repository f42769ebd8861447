package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// generation is one connection of a lane at one end, from set-up to the proof that
// nothing is left of it.
type generation struct {
	*lane
	plan   *genPlan
	pd     *verbs.PD
	send   *poller
	recv   *poller
	own    []*poller    // closed with the generation
	conn   *rdmacm.Conn // nil until it stands
	qp     *verbs.QP    // there before conn is
	peer   [areas]verbs.RemoteBuf
	out    sender
	in     receiver
	posts  sync.WaitGroup
	due    *time.Timer   // our own end in the midst of traffic; set before posts is done
	now    chan struct{} // it is due
	news   chan struct{} // something to look at
	mu     sync.Mutex    // guards what follows
	notice bool          // the peer has announced such an end
	peerIn bool          // the peer has all, and all of its own completed
	upset  error         // the first sign that the connection is over
	told   bool          // that we are through
}

func (l *lane) newGeneration(num uint32) (*generation, error) {
	g := &generation{
		lane: l, plan: planGen(l.o, l.num, num),
		now: make(chan struct{}, 1), news: make(chan struct{}, 1),
	}
	g.reset()
	if err := g.open(); err != nil {
		return nil, errors.Join(err, g.closeObjects())
	}
	return g, nil
}

// reset makes both directions as they are before the first octet.
func (g *generation) reset() {
	g.out, g.in = sender{}, receiver{}
	g.out.init(g)
	g.in.init(g)
	g.mu.Lock()
	g.upset = nil
	g.mu.Unlock()
}

// open makes all but the queue pair.
func (g *generation) open() (err error) {
	if g.pd, err = g.dev.AllocPD(); err != nil {
		return err
	}
	if err = g.memory.register(g.pd, g.plan.gen); err != nil {
		return err
	}
	e := &g.plan.ends[g.side]
	if e.shared {
		g.send, g.recv = g.end.shared, g.end.shared
		return nil
	}
	if g.send, err = g.poll(e.send); err != nil {
		return err
	}
	g.recv = g.send
	if !e.one {
		g.recv, err = g.poll(e.recv)
	}
	return err
}

func (g *generation) poll(mode pollMode) (*poller, error) {
	cq, err := g.dev.CreateCQ(verbs.CQConfig{Depth: cqDepth})
	if err != nil {
		return nil, err
	}
	p := newPoller(cq, mode, g.fail)
	g.own = append(g.own, p)
	return p, nil
}

// cqDepth holds what the deepest queue pair can complete.
const cqDepth = 8<<4 + maxOps*maxWindow

// config is that of the queue pair.
func (g *generation) config() verbs.QPConfig {
	c := g.plan.ends[g.side].qp
	c.SendCQ, c.RecvCQ = g.send.cq, g.recv.cq
	return c
}

// prepare runs when the queue pair is there and before the peer can send.
func (g *generation) prepare(qp *verbs.QP) error {
	g.qp = qp
	g.send.add(g, qp)
	g.recv.add(g, qp)
	return g.in.prepare()
}

// run moves traffic until the generation ends, and returns how.
func (g *generation) run(ctx context.Context) {
	g.posts.Go(g.out.run)
	for {
		select {
		case <-g.news:
			g.mu.Lock()
			upset := g.upset
			g.mu.Unlock()
			switch {
			case g.announced():
				g.follow()
				return
			case upset != nil:
				g.explain(ctx, upset)
				return
			case g.settled():
				g.inOrder(ctx)
				return
			}
		case <-g.now:
			g.abort(ctx)
			return
		case <-ctx.Done():
			return
		}
	}
}

// settled reports whether both ends are through; the peer is told when we are.
func (g *generation) settled() bool {
	if !g.in.through() || !g.out.through() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.told {
		g.told = true
		g.tell(msgThrough, 0)
	}
	return g.peerIn
}

// inOrder disconnects, or waits for the peer to do so.
func (g *generation) inOrder(ctx context.Context) {
	g.stage("disconnecting")
	g.stats.ends[endInOrder].Add(1)
	if g.plan.by[g.side] {
		ctx, cancel := context.WithTimeout(ctx, g.o.Hang)
		defer cancel()
		if err := g.conn.Disconnect(ctx); err != nil && g.qp.State() != verbs.QPSErr && ctx.Err() == nil && g.qp.State() != verbs.QPSSQD {
			g.fail(fmt.Errorf("disconnecting in order: %w", err))
		}
	}
	if !g.over(g.o.Hang) {
		return
	}
	if err := g.qp.Err(); err != nil && !g.noticed(10*time.Second) {
		g.fail(fmt.Errorf("the connection did not end in order: %w", err))
	}
}

// abort ends the generation in the midst of traffic, as planned.
func (g *generation) abort(ctx context.Context) {
	g.stage("ending by " + g.plan.how.String())
	g.stats.ends[g.plan.how].Add(1)
	g.tell(msgAbort, int(g.plan.how))
	switch g.plan.how {
	case endClose:
		return // which is how every generation goes on
	case endRevoke:
		if err := g.memory.mr[areaTarget].Close(); err != nil {
			g.fail(fmt.Errorf("closing the target: %w", err))
		}
		g.wait(200 * time.Millisecond) // unless the peer writes, nothing happens
		return
	}
	to := map[ending]verbs.QPState{endModify: verbs.QPSErr, endTerminate: verbs.QPSSQE, endDisconnect: verbs.QPSSQD}[g.plan.how]
	ctx, cancel := context.WithTimeout(ctx, g.o.Hang)
	defer cancel()
	err := g.qp.Modify(ctx, to)
	if errors.Is(err, context.DeadlineExceeded) {
		g.fail(fmt.Errorf("%v to %v has not ended: %w", g.qp, to, err))
	} // other errors: the peer was first
}

// follow waits for the end that the peer has announced. What the peer loses on its
// way out, a reset for example, is not sent again.
func (g *generation) follow() {
	g.stage("the peer ends it")
	patience := g.o.Hang
	if g.o.lossy() {
		patience = 2 * time.Second
	}
	if !g.wait(patience) && !g.o.lossy() {
		g.fail(fmt.Errorf("the peer has ended the connection, and this end has not noticed in %v", patience))
	}
}

// explain waits for the peer to tell the reason of what was seen before: an end as
// planned, or one in order, because it is through.
func (g *generation) explain(ctx context.Context, upset error) {
	g.stage("ended, why is not known yet")
	switch {
	case !g.until(10*time.Second, func() bool { return g.announced() || g.settled() }):
		g.fail(fmt.Errorf("the connection ended, and nobody wanted it: %w (%v, cause %v)", upset, g.qp.State(), g.qp.Err()))
	case !g.announced():
		g.inOrder(ctx)
	}
}

// noticed waits until the peer has announced an end in the midst of traffic.
func (g *generation) noticed(patience time.Duration) bool { return g.until(patience, g.announced) }

func (g *generation) announced() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.notice
}

func (g *generation) until(patience time.Duration, f func() bool) bool {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) || g.end.failed() {
			return false
		}
	}
}

// wait waits for the queue pair to end.
func (g *generation) wait(patience time.Duration) bool {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-g.qp.Done():
		return true
	case <-g.end.ctx.Done():
	case <-t.C:
	}
	return false
}

// over is wait, but that it fails is a hang.
func (g *generation) over(patience time.Duration) bool {
	if g.wait(patience) {
		return true
	}
	g.fail(fmt.Errorf("%v has not ended in %v, state %v", g.qp, patience, g.qp.State()))
	return false
}

// close ends what is left, and proves that nothing is.
func (g *generation) close() {
	g.stage("closing")
	g.out.stop()
	g.in.stop()
	if g.conn != nil {
		g.closeQP()
	}
	if err := g.closeObjects(); err != nil {
		g.fail(err)
	}
}

func (g *generation) closeQP() {
	if err := g.qp.Close(); err != nil {
		g.fail(err)
	}
	g.posts.Wait()
	if g.due != nil {
		g.due.Stop()
	}
	if s := g.qp.State(); s != verbs.QPSErr {
		g.fail(fmt.Errorf("%v is closed and in state %v", g.qp, s))
	}
	g.check()
	g.stats.generations.Add(1)
}

// check is called when the queue pair is closed and nobody posts.
func (g *generation) check() {
	for _, p := range []*poller{g.send, g.recv} {
		p.barrier()
		p.remove(g.qp)
	}
	if g.end.failed() {
		return
	}
	for _, err := range []error{g.in.settle(), g.out.settle(), g.memory.whole(g.plan.gen)} {
		if err != nil {
			g.fail(err)
		}
	}
}

// closeObjects closes all but the queue pair.
func (g *generation) closeObjects() (err error) {
	for _, p := range g.own {
		err = errors.Join(err, p.close())
	}
	err = errors.Join(err, g.memory.unregister())
	if g.pd != nil {
		err = errors.Join(err, g.pd.Close())
	}
	return err
}

// completed takes a completion of the queue pair.
func (g *generation) completed(wc *verbs.WC) {
	if wc.ID&idQueue != 0 {
		g.in.completed(wc)
	} else {
		g.out.completed(wc)
	}
}

// flushed takes note of a completion that has failed.
func (g *generation) flushed(wc *verbs.WC) {
	g.stats.flushed.Add(1)
	g.touch()
	g.trouble(fmt.Errorf("request %#x: %w (vendor error %#x)", wc.ID, wc.Status, wc.VendorErr))
}

// trouble is a sign that the connection is over. If it was meant to end, the peer
// or this end says so.
func (g *generation) trouble(err error) {
	g.mu.Lock()
	if g.upset == nil {
		g.upset = err
	}
	g.mu.Unlock()
	g.look()
}

// look makes run look at the state of things.
func (g *generation) look() {
	select {
	case g.news <- struct{}{}:
	default:
	}
}

// reached arms the planned end when its round begins.
func (g *generation) reached(num int) {
	if g.plan.how != endInOrder && g.plan.by[g.side] && num == g.plan.at {
		g.due = time.AfterFunc(g.plan.after, func() { g.now <- struct{}{} })
	}
}

// idle now and then lets the connection rest before the next round.
func (g *generation) idle(num int) {
	r := rand.New(rand.NewPCG(g.o.Seed, uint64(g.num)<<48|uint64(g.plan.gen)<<24|uint64(num)))
	if r.IntN(64) == 0 {
		time.Sleep(time.Duration(r.IntN(30000)) * time.Microsecond)
	}
}

// got takes a message of the peer about this generation.
func (g *generation) got(m message) {
	switch m.Kind {
	case msgGrant:
		g.out.grant(m.N)
	case msgFinal:
		g.in.last(m.N)
	case msgThrough, msgAbort:
		g.mu.Lock()
		g.peerIn = g.peerIn || m.Kind == msgThrough
		g.notice = g.notice || m.Kind == msgAbort
		g.mu.Unlock()
	}
	g.look()
}

func (g *generation) tell(k msgKind, n int) {
	g.end.ctl.tell(message{Kind: k, Lane: g.num, Gen: g.plan.gen, N: n})
}

// fail reports what must not be.
func (g *generation) fail(err error) {
	g.end.fail(fmt.Errorf("end %s, lane %d, generation %d: %w", sideName(g.side), g.num, g.plan.gen, err))
}
