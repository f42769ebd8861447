package main

import (
	"math/rand/v2"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// ending is how a generation of a lane, one connection, ends.
type ending uint8

const (
	endInOrder    ending = iota // both directions are through, then a FIN
	endClose                    // QP.Close in the midst of traffic
	endModify                   // to ERR: a reset
	endTerminate                // to SQE: a Terminate
	endDisconnect               // a FIN, or a reset where requests are open
	endRevoke                   // the target is closed while the peer writes to it
	endings       = iota
)

var endingNames = [endings]string{"in order", "close", "reset", "terminate", "disconnect", "revoke"}

func (e ending) String() string { return endingNames[e] }

// genPlan is what both ends know of a generation.
type genPlan struct {
	lane   int
	gen    uint32
	window int    // rounds that may be under way in one direction
	rounds [2]int // by end
	ends   [2]endPlan
	reject bool // the listening end refuses the first call

	how   ending
	by    [2]bool       // who does it
	at    int           // in which round of its own, if not in order
	after time.Duration // from the start of that round
}

// endPlan is how one end sets up its queue pair.
type endPlan struct {
	qp    verbs.QPConfig
	reads int // IRD and ORD
	// inline is how long inline data may be; both ends count on it.
	inline int
	send   pollMode
	recv   pollMode
	shared bool // the completion queue of all such lanes
	one    bool // one completion queue for both
}

// planGen draws a generation of a lane; both ends get the same.
func planGen(o *options, lane int, gen uint32) *genPlan {
	r := rand.New(rand.NewPCG(mix(o.Seed+1), uint64(lane)<<32|uint64(gen)))
	g := &genPlan{lane: lane, gen: gen, window: 1 + r.IntN(maxWindow)}
	for side := range g.ends {
		g.rounds[side] = 10 + r.IntN(o.Rounds)
		g.ends[side] = planEnd(r, lane)
	}
	g.reject = r.IntN(8) == 0
	g.how = endInOrder
	if r.IntN(2) == 0 && !o.NoEndings {
		g.how = endClose + ending(r.IntN(endings-1))
	}
	switch r.IntN(3) {
	case 0:
		g.by[0] = true
	case 1:
		g.by[1] = true
	case 2:
		g.by = [2]bool{true, true}
	}
	g.at = r.IntN(min(g.rounds[0], g.rounds[1]))
	g.after = time.Duration(r.IntN(3000)) * time.Microsecond
	return g
}

func planEnd(r *rand.Rand, lane int) endPlan {
	e := endPlan{
		qp: verbs.QPConfig{
			MaxSendWR:  8 << r.IntN(5),
			MaxRecvWR:  maxOps * maxWindow,
			MaxSendSGE: maxSGEs + 1, MaxRecvSGE: maxSGEs,
			MaxInline: 256,
			SignalAll: r.IntN(8) == 0,
		},
		reads:  []int{1, 2, 16, 100}[r.IntN(4)],
		inline: []int{0, 64, 256}[r.IntN(3)],
		send:   pollMode(r.IntN(int(pollModes))),
		recv:   pollMode(r.IntN(int(pollModes))),
	}
	if e.send == pollSolicited { // nothing of a send queue is
		e.send = pollNotified
	}
	switch lane % 4 {
	case 0:
		e.shared, e.one = true, true
	case 1:
		e.one, e.recv = true, e.send
	}
	return e
}
