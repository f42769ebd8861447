package iwarp

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/rdmap"
	"github.com/softrdma/softrdma/verbs"
)

// conn is one TCP connection from its SYN to its end. The receive goroutine
// alone runs it; blocked, said and, once attached, the sending half of stream
// are the exceptions.
//
//	initiator: dialing -> awaitReply ----------------+
//	responder: awaitRequest -> awaitAccept -> awaitRTR -> running -> draining -> gone
type conn struct {
	dev     *device
	tcp     carrier
	mpa     *mpa.Conn
	stream  *rdmap.Stream // from running on; awaitRTR too
	qp      *qp           // likewise
	state   connState
	params  mpa.Params
	blocked atomic.Bool // the sending side waits for the window
	said    atomic.Bool // draining: our last octet is with TCP, or never will be
	taken   uint64      // draining: octets that TCP had taken when the time was last set
	rtrSend bool        // responder: the first Send opens the connection and is nothing to the application

	deadline time.Time     // zero: none
	nudge    time.Duration // initiator: how long the next answer to the ready-to-receive message is waited for
	slot     int           // place in device.timers, -1: none

	dial   *dial     // initiator: who waits for the result
	lis    *listener // responder: where it came from
	req    *request  // responder: from awaitAccept on
	queued bool      // in device.again
	slots  int       // of device.slots
	lost   error     // the sending side found TCP dead: the end, once all that came before is received
}

