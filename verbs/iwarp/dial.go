package iwarp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/verbs"
)

// dial is a caller of verbs.Provider.Dial that waits for its connection.
type dial struct {
	qp     *qp
	params verbs.ConnParams
	conn   *conn
	rev1   bool // a Request of revision 2 was reset: this is the second attempt
	done   chan struct{}
	info   verbs.ConnInfo
	err    error
}

// connect is the provider's Dial: TCP connect, MPA Request, MPA Reply.
func (d *device) connect(ctx context.Context, num uint32, p verbs.ConnParams) (verbs.ConnInfo, error) {
	q, err := d.qp(num)
	if err != nil {
		return verbs.ConnInfo{}, err
	}
	if err := checkDepths(&p); err != nil {
		return verbs.ConnInfo{}, err
	}
	w := &dial{qp: q, params: p, done: make(chan struct{})}
	if !d.do(func() { d.startDial(w) }) {
		return verbs.ConnInfo{}, verbs.ErrClosed
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		d.do(func() {
			if w.conn != nil {
				w.conn.failDial(ctx.Err())
			}
		})
		<-w.done
	}
	if w.err != nil {
		return verbs.ConnInfo{}, &verbs.OpError{Op: "dial", Object: p.Remote.String(), Err: w.err}
	}
	return w.info, nil
}

// checkDepths refuses read depths above the device's.
func checkDepths(p *verbs.ConnParams) error {
	if p.IRD > MaxReadDepth || p.ORD > MaxReadDepth {
		return fmt.Errorf("read depths IRD %d, ORD %d: the device allows %d: %w", p.IRD, p.ORD, MaxReadDepth, syscall.EINVAL)
	}
	return nil
}

func (d *device) startDial(w *dial) {
	switch {
	case d.stopping:
		w.finish(verbs.ConnInfo{}, verbs.ErrClosed)
		return
	case w.qp.conn != nil || w.qp.dial != nil || w.qp.State() != verbs.QPSInit:
		w.finish(verbs.ConnInfo{}, fmt.Errorf("the queue pair is in state %v: take a new one for each connection", w.qp.State()))
		return
	}
	d.attempt(w)
}

// attempt begins a TCP connection.
func (d *device) attempt(w *dial) {
	tcp, err := d.stack.Dial(w.params.Local, w.params.Remote)
	if err != nil {
		w.finish(verbs.ConnInfo{}, err)
		return
	}
	w.qp.dial = w
	w.conn = d.newConn(tcp, dialing, d.proto.ConnectTimeout)
	w.conn.dial = w
	w.conn.ready()
}

// finish hands the result to the caller, once.
func (w *dial) finish(info verbs.ConnInfo, err error) {
	select {
	case <-w.done:
	default:
		w.info, w.err = info, err
		if w.qp.dial == w {
			w.qp.dial = nil
		}
		close(w.done)
	}
}

// dialed goes on from dialing: the SYN was answered or refused.
func (c *conn) dialed() {
	ok, err := c.tcp.Connected()
	if err != nil {
		c.failDial(dialError(err))
		return
	}
	if !ok {
		return
	}
	w := c.dial
	cfg := c.dev.proto.mpa(w.params.IRD, w.params.ORD)
	cfg.Rev1 = cfg.Rev1 || w.rev1
	if err := c.mpa.Request(cfg, w.params.PrivateData); err != nil {
		c.failDial(err)
		return
	}
	c.state = awaitReply
	c.dev.timers.set(c, time.Now().Add(c.dev.proto.ConnectTimeout))
	c.reply()
}

