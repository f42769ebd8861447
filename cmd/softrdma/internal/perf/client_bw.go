package perf

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// flushID is the work request ID of the Read that proves that everything
// before it has arrived.
const flushID = 1<<62 - 1

// blast keeps messages in flight until n are sent, or the time is up, or the
// run is stopped; then it waits until all of them are in the peer's memory.
func (l *clientLane) blast(ctx context.Context, n int, until time.Time) error {
	last := uint64(1<<62 - 2)
	if n > 0 {
		last = l.sent + uint64(n)
	}
	done := l.sent // messages complete
	for {
		if l.run.stop.Load() || !time.Now().Before(until) {
			last = l.sent
		}
		if room := min(last-l.sent, uint64(l.test.Depth)-(l.sent-done), l.granted()); room > 0 {
			if err := l.postMessages(int(min(room, batch))); err != nil {
				return err
			}
		}
		if l.sent == last {
			break
		}
		if l.sent-done < uint64(l.test.Depth) && l.granted() > 0 {
			// There is still room: take what is complete, do not wait for it.
			wcs, err := l.poll()
			if err != nil {
				return err
			}
			done = l.completions(wcs, done)
			continue
		}
		wcs, err := l.wait(ctx)
		if err != nil {
			return err
		}
		done = l.completions(wcs, done)
	}
	return l.flush(ctx, done)
}

// granted is how many messages the server has receives for.
func (l *clientLane) granted() uint64 {
	if l.test.Op != Send {
		return MaxDepth
	}
	return l.credit - l.sent
}

// signalEvery is how many messages share a completion.
func (l *clientLane) signalEvery() uint64 {
	if l.test.Verify || l.test.Op.Answered() {
		return 1
	}
	return uint64(max(1, min(l.test.Depth/4, batch)))
}

// postMessages posts the next n messages with one doorbell.
func (l *clientLane) postMessages(n int) error {
	every := l.signalEvery()
	for i := range n {
		seq := l.sent + uint64(i)
		wr := &l.wrs[i]
		wr.ID, wr.Flags, wr.SGL[0] = seq, 0, l.slot(seq)
		if (seq+1)%every == 0 {
			wr.Flags = verbs.SendSignaled
		}
		switch l.test.Op {
		case Send:
			wr.Op = verbs.OpSend
		case Write:
			wr.Op, wr.Remote = verbs.OpWrite, l.remoteSlot(seq)
		case Read:
			wr.Op, wr.Remote = verbs.OpRead, l.remoteSlot(seq)
		case FetchAdd, CompareSwap:
			wr.Op, wr.Remote = l.test.Op.atomicOpcode(), l.remoteSlot(seq)
			l.operands(wr, seq)
		}
		if l.test.Verify && !l.test.Op.Answered() {
			l.fill(l.octets(wr.SGL[0]), seq)
		}
	}
	k, err := l.conn.PostSend(l.wrs[:n])
	l.sent += uint64(k)
	return why(l.conn, err)
}

// completions takes completions into account and returns how many messages
// are complete.
func (l *clientLane) completions(wcs []verbs.WC, done uint64) uint64 {
	for i := range wcs {
		id := wcs[i].ID
		switch {
		case id == flushID:
			l.reading = false
		case id&recvID != 0:
			l.takeCredit(int(id &^ recvID))
		default:
			switch {
			case !l.test.Verify:
			case l.test.Op == Read:
				// The server's places hold the patterns of their numbers.
				l.check("read", l.octets(l.slot(id)), id%uint64(l.theirs.slots))
			case l.test.Op.Atomic():
				l.checkFetched(id, l.octets(l.slot(id)))
			}
			done = id + 1
		}
	}
	l.done.Store(done)
	return done
}

// flush waits until all messages are complete and in the peer's memory. What is
// answered is that anyway when it is complete.
func (l *clientLane) flush(ctx context.Context, done uint64) error {
	if !l.test.Op.Answered() {
		l.reading = true
		// Of no octets, for which the server has to grant no right.
		_, err := l.conn.PostSend([]verbs.SendWR{{ID: flushID, Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{}}}})
		if err != nil {
			return why(l.conn, err)
		}
	}
	for l.reading || l.test.Op.Answered() && done < l.sent {
		wcs, err := l.wait(ctx)
		if err != nil {
			return err
		}
		done = l.completions(wcs, done)
	}
	l.done.Store(l.sent)
	return nil
}

// receiveCredit posts the receive for a credit message.
func (l *clientLane) receiveCredit(qp *verbs.QP, slot int) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: recvID | uint64(slot), SGL: []verbs.SGE{l.ctl.SGE(8*slot, 8)}}})
	return err
}

// takeCredit reads a credit message. The number in it is the server's word
// for the receives it has posted; a wrong one can only end this connection.
func (l *clientLane) takeCredit(slot int) {
	at := 8 * slot
	total := binary.BigEndian.Uint64(l.ctl.Bytes()[at : at+8])
	if total > l.credit && total < 1<<62 {
		l.credit = total
	}
	_ = l.receiveCredit(l.conn.QP, slot) // it fails when the connection has ended, which the next wait tells
}
