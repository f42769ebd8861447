package perf

import (
	"context"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// rounds takes turns with the server until n rounds are done, or the time is
// up, or the run is stopped.
func (l *clientLane) rounds(ctx context.Context, res *Result, n int, until time.Time) error {
	var times *Times
	if res != nil {
		times = NewTimes()
		res.Times = times
	}
	last := uint64(1 << 62)
	if n > 0 {
		last = l.sent + uint64(n)
	}
	start := time.Now()
	for l.sent < last && start.Before(until) && !l.run.stop.Load() {
		if err := l.round(ctx); err != nil {
			return err
		}
		now := time.Now()
		if times != nil {
			times.Record(now.Sub(start))
		}
		l.done.Store(l.sent)
		if l.test.Verify {
			switch {
			case l.test.Op == Read:
				l.check("read", l.octets(l.slot(0)), 0)
			case l.test.Op.Atomic():
				l.checkFetched(l.sent-1, l.octets(l.slot(0)))
			default:
				l.checkTurn(l.sent, true)
			}
			now = time.Now() // checking is not part of the next round
		}
		start = now
	}
	return nil
}

// round does one round.
func (l *clientLane) round(ctx context.Context) error {
	turn := l.sent + 1
	var err error
	switch l.test.Op {
	case Send:
		if err = l.postTurn(verbs.OpSend, turn, false); err == nil {
			err = l.awaitReceive(ctx)
		}
		if err == nil {
			err = l.receive(l.conn.QP, 0, 1)
		}
	case Write:
		if err = l.postTurn(verbs.OpWrite, turn, false); err == nil {
			err = l.awaitOctet(ctx, turn)
		}
	case Read:
		if err = l.postTurn(verbs.OpRead, turn, false); err == nil {
			_, err = l.wait(ctx)
		}
	case FetchAdd, CompareSwap:
		if err = l.postTurn(l.test.Op.atomicOpcode(), turn, false); err == nil {
			_, err = l.wait(ctx)
		}
	}
	if err == nil {
		l.sent = turn
	}
	return err
}