// reply goes on from awaitReply: octets have arrived.
func (c *conn) reply() {
	rep, ok, err := c.mpa.RecvReply()
	w := c.dial
	switch {
	case err != nil && mpaFPDU(err) && w.qp.State() == verbs.QPSInit:
		// The peer is in FPDU mode already: it is owed a Terminate (RFC 6581,
		// Section 8).
		c.run(w.qp, rep.Params, true)
		c.state = running
		w.finish(verbs.ConnInfo{}, err)
		c.end(err)
	case err != nil && c.mayFallBack(err):
		c.fallBack()
	case err != nil:
		c.failDial(startupError(err))
	case !ok:
	case rep.Rejected:
		c.failDial(&verbs.RejectError{PrivateData: rep.Private})
	case w.qp.State() != verbs.QPSInit:
		c.failDial(verbs.ErrClosed)
	default:
		if err := c.takeSlots(rep.Params.IRD); err != nil {
			c.failDial(err)
			return
		}
		c.run(w.qp, rep.Params, true)
		c.state = running
		c.dev.timers.drop(c)
		c.dev.txq.push(w.qp) // the ready-to-receive message
		c.await(firstNudge)
		c.dev.stats.connected.Add(1)
		c.log("connected", "crc", rep.Params.CRC, "rev", rep.Params.Rev, "ird", rep.Params.IRD, "ord", rep.Params.ORD)
		w.finish(c.info(rep.Private), nil)
		c.receive() // a responder may send first
	}
}

// mayFallBack reports whether err is how a peer that knows revision 1 alone
// meets a Request of revision 2, by a reset (RFC 6581, Section 6), and revision
// 1 will do.
func (c *conn) mayFallBack(err error) bool {
	p := &c.dev.proto
	var e *mpa.Error
	return errors.As(err, &e) && e.Code == mpa.CodeClosed && errors.Is(err, syscall.ECONNRESET) &&
		!p.Rev1 && !p.RequireRev2 && !p.RequireRTR && !c.dial.rev1 && c.dial.qp.State() == verbs.QPSInit && !c.dev.stopping
}

// fallBack dials once more, with revision 1.
func (c *conn) fallBack() {
	w := c.dial
	c.log("the peer resets MPA revision 2; trying revision 1")
	c.dial = nil // the dial is no longer this connection's
	c.abort()
	w.rev1 = true
	c.dev.attempt(w)
}

// A responder that has not answered the ready-to-receive message in this time
// may have missed it, and is nudged; then again after four times as long, up
// to lastNudge.
const (
	firstNudge = 10 * time.Millisecond
	lastNudge  = 4 * 4 * 4 * firstNudge
)

// await sees to it that the answer to the ready-to-receive message comes.
func (c *conn) await(limit time.Duration) {
	if c.stream.Awaiting() && limit <= lastNudge {
		c.nudge = limit
		c.dev.timers.set(c, time.Now().Add(limit))
	}
}

// mpaFPDU reports whether err is one of the start-up errors that are found
// when the peer expects FPDUs already.
func mpaFPDU(err error) bool {
	var e *mpa.Error
	return errors.As(err, &e) && (e.Code == mpa.CodeIRD || e.Code == mpa.CodeRTR)
}

func (c *conn) failDial(err error) {
	if c.dial == nil || c.state > awaitReply {
		return
	}
	c.dev.stats.dialErrors.Add(1)
	c.log("connect failed", "err", err)
	w := c.dial
	c.abort()
	w.finish(verbs.ConnInfo{}, err)
}

func (c *conn) info(private []byte) verbs.ConnInfo {
	return verbs.ConnInfo{
		Local: c.tcp.LocalAddr(), Remote: c.tcp.RemoteAddr(), PrivateData: private,
		IRD: c.params.IRD, ORD: c.params.ORD,
	}
}

// errTimeout matches os.ErrDeadlineExceeded and syscall.ETIMEDOUT.
type errTimeout string

func (e errTimeout) Error() string { return string(e) + " in time" }
func (e errTimeout) Timeout() bool { return true }
func (e errTimeout) Is(target error) bool {
	return target == os.ErrDeadlineExceeded || target == syscall.ETIMEDOUT
}

// dialError adds the next step to what TCP says about a connect.
func dialError(err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: nothing listens there; start the server or check the port", err)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Errorf("%w: no host answers at that address on this link; check address, gateway and cable", err)
	case errors.Is(err, syscall.ETIMEDOUT):
		return errTimeout("no answer to the TCP connect: " + err.Error())
	}
	return err
}

// startupError tells a peer that went away from one that speaks otherwise.
func startupError(err error) error {
	var e *mpa.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case mpa.CodeClosed:
		return fmt.Errorf("the peer closed the connection instead of an MPA Reply (%w): is it an iWARP server, and does it take our MPA revision and CRC?", err)
	case mpa.CodeFrame:
		return fmt.Errorf("the peer's answer is no MPA Reply that we take (%w): is it an iWARP server?", err)
	}
	return err
}
