package peer

import (
	"context"
	"errors"
	"fmt"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// node is one connection with what belongs to it: queues of its own for sends and
// receives, and a buffer for each message.
type node struct {
	id          int
	count, size int

	pd           *verbs.PD
	sends, recvs *verbs.CQ
	in, out      *verbs.MR // count messages each
	conn         *rdmacm.Conn
}

func newNode(dev *verbs.Device, id, count, size int) (n *node, err error) {
	n = &node{id: id, count: count, size: size}
	defer func() {
		if err != nil {
			_ = n.close() // the first error is the one to tell
		}
	}()
	if n.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if n.sends, err = dev.CreateCQ(verbs.CQConfig{Depth: count}); err != nil {
		return nil, err
	}
	if n.recvs, err = dev.CreateCQ(verbs.CQConfig{Depth: count}); err != nil {
		return nil, err
	}
	if n.in, err = n.pd.AllocMR(count*size, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	n.out, err = n.pd.AllocMR(count*size, 0)
	return n, err
}

func (n *node) queues() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: n.sends, RecvCQ: n.recvs, MaxSendWR: n.count, MaxRecvWR: n.count,
		MaxSendSGE: 1, MaxRecvSGE: 1, SignalAll: true}
}

// prepare posts all receives, before the peer can send.
func (n *node) prepare(qp *verbs.QP) error {
	wrs := make([]verbs.RecvWR, n.count)
	for k := range wrs {
		wrs[k] = verbs.RecvWR{ID: uint64(k), SGL: []verbs.SGE{n.in.SGE(k*n.size, n.size)}}
	}
	_, err := qp.PostRecv(wrs)
	return err
}

func (n *node) dial(ctx context.Context, dev *verbs.Device, addr string) (err error) {
	d := rdmacm.Dialer{Device: dev, PD: n.pd, QP: n.queues(), Prepare: n.prepare, IRD: 1, ORD: 1}
	n.conn, err = d.Dial(ctx, addr)
	return n.wrap(err)
}

func (n *node) accept(ctx context.Context, r *rdmacm.Request) (err error) {
	n.conn, err = r.Accept(ctx, rdmacm.AcceptConfig{PD: n.pd, QP: n.queues(), Prepare: n.prepare, IRD: 1, ORD: 1})
	return n.wrap(err)
}

// post hands all messages to the send queue.
func (n *node) post(flags verbs.SendFlags) error {
	wrs := make([]verbs.SendWR, n.count)
	for k := range wrs {
		wrs[k] = verbs.SendWR{ID: uint64(k), Op: verbs.OpSend, Flags: flags, SGL: []verbs.SGE{n.out.SGE(k*n.size, n.size)}}
	}
	_, err := n.conn.PostSend(wrs)
	return n.wrap(err)
}

// sent waits until all messages are sent.
func (n *node) sent(ctx context.Context) error {
	return n.wrap(n.complete(ctx, n.sends, func(*verbs.WC) error { return nil }))
}

// received waits until all messages have come, each in its place and of full length.
func (n *node) received(ctx context.Context) error {
	return n.wrap(n.complete(ctx, n.recvs, func(wc *verbs.WC) error {
		if int(wc.ByteLen) != n.size {
			return fmt.Errorf("message %d has %d octets instead of %d", wc.ID, wc.ByteLen, n.size)
		}
		return nil
	}))
}

// message is the k-th that was received.
func (n *node) message(k int) []byte { return n.in.Bytes()[k*n.size : (k+1)*n.size] }

// complete takes the completions of all of a queue's work requests, in order.
func (n *node) complete(ctx context.Context, cq *verbs.CQ, each func(*verbs.WC) error) error {
	var wcs [8]verbs.WC
	for k := 0; k < n.count; {
		got, err := cq.Wait(ctx, wcs[:])
		if err != nil {
			return fmt.Errorf("after %d of %d completions: %w", k, n.count, err)
		}
		for i := range wcs[:got] {
			wc := &wcs[i]
			if err := wc.Err(); err != nil {
				return fmt.Errorf("work request %d: %w", wc.ID, errors.Join(err, n.conn.QP.Err()))
			}
			if wc.ID != uint64(k) {
				return fmt.Errorf("work request %d completed in the place of %d", wc.ID, k)
			}
			if err := each(wc); err != nil {
				return err
			}
			k++
		}
	}
	return nil
}

// ended waits until the peer has ended the connection, and tells if it did so other than
// in order.
func (n *node) ended(ctx context.Context) error {
	select {
	case <-n.conn.Done():
		return n.wrap(n.conn.QP.Err())
	case <-ctx.Done():
		return n.wrap(fmt.Errorf("the peer does not disconnect: %w", ctx.Err()))
	}
}

// close frees everything, the connection first.
func (n *node) close() error {
	var errs []error
	if n.conn != nil {
		errs = append(errs, n.conn.Close())
	}
	for _, cq := range []*verbs.CQ{n.sends, n.recvs} {
		if cq != nil {
			errs = append(errs, cq.Close())
		}
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close()) // and the memory in it
	}
	return n.wrap(errors.Join(errs...))
}

func (n *node) wrap(err error) error {
	if err != nil {
		err = fmt.Errorf("connection %d: %w", n.id, err)
	}
	return err
}
