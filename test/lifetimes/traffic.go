package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

const (
	chunk  = 16 << 10 // octets of a Write or Read
	depth  = 32       // work requests under way
	part   = depth / 2 * chunk
	arena  = 3 * part // what is sent, what is read back, and what the peer writes
	rights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
)

// host is what connections of a device have in common.
type host struct {
	dev *verbs.Device
	pd  *verbs.PD
}

func newHost(dev *verbs.Device) (*host, error) {
	pd, err := dev.AllocPD()
	return &host{dev, pd}, err
}

// flow is a connection that is kept busy: it writes to the peer, reads it back and
// compares.
type flow struct {
	*rdmacm.Conn
	cq     *verbs.CQ
	mr     *verbs.MR
	remote verbs.RemoteBuf

	posted, completed uint64 // work requests
	good              atomic.Uint64
	last              atomic.Int64 // when one succeeded last, Unix nanoseconds
}

// newFlow makes what a connection needs, before it is there.
func (h *host) newFlow() (*flow, error) {
	f := &flow{}
	var err error
	if f.cq, err = h.dev.CreateCQ(verbs.CQConfig{Depth: 4 * depth}); err != nil {
		return nil, err
	}
	if f.mr, err = h.pd.AllocMR(arena, rights); err != nil {
		return nil, errors.Join(err, f.cq.Close())
	}
	return f, nil
}

func (f *flow) qp() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: f.cq, RecvCQ: f.cq, MaxSendWR: depth, MaxRecvWR: 4}
}

// prepare posts receives that stay until the end: their flush is part of the account.
func (f *flow) prepare(qp *verbs.QP) error {
	for range 4 {
		if _, err := qp.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{f.mr.SGE(0, 16)}}}); err != nil {
			return err
		}
		f.posted++
	}
	return nil
}

// dial connects to a peer, which names its memory in its private data.
func (h *host) dial(ctx context.Context, to netip.AddrPort) (*flow, error) {
	f, err := h.newFlow()
	if err != nil {
		return nil, err
	}
	d := rdmacm.Dialer{Device: h.dev, PD: h.pd, QP: f.qp(), Prepare: f.prepare}
	if d.PrivateData, err = f.mr.Remote().MarshalBinary(); err != nil {
		return nil, err
	}
	if f.Conn, err = d.Dial(ctx, to.String()); err != nil {
		return nil, errors.Join(err, f.free())
	}
	return f, f.remote.UnmarshalBinary(f.PrivateData())
}

// accept takes the request of a peer that does the same.
func (h *host) accept(ctx context.Context, req *rdmacm.Request) (*flow, error) {
	f, err := h.newFlow()
	if err != nil {
		return nil, err
	}
	c := rdmacm.AcceptConfig{PD: h.pd, QP: f.qp(), Prepare: f.prepare}
	if c.PrivateData, err = f.mr.Remote().MarshalBinary(); err != nil {
		return nil, err
	}
	if f.Conn, err = req.Accept(ctx, c); err != nil {
		return nil, errors.Join(err, f.free())
	}
	return f, f.remote.UnmarshalBinary(req.PrivateData())
}

// free closes what newFlow made.
func (f *flow) free() error { return errors.Join(f.mr.Close(), f.cq.Close()) }

// run keeps the connection busy until it ends or ctx does, and returns why it ended:
// nil if ctx did. Each round writes a part of our memory to the peer's, and reads it
// back.
func (f *flow) run(ctx context.Context) error {
	mem := f.mr.Bytes()
	for round := byte(1); ; round++ {
		for i := range part / 8 {
			mem[8*i] = round + byte(i)
		}
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			wrs := make([]verbs.SendWR, part/chunk)
			for i := range wrs {
				off := i * chunk
				wrs[i] = verbs.SendWR{Op: op, Flags: verbs.SendSignaled, Remote: f.remote.Slice(2*part+off, chunk), SGL: []verbs.SGE{f.mr.SGE(off, chunk)}}
				if op == verbs.OpRead {
					wrs[i].SGL[0].Off += part
				}
			}
			n, err := f.PostSend(wrs)
			f.posted += uint64(n)
			if err != nil && f.State() == verbs.QPSRTS {
				return fmt.Errorf("post: %w", err)
			}
			if err := f.complete(ctx, n); err != nil || ctx.Err() != nil {
				return err
			}
		}
		if !bytes.Equal(mem[:part], mem[part:2*part]) {
			return errors.New("what was read is not what was written")
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// complete waits for n completions. Its error is why the connection ended.
func (f *flow) complete(ctx context.Context, n int) error {
	wcs := make([]verbs.WC, depth)
	for n > 0 {
		k, err := f.cq.Wait(ctx, wcs[:min(n, depth)])
		if err != nil {
			return nil // ctx
		}
		f.completed += uint64(k)
		n -= k
		for _, wc := range wcs[:k] {
			if wc.Err() == nil {
				f.good.Add(1)
				f.last.Store(time.Now().UnixNano())
				continue
			}
			<-f.Done()
			if err := f.Err(); err != nil {
				return err
			}
			return wc.Err()
		}
	}
	return nil
}

// settle ends the connection if it still stands, closes it, and checks that each work
// request has its completion.
func (f *flow) settle() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if f.State() == verbs.QPSRTS {
		if err := f.Modify(ctx, verbs.QPSErr); err != nil {
			return err
		}
	}
	select {
	case <-f.Done():
	case <-ctx.Done():
		return errors.New("the queue pair did not end")
	}
	wcs := make([]verbs.WC, depth)
	for {
		n, err := f.cq.Poll(wcs)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		f.completed += uint64(n)
	}
	if f.completed != f.posted {
		return fmt.Errorf("%d of %d work requests have completed", f.completed, f.posted)
	}
	return errors.Join(f.QP.Close(), f.Conn.Close(), f.free())
}
