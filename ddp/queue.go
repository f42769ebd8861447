package ddp

// queue is the receiving end of one queue of the untagged model. Messages come
// in order, so one number and one offset say where it stands. RFC 5041,
// Section 5.1.
type queue struct {
	msn  MSN    // of the message in progress, or of the next one
	mo   uint32 // octets of it placed so far
	open bool   // a segment without L has been placed
}

// maxMessage is the longest DDP message in octets.
const maxMessage = 1<<32 - 1

// Arrive checks which message an untagged segment belongs to: the one in
// progress on its queue, or else the next one, which it then starts. The ULP
// has checked the queue number. An error is an *[Error].
func (s *Stream) Arrive(g *Segment) (first bool, err error) {
	if g.QN() >= queues {
		return false, s.Fail(g, TypeUntagged, CodeQN, nil)
	}
	q := &s.rx.queue[g.QN()]
	if g.MSN() != q.msn {
		return false, s.Fail(g, TypeUntagged, CodeMSN, nil)
	}
	return !q.open, nil
}

// Open reports whether a message of queue qn has begun and not ended.
func (s *Stream) Open(qn uint32) bool { return s.rx.queue[qn].open }

// Place puts the payload of an untagged segment into the buffer that c walks.
// The segment has passed Arrive, and with a first one c stands at the start of
// its list. done is true when the message is complete; length is what it has
// up to this segment. Nothing is placed unless all of the segment may be. Until the
// message is complete c is not released. An error is an *[Error], or a *[Fault] if the
// buffer's own memory is bad.
func (s *Stream) Place(g *Segment, c *Cursor) (length uint32, done bool, err error) {
	q := &s.rx.queue[g.QN()]
	end := uint64(q.mo) + uint64(g.PayloadLen())
	switch {
	case g.MO() != q.mo:
		return 0, false, s.Fail(g, TypeUntagged, CodeMO, nil)
	case end > c.Size() || end > maxMessage:
		return 0, false, s.Fail(g, TypeUntagged, CodeTooLong, nil)
	}
	parts, err := c.Take(g.PayloadLen(), LocalWrite)
	if err != nil {
		s.stats.errors.Add(1)
		return 0, false, err
	}
	off := 0
	for _, p := range parts {
		off += g.Copy(p, off)
	}
	s.rx.placed += uint64(off)
	q.mo, q.open = uint32(end), true
	if g.Last() {
		c.Release()
		s.Deliver(g)
		return uint32(end), true, nil
	}
	return uint32(end), false, nil
}

// Deliver ends the message of a segment that has passed Arrive. Place calls it;
// the ULP does for messages it takes into memory of its own.
func (s *Stream) Deliver(g *Segment) {
	q := &s.rx.queue[g.QN()]
	q.msn, q.mo, q.open = q.msn.Next(), 0, false
}
