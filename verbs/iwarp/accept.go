package iwarp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/verbs"
)

// request is a connection whose Request waits for the application's answer.
type request struct {
	conn     *conn
	mpa      mpa.Request
	info     verbs.ConnInfo // result of accepting
	err      error          // likewise
	done     chan struct{}  // closed when accepting has ended; made by who accepts
	gone     error          // the peer left first; receive goroutine
	answered atomic.Bool    // Accept or Reject was called
}

// request goes on from awaitRequest: octets have arrived.
func (c *conn) request() {
	req, ok, err := c.mpa.RecvRequest(c.dev.proto.mpa(-1, -1))
	if err != nil {
		c.log("MPA Request not taken", "err", err)
		c.dev.stats.requestsRefused.Add(1)
		if errors.Is(err, mpa.ErrRefused) {
			c.refused() // the rejecting Reply is on its way
		} else {
			c.abort()
		}
		return
	}
	if !ok {
		return
	}
	c.lis.forget(c)
	c.dev.timers.drop(c)
	c.state = awaitAccept
	c.req = &request{conn: c, mpa: req}
	c.lis.offer(c)
}

// maxEarly is how many octets a peer may send behind its Request before it has
// the answer. It has to send none (RFC 5044, Section 7.1.1), and what comes is
// held; the first FPDU of one that errs is no reason to be strict.
const maxEarly = 64 << 10

var errEarly = errors.New("the peer sends on and on before it is accepted")

// watch notices a peer that leaves, or cannot wait, before it is accepted.
func (c *conn) watch() {
	pieces, err := c.tcp.Peek()
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	if err == nil && n > maxEarly {
		c.dev.stats.requestsRefused.Add(1)
		err = errEarly
	}
	if err != nil {
		c.req.gone = err
		c.abort()
	}
}

func (r *request) ops() verbs.RequestOps {
	c := r.conn
	return verbs.RequestOps{
		Local: c.tcp.LocalAddr(), Remote: c.tcp.RemoteAddr(), PrivateData: r.mpa.Private,
		IRD: r.mpa.PeerORD, ORD: r.mpa.PeerIRD, // the peer's, seen from here
		Accept: r.accept,
		Reject: r.reject,
	}
}

var errAnswered = errors.New("the request was answered already")

// accept puts the connection under queue pair num and waits until the peer
// may be sent to.
func (r *request) accept(ctx context.Context, num uint32, p verbs.ConnParams) (verbs.ConnInfo, error) {
	d, c := r.conn.dev, r.conn
	q, err := d.qp(num)
	if err != nil {
		return verbs.ConnInfo{}, err
	}
	if err := checkDepths(&p); err != nil {
		return verbs.ConnInfo{}, err
	}
	if !r.answered.CompareAndSwap(false, true) {
		return verbs.ConnInfo{}, errAnswered
	}
	r.done = make(chan struct{})
	if !d.do(func() { r.start(q, p) }) {
		return verbs.ConnInfo{}, verbs.ErrClosed
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		d.do(func() {
			if c.state == awaitRTR {
				c.reset(ctx.Err())
			}
		})
		<-r.done
	}
	info, err := r.info, r.err
	if errors.Is(err, mpa.ErrPrivateData) {
		r.answered.Store(false) // nothing was sent: another answer is possible
	}
	if err != nil {
		return verbs.ConnInfo{}, &verbs.OpError{Op: "accept", Object: c.tcp.RemoteAddr().String(), Err: err}
	}
	return info, nil
}

// start writes the Reply. The queue pair is in RTS and its receives stand
// before the peer can learn that it may send (RFC 5041, Section 5.1).
func (r *request) start(q *qp, p verbs.ConnParams) {
	c := r.conn
	switch {
	case c.state != awaitAccept:
		r.finish(r.left())
		return
	case q.conn != nil || q.dial != nil || q.State() != verbs.QPSInit:
		r.finish(errors.New("the queue pair is in use: take a new one for each connection"))
		c.refuse(nil)
		return
	}
	cfg := c.dev.proto.mpa(p.IRD, p.ORD)
	// The answer settles how many reads the peer may have in flight: no more than
	// this, and the Reply promises them.
	if err := c.takeSlots(max(cfg.IRD, min(r.mpa.PeerORD, MaxReadDepth), 1)); err != nil {
		r.finish(err)
		c.refuse(nil)
		return
	}
	params, err := c.mpa.Accept(cfg, p.PrivateData)
	switch {
	case errors.Is(err, mpa.ErrPrivateData):
		r.finish(err)
		return
	case errors.Is(err, mpa.ErrRefused):
		r.finish(err)
		c.refused()
		return
	case err != nil:
		r.finish(err)
		c.abort()
		return
	}
	_ = c.takeSlots(params.IRD) // no more than there was room for
	c.run(q, params, false)
	r.info = c.info(r.mpa.Private)
	c.state = running
	if params.PeerToPeer {
		c.state = awaitRTR
		c.dev.timers.set(c, time.Now().Add(c.dev.proto.ConnectTimeout))
	} else {
		c.established()
	}
	c.receive()
}

// established reports a responder's connection: at once, or from awaitRTR when
// the first FPDU was good.
func (c *conn) established() {
	c.state = running
	c.dev.timers.drop(c)
	c.dev.stats.accepted.Add(1)
	c.log("accepted", "crc", c.params.CRC, "rev", c.params.Rev, "ird", c.params.IRD, "ord", c.params.ORD)
	c.req.finish(nil)
}

func (c *conn) failAccept(err error) {
	if err == nil {
		err = errors.New("the initiator closed the connection before it was established")
	}
	c.req.finish(err)
}

// finish hands the result to who accepts, once.
func (r *request) finish(err error) {
	select {
	case <-r.done:
	default:
		r.err = err
		close(r.done)
	}
}

func (r *request) reject(ctx context.Context, private []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !r.answered.CompareAndSwap(false, true) {
		return errAnswered
	}
	err := verbs.ErrClosed
	r.conn.dev.doWait(func() {
		if r.conn.state == awaitAccept {
			err = r.conn.refuse(private)
		} else {
			err = r.left()
		}
	})
	if errors.Is(err, mpa.ErrPrivateData) {
		r.answered.Store(false) // nothing was sent: another answer is possible
	}
	return err
}

// left is why there is nobody to answer.
func (r *request) left() error {
	if r.gone != nil {
		return fmt.Errorf("the peer left before it was answered: %w", r.gone)
	}
	return verbs.ErrClosed
}

// refuse answers R=1 and drains until the peer's FIN.
func (c *conn) refuse(private []byte) error {
	err := c.mpa.Reject(private)
	switch {
	case errors.Is(err, mpa.ErrPrivateData): // nothing was sent
	case err != nil:
		c.abort()
	default:
		c.refused()
	}
	return err
}

// refused waits for the FIN that answers ours.
func (c *conn) refused() {
	c.lis.forget(c)
	c.lis.leave(c)
	c.state = draining
	c.dev.timers.set(c, time.Now().Add(c.dev.proto.DrainTimeout))
	c.drain()
}
