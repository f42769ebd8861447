package demo

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// rejection dials a listener that says no.
func (d *demo) rejection(ctx context.Context) error {
	d.damage(false)
	const reason = "this one is turned away"
	return d.step("reject", "a connection that the peer does not want", 0, func(s *Step) error {
		rejected := make(chan error, 1)
		go func() {
			req, err := d.lis.Accept(ctx)
			if err == nil {
				err = req.Reject(ctx, []byte(reason))
			}
			rejected <- err
		}()
		dial := rdmacm.Dialer{Device: d.a, PrivateData: []byte("may I?")}
		conn, err := dial.Dial(ctx, fmt.Sprintf("%v:%d", iwarp.PipeAddrB, port))
		if conn != nil {
			return errors.Join(errors.New("the connection was accepted"), conn.Close())
		}
		if err := <-rejected; err != nil {
			return err
		}
		var r *verbs.RejectError
		switch {
		case !errors.As(err, &r), !errors.Is(err, syscall.ECONNREFUSED):
			return fmt.Errorf("the rejection came out as: %w", err)
		case string(r.PrivateData) != reason:
			return fmt.Errorf("private data of the rejection is %q and should be %q", r.PrivateData, reason)
		}
		s.Detail = fmt.Sprintf("Dial: %v; it says %q", r, r.PrivateData)
		return nil
	})
}

// accessErrors asks a peer for what it does not grant.
func (d *demo) accessErrors(ctx context.Context) error {
	const size = 4096
	for _, c := range []struct {
		what   string
		access verbs.Access // of the peer's memory
		wr     func(own verbs.SGE, peer verbs.RemoteBuf) verbs.SendWR
		status verbs.WCStatus // success: the completion came before the Terminate, as that of a Write may
		code   uint16
	}{
		{
			"RDMA Read of memory without that right", verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			func(own verbs.SGE, peer verbs.RemoteBuf) verbs.SendWR {
				return verbs.SendWR{Op: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{own}, Remote: peer}
			},
			verbs.WCRemAccessErr, 0x0102,
		},
		{
			"RDMA Write beyond the end of the memory", verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
			func(own verbs.SGE, peer verbs.RemoteBuf) verbs.SendWR {
				peer.Addr += size + guard + 1
				return verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{own}, Remote: peer}
			},
			verbs.WCSuccess, 0x1101,
		},
	} {
		err := d.step("access", c.what, 0, func(s *Step) (err error) {
			a, err := newHost(d.a, size, verbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, a.close()) }()
			b, err := newHost(d.b, size, c.access)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, b.close()) }()
			if err := d.connect(ctx, a, b, "", ""); err != nil {
				return err
			}
			if err := a.send(c.wr(a.sge(size), b.name())); err != nil {
				return err
			}
			wc, _ := a.complete(ctx) // its status is looked at
			return refused(ctx, s, a, b, &wc, c.status, c.code)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// refused checks that both ends tell the same story.
func refused(ctx context.Context, s *Step, a, b *host, wc *verbs.WC, status verbs.WCStatus, code uint16) error {
	ea, eb := terminated(a.ended(ctx)), terminated(b.ended(ctx))
	switch {
	case ea == nil || eb == nil:
		return fmt.Errorf("the connection ended without a Terminate: %v here, %v at the peer", a.conn.Err(), b.conn.Err())
	case ea.Value() != code || eb.Value() != code || !ea.Remote || eb.Remote:
		return fmt.Errorf("the Terminate should be 0x%04x of the peer: %w here, %w at the peer", code, ea, eb)
	case wc.Status != status && wc.Status != verbs.WCRemAccessErr:
		return fmt.Errorf("the completion says %v and should say %v", wc.Status, verbs.WCRemAccessErr)
	}
	s.Status, s.Code = wc.Status.String(), fmt.Sprintf("0x%04x", code)
	s.Detail = fmt.Sprintf("completion: %v; %v", wc.Status, ea)
	return nil
}
