package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// Conn is a connected queue pair.
type Conn struct {
	*verbs.QP
	dev  *verbs.Device
	info verbs.ConnInfo
	own  []io.Closer // what newConn made: closed after the queue pair, in order
	easy *easy       // nil when the application brought its completion queues
}

// newConn makes the queue pair of a connection, and what it lacks for one.
func newConn(dev *verbs.Device, pd *verbs.PD, cfg verbs.QPConfig, e Easy, prepare func(*verbs.QP) error) (*Conn, error) {
	c := &Conn{dev: dev}
	err := c.build(pd, cfg, e, prepare)
	if err != nil {
		c.free()
		return nil, err
	}
	return c, nil
}

func (c *Conn) build(pd *verbs.PD, cfg verbs.QPConfig, e Easy, prepare func(*verbs.QP) error) (err error) {
	if pd != nil && pd.Device() != c.dev {
		return fmt.Errorf("the protection domain belongs to another device: %w", syscall.EINVAL)
	}
	if pd == nil {
		if pd, err = c.dev.AllocPD(); err != nil {
			return err
		}
		c.own = append(c.own, pd)
	}
	if cfg.SendCQ == nil && cfg.RecvCQ == nil {
		if c.easy, err = newEasy(c, pd, &cfg, e); err != nil {
			return err
		}
	}
	if c.QP, err = pd.CreateQP(cfg); err != nil {
		return err
	}
	if c.easy != nil {
		if err := c.easy.postAll(c.QP); err != nil {
			return err
		}
	}
	if prepare != nil {
		return prepare(c.QP)
	}
	return nil
}

// free closes the queue pair and what was made for it.
func (c *Conn) free() error {
	var errs []error
	if c.QP != nil {
		errs = append(errs, c.QP.Close())
	}
	for i := len(c.own) - 1; i >= 0; i-- {
		errs = append(errs, c.own[i].Close())
	}
	return errors.Join(errs...)
}

// LocalAddr is this side's address.
func (c *Conn) LocalAddr() netip.AddrPort { return c.info.Local }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.info.Remote }

// PrivateData is what the peer's Request or Reply carried.
func (c *Conn) PrivateData() []byte { return c.info.PrivateData }

// ReadDepths are the inbound and outbound reads in flight that both sides
// agreed on.
func (c *Conn) ReadDepths() (ird, ord int) { return c.info.IRD, c.info.ORD }

// Disconnect ends the connection in order: it sends a FIN behind everything
// that has completed, flushes the receives and waits until the queue pair is
// in ERR. Work requests that have not completed make it a reset instead, so
// wait for their completions first.
func (c *Conn) Disconnect(ctx context.Context) error {
	return c.Modify(ctx, verbs.QPSSQD)
}

// closeLimit bounds the orderly part of Close.
const closeLimit = 3 * time.Second

// Close disconnects in order if the connection still stands, for at most three
// seconds, then closes the queue pair and what the connection made for itself.
// What completed before still reaches the peer. (QP.Close alone resets the
// connection.)
func (c *Conn) Close() error {
	if c.State() == verbs.QPSRTS {
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		_ = c.Disconnect(ctx) // free ends it in any case
	}
	return c.free()
}

// depth turns the read depths of this package's configurations, where 0 is the
// device's and negative none, into those of the provider.
func depth(n int) int {
	switch {
	case n == 0:
		return -1
	case n < 0:
		return 0
	}
	return n
}
