package netstack

// A segment has octets for whoever waits here, and acknowledges octets that were sent. To take the acknowledgement in, with
// all that TCP then does about timers, windows and memory, takes as long as to send an answer. So where Poll has found a
// lone segment, its octets are delivered and its acknowledgement waits until Poll has found nothing, or Poll sleeps, or
// another segment of the connection is there: the answer goes first. TCP measures round trips by when segments came.

// settle processes the acknowledgements that wait, if need be after waiting for who is busy with the connection. Caller
// holds rxSide.mu.
func (in *inline) settle(wait bool) {
	if in == nil || len(in.late) == 0 {
		return
	}
	left := in.late[:0]
	for _, c := range in.late {
		switch {
		case c.late == nil: // by now
		case wait:
			c.ep.LockUser()
			c.settle()
			c.ep.UnlockUser()
		case c.ep.TryLock():
			c.settle()
			c.ep.ResumeWork()
		default:
			left = append(left, c)
			continue
		}
		c.inLate = false
	}
	clear(in.late[len(left):])
	in.late = left
}

// settle processes the acknowledgement of c that waits, if there is one. c is locked.
func (c *inlineConn) settle() {
	if c.late == nil {
		return
	}
	if carries(c.ep.EndpointState()) {
		acknowledged(c.ep, c.late)
	}
	release(c.late)
	c.late = nil
}
