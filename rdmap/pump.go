package rdmap

import (
	"errors"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mpa"
)

// Pump moves into MPA what is due, while there is room: a Terminate, the RTR
// message, responses to the peer's requests and the operation submitted. A
// responder is held back until the first FPDU has come. After maxTurn octets,
// or a little before where MPA's staging buffer is full, it returns with Turn, in
// the middle of a message too. Call Flush at the end of a
// batch.
//
// An error ends the send half. It is a *[LocalError] if memory of an operation
// went away and an *[Error] if the source of a response did; the next call
// sends the Terminate. It is [ErrStopped] when nothing remains to be sent, else
// the error of a dead connection. An operation that was not reported sent by
// then is given back to the caller, whatever of it has left.
func (s *Stream) Pump() (Progress, error) {
	p, err := s.pump()
	s.letGo()
	return p, err
}

// letGo ends the use of what the segments before were read from.
func (s *Stream) letGo() {
	t := &s.tx
	t.cursor.Release()
	t.source.End()
	t.parts[0] = nil
}

// pump is Pump. From segment to segment it keeps the use of the memory it reads.
func (s *Stream) pump() (Progress, error) {
	t := &s.tx
	for {
		switch {
		case t.err != nil:
			return Progress{}, t.err
		case !s.gate.Load():
			return Progress{Next: Next{WantOp: t.op == nil}}, nil
		case t.now != msgTerminate && s.due.Load() != nil:
			if !s.startTerminate() {
				return Progress{}, ErrStopped
			}
		case s.turnOver():
			t.turn = 0
			return Progress{Next: Next{WantOp: t.op == nil, Turn: true}}, nil
		case t.now == nothing:
			if !s.startNext() {
				return s.idle(), nil
			}
		}
		done, ok, err := s.segment()
		switch {
		case err != nil:
			return Progress{}, s.broken(err)
		case !ok:
			return Progress{Next: Next{Blocked: true, WantOp: t.op == nil}}, nil
		case done:
			if p, stop, err := s.finish(); stop {
				return p, err
			}
		}
	}
}

// turnOver reports whether a turn ends here: after maxTurn octets, and a little
// before where the staging buffer is full, so that what is left of the turn does
// not leave in a frame of its own.
func (s *Stream) turnOver() bool {
	if s.tx.turn >= maxTurn || s.tx.turn < maxTurn-maxTurn/8 || s.tx.now == nothing {
		return s.tx.turn >= maxTurn
	}
	_, ok := s.ddp.Room()
	return !ok
}

// Flush hands what Pump has moved to the byte stream and brings Stats up to date.
func (s *Stream) Flush() error {
	t := &s.tx
	if t.writes > 0 || t.sends > 0 {
		s.stats.writesOut.Add(t.writes)
		s.stats.sendsOut.Add(t.sends)
		t.writes, t.sends = 0, 0
	}
	if t.err != nil {
		return t.err
	}
	if err := s.ddp.Flush(); err != nil {
		return s.broken(err)
	}
	return nil
}

// idle is the progress of a send half with no message to go on with. After a
// burst of responses it offers the send queue a turn.
func (s *Stream) idle() Progress {
	t := &s.tx
	more := s.inbound.len() > 0
	if t.offered = more; !more {
		t.burst = 0
	}
	return Progress{Next: Next{WantOp: t.op == nil, More: more}}
}

// startNext chooses the next message and begins it: responses first, but no
// more than maxBurst of them while operations wait.
func (s *Stream) startNext() bool {
	t := &s.tx
	if t.rtr != mpa.RTRNone {
		s.startRTR()
		return true
	}
	if s.nudge.Load() {
		s.nudge.Store(false)
		s.ddp.StartTagged(opWrite.octet(), rtrSTag, 0, 0)
		t.now, t.nudged = msgNudge, true
		return true
	}
	in := s.inbound.front()
	if in != nil && t.op == nil && t.offered {
		t.burst = 0
	}
	t.offered = false
	switch {
	case in != nil && t.burst < maxBurst:
		s.startResponse(in)
	case t.op != nil && (t.nudged || !s.await.Load()):
		s.startOp()
	default:
		return false
	}
	return true
}

// startResponse begins the answer to a request of the peer.
func (s *Stream) startResponse(in *request) {
	t := &s.tx
	t.now, t.answer = msgResponse, in
	if in.atomic() {
		s.ddp.StartUntagged(ddp.QNAtomic, opAtomicAnswer.octet(), 0, atomicAnswerLen)
		return
	}
	q := readRequest(in.body[:])
	s.ddp.StartTagged(opReadResponse.octet(), q.sinkSTag(), q.sinkTO(), q.size())
}

// startOp begins the message of the operation.
func (s *Stream) startOp() {
	t := &s.tx
	op := t.op
	t.now = msgOp
	switch op.Kind {
	case Send:
		word := uint32(0)
		if op.Invalidate {
			word = uint32(op.InvSTag)
		}
		s.ddp.StartUntagged(ddp.QNSend, sendOpcode(op.Solicited, op.Invalidate).octet(), word, t.size)
	case Write:
		s.ddp.StartTagged(opWrite.octet(), op.RemoteSTag, op.RemoteTO, t.size)
	case Read:
		t.size = requestLen
		q := readRequest(t.body[:requestLen])
		q.put(t.sink.sinkSTag, t.sink.sinkTO, t.sink.size, op.RemoteSTag, op.RemoteTO)
		s.ddp.StartUntagged(ddp.QNRequest, opReadRequest.octet(), 0, requestLen)
	case FetchAdd, CompareSwap:
		t.size = atomicLen
		atomicRequest(t.body[:atomicLen]).put(op, t.sink.ident)
		s.ddp.StartUntagged(ddp.QNRequest, opAtomic.octet(), 0, atomicLen)
	case Immediate:
		s.startImmediate(op)
	}
}

