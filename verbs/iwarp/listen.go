package iwarp

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

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
	young   []*conn // connections without a whole Request, oldest first
	queue   []*conn // those whose request waits for room in ready, likewise
	leaving []*conn // those that were refused and have not said FIN, likewise
	paused  bool    // resume will be called when there is room
}

// defaultBacklog is how many requests are at hand for an application that says
// nothing else: what it can answer in a moment. More of them wait.
const defaultBacklog = 128

func (d *device) listen(ctx context.Context, addr netip.AddrPort, backlog int, _ verbs.ListenParams) (verbs.ListenerOps, error) {
	if err := ctx.Err(); err != nil {
		return verbs.ListenerOps{}, err
	}
	if backlog <= 0 {
		backlog = defaultBacklog
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
		if len(l.young) > l.dev.proto.HalfOpen {
			// There is one more than may stay. A silent crowd must not lock out
			// an honest peer: the one that has been silent longest goes.
			if left := patience - l.dev.proto.RequestTimeout + time.Until(l.young[0].deadline); left > 0 {
				if !l.paused {
					l.paused = true
					time.AfterFunc(left, func() { l.dev.do(l.resume) })
				}
				return
			}
			l.dev.stats.halfOpenDropped.Add(1)
			l.young[0].abort()
			continue
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

// forget drops c from those that wait for their Request, their turn or the end.
func (l *listener) forget(c *conn) {
	for _, list := range []*[]*conn{&l.young, &l.queue, &l.leaving} {
		if i := slices.Index(*list, c); i >= 0 {
			*list = slices.Delete(*list, i, i+1)
			if l.paused {
				l.dev.do(l.resume) // later: the caller may be arrived
			}
			return
		}
	}
}

// leave takes c among those that were refused. They are bounded as those that
// come are; the one that has had the longest time for its answer goes.
func (l *listener) leave(c *conn) {
	if len(l.leaving) >= l.dev.proto.HalfOpen {
		l.dev.stats.halfOpenDropped.Add(1)
		l.leaving[0].abort()
	}
	l.leaving = append(l.leaving, c)
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
