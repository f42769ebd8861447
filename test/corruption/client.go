package main

import (
	"context"
	"math/rand/v2"

	"github.com/softrdma/softrdma/verbs"
)

// client keeps a task in flight on every slot.
type client struct {
	*end
	seed  uint64
	rnd   *rand.Rand
	tasks [slots]task
	by    [kinds]uint64 // tasks done, by kind
}

// task is what a slot is about.
type task struct {
	kind    int
	n       int
	seed    uint64
	sends   int  // completions to come
	answer  bool // one is to come
	busy    bool
	holds   int    // octets of heldSeed that the server's landing memory begins with
	held    uint64 //
	counter uint64 // what the server's counter is
	old     uint64 // before the atomic under way
}

func newClient(e *end, seed uint64) *client {
	return &client{end: e, seed: seed, rnd: rand.New(rand.NewPCG(seed, 1))}
}

// run keeps the connection busy until it or the run ends.
func (c *client) run(ctx context.Context) {
	for i := range c.tasks {
		c.begin(i)
	}
	wcs := make([]verbs.WC, 32)
	closing := false
	for !c.bad {
		n := c.wait(ctx, wcs)
		if n == 0 {
			break
		}
		c.take(wcs[:n])
		if !c.idle() || c.bad {
			continue
		}
		// The run is over, and every answer has come: one more Send and its answer show that
		// nothing damaged lies before them, and then the connection ends in order.
		if !closing {
			closing = true
			c.tap().stop()
			c.ask(0, kindSend, 64)
			continue
		}
		_ = c.conn.Disconnect(ctx)
		break
	}
	// What has come in order before the end still counts.
	c.hangUp()
	select {
	case <-c.conn.Done():
	case <-ctx.Done():
	}
	for {
		n, err := c.cq.Poll(wcs)
		if n == 0 || err != nil {
			return
		}
		c.take(wcs[:n])
	}
}

func (c *client) tap() *tap { return c.end.run.tap }

func (c *client) idle() bool {
	for i := range c.tasks {
		if c.tasks[i].busy {
			return false
		}
	}
	return !c.filled
}

func (c *client) take(wcs []verbs.WC) {
	for i := range wcs {
		wc := &wcs[i]
		switch {
		case wc.Status != verbs.WCSuccess:
			c.bad = true
		case wc.Op == verbs.OpRecv:
			c.answered(c.mem[atRecv+int(wc.ID)*recvSize:][:wc.ByteLen])
			if !c.bad {
				if _, err := c.conn.PostRecv([]verbs.RecvWR{c.recv(int(wc.ID))}); err != nil {
					c.bad = true
				}
			}
		case wc.ID == idFiller:
			c.filled = false
		default:
			c.sent(int(wc.ID), wc)
		}
	}
}

// begin starts the next task of a slot.
func (c *client) begin(slot int) {
	if c.end.run.over() || c.bad {
		return
	}
	t := &c.tasks[slot]
	kind := c.rnd.IntN(kinds)
	n := 1 + c.rnd.IntN(1<<c.rnd.IntN(16))
	n = min(n, slotSize)
	if kind == kindRead {
		if n = min(n, t.holds); n == 0 {
			kind, n = kindWrite, 1+c.rnd.IntN(slotSize)
		}
	}
	c.ask(slot, kind, n)
}

// ask puts a task on its way.
func (c *client) ask(slot, kind, n int) {
	t := &c.tasks[slot]
	c.seed++
	t.kind, t.n, t.seed, t.sends, t.answer, t.busy = kind, n, c.seed, 1, true, true
	if kind == kindImm {
		t.seed &= 0xffffffff
	}
	far := c.peer.mr.Remote().Slice(atLanding+slot*slotPitch, slotSize)
	wr := verbs.SendWR{ID: uint64(slot), Flags: verbs.SendSignaled}
	src := atSource + slot*slotPitch
	switch kind {
	case kindWrite, kindImm:
		fill(c.source(slot, n), t.seed)
		t.holds = 0
		c.peer.land[slot].next, c.peer.land[slot].n = t.seed, n
		wr.Op, wr.SGL, wr.Remote = verbs.OpWrite, []verbs.SGE{c.mr.SGE(src, n)}, far
		if kind == kindImm {
			wr.Op, wr.Imm = verbs.OpWriteWithImm, uint64(slot)<<56|uint64(n)<<32|t.seed
			break
		}
		t.sends = 2
		c.post(&wr)
		c.tell(slot, message{kindWrite, uint8(slot), uint32(n), t.seed}, 0)
		return
	case kindSend:
		c.tell(slot, message{kindSend, uint8(slot), uint32(n), t.seed}, min(n, recvSize-messageLen))
		return
	case kindPull:
		c.tell(slot, message{kindPull, uint8(slot), uint32(n), t.seed}, 0)
		return
	case kindRead:
		t.answer = false
		c.land[slot].next, c.land[slot].n = t.held, n
		wr.Op, wr.SGL, wr.Remote = verbs.OpRead, []verbs.SGE{c.mr.SGE(atLanding+slot*slotPitch, n)}, far
	case kindAtomic:
		t.answer = false
		t.old = t.counter
		wr.SGL = []verbs.SGE{c.mr.SGE(atCounter+8*slot, 8)}
		wr.Remote = c.peer.mr.Remote().Slice(atCounter+8*slot, 8)
		if t.seed%2 == 0 {
			wr.Op, wr.Val = verbs.OpFetchAdd, t.seed
			t.counter += t.seed
		} else {
			wr.Op, wr.Compare, wr.CompareMask, wr.Val, wr.ValMask = verbs.OpCompareSwap, t.old, ^uint64(0), mix(t.seed), ^uint64(0)
			t.counter = wr.Val
		}
	}
	c.post(&wr)
}

