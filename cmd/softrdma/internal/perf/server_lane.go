package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// serverLane is a data connection of the server.
type serverLane struct {
	*lane
	target   atomic.Uint64 // messages that the client has sent, once it says so
	received uint64
	posted   uint64 // receives, in total
	credited uint64 // of which the client knows
	credits  int    // credit messages without completion
	err      error
}

const (
	// serverSends is the depth of the server's send queues: answers, one at a
	// time, or credit messages.
	serverSends = 16
	// maxCredits is how many credit messages may be in flight; a later one
	// says all that an earlier one said.
	maxCredits = serverSends / 2
	// creditID is the work request ID of credit messages.
	creditID = 1 << 61
)

// prefill puts into memory what Reads and atomics will find.
func (l *serverLane) prefill() {
	if l.test.Op.Atomic() {
		l.prefillWords()
	}
	if l.test.Op != Read || !l.test.Verify {
		return
	}
	if l.test.Kind == Latency {
		l.fill(l.octets(l.slot(0)), 0)
		return
	}
	for i := range uint64(l.layout.slots) {
		l.fill(l.octets(l.slot(i)), i)
	}
}

// prepare posts the receives before the client can send.
func (l *serverLane) prepare(qp *verbs.QP) error {
	l.posted = uint64(l.layout.receives)
	l.credited = l.posted
	return l.receive(qp, 0, l.layout.receives)
}

// work is what the server does during the test, until ctx ends.
func (l *serverLane) work(ctx context.Context) error {
	var err error
	switch {
	case l.test.Op.Answered(), l.test.Op == Write && l.test.Kind == Bandwidth:
		return nil // the client does it all
	case l.test.Op == Write:
		err = l.answerWrites(ctx)
	case l.test.Kind == Latency:
		err = l.answerSends(ctx)
	default:
		err = l.takeSends(ctx)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (l *serverLane) answerSends(ctx context.Context) error {
	for turn := uint64(1); ; turn++ {
		if err := l.awaitReceive(ctx); err != nil {
			return err
		}
		if l.test.Verify {
			l.checkTurn(turn, false)
		}
		if err := l.postTurn(verbs.OpSend, turn, true); err != nil {
			return err
		}
		if err := l.receive(l.conn.QP, 0, 1); err != nil {
			return why(l.conn, err)
		}
	}
}

func (l *serverLane) answerWrites(ctx context.Context) error {
	for turn := uint64(1); ; turn++ {
		if err := l.awaitOctet(ctx, turn); err != nil {
			return err
		}
		if l.test.Verify {
			l.checkTurn(turn, false)
		}
		if err := l.postTurn(verbs.OpWrite, turn, true); err != nil {
			return err
		}
	}
}

// takeSends receives until ctx ends, then what is still on its way.
func (l *serverLane) takeSends(ctx context.Context) error {
	for ctx.Err() == nil {
		wcs, err := l.wait(ctx)
		if err != nil && errors.Is(err, ctx.Err()) {
			break
		}
		if err == nil {
			err = l.take(wcs)
		}
		if err != nil {
			return err
		}
	}
	for end := time.Now().Add(tailTime); l.received < l.target.Load(); {
		wcs, err := l.poll()
		if err == nil {
			err = l.take(wcs)
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("%d of %d messages have arrived", l.received, l.target.Load())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// take counts and checks received messages and posts their receives anew.
func (l *serverLane) take(wcs []verbs.WC) error {
	n := 0
	for i := range wcs {
		wc := &wcs[i]
		if wc.ID&recvID == 0 {
			l.credits--
			continue
		}
		if wc.Op != verbs.OpRecv || int(wc.ByteLen) != l.test.Size {
			return fmt.Errorf("message %d has %d octets and not %d", l.received, wc.ByteLen, l.test.Size)
		}
		if l.test.Verify {
			l.check("message", l.octets(l.slot(l.received)), l.received)
		}
		l.received++
		n++
	}
	if n > 0 {
		if err := l.receive(l.conn.QP, l.posted, n); err != nil {
			return why(l.conn, err)
		}
		l.posted += uint64(n)
	}
	if l.posted-l.credited < uint64(l.layout.step) || l.credits >= maxCredits {
		return nil
	}
	var total [8]byte
	binary.BigEndian.PutUint64(total[:], l.posted)
	if _, err := l.conn.PostSend([]verbs.SendWR{{ID: creditID, Op: verbs.OpSend, Flags: verbs.SendSignaled, Inline: total[:]}}); err != nil {
		return why(l.conn, err)
	}
	l.credits++
	l.credited = l.posted
	return nil
}

// checkWritten compares the places that Writes went to with the last message
// that each got.
func (l *serverLane) checkWritten(sent uint64) {
	if l.test.Op.Atomic() && l.test.Verify {
		l.checkWords(sent)
	}
	if l.test.Op != Write || l.test.Kind != Bandwidth || !l.test.Verify {
		return
	}
	slots := uint64(l.layout.slots)
	for seq := sent - min(sent, slots); seq < sent; seq++ {
		l.check("write", l.octets(l.slot(seq)), seq)
	}
}
