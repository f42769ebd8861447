package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"syscall"

	"github.com/softrdma/softrdma/verbs"
)

// ListenConfig makes listeners.
type ListenConfig struct {
	Device  *verbs.Device
	Backlog int // requests nobody has accepted yet that are at hand; further peers wait for their turn. 128 if 0
}

// Listen announces addr, "host:port", or ":port" for every address of the
// device, IPv4 and IPv6; port 0 picks one. "0.0.0.0:port" is for its IPv4
// addresses alone. It fails with an error matching syscall.EADDRINUSE if the
// port is taken.
func (lc *ListenConfig) Listen(ctx context.Context, addr string) (*Listener, error) {
	if lc.Device == nil {
		return nil, &verbs.OpError{Op: "listen", Object: addr, Err: fmt.Errorf("ListenConfig.Device is nil: open one with iwarp.Open")}
	}
	full := addr
	if strings.HasPrefix(addr, ":") {
		full = "[::]" + addr
	}
	locals, err := resolve(ctx, full)
	if err != nil {
		return nil, &verbs.OpError{Op: "listen", Object: addr, Err: err}
	}
	var failure error
	for _, local := range locals {
		ops, err := lc.Device.Provider().Listen(ctx, local, lc.Backlog, verbs.ListenParams{})
		if err == nil {
			return &Listener{dev: lc.Device, ops: ops}, nil
		}
		if failure == nil || errors.Is(failure, syscall.EAFNOSUPPORT) {
			failure = err
		}
		if !elsewhere(err) {
			break
		}
	}
	return nil, failure
}

// Listener takes connection requests. Its methods may be called by several
// goroutines at once.
type Listener struct {
	dev *verbs.Device
	ops verbs.ListenerOps
}

// Addr is where the listener listens, the picked port included.
func (l *Listener) Addr() netip.AddrPort { return l.ops.Addr }

// Accept waits for the next request. The peer waits for the answer: Accept or
// Reject the request soon. The error matches verbs.ErrClosed once the listener
// is closed, or the context's.
func (l *Listener) Accept(ctx context.Context) (*Request, error) {
	ops, err := l.ops.Accept(ctx)
	if err != nil {
		return nil, &verbs.OpError{Op: "accept", Object: l.Addr().String(), Err: err}
	}
	return &Request{dev: l.dev, ops: ops}, nil
}

// All yields requests until ctx ends or the listener is closed, which ends
// the sequence without an error; any other error is yielded last.
func (l *Listener) All(ctx context.Context) iter.Seq2[*Request, error] {
	return func(yield func(*Request, error) bool) {
		for {
			r, err := l.Accept(ctx)
			if ctx.Err() != nil || errors.Is(err, verbs.ErrClosed) {
				return
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// Close stops listening. Requests that nobody has taken are reset; those taken
// and connections stay.
func (l *Listener) Close() error { return l.ops.Close() }

// Request is a peer that wants to connect. Accept or Reject answers it, once.
type Request struct {
	dev *verbs.Device
	ops verbs.RequestOps
}

// PrivateData is what the peer's Request carried.
func (r *Request) PrivateData() []byte { return r.ops.PrivateData }

// RemoteAddr is the peer's address, LocalAddr the one it has called.
func (r *Request) RemoteAddr() netip.AddrPort { return r.ops.Remote }

// LocalAddr is the address that the peer has called.
func (r *Request) LocalAddr() netip.AddrPort { return r.ops.Local }

// ReadDepths are the inbound and outbound reads that the peer offers; -1
// each when it said nothing (MPA revision 1).
func (r *Request) ReadDepths() (ird, ord int) { return r.ops.IRD, r.ops.ORD }

// AcceptConfig says how a request is accepted.
type AcceptConfig struct {
	PD   *verbs.PD      // of the queue pair; one of the connection's own if nil
	QP   verbs.QPConfig // without completion queues: the easy path
	Easy Easy           // of the easy path

	PrivateData []byte                // carried by the MPA Reply
	Prepare     func(*verbs.QP) error // runs before the Reply leaves: post receives here

	IRD, ORD int // inbound and outbound reads in flight; the device's default if 0, none if negative
}

// Accept answers yes. It returns when the connection may carry messages both
// ways; with a peer-to-peer initiator that is after its first message. An
// error before the answer leaves (Prepare's, for example) leaves the request
// unanswered, so that it may still be rejected.
func (r *Request) Accept(ctx context.Context, cfg AcceptConfig) (*Conn, error) {
	c, err := newConn(r.dev, cfg.PD, cfg.QP, cfg.Easy, cfg.Prepare)
	if err != nil {
		return nil, err
	}
	info, err := r.ops.Accept(ctx, c.Num(), verbs.ConnParams{
		PrivateData: cfg.PrivateData, IRD: depth(cfg.IRD), ORD: depth(cfg.ORD),
	})
	if err != nil {
		c.free()
		return nil, err
	}
	c.info = info
	return c, nil
}

// Reject answers no and hands private to the peer, where Dial fails with a
// *verbs.RejectError.
func (r *Request) Reject(ctx context.Context, private []byte) error {
	if err := r.ops.Reject(ctx, private); err != nil {
		return &verbs.OpError{Op: "reject", Object: r.ops.Remote.String(), Err: err}
	}
	return nil
}