// tell sends a message with n octets of its seed behind it.
func (c *client) tell(slot int, m message, n int) {
	var head [messageLen]byte
	m.put(head[:])
	wr := verbs.SendWR{ID: uint64(slot), Op: verbs.OpSend, Flags: verbs.SendSignaled}
	if n == 0 {
		wr.Inline = head[:]
	} else {
		b := c.source(slot, messageLen+n)
		copy(b, head[:])
		fill(b[messageLen:], m.seed)
		wr.SGL = []verbs.SGE{c.mr.SGE(atSource+slot*slotPitch, messageLen+n)}
	}
	c.post(&wr)
}

// sent takes a completion of the send queue.
func (c *client) sent(slot int, wc *verbs.WC) {
	t := &c.tasks[slot]
	t.sends--
	switch {
	case wc.Op == verbs.OpRead:
		b := c.landed(slot, t.n)
		c.compare(b, t.held, "a Read")
		copy(c.land[slot].was, b)
		c.land[slot].n = 0
	case wc.Op == verbs.OpFetchAdd || wc.Op == verbs.OpCompareSwap:
		c.end.run.octets.Add(8)
		if got := nativeUint64(c.mem[atCounter+8*slot:]); got != t.old {
			c.end.run.blame("%s: an atomic returned %#x, the counter was %#x", c.name, got, t.old)
		}
	}
	c.finished(slot)
}

// answered takes a message of the server.
func (c *client) answered(b []byte) {
	m, ok := getMessage(b)
	if !ok {
		c.end.run.blame("%s: a message of %d octets is damaged", c.name, len(b))
		c.bad, c.torn = true, true
		return
	}
	t := &c.tasks[m.slot]
	want := [...]uint8{kindWrite: kindAck, kindImm: kindAck, kindSend: kindEcho, kindPull: kindPulled, kindRead: 0, kindAtomic: 0}
	seed := t.seed
	if t.kind == kindSend {
		seed++
	}
	if !t.answer || m.kind != want[t.kind] || m.seed != seed {
		c.end.run.blame("%s: an answer of kind %d to a task of kind %d", c.name, m.kind, t.kind)
		c.bad, c.torn = true, true
		return
	}
	switch m.kind {
	case kindAck:
		t.holds, t.held = t.n, t.seed
	case kindEcho:
		c.compare(b[messageLen:], m.seed, "a Send")
	case kindPulled:
		b := c.landed(int(m.slot), t.n)
		c.compare(b, t.seed, "a Write")
		copy(c.land[m.slot].was, b)
		c.land[m.slot].n = 0
	}
	t.answer = false
	c.finished(int(m.slot))
}

// finished begins the next task if this one is complete.
func (c *client) finished(slot int) {
	t := &c.tasks[slot]
	if t.sends > 0 || t.answer || !t.busy {
		return
	}
	t.busy = false
	c.by[t.kind]++
	c.end.run.tasks.Add(1)
	c.begin(slot)
}

// settle looks at all memory when a connection has ended, and forgets what was under way.
func (c *client) settle() {
	for i := range c.tasks {
		t := &c.tasks[i]
		if now := c.peer.counter(i); now != t.counter && (!t.busy || t.kind != kindAtomic || now != t.old) {
			c.end.run.blame("%s: counter %d is %#x and neither %#x nor %#x", c.name, i, now, t.old, t.counter)
		}
		*t = task{counter: c.peer.counter(i)}
		c.settleLanding(i)
		c.peer.settleLanding(i)
	}
	for _, e := range []*end{c.end, c.peer} {
		e.compare(e.mem[atFiller+filler:], fillerSeed, "a filler")
		e.drain()
	}
}
