package perf

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/pattern"
	"github.com/softrdma/softrdma/verbs"
)

// The two sides of a latency test take turns, numbered from 1 on: the client
// sends message n, the server answers with its own message n. Each side has two
// places in memory, one for what comes in and behind it one for what goes out.
// A message ends with an aligned word, its last octet is the number of the
// turn, which is what the receiver of a Write waits for.

// turnSGE is the memory of what comes in (0) or goes out (1).
func (l *lane) turnSGE(out int) verbs.SGE {
	return l.mem.SGE(l.base+(out+1)*l.layout.stride-l.test.Size, l.test.Size)
}

// answers marks the patterns of the server, so that a message that comes back
// is not taken for an answer.
const answers = 1 << 48

// turnSeed names the pattern of a turn.
func (l *lane) turnSeed(turn uint64, answer bool) uint64 {
	s := messageSeed(l.seed, l.n, turn)
	if answer {
		s ^= answers
	}
	return s
}

// postTurn posts the message of a turn, or the Read or atomic that makes one.
func (l *lane) postTurn(op verbs.Opcode, turn uint64, answer bool) error {
	wr := &l.wrs[0]
	wr.ID, wr.Op, wr.Flags = turn, op, verbs.SendSignaled
	switch op {
	case verbs.OpRead:
		wr.SGL[0], wr.Remote = l.turnSGE(0), l.remoteSlot(0)
	case verbs.OpFetchAdd, verbs.OpCompareSwap:
		wr.SGL[0], wr.Remote = l.turnSGE(0), l.remoteSlot(0)
		l.operands(wr, turn-1)
	default:
		wr.SGL[0] = l.turnSGE(1)
		if op == verbs.OpWrite {
			wr.Remote = l.remoteSlot(0)
		}
		b := l.octets(wr.SGL[0])
		if l.test.Verify {
			pattern.Fill(b, l.turnSeed(turn, answer))
		}
		b[len(b)-1] = byte(turn)
	}
	_, err := l.conn.PostSend(l.wrs[:1])
	return why(l.conn, err)
}

// awaitReceive waits until a receive has completed.
func (l *lane) awaitReceive(ctx context.Context) error {
	for {
		wcs, err := l.wait(ctx)
		if err != nil {
			return err
		}
		for i := range wcs {
			if wcs[i].ID&recvID != 0 {
				return nil
			}
		}
	}
}

const (
	// spinLook is how many looks at the memory there are between two at the
	// clock and the context.
	spinLook = 256
	// patience is how long a side looks before it naps: longer than a scheduler
	// lets another thread have the peer's processor. A nap is of a millisecond,
	// whatever is asked for, where the runtime's poller keeps the time.
	patience = 10 * time.Millisecond
	// napTime is how long a side sleeps between two looks when the peer has not
	// answered for patience: it has something else to do, or no processor.
	napTime = 20 * time.Microsecond
)

// awaitOctet waits until the last octet of what comes in is that of the turn.
func (l *lane) awaitOctet(ctx context.Context, turn uint64) error {
	word := l.mem.Uint64(l.base + l.layout.stride - 8)
	var start time.Time
	for i := 1; ; i++ {
		if lastOctet(word.Load()) == byte(turn) {
			return nil
		}
		// Polling takes the completions of our own messages, and notices the
		// end of the connection.
		if _, err := l.poll(); err != nil {
			return err
		}
		if i%spinLook != 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		switch now := time.Now(); {
		case start.IsZero():
			start = now
		case now.Sub(start) > patience:
			time.Sleep(napTime)
			i = spinLook - 1 // one look, then the clock again
		}
	}
}

// checkTurn compares what came in with what it should be. The memory may be
// read as words only: nothing has told that the peer is through with it, other
// than the memory itself.
func (l *lane) checkTurn(turn uint64, answer bool) {
	b := make([]byte, l.layout.stride)
	for i := 0; i < len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], l.mem.Uint64(l.base+i).Load())
	}
	b = b[l.layout.stride-l.test.Size:]
	d := pattern.Check(b[:len(b)-1], l.turnSeed(turn, answer))
	l.count("message", turn, d)
}

// lastOctet is the last one in memory of a word.
func lastOctet(word uint64) byte {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return b[7]
}
