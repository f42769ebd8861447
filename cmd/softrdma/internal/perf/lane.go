package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/pattern"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// spinFor is how long a side looks for a completion before it sleeps. Rounds
// on one link are far shorter, so that it does not sleep in a latency test.
const spinFor = 200 * time.Microsecond

// batch is how many work requests are posted, and completions taken, at once.
const batch = 64

// maxReads is what a connection may have in flight of reads.
const maxReads = 128

// lane is one data connection of one side, with its queues. One goroutine
// drives it.
type lane struct {
	test   *Test
	n      int    // number of the connection
	seed   uint64 // of the session
	conn   *rdmacm.Conn
	cq     *verbs.CQ
	mem    *verbs.MR // messages; on the server a part of it
	base   int       // where this lane's part begins
	layout layout
	remote verbs.RemoteBuf // the peer's part
	theirs layout          // and its layout

	wrs  []verbs.SendWR // reused, each with one SGE
	rwrs []verbs.RecvWR // likewise
	wcs  []verbs.WC

	wrong   uint64 // octets
	wrongAt string // the first
}

func newLane(dev *verbs.Device, t *Test, n int, seed uint64, l layout) (*lane, error) {
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: t.Depth + l.receives + batch, SpinFor: spinFor})
	if err != nil {
		return nil, err
	}
	ln := &lane{
		test: t, n: n, seed: seed, cq: cq, layout: l,
		wrs: make([]verbs.SendWR, batch), rwrs: make([]verbs.RecvWR, batch), wcs: make([]verbs.WC, batch),
	}
	for i := range batch {
		ln.wrs[i].SGL = make([]verbs.SGE, 1)
		ln.rwrs[i].SGL = make([]verbs.SGE, 1)
	}
	return ln, nil
}

func (l *lane) close() error {
	var errs []error
	if l.conn != nil {
		errs = append(errs, l.conn.Close())
	}
	return errors.Join(append(errs, l.cq.Close())...)
}

// slot is the memory of message seq; in a latency test that of what comes in.
func (l *lane) slot(seq uint64) verbs.SGE {
	if l.test.Kind == Latency {
		return l.turnSGE(0)
	}
	return l.mem.SGE(l.base+int(seq%uint64(l.layout.slots))*l.layout.stride, l.test.Size)
}

// octets is the memory that s names.
func (l *lane) octets(s verbs.SGE) []byte { return l.mem.Bytes()[s.Off : s.Off+s.Len] }

// remoteSlot is the peer's memory for message seq.
func (l *lane) remoteSlot(seq uint64) verbs.RemoteBuf {
	r := l.remote
	if l.test.Kind == Latency {
		r.Addr += uint64(l.theirs.stride - l.test.Size)
	} else {
		r.Addr += seq % uint64(l.theirs.slots) * uint64(l.theirs.stride)
	}
	r.Len = uint32(l.test.Size)
	return r
}

// check compares a message with what it should be.
func (l *lane) check(what string, b []byte, seq uint64) {
	l.count(what, seq, pattern.Check(b, messageSeed(l.seed, l.n, seq)))
}

// count adds what a check has found.
func (l *lane) count(what string, seq uint64, d pattern.Diff) {
	if d.OK() {
		return
	}
	if l.wrong == 0 {
		l.wrongAt = fmt.Sprintf("%s %d of connection %d: %v", what, seq, l.n, d)
	}
	l.wrong += uint64(d.Wrong)
}

// fill writes message seq.
func (l *lane) fill(b []byte, seq uint64) { pattern.Fill(b, messageSeed(l.seed, l.n, seq)) }

// receive posts n receives for the messages from seq on.
func (l *lane) receive(qp *verbs.QP, seq uint64, n int) error {
	for n > 0 {
		k := min(n, batch)
		for i := range k {
			l.rwrs[i].ID = recvID
			l.rwrs[i].SGL[0] = l.slot(seq + uint64(i))
		}
		if _, err := qp.PostRecv(l.rwrs[:k]); err != nil {
			return err
		}
		n -= k
		seq += uint64(k)
	}
	return nil
}

// recvID marks a completion as that of a receive. Others carry the number of
// their message.
const recvID = 1 << 63

// wait takes completions, at least one.
func (l *lane) wait(ctx context.Context) ([]verbs.WC, error) {
	n, err := l.cq.Wait(ctx, l.wcs)
	if err != nil {
		return nil, err
	}
	for i := range l.wcs[:n] {
		if err := l.wcs[i].Err(); err != nil {
			return nil, why(l.conn, err)
		}
	}
	return l.wcs[:n], nil
}

// poll is wait without waiting.
func (l *lane) poll() ([]verbs.WC, error) {
	n, err := l.cq.Poll(l.wcs)
	if err != nil {
		return nil, err
	}
	for i := range l.wcs[:n] {
		if err := l.wcs[i].Err(); err != nil {
			return nil, why(l.conn, err)
		}
	}
	return l.wcs[:n], nil
}
