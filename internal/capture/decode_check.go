package capture

import "fmt"

// Finding is one rule that a sender broke.
type Finding struct {
	Flow *Flow
	FPDU int    // index into Flow.FPDUs
	Rule string // the specification's words in short, with its section
}

// String tells the sender, the place and the rule.
func (f Finding) String() string {
	return fmt.Sprintf("%v > %v FPDU %d (packet %d): %s", f.Flow.From, f.Flow.To, f.FPDU+1, f.Flow.FPDUs[f.FPDU].Packet, f.Rule)
}

// Check holds the FPDUs of both directions against the rules that need more than one
// FPDU to see: numbering, order, answers, and what a careful sender leaves zero.
// Real peers break some of them (siw leaves old octets in the padding and may send
// before the initiator did), so a test usually looks at its own side's findings alone.
func (s *Session) Check() []Finding {
	var out []Finding
	for _, f := range []*Flow{&s.Initiator, &s.Responder} {
		c := checker{flow: f, asked: &s.Initiator}
		if f == &s.Initiator {
			c.asked = &s.Responder
		}
		c.run()
		out = append(out, c.found...)
	}
	return append(out, s.checkStart()...)
}

// checkStart covers the first FPDUs of a connection.
func (s *Session) checkStart() []Finding {
	var out []Finding
	first := func(f *Flow) *FPDU {
		if len(f.FPDUs) == 0 {
			return nil
		}
		return &f.FPDUs[0]
	}
	i, r := first(&s.Initiator), first(&s.Responder)
	if r != nil && (i == nil || r.Packet < i.Packet) {
		out = append(out, Finding{&s.Responder, 0, "the responder sent before the initiator's first FPDU (RFC 5044, Section 7.1.2)"})
	}
	if s.Responder.Startup == nil || i == nil {
		return out
	}
	if e, ok := s.Responder.Startup.Enhanced(); ok && e.A && !isRTR(i, e) {
		out = append(out, Finding{&s.Initiator, 0, "the first FPDU is not an agreed RTR message (RFC 6581, Section 9.2)"})
	}
	return out
}

// isRTR tells whether u is a ready-to-receive message that the Reply allows, or the
// Terminate that says it cannot be sent.
func isRTR(u *FPDU, e Enhanced) bool {
	switch u.RDMAP.Opcode {
	case OpWrite:
		return e.C && len(u.DDP.Payload) == 0
	case OpReadRequest:
		return e.D && u.RDMAP.ReadRequest != nil && u.RDMAP.ReadRequest.Size == 0
	case OpSend:
		return e.B && len(u.DDP.Payload) == 0
	}
	return u.RDMAP.Opcode == OpTerminate
}

// checker walks the FPDUs of one direction.
type checker struct {
	flow  *Flow
	asked *Flow // the other direction, whose Read and Atomic Requests are answered here
	found []Finding

	at      int // index of the FPDU at hand
	open    *FPDU
	length  uint64 // payload octets of the open message so far
	msn     [4]uint32
	request int // index in asked of the request answered last; -1 before the first
	ended   bool
}

func (c *checker) say(format string, args ...any) {
	c.found = append(c.found, Finding{c.flow, c.at, fmt.Sprintf(format, args...)})
}

func (c *checker) run() {
	c.request = -1
	for i := range c.flow.FPDUs {
		u := &c.flow.FPDUs[i]
		c.at = i
		if c.ended {
			c.say("a message follows the Terminate (RFC 5040, Section 7.1)")
		}
		if u.Err != nil {
			continue // reported already
		}
		c.zeros(u)
		if u.RDMAP.Opcode == OpTerminate {
			c.ended, c.open = true, nil // it may stand in for the rest of a message
		}
		c.place(u)
	}
}

