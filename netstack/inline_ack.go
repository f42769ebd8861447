package netstack

import "time"

// gVisor acknowledges each batch of segments at once, with a segment that says nothing else. A peer that waits for an
// answer would get two, and both sides pay for both. So the acknowledgement waits for a moment, Config.KeepACKs: the
// answer will contain it. It waits for no more than a part of the window, and only while Poll is awake, which sends
// it when nothing else did; before Poll sleeps all are sent.
//
// What tells the peer more than that octets have arrived does not wait: gVisor's TCP sends repeated and selective
// acknowledgements, and those that open the window, as it processes the segment or the read that they are about.

// acks are the acknowledgements that wait. Guarded by rxSide.mu.
type acks struct {
	keep time.Duration // how long; not at all if 0 or below
	most int           // for how many octets
	list []*inlineConn // who owes one, or has paid it by octets of his own
}

// debt is what a connection owes an acknowledgement for.
type debt struct {
	octets int           // at most; some may be acknowledged by what was sent since
	since  time.Duration // see clock
	sent   uint32        // flow.sent at that time
	listed bool          // in acks.list
}

// mayWait reports whether the acknowledgement that c owes may wait.
func (a *acks) mayWait(c *inlineConn) bool { return a.keep > 0 && c.debt.octets < a.most }

// owe notes that c has processed segments without an acknowledgement.
func (a *acks) owe(c *inlineConn, now time.Duration) {
	d := &c.debt
	switch sent := c.flow.sent.Load(); {
	case d.octets == 0:
		return
	case !d.listed:
		d.listed = true
		a.list = append(a.list, c)
	case d.sent == sent:
		return
	}
	d.since, d.sent = now, c.flow.sent.Load()
}

// acknowledge sends what waited long enough, or all. Who sent octets of his own meanwhile is debt-free.
func (in *inline) acknowledge(all bool) {
	if all {
		in.settle(true)
	} else {
		in.settleOld()
	}
	if in == nil || len(in.acks.list) == 0 {
		return
	}
	a := &in.acks
	now := in.now()
	left := a.list[:0]
	for _, c := range a.list {
		if c.flow.sent.Load() == c.debt.sent && (!all && now-c.debt.since < a.keep || !c.pay(all)) {
			left = append(left, c)
			continue
		}
		c.debt.listed, c.debt.octets = false, 0
	}
	clear(a.list[len(left):])
	a.list = left
}

// pay sends the acknowledgement that c owes, if it still does. It returns false if somebody is busy with c, unless it is
// to wait for him.
func (c *inlineConn) pay(wait bool) bool {
	if !wait {
		if !c.ep.TryLock() {
			return false
		}
		c.ep.ResumeWork()
	}
	c.ep.LockUser()
	if carries(c.ep.EndpointState()) && queueEmpty(c.queue) {
		_ = handleSegments(c.ep) // of an empty queue: no error
	}
	c.ep.UnlockUser() // with segments in the queue gVisor's goroutine does it
	return true
}
