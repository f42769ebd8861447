package netstack

import "time"

// A segment has octets for whoever waits here, and acknowledges octets that were sent. To take the acknowledgement in, with
// all that TCP then does about timers, windows and memory, takes as long as to send an answer. So where Poll has found a
// lone segment, its octets are delivered and its acknowledgement waits until Poll has found nothing, or Poll sleeps, or
// another segment of the connection is there: the answer goes first. TCP measures round trips by when segments came.

// lateFor is for how long an acknowledgement waits at most while frames keep coming for others: much less than TCP's
// timers.
const lateFor = 500 * time.Microsecond

// settleOld is settle if one has waited for too long. Caller holds rxSide.mu.
func (in *inline) settleOld() {
	if in != nil && len(in.late) > 0 && in.now()-in.lateSince >= lateFor {
		in.settle(false)
	}
}

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
			// gVisor's goroutine, should it come by meanwhile, relies on UnlockUser to be told.
			c.ep.ResumeWork()
			c.ep.LockUser()
			c.settle()
			c.ep.UnlockUser()
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
		if c.overtaken {
			keepWindow(c.ep, c.late)
		}
		acknowledged(c.ep, c.late)
	}
	release(c.late)
	c.late, c.overtaken = nil, false
}