// carrier is what a connection needs of TCP: *netstack.Conn. This package's
// tests of the receive path put a stream in memory in its place.
type carrier interface {
	mpa.ByteStream
	Connected() (bool, error)
	Close()
	SetOwner(owner any)
	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

type connState uint8

const (
	dialing connState = iota
	awaitReply
	awaitRequest
	awaitAccept
	awaitRTR
	running
	draining
	gone
)

func (d *device) newConn(tcp carrier, s connState, limit time.Duration) *conn {
	c := &conn{dev: d, tcp: tcp, state: s, slot: -1}
	c.mpa = mpa.NewConn(tcp, d.pool)
	tcp.SetOwner(c)
	d.conns[c] = struct{}{}
	d.timers.set(c, time.Now().Add(limit))
	return c
}

// ready is called when something may have changed on the connection.
func (c *conn) ready() {
	if c.blocked.Swap(false) {
		c.dev.txq.push(c.qp)
	}
	switch c.state {
	case dialing:
		c.dialed()
	case awaitReply:
		c.reply()
	case awaitRequest:
		c.request()
	case awaitAccept:
		c.watch()
	case awaitRTR, running:
		c.receive()
		if c.lost != nil && !c.queued {
			c.end(c.lost)
		}
	case draining:
		c.drain()
	}
}

// rxBurst bounds the events one turn takes from a connection, so that a
// flooding peer cannot keep the receive goroutine from its neighbours.
const rxBurst = 512

// receive parses, places and completes what has arrived.
func (c *conn) receive() {
	for range rxBurst {
		ev, ok, err := c.stream.Receive()
		if err != nil {
			c.end(err)
			return
		}
		if !ok {
			return
		}
		if ev.Kind == rdmap.Turn {
			break
		}
		if !c.handle(&ev) {
			return
		}
	}
	c.dev.turnAgain(c)
}

// handle acts on one event; false when the stream ended by it.
func (c *conn) handle(ev *rdmap.Event) bool {
	q := c.qp
	ok := true
	switch ev.Kind {
	case rdmap.NeedRecv:
		if c.rtrSend {
			c.stream.Give(rdmap.RecvBuf{})
		} else if b, posted := q.rq.take(); posted {
			c.stream.Give(b)
		} else {
			c.dev.stats.noReceive.Add(1)
			c.stream.Refuse()
		}
	case rdmap.RecvDone:
		if c.rtrSend {
			c.rtrSend = false
		} else {
			ok = q.rq.finish(ev)
		}
	case rdmap.ReadDone: // or an atomic
		ok = q.sq.finish(ev.ID, ev.Len)
		ev.KickTx = q.sq.answered() || ev.KickTx
	case rdmap.RTRDone:
		c.dev.timers.drop(c)
	}
	if c.state == awaitRTR {
		c.established()
	}
	if ev.KickTx {
		c.dev.txq.push(q)
	}
	if !ok {
		c.dev.overran()
	}
	return ok
}

// run enters FPDU mode under queue pair q.
func (c *conn) run(q *qp, p mpa.Params, initiator bool) {
	c.params = p
	c.rtrSend = !initiator && p.RTR == mpa.RTRSend
	c.stream = rdmap.NewStream(c.mpa, rdmap.Config{
		Table: c.dev.table, PD: q.pd, QP: q.num, IRD: p.IRD, ORD: p.ORD,
		Initiator: initiator, PeerToPeer: p.PeerToPeer, RTR: p.RTR,
		NoAtomics: c.dev.proto.NoAtomics, NoImmediate: c.dev.proto.NoImmediate,
	})
	c.qp = q
	q.sq.begin(initiator && p.RTR == mpa.RTRRead)
	c.dev.mu.Lock()
	c.dev.live[c] = struct{}{}
	c.dev.mu.Unlock()
	q.attach(c)
}

// end begins the end of a running stream in the protocol's way: cause is the
// first error of either side, io.EOF for the peer's FIN, or errDisconnect. The
// connection then drains until the peer's FIN.
func (c *conn) end(cause error) {
	if c.state != running && c.state != awaitRTR || errors.Is(cause, rdmap.ErrStopped) {
		return // ErrStopped: the other half has the cause, and calls too
	}
	if errors.Is(cause, io.EOF) && c.busy() {
		cause = errBadClose
	}
	e := endState{fault: c.qp.faultOf(cause)}
	switch {
	case errors.Is(cause, io.EOF), errors.Is(cause, errDisconnect):
		c.over(nil, verbs.QPSSQD, e)
	case lostTCP(cause):
		e.dead = true
		c.over(cause, verbs.QPSErr, e)
	default:
		c.stream.Terminate(cause)
		c.over(cause, verbs.QPSSQE, e)
	}
	c.drain()
}

// reset ends a running stream at once and without a word to the peer. A nil
// cause is this side's wish.
func (c *conn) reset(cause error) {
	if c.state == running || c.state == awaitRTR {
		c.over(cause, verbs.QPSErr, endState{dead: true})
	}
	c.abort()
}

// over is where every running stream stops: the queue pair ends as e says, and
// nothing more is received.
func (c *conn) over(cause error, s verbs.QPState, e endState) {
	if c.state == awaitRTR {
		c.failAccept(cause)
	}
	c.state = draining
	c.setDrainTime()
	c.dev.stats.ended.Add(1)
	c.log("connection ended", "cause", cause)
	if cause != nil {
		e := eventOf(cause, c.qp.num)
		switch e.Type {
		case verbs.EventQPAccessErr:
			c.dev.stats.accessErrors.Add(1)
		case verbs.EventQPReqErr:
			c.dev.stats.requestErrors.Add(1)
		}
		c.dev.event(e)
		cause = streamError(cause)
	}
	c.qp.stop(cause, s, e)
}

// busy reports whether a FIN of the peer comes while work is in progress.
func (c *conn) busy() bool { return !c.qp.sq.empty() || c.stream.OutstandingReads() > 0 }

// errBadClose has the code of RFC 5040, Section 6.2: a FIN while work requests are open.
var errBadClose = &rdmap.Error{Type: rdmap.TypeOperation, Code: rdmap.CodeCatastrophic,
	Err: errors.New("the peer closed the connection while work requests were in progress")}

// lostTCP reports whether err means that TCP can carry nothing any more.
func lostTCP(err error) bool {
	var e *mpa.Error
	return errors.As(err, &e) && e.Code == mpa.CodeClosed
}

// drain discards what still arrives, unparsed, until the peer's FIN. Unread
// octets would make TCP answer with a reset, which could overtake and destroy
// our Terminate.
func (c *conn) drain() {
	for range drainBurst {
		if c.state != draining {
			return
		}
		n, err := c.mpa.Drain()
		if n > 0 {
			continue
		}
		switch {
		case errors.Is(err, io.EOF):
			// While our own end is still on its way out, the sending side
			// calls again when it is through.
			if c.qp == nil || c.said.Load() {
				c.release(c.tcp.Close)
			}
		case err != nil:
			c.abort()
		}
		return
	}
	c.dev.turnAgain(c)
}

// drainBurst bounds the looks one turn of drain takes at the stream, as
// rxBurst does for receive.
const drainBurst = 16

// abort resets the connection at once.
func (c *conn) abort() { c.release(c.tcp.Abort) }

// release ends the connection by shut and forgets it.
func (c *conn) release(shut func()) {
	if c.state == gone {
		return
	}
	c.state = gone
	if q := c.qp; q != nil {
		q.tx.Lock()
		q.conn = nil
		orphan := q.orphan
		shut()
		c.mpa.Drop()
		q.tx.Unlock()
		c.dev.txq.push(q)
		c.dev.mu.Lock()
		c.dev.totals.add(c)
		delete(c.dev.live, c)
		if orphan {
			c.dev.orphans--
		}
		c.dev.mu.Unlock()
	} else {
		shut()
	}
	if c.lis != nil {
		c.lis.forget(c)
	}
	_ = c.takeSlots(0) // fewer always go
	c.dev.timers.drop(c)
	delete(c.dev.conns, c)
}

// timeout is called when the deadline of the current state has passed.
func (c *conn) timeout() {
	switch c.state {
	case running:
		c.stream.Nudge()
		c.dev.txq.push(c.qp)
		c.await(4 * c.nudge)
	case dialing:
		c.failDial(errTimeout("no TCP connection to " + c.tcp.RemoteAddr().String()))
	case awaitReply:
		c.failDial(errTimeout("no MPA Reply on the TCP connection to " + c.tcp.RemoteAddr().String()))
	case awaitRTR:
		c.reset(errTimeout("no ready-to-receive message of the initiator"))
	case awaitRequest:
		c.dev.stats.requestTimeouts.Add(1)
		c.abort()
	case draining:
		if c.owes() {
			c.setDrainTime()
			return
		}
		c.abort()
	}
}

// setDrainTime gives the peer time to take the end.
func (c *conn) setDrainTime() {
	c.taken = c.mpa.Stats().OctetsOut
	c.dev.timers.set(c, time.Now().Add(c.dev.proto.DrainTimeout))
}

// ended goes on draining when our last octet is with TCP: the peer's time for its
// FIN begins.
func (c *conn) ended() {
	if c.state == draining {
		c.setDrainTime()
		c.drain()
	}
}

// owes reports whether our end is still behind other octets, answers to the
// peer's Reads, which the peer goes on taking.
func (c *conn) owes() bool {
	return !c.said.Load() && !c.dev.stopping && c.mpa.Stats().OctetsOut != c.taken
}

func (c *conn) log(msg string, args ...any) {
	if c.dev.log.to != nil {
		c.dev.log.log(slog.LevelInfo, msg, append(args, "local", c.tcp.LocalAddr(), "peer", c.tcp.RemoteAddr(), "qp", c.qpNum())...)
	}
}

func (c *conn) qpNum() string {
	if c.qp == nil {
		return "-"
	}
	return fmt.Sprint(c.qp.num)
}
