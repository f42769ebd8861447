package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// control is one side of a control connection. It is used by one goroutine.
type control struct {
	conn    *rdmacm.Conn // set once connected
	pd      *verbs.PD
	cq      *verbs.CQ
	mr      *verbs.MR // controlReceives slots for messages that come, one for that which goes
	wcs     [4]verbs.WC
	in      []message
	bad     error
	sent    bool
	end     error // what ended the connection
	leaving bool  // the peer is: receives can be posted no more
}

const (
	// controlReceives is more than the protocol needs: one message at a time.
	controlReceives = 2
	controlSend     = controlReceives // the slot of the message that goes, and its ID
	controlSpin     = 20 * time.Microsecond
)

func newControl(dev *verbs.Device) (_ *control, err error) {
	c := &control{sent: true}
	defer func() {
		if err != nil {
			_ = c.close() // the first error is the one to tell
		}
	}()
	if c.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if c.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: 16, SpinFor: controlSpin}); err != nil {
		return nil, err
	}
	c.mr, err = c.pd.AllocMR((controlReceives+1)*maxMessage, verbs.AccessLocalWrite)
	return c, err
}

func (c *control) qpConfig() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 4, MaxRecvWR: controlReceives}
}

// prepare posts the receives before the peer can send.
func (c *control) prepare(qp *verbs.QP) error {
	for slot := range controlReceives {
		if err := c.post(qp, slot); err != nil {
			return err
		}
	}
	return nil
}

func (c *control) post(qp *verbs.QP, slot int) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: uint64(slot), SGL: []verbs.SGE{c.mr.SGE(slot*maxMessage, maxMessage)}}})
	return err
}

func (c *control) close() error {
	var errs []error
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Close()) // and the memory in it
	}
	return errors.Join(errs...)
}

// send sends m and waits until its octets may be used again. That the
// connection has ended is no error while there is a message to be received: it
// may tell why.
func (c *control) send(ctx context.Context, m message) error {
	at := controlSend * maxMessage
	b := m.append(c.mr.Bytes()[at:at:len(c.mr.Bytes())])
	c.sent = false
	_, err := c.conn.PostSend([]verbs.SendWR{{
		ID: controlSend, Op: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{c.mr.SGE(at, len(b))},
	}})
	for err == nil && !c.sent {
		err = c.wait(ctx)
	}
	if len(c.in) > 0 {
		return nil
	}
	return why(c.conn, err)
}

// recv waits for the next message. The peer's end in order is io.EOF.
func (c *control) recv(ctx context.Context) (message, error) {
	for len(c.in) == 0 {
		if c.bad != nil {
			return message{}, c.bad
		}
		if err := c.wait(ctx); err != nil && len(c.in) == 0 {
			return message{}, why(c.conn, err)
		}
	}
	m := c.in[0]
	c.in = append(c.in[:0], c.in[1:]...)
	return m, nil
}

// ask sends m and waits for the answer, which must be of type want.
func (c *control) ask(ctx context.Context, m message, want msgType) (message, error) {
	if err := c.send(ctx, m); err != nil {
		return message{}, err
	}
	got, err := c.recv(ctx)
	switch {
	case errors.Is(err, io.EOF):
		return got, errors.New("the server closed the control connection")
	case err != nil:
		return got, err
	case got.typ == msgRefused:
		return got, got.refusal()
	case got.typ != want:
		return got, fmt.Errorf("the server answered with message type %d where %d was due", got.typ, want)
	}
	return got, nil
}

func (c *control) wait(ctx context.Context) error {
	if c.end != nil {
		return c.end
	}
	n, err := c.completions(ctx)
	if err != nil {
		return err
	}
	for i := range c.wcs[:n] {
		wc := &c.wcs[i]
		if c.end = wc.Err(); c.end != nil {
			return c.end
		}
		if wc.ID == controlSend {
			c.sent = true
			continue
		}
		at, n := int(wc.ID)*maxMessage, 0
		if wc.Op == verbs.OpRecv { // the length of immediate data is not that of the receive
			n = int(wc.ByteLen)
		}
		m, err := parseMessage(c.mr.Bytes()[at : at+n])
		switch {
		case err == nil:
			c.in = append(c.in, m)
		case c.bad == nil:
			c.bad = err
		}
		if err := c.post(c.conn.QP, int(wc.ID)); err != nil {
			c.leaving = true
		}
	}
	return nil
}

// completions waits for some. A peer that is leaving lets no receive be posted
// any more, so that nothing may ever come: then it does not wait.
func (c *control) completions(ctx context.Context) (int, error) {
	if !c.leaving {
		return c.cq.Wait(ctx, c.wcs[:])
	}
	n, err := c.cq.Poll(c.wcs[:])
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// why prefers what ended a connection to its consequences. The peer's end in
// order is io.EOF.
func why(conn *rdmacm.Conn, err error) error {
	switch {
	case err == nil:
		return nil
	case conn.Err() != nil:
		return fmt.Errorf("%w (%w)", conn.Err(), err)
	case errors.Is(err, verbs.WCWRFlushErr):
		return io.EOF
	}
	return err
}
