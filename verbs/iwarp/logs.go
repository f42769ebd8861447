package iwarp

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// logsPerSecond bounds the lines that a device logs, all but one of which a peer
// can cause: enough to see what happens, too few to fill a disk.
const logsPerSecond = 50

// limitedLog is a logger that a flood of events cannot fill. What it leaves out
// it counts, and says so with the next line.
type limitedLog struct {
	to    *slog.Logger  // nil: nothing is logged
	total atomic.Uint64 // lines left out so far

	mu    sync.Mutex
	begin time.Time // of the current second
	lines int       // in it
	out   int       // left out since the last line
}

func (l *limitedLog) log(level slog.Level, msg string, args ...any) {
	if l.to == nil {
		return
	}
	out, ok := l.admit(time.Now())
	if !ok {
		return
	}
	if out > 0 {
		args = append(args, "left_out", out)
	}
	l.to.Log(context.Background(), level, msg, args...)
}

// admit reports whether a line may be logged, and how many were not since the
// last one.
func (l *limitedLog) admit(now time.Time) (out int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.begin) >= time.Second {
		l.begin, l.lines = now, 0
	}
	if l.lines >= logsPerSecond {
		l.out++
		l.total.Add(1)
		return 0, false
	}
	l.lines++
	out, l.out = l.out, 0
	return out, true
}