// zeros looks at what a sender must leave zero.
func (c *checker) zeros(u *FPDU) {
	for _, b := range u.MPA.Pad {
		if b != 0 {
			c.say("padding is not zero (RFC 5044, Section 4.1)")
			break
		}
	}
	if u.DDP.Rsvd != 0 || u.RDMAP.Rsvd != 0 {
		c.say("reserved bits are not zero (RFC 5041, Section 4.1; RFC 5040, Section 4.1)")
	}
	inv := u.RDMAP.Opcode == OpSendInvalidate || u.RDMAP.Opcode == OpSendSEInvalidate
	if !inv && u.DDP.InvSTag != 0 {
		c.say("Invalidate STag is not zero in a %v (RFC 5040, Section 4.2)", u.RDMAP.Opcode)
	}
	if t := u.RDMAP.Terminate; t != nil && (t.Rsvd != 0 || t.Swapped) {
		c.say("the Terminate's control field is not as drawn in RFC 5040, Section 4.8")
	}
	for _, k := range u.MPA.Markers {
		if k.Rsvd != 0 || k.Ptr%4 != 0 {
			c.say("the reserved half or the low two bits of a marker are not zero (RFC 5044, Section 4.3)")
			break
		}
	}
	if !u.MPA.InUse && u.MPA.CRC != 0 {
		c.say("the unused CRC field is not zero")
	}
}

// place holds a segment against the message it belongs to.
func (c *checker) place(u *FPDU) {
	d, o := &u.DDP, c.open
	n := uint64(len(d.Payload))
	if n == 0 && !d.Last {
		c.say("an empty segment that is not the last (RFC 5041, Section 5.1)")
	}
	switch {
	case o == nil:
		c.length = 0
		if d.Tagged {
			break
		}
		c.msn[d.QN&3]++ // the decoder refused other queues
		if d.MSN != c.msn[d.QN&3] {
			c.say("queue %d: MSN is %d, the next one is %d (RFC 5041, Section 4.3)", d.QN, d.MSN, c.msn[d.QN&3])
			c.msn[d.QN&3] = d.MSN
		}
		if d.MO != 0 {
			c.say("the first MO is %d (RFC 5041, Section 4.3)", d.MO)
		}
	case o.DDP.Control != d.Control || o.DDP.Tagged != d.Tagged || o.DDP.QN != d.QN || o.DDP.MSN != d.MSN || o.DDP.STag != d.STag || o.DDP.InvSTag != d.InvSTag:
		c.say("another message begins before the last segment of a %v (RFC 5041, Section 5.1)", o.RDMAP.Opcode)
		c.length = 0
	case d.Tagged && d.TO != o.DDP.TO+c.length:
		c.say("TO is %#x, the octets before end at %#x (RFC 5041, Section 5.1)", d.TO, o.DDP.TO+c.length)
	case !d.Tagged && uint64(d.MO) != c.length:
		c.say("MO is %d after %d octets (RFC 5041, Section 5.1)", d.MO, c.length)
	}
	if o == nil {
		c.open = u
	}
	c.length += n
	if !d.Last {
		return
	}
	first := c.open
	c.open = nil
	c.answer(u, first)
}

// answer matches a whole Read or Atomic Response with the oldest open request.
func (c *checker) answer(u, first *FPDU) {
	op := u.RDMAP.Opcode
	if op != OpReadResponse && op != OpAtomicResponse {
		return
	}
	var q *RDMAP
	for c.request++; c.request < len(c.asked.FPDUs); c.request++ {
		if r := &c.asked.FPDUs[c.request].RDMAP; r.ReadRequest != nil || r.AtomicRequest != nil {
			q = r
			break
		}
	}
	switch {
	case q == nil:
		c.say("a %v without a request (RFC 5040, Section 5.2.2)", op)
	case (q.ReadRequest != nil) != (op == OpReadResponse):
		c.say("a %v answers the oldest request, a %v (RFC 7306, Section 5.4)", op, q.Opcode)
	case op == OpAtomicResponse:
		if u.RDMAP.AtomicResponse.ID != q.AtomicRequest.ID {
			c.say("the Atomic Response has another identifier than its request (RFC 7306, Section 5.2.2)")
		}
	case first.DDP.STag != q.ReadRequest.SinkSTag || first.DDP.TO != q.ReadRequest.SinkTO:
		c.say("the Read Response goes to another place than its request asked for (RFC 5040, Section 4.5)")
	case c.length != uint64(q.ReadRequest.Size):
		c.say("the Read Response has %d octets, its request asked for %d (RFC 5040, Section 4.5)", c.length, q.ReadRequest.Size)
	}
}
