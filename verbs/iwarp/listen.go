package iwarp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/mpa"
	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
)

// listener holds connections until a whole MPA Request has arrived, and then
// until the application takes them.
//
// Nobody is turned away because others came first. Where the application does
// not keep up requests wait behind the backlog, and while some do no further
// connection is taken from TCP: there they wait on, and where TCP has no room
// for them either the peers try again.
type listener struct {
	dev    *device
	tcp    *netstack.Listener
	ready  chan *request // requests nobody has taken yet; its capacity is the backlog
	behind atomic.Bool   // requests wait for room in ready
	closed chan struct{}

	// The receive goroutine's own.
	young  []*conn // connections without a whole Request, oldest first
	queue  []*conn // those whose request waits for room in ready, likewise
	paused bool    // resume will be called when there is room
}

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

func (d *device) listen(ctx context.Context, addr netip.AddrPort, backlog int, _ verbs.ListenParams) (verbs.ListenerOps, error) {
	if err := ctx.Err(); err != nil {
		return verbs.ListenerOps{}, err
	}
	if backlog <= 0 {
		backlog = 128
	}
	l := &listener{dev: d, ready: make(chan *request, backlog), closed: make(chan struct{})}
	var err error
	open := d.doWait(func() {
		if d.stopping {
			err = verbs.ErrClosed
			return
		}
		if l.tcp, err = d.stack.Listen(addr, backlog); err == nil {
			d.listeners[l.tcp] = l
		}
	})
	if !open {
		err = verbs.ErrClosed
	}
	if err != nil {
		return verbs.ListenerOps{}, &verbs.OpError{Op: "listen", Object: addr.String(), Err: err}
	}
	return verbs.ListenerOps{Addr: l.tcp.Addr(), Accept: l.next, Close: l.close}, nil
}

// next waits for a request.
func (l *listener) next(ctx context.Context) (verbs.RequestOps, error) {
	select {
	case <-l.closed:
		return verbs.RequestOps{}, verbs.ErrClosed
	default:
	}
	select {
	case r := <-l.ready:
		if l.behind.Load() {
			l.dev.do(l.refill)
		}
		return r.ops(), nil
	case <-l.closed:
		return verbs.RequestOps{}, verbs.ErrClosed
	case <-ctx.Done():
		return verbs.RequestOps{}, ctx.Err()
	}
}

// close stops listening; connections that nobody has accepted are reset.
func (l *listener) close() error {
	l.dev.doWait(l.shut)
	return nil
}

func (l *listener) shut() {
	if l.dev.listeners[l.tcp] != l {
		return
	}
	close(l.closed)
	delete(l.dev.listeners, l.tcp)
	for len(l.young) > 0 {
		l.young[0].abort()
	}
	for len(l.queue) > 0 {
		l.queue[0].abort()
	}
	for n := len(l.ready); n > 0; n-- {
		select {
		case r := <-l.ready:
			r.conn.abort()
		default: // Accept took it first
		}
	}
	l.tcp.Close()
}

// patience is how long a connection may be silent when others want its place:
// a peer that means well sends its Request at once, but where a thousand come
// together it takes a while until all have had their turn.
const patience = 100 * time.Millisecond

// arrived takes what the TCP listener has, as far as there is room for it.
func (l *listener) arrived() {
	for {
		if len(l.queue) > 0 {
			l.paused = true
			return
		}
		if len(l.young) >= l.dev.proto.HalfOpen {
			// A silent crowd must not lock out an honest peer: the one that
			// has been silent longest goes.
			if left := patience - l.dev.proto.RequestTimeout + time.Until(l.young[0].deadline); left > 0 {
				if !l.paused {
					l.paused = true
					time.AfterFunc(left, func() { l.dev.do(l.resume) })
				}
				return
			}
			l.dev.stats.halfOpenDropped.Add(1)
			l.young[0].abort()
		}
		tcp, ok := l.tcp.Accept()
		if !ok {
			return
		}
		c := l.dev.newConn(tcp, awaitRequest, l.dev.proto.RequestTimeout)
		c.lis = l
		l.young = append(l.young, c)
		c.ready()
	}
}

// resume goes on with arrived where it has paused.
func (l *listener) resume() {
	if l.paused {
		l.paused = false
		l.arrived()
	}
}

// forget drops c from those that wait for their Request or their turn.
func (l *listener) forget(c *conn) {
	for _, list := range []*[]*conn{&l.young, &l.queue} {
		if i := slices.Index(*list, c); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			if l.paused {
				l.dev.do(l.resume) // later: the caller may be arrived
			}
			return
		}
	}
}

// offer gives the application the request of c, when there is room.
func (l *listener) offer(c *conn) {
	l.queue = append(l.queue, c)
	l.refill()
	if len(l.queue) > 0 {
		l.dev.stats.backlogFull.Add(1)
	}
}

// refill moves requests that wait into the backlog.
func (l *listener) refill() {
	l.behind.Store(true) // first: who makes room from here on calls again
	for len(l.queue) > 0 {
		select {
		case l.ready <- l.queue[0].req:
			l.queue = slices.Delete(l.queue, 0, 1)
		default:
			return
		}
	}
	l.behind.Store(false)
	l.resume()
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

// watch notices a peer that leaves before it is accepted.
func (c *conn) watch() {
	if _, err := c.tcp.Peek(); err != nil {
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
	params, err := c.mpa.Accept(c.dev.proto.mpa(p.IRD, p.ORD), p.PrivateData)
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
	c.state = draining
	c.dev.timers.set(c, time.Now().Add(c.dev.proto.DrainTimeout))
	c.drain()
}
