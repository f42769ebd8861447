package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// CmatosePort is where ucmatose listens, and rdma_server too.
const CmatosePort = 7471

// Cmatose is one side of ucmatose.
type Cmatose struct {
	Device *verbs.Device
	Conns  int
	Count  int // messages each way on each connection
	Size   int // octets of a message, MinSize or more

	nodes []*node
}

// Serve plays the server on a listener until all is done.
func (c *Cmatose) Serve(ctx context.Context, l *rdmacm.Listener) error {
	return c.play(ctx, func(ctx context.Context) error {
		if err := c.acceptAll(ctx, l); err != nil {
			return err
		}
		if err := c.sendAll(ctx); err != nil {
			return err
		}
		for _, n := range c.nodes {
			if err := n.received(ctx); err != nil {
				return err
			}
			// The client answers out of the memory it has received into.
			for k := range c.Count {
				if conn, last, err := Parse(n.message(k)); err != nil || conn != n.id || last != c.Count-1 {
					return n.wrap(fmt.Errorf("answer %d should repeat message %d of connection %d: it is message %d of connection %d: %w", k, c.Count-1, n.id, last, conn, err))
				}
			}
		}
		var errs []error
		for _, n := range c.nodes {
			errs = append(errs, n.wrap(n.conn.Disconnect(ctx)))
		}
		return errors.Join(errs...)
	})
}

// Connect plays the client.
func (c *Cmatose) Connect(ctx context.Context, addr string) error {
	return c.play(ctx, func(ctx context.Context) error {
		if err := c.each(func(n *node) error { return n.dial(ctx, c.Device, addr) }); err != nil {
			return err
		}
		for _, n := range c.nodes {
			if err := n.received(ctx); err != nil {
				return err
			}
			// The server sends the same memory again and again, with whatever is in it.
			for k := range c.Count {
				if !bytes.Equal(n.message(k), n.message(0)) {
					return n.wrap(fmt.Errorf("message %d is not the same as message 0", k))
				}
			}
		}
		if err := c.sendAll(ctx); err != nil {
			return err
		}
		return c.each(func(n *node) error { return n.ended(ctx) })
	})
}

// ServeHeld plays the server against clients that never speak first and are in the
// client/server model, where it must keep silent (RFC 5044, Section 7.1.2). It posts its
// messages, looks for as long as silence whether any goes out, and leaves.
func (c *Cmatose) ServeHeld(ctx context.Context, l *rdmacm.Listener, silence time.Duration) error {
	return c.play(ctx, func(ctx context.Context) error {
		if err := c.acceptAll(ctx, l); err != nil {
			return err
		}
		for _, n := range c.nodes {
			if err := n.post(0); err != nil {
				return err
			}
		}
		select {
		case <-time.After(silence):
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, n := range c.nodes {
			for name, cq := range map[string]*verbs.CQ{"sent": n.sends, "received": n.recvs} {
				var wcs [1]verbs.WC
				if got, err := cq.Poll(wcs[:]); err != nil || got > 0 {
					return n.wrap(fmt.Errorf("%d messages %s (%v) before the initiator has spoken: %w", got, name, wcs[0].Status, err))
				}
			}
		}
		return nil
	})
}

// play makes the connections' nodes, runs one side and frees the nodes.
func (c *Cmatose) play(ctx context.Context, side func(context.Context) error) (err error) {
	if c.Conns < 1 || c.Count < 1 || c.Size < MinSize {
		return fmt.Errorf("%d connections, %d messages of %d octets: take at least one of each, and %d octets", c.Conns, c.Count, c.Size, MinSize)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { err = errors.Join(err, c.each((*node).close)) }()
	for i := range c.Conns {
		n, err := newNode(c.Device, i, c.Count, c.Size)
		if err != nil {
			return err
		}
		for k := range c.Count {
			Fill(n.out.Bytes()[k*c.Size:(k+1)*c.Size], i, k)
		}
		c.nodes = append(c.nodes, n)
	}
	return side(ctx)
}

// acceptAll takes one request for each node.
func (c *Cmatose) acceptAll(ctx context.Context, l *rdmacm.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(c.nodes))
	for i, n := range c.nodes {
		r, err := l.Accept(ctx)
		if err != nil {
			cancel()
			errs <- fmt.Errorf("after %d of %d requests: %w", i, len(c.nodes), err)
			for range c.nodes[i+1:] {
				errs <- nil
			}
			break
		}
		// Accept returns when the client has spoken, if it is to; the next one must not
		// wait for that.
		go func() {
			err := n.accept(ctx, r)
			if err != nil {
				cancel()
			}
			errs <- err
		}()
	}
	var all []error
	for range c.nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// sendAll sends all messages on all connections.
func (c *Cmatose) sendAll(ctx context.Context) error {
	for _, n := range c.nodes {
		if err := n.post(0); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := n.sent(ctx); err != nil {
			return err
		}
	}
	return nil
}

// each does something on all connections at once.
func (c *Cmatose) each(do func(*node) error) error {
	errs := make([]error, len(c.nodes))
	var all sync.WaitGroup
	for i, n := range c.nodes {
		all.Go(func() { errs[i] = do(n) })
	}
	all.Wait()
	return errors.Join(errs...)
}
