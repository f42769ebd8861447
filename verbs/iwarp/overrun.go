package iwarp

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// errCQOverflow is the end of every queue pair on a completion queue that had
// no room (0x0207: this stream can no longer keep its word).
var errCQOverflow = &rdmap.Error{Type: rdmap.TypeOperation, Code: rdmap.CodeCatastrophic,
	Err: errors.New("completion queue overrun: make it as large as all the work queues that complete into it")}

// overran ends the queue pairs of completion queues that lost a completion,
// and only those; receive goroutine.
func (d *device) overran() {
	d.mu.Lock()
	qps := slices.Collect(maps.Values(d.qps))
	d.mu.Unlock()
	used := make(map[uint32]bool)
	defer func() {
		maps.DeleteFunc(d.overrun, func(cq uint32, _ bool) bool { return !used[cq] }) // it is closed, or will be
	}()
	for _, q := range qps {
		used[q.sq.cqNum], used[q.rq.cqNum] = true, true
		hit := false
		for _, cq := range []struct {
			num  uint32
			lost bool
		}{{q.sq.cqNum, q.sq.cq.Overrun()}, {q.rq.cqNum, q.rq.cq.Overrun()}} {
			if !cq.lost {
				continue
			}
			hit = true
			if !d.overrun[cq.num] {
				d.overrun[cq.num] = true
				d.event(verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq.num, Time: time.Now().UnixNano()})
			}
		}
		switch {
		case !hit:
		case q.conn != nil:
			q.conn.end(errCQOverflow)
		case q.State() == verbs.QPSInit:
			q.stopIdle()
		}
	}
}
