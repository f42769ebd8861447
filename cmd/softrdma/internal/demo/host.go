package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// host is one end of a connection, with its memory.
type host struct {
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	mem  *verbs.MR // guard, room for one message, guard
	room int
	conn *rdmacm.Conn
}

// guard is how much memory on both sides of a message must stay as it was.
const guard = 64

const spin = 100 * time.Microsecond

func newHost(dev *verbs.Device, room int, access verbs.Access) (_ *host, err error) {
	h := &host{dev: dev, room: room}
	defer func() {
		if err != nil {
			_ = h.close() // the first error is the one to tell
		}
	}()
	if h.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if h.cq, err = dev.CreateCQ(verbs.CQConfig{SpinFor: spin}); err != nil {
		return nil, err
	}
	h.mem, err = h.pd.AllocMR(room+2*guard, access)
	return h, err
}

func (h *host) close() error {
	var errs []error
	if h.conn != nil {
		errs = append(errs, h.conn.Close())
	}
	if h.cq != nil {
		errs = append(errs, h.cq.Close())
	}
	if h.pd != nil {
		errs = append(errs, h.pd.Close()) // and the memory in it
	}
	return errors.Join(errs...)
}

func (h *host) qp() verbs.QPConfig { return verbs.QPConfig{SendCQ: h.cq, RecvCQ: h.cq} }

// message is the memory of a message of n octets.
func (h *host) message(n int) []byte   { return h.mem.Bytes()[guard : guard+n] }
func (h *host) sge(n int) verbs.SGE    { return h.mem.SGE(guard, n) }
func (h *host) name() verbs.RemoteBuf  { return h.mem.Remote().Slice(guard, h.room) }
func (h *host) guards(n int) [2][]byte { b := h.mem.Bytes(); return [2][]byte{b[:guard], b[guard+n:]} }

func (h *host) send(wrs ...verbs.SendWR) error {
	_, err := h.conn.PostSend(wrs)
	return err
}

func (h *host) receive(n int) error {
	wr := verbs.RecvWR{}
	if n > 0 {
		wr.SGL = []verbs.SGE{h.sge(n)}
	}
	_, err := h.conn.PostRecv([]verbs.RecvWR{wr})
	return err
}

// complete waits for one completion.
func (h *host) complete(ctx context.Context) (verbs.WC, error) {
	var wc [1]verbs.WC
	if _, err := h.cq.Wait(ctx, wc[:]); err != nil {
		return wc[0], err
	}
	return wc[0], wc[0].Err()
}

// ended waits until the connection is over and returns why; nil if in order.
func (h *host) ended(ctx context.Context) error {
	select {
	case <-h.conn.Done():
		return h.conn.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// terminated returns the Terminate in err, or nil.
func terminated(err error) *verbs.TerminateError {
	var t *verbs.TerminateError
	errors.As(err, &t)
	return t
}

// codeCRC is the code of a CRC mismatch (RFC 5044, Section 8).
const codeCRC = 0x2002

// connect joins two hosts. The server answers greeting with answer, as private
// data.
func (d *demo) connect(ctx context.Context, a, b *host, greeting, answer string) error {
	type result struct {
		conn *rdmacm.Conn
		err  error
	}
	accepted := make(chan result, 1)
	go func() {
		req, err := d.lis.Accept(ctx)
		if err != nil {
			accepted <- result{nil, err}
			return
		}
		if got := string(req.PrivateData()); got != greeting {
			err = fmt.Errorf("private data of the request is %q and should be %q", got, greeting)
			_ = req.Reject(ctx, nil) // the demo has failed already
			accepted <- result{nil, err}
			return
		}
		conn, err := req.Accept(ctx, rdmacm.AcceptConfig{PD: b.pd, QP: b.qp(), PrivateData: []byte(answer)})
		accepted <- result{conn, err}
	}()
	dial := rdmacm.Dialer{Device: d.a, PD: a.pd, QP: a.qp(), PrivateData: []byte(greeting)}
	conn, err := dial.Dial(ctx, fmt.Sprintf("%v:%d", iwarp.PipeAddrB, port))
	a.conn = conn
	r := <-accepted
	b.conn = r.conn
	if err = errors.Join(err, r.err); err != nil {
		return err
	}
	if got := string(conn.PrivateData()); got != answer {
		return fmt.Errorf("private data of the reply is %q and should be %q", got, answer)
	}
	return nil
}
