package main

import (
	"fmt"

	"github.com/softrdma/softrdma/verbs"
)

// ledger holds the posts of one work queue against its completions. Requests
// have the numbers from 0 on.
type ledger struct {
	base    uint64  // of the IDs
	pending []entry // posts without a verdict, oldest first
	next    int     // number of the oldest
	failed  bool
	telling int // completions with an error of their own
}

// entry is what a completion of a post must say.
type entry struct {
	signaled bool
	op       verbs.Opcode
	n        int
	lenKnown bool // ByteLen means something
}

const (
	idQueue = 1 << 63 // set for receives
	idNum   = 1<<32 - 1
)

// newLedger makes the ledger of one queue of a generation.
func newLedger(lane int, gen uint32, recv bool) ledger {
	base := uint64(lane)<<48 | uint64(gen&0xffff)<<32
	if recv {
		base |= idQueue
	}
	return ledger{base: base}
}

// id is the ID of the next post.
func (l *ledger) id() uint64 { return l.base | uint64(l.next+len(l.pending)) }

// post enters a request that is about to be posted.
func (l *ledger) post(e entry) { l.pending = append(l.pending, e) }

// unpost takes back the last n, which were not accepted.
func (l *ledger) unpost(n int) { l.pending = l.pending[:len(l.pending)-n] }

// complete takes a completion and returns the number of its request: all before it
// are done as well.
func (l *ledger) complete(wc *verbs.WC) (int, error) {
	num := int(wc.ID & idNum)
	switch {
	case wc.ID&^idNum != l.base:
		return 0, fmt.Errorf("completion of request %#x, which was never posted here: %+v", wc.ID, *wc)
	case num < l.next:
		return 0, fmt.Errorf("request %d completed already, or did not have to: %+v", num, *wc)
	case num >= l.next+len(l.pending):
		return 0, fmt.Errorf("completion of request %d, of %d posted ones: %+v", num, l.next+len(l.pending), *wc)
	}
	for ; l.next < num; l.drop() {
		if l.failed || l.pending[0].signaled {
			return 0, fmt.Errorf("completion of request %d, while %d has none: %+v", num, l.next, *wc)
		}
	}
	e := l.pending[0]
	l.drop()
	if wc.Status == verbs.WCSuccess {
		return num, l.success(wc, &e)
	}
	l.failed = true
	if wc.Status != verbs.WCWRFlushErr {
		if l.telling++; l.telling > 1 {
			return num, fmt.Errorf("a second request carries an error of its own: %+v", *wc)
		}
	}
	return num, nil
}

func (l *ledger) drop() {
	l.pending = l.pending[1:]
	l.next++
}

func (l *ledger) success(wc *verbs.WC, e *entry) error {
	switch {
	case l.failed:
		return fmt.Errorf("success behind a failure: %+v", *wc)
	case !e.signaled:
		return fmt.Errorf("completion of an unsignaled request: %+v", *wc)
	case wc.Op != e.op:
		return fmt.Errorf("completion says %v, the request was %v: %+v", wc.Op, e.op, *wc)
	case e.lenKnown && int(wc.ByteLen) != e.n:
		return fmt.Errorf("completion says %d octets, there were %d: %+v", wc.ByteLen, e.n, *wc)
	case wc.Flags != 0 || wc.VendorErr != 0 || wc.Inv != 0 || wc.Imm != 0:
		return fmt.Errorf("completion with fields that nobody asked for: %+v", *wc)
	}
	return nil
}

// open reports whether requests wait for completions that must come.
func (l *ledger) open() bool {
	for i := range l.pending {
		if l.failed || l.pending[i].signaled {
			return true
		}
	}
	return false
}
