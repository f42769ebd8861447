package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

const (
	// receives are posted on each side: one for the message of a step, one for
	// the next, which may come before the first has been looked at.
	receives = 2
	// sendDepth covers the Write and Send of one step.
	sendDepth = 16
	// spin is how long a side looks for a completion before it sleeps.
	spin = 100 * time.Microsecond
	// readDepth is all that a round needs.
	readDepth = 1
)

// Work requests have these IDs, receives the number of their slot.
const (
	idSend = 100 + iota
	idRead
	idWrite
)

// endpoint is one side of a connection: its queues, its 16-octet buffers and
// its ping memory.
type endpoint struct {
	conn *rdmacm.Conn // set once connected

	pd   *verbs.PD
	cq   *verbs.CQ
	recv *verbs.MR // receives slots of infoLen octets
	send *verbs.MR // infoLen octets
	data *verbs.MR // pings

	arrived []info // messages received and not yet taken
	bad     error  // the first one that was no message of rping
	end     error  // what ended the connection
	leaving bool   // the peer is: receives can be posted no more
	open    int    // work requests of the send queue without completion
	read    bool   // the Read has completed
	wcs     [8]verbs.WC
}

// newEndpoint makes an endpoint whose ping memory has size octets, with which the
// peer may do what access says.
func newEndpoint(dev *verbs.Device, size int, access verbs.Access) (_ *endpoint, err error) {
	e := &endpoint{arrived: make([]info, 0, receives)}
	defer func() {
		if err != nil {
			_ = e.close() // the first error is the one to tell
		}
	}()
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: sendDepth + receives, SpinFor: spin}); err != nil {
		return nil, err
	}
	if e.recv, err = e.pd.AllocMR(receives*infoLen, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if e.send, err = e.pd.AllocMR(infoLen, 0); err != nil {
		return nil, err
	}
	e.data, err = e.pd.AllocMR(size, access)
	return e, err
}

func (e *endpoint) qpConfig() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: sendDepth, MaxRecvWR: receives}
}

// prepare posts the receives before the peer can send.
func (e *endpoint) prepare(qp *verbs.QP) error {
	for slot := range receives {
		if err := e.postRecv(qp, slot); err != nil {
			return err
		}
	}
	return nil
}

func (e *endpoint) postRecv(qp *verbs.QP, slot int) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(slot), SGL: []verbs.SGE{e.recv.SGE(slot*infoLen, infoLen)}}})
	return err
}

// close frees everything, the connection first.
func (e *endpoint) close() error {
	var errs []error
	if e.conn != nil {
		errs = append(errs, e.conn.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close()) // and the memory in it
	}
	return errors.Join(errs...)
}

// post hands work requests to the send queue, all of them signaled.
func (e *endpoint) post(wrs ...verbs.SendWR) error {
	for i := range wrs {
		wrs[i].Flags |= verbs.SendSignaled
	}
	n, err := e.conn.PostSend(wrs)
	e.open += n
	return e.why(err)
}

// message is a Send of 16 octets.
func (e *endpoint) message(i info) verbs.SendWR {
	i.append(e.send.Bytes()[:0])
	return verbs.SendWR{ID: idSend, Op: verbs.OpSend, SGL: []verbs.SGE{e.send.SGE(0, infoLen)}}
}

// next waits for the peer's next message.
func (e *endpoint) next(ctx context.Context) (info, error) {
	for len(e.arrived) == 0 {
		if err := e.bad; err != nil {
			return info{}, err
		}
		if err := e.wait(ctx); err != nil && len(e.arrived) == 0 {
			return info{}, err
		}
	}
	i := e.arrived[0]
	e.arrived = append(e.arrived[:0], e.arrived[1:]...)
	return i, nil
}

// drain waits until the send queue is empty, so that its memory may be changed.
func (e *endpoint) drain(ctx context.Context) error {
	for e.open > 0 {
		if err := e.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// readIn reads the peer's memory src into the ping memory.
func (e *endpoint) readIn(ctx context.Context, src verbs.RemoteBuf) error {
	e.read = false
	err := e.post(verbs.SendWR{ID: idRead, Op: verbs.OpRead, Remote: src, SGL: []verbs.SGE{e.data.SGE(0, int(src.Len))}})
	for err == nil && !e.read {
		err = e.wait(ctx)
	}
	return err
}

// wait takes completions, at least one. After an error there may still be
// messages that came before it.
func (e *endpoint) wait(ctx context.Context) error {
	if e.end != nil {
		return e.end
	}
	n, err := e.completions(ctx)
	if err != nil {
		return err
	}
	for i := range e.wcs[:n] {
		wc := &e.wcs[i]
		if err := wc.Err(); err != nil {
			e.end = e.why(err)
			return e.end
		}
		switch wc.ID {
		case idRead:
			e.read = true
			e.open--
		case idSend, idWrite:
			e.open--
		default:
			e.take(wc)
		}
	}
	return nil
}

// completions waits for some. A peer that is leaving lets no receive be posted
// any more, so that nothing may ever come: then it does not wait.
func (e *endpoint) completions(ctx context.Context) (int, error) {
	if !e.leaving {
		return e.cq.Wait(ctx, e.wcs[:])
	}
	n, err := e.cq.Poll(e.wcs[:])
	if n == 0 && err == nil {
		err = e.why(io.EOF)
	}
	return n, err
}

// take copies a received message out of its slot and posts that again.
func (e *endpoint) take(wc *verbs.WC) {
	at, n := int(wc.ID)*infoLen, 0
	if wc.Op == verbs.OpRecv { // the length of immediate data is not that of the receive
		n = int(wc.ByteLen)
	}
	i, err := parseInfo(e.recv.Bytes()[at : at+n])
	if err != nil {
		if e.bad == nil {
			e.bad = err
		}
	} else {
		e.arrived = append(e.arrived, i)
	}
	if e.postRecv(e.conn.QP, int(wc.ID)) != nil {
		e.leaving = true
	}
}

// why prefers what ended the connection to its consequences. The peer's end
// in order is io.EOF.
func (e *endpoint) why(err error) error {
	switch {
	case err == nil:
		return nil
	case e.conn.Err() != nil:
		return fmt.Errorf("%w (%w)", e.conn.Err(), err)
	case errors.Is(err, verbs.WCWRFlushErr):
		return io.EOF
	}
	return err
}