// startRTR begins the message that opens the connection. RFC 6581, Section 9.2.
func (s *Stream) startRTR() {
	t := &s.tx
	t.now = msgRTR
	switch t.rtr {
	case mpa.RTRWrite:
		s.ddp.StartTagged(opWrite.octet(), rtrSTag, 0, 0)
	case mpa.RTRRead:
		readRequest(t.body[:requestLen]).put(rtrSTag, 0, 0, rtrSTag, 0)
		s.ddp.StartUntagged(ddp.QNRequest, opReadRequest.octet(), 0, requestLen)
	default:
		s.ddp.StartUntagged(ddp.QNSend, opSend.octet(), 0, 0)
	}
}

// startTerminate begins the Terminate that is due, in place of a message in
// progress. It reports false if there is none to send.
func (s *Stream) startTerminate() bool {
	t := &s.tx
	due := s.due.Load()
	if due == &s.none || s.sent.Load() {
		return false
	}
	s.ddp.Abandon()
	t.op, t.answer, t.now = nil, nil, msgTerminate
	t.size = uint32(len(due.append(t.body[:0])))
	s.ddp.StartUntagged(ddp.QNTerminate, opTerminate.octet(), 0, t.size)
	return true
}

// segment writes the next segment of the message in progress. ok is false if
// there is no room for it; what was staged has been flushed then.
func (s *Stream) segment() (done, ok bool, err error) {
	n, ok := s.ddp.Room()
	if !ok {
		s.letGo()
		if err := s.ddp.Flush(); err != nil {
			return false, false, err
		}
		if n, ok = s.ddp.Room(); !ok {
			return false, false, nil
		}
	}
	payload, err := s.payload(n)
	if err != nil {
		return false, true, err
	}
	done, err = s.ddp.Write(payload)
	s.tx.turn += n
	return done, true, err
}

// payload returns the next n octets of the message in progress.
func (s *Stream) payload(n int) ([][]byte, error) {
	t := &s.tx
	switch t.now {
	case msgResponse:
		if t.answer.atomic() {
			return s.execute(t.answer)
		}
		return s.source(t.answer, n)
	case msgTerminate, msgTail:
		t.parts[0] = t.body[:t.size]
		return t.parts[:], nil
	case msgNudge:
		return nil, nil
	case msgRTR:
		if t.rtr != mpa.RTRRead {
			return nil, nil
		}
		s.reads.push(read{sinkSTag: rtrSTag, hidden: true})
		t.parts[0] = t.body[:requestLen]
		return t.parts[:], nil
	}
	op := t.op
	switch {
	case op.Kind.answered():
		s.reads.push(t.sink)
		t.parts[0] = t.body[:t.size]
	case op.Kind == Immediate:
		t.parts[0] = t.body[:t.size]
	case op.Inline != nil:
		at := s.ddp.Sent()
		t.parts[0] = op.Inline[at : at+uint32(n)]
	default:
		parts, err := t.cursor.Take(n, 0)
		if err != nil {
			return nil, &LocalError{ID: op.ID, Err: err}
		}
		return parts, nil
	}
	return t.parts[:], nil
}

// finish ends the message in progress. stop tells Pump to return with p and err.
func (s *Stream) finish() (p Progress, stop bool, err error) {
	t := &s.tx
	was := t.now
	t.now = nothing
	switch was {
	case msgRTR:
		t.rtr = mpa.RTRNone
	case msgNudge:
		s.stats.writesOut.Add(1)
	case msgResponse:
		if t.answer.atomic() {
			s.stats.atomicResponsesOut.Add(1)
		} else {
			s.stats.responsesOut.Add(1)
		}
		t.answer = nil
		t.burst++
		s.inbound.pop()
	case msgTerminate:
		if err := s.ddp.Flush(); err != nil {
			return Progress{}, true, s.broken(err)
		}
		s.stats.terminatesOut.Add(1)
		s.sent.Store(true)
		return Progress{}, true, nil
	case msgOp, msgTail:
		s.countOp(was)
		if t.op.WithImm && t.op.Kind == Write && was == msgOp {
			s.startImmediate(t.op)
			t.now = msgTail
			break
		}
		p = Progress{Sent: true, SentID: t.op.ID, Next: Next{WantOp: true, More: s.inbound.len() > 0}}
		t.op, t.burst = nil, 0
		return p, true, nil
	}
	return Progress{}, false, nil
}

// countOp counts the message of the operation that has been sent.
func (s *Stream) countOp(was message) {
	switch k := s.tx.op.Kind; {
	case k == Immediate || was == msgTail:
		s.stats.immediatesOut.Add(1)
	case k == Send:
		s.tx.sends++
	case k == Write:
		s.tx.writes++
	case k == Read:
		s.stats.readsOut.Add(1)
	default:
		s.stats.atomicsOut.Add(1)
	}
}

// broken ends the send half because of err and makes the Terminate due.
func (s *Stream) broken(err error) error {
	t := &s.tx
	s.ddp.Abandon()
	t.op, t.answer, t.now = nil, nil, nothing
	var link *mpa.Error
	if errors.As(err, &link) {
		t.err = err
	}
	s.Terminate(err)
	return err
}
