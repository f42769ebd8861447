package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
)

// Easy sizes the receives that a connection on the easy path keeps posted for
// Conn.Recv. The peer may have that many messages under way that nobody has
// received yet; one more ends the connection, as there is no retry in iWARP.
type Easy struct {
	Messages int // receives kept posted; 16 if 0
	Size     int // octets of the longest message; 64 KiB if 0
}

const (
	easyMessages = 16
	easySize     = 64 << 10
)

// errNotEasy is what the easy path answers on a connection whose queues are
// the application's.
var errNotEasy = errors.New("this connection's completion queues are the application's: post and poll on them, or leave SendCQ and RecvCQ out of the queue pair's configuration")

// easy is what the easy path needs of a connection.
type easy struct {
	pd   *verbs.PD
	size int

	send struct {
		mu   sync.Mutex // one operation at a time
		cq   *verbs.CQ
		word *verbs.MR // 8 octets: what an atomic fetched
		id   uint64
	}
	recv struct {
		mu    sync.Mutex
		cq    *verbs.CQ
		slots *verbs.MR // Messages buffers of size octets each; a receive's ID is its index
		end   error     // sticks: no message will come any more
	}
}

// newEasy fills cfg with the easy path's queues.
func newEasy(c *Conn, pd *verbs.PD, cfg *verbs.QPConfig, e Easy) (*easy, error) {
	if e.Messages == 0 {
		e.Messages = easyMessages
	}
	if e.Size == 0 {
		e.Size = easySize
	}
	if e.Messages < 0 || e.Size < 0 {
		return nil, fmt.Errorf("Easy{Messages: %d, Size: %d}: neither may be negative", e.Messages, e.Size)
	}
	x := &easy{pd: pd, size: e.Size}
	cfg.MaxRecvWR = max(cfg.MaxRecvWR, e.Messages)
	var err error
	if x.send.cq, err = c.dev.CreateCQ(verbs.CQConfig{Depth: max(cfg.MaxSendWR, 64), SpinFor: easySpin}); err != nil {
		return nil, err
	}
	c.own = append(c.own, x.send.cq)
	if x.recv.cq, err = c.dev.CreateCQ(verbs.CQConfig{Depth: cfg.MaxRecvWR, SpinFor: easySpin}); err != nil {
		return nil, err
	}
	c.own = append(c.own, x.recv.cq)
	if x.recv.slots, err = pd.AllocMR(e.Messages*e.Size, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	c.own = append(c.own, x.recv.slots)
	if x.send.word, err = pd.AllocMR(wordSize, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	c.own = append(c.own, x.send.word)
	cfg.SendCQ, cfg.RecvCQ = x.send.cq, x.recv.cq
	return x, nil
}

// easySpin is how long an operation looks for its completion before it parks.
const easySpin = 20 * time.Microsecond

func (x *easy) postAll(qp *verbs.QP) error {
	for i := range len(x.recv.slots.Bytes()) / x.size {
		if err := x.post(qp, uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (x *easy) post(qp *verbs.QP, slot uint64) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: slot, SGL: []verbs.SGE{x.recv.slots.SGE(int(slot)*x.size, x.size)}}})
	return err
}

// Send sends b as one message and returns when b may be used again. The peer
// must have a receive posted. If ctx ends first the connection is reset.
func (c *Conn) Send(ctx context.Context, b []byte) error {
	if c.easy == nil {
		return errNotEasy
	}
	wr := verbs.SendWR{Op: verbs.OpSend}
	if len(b) > 0 {
		mr, err := c.easy.pd.RegMR(b, 0)
		if err != nil {
			return err
		}
		defer mr.Close()
		wr.SGL = []verbs.SGE{mr.SGE(0, len(b))}
	}
	return c.do(ctx, wr)
}

// Write writes src into the peer's memory dst. It returns when src may be used
// again, which says nothing about the peer: a Send behind it arrives when the
// Write is in place.
func (c *Conn) Write(ctx context.Context, dst verbs.RemoteBuf, src verbs.SGE) error {
	return c.do(ctx, verbs.SendWR{Op: verbs.OpWrite, Remote: dst, SGL: []verbs.SGE{src}})
}

// Read reads the peer's memory src into dst and returns when it is there.
func (c *Conn) Read(ctx context.Context, dst verbs.SGE, src verbs.RemoteBuf) error {
	return c.do(ctx, verbs.SendWR{Op: verbs.OpRead, Remote: src, SGL: []verbs.SGE{dst}})
}

// wordSize is what an atomic works on, in octets.
const wordSize = 8

// FetchAdd adds d to the 8 octets of the peer's memory dst, a number in the byte
// order of the peer's host, and returns what they were before. It is atomic with
// respect to other atomics through the peer's device. The peer's region needs
// AccessRemoteAtomic; dst must be aligned to 8 in the peer's memory, or the
// connection ends. If ctx ends first the connection is reset, and whether the
// number was changed is not known.
func (c *Conn) FetchAdd(ctx context.Context, dst verbs.RemoteBuf, d uint64) (old uint64, err error) {
	return c.atomic(ctx, verbs.SendWR{Op: verbs.OpFetchAdd, Remote: dst, Val: d})
}

// CompareSwap replaces the 8 octets of the peer's memory dst by the number new
// if they are old, and returns what they were before: old, if they were replaced.
// The rest is as for FetchAdd.
func (c *Conn) CompareSwap(ctx context.Context, dst verbs.RemoteBuf, old, new uint64) (was uint64, err error) {
	return c.atomic(ctx, verbs.SendWR{Op: verbs.OpCompareSwap, Remote: dst, Compare: old, Val: new})
}

func (c *Conn) atomic(ctx context.Context, wr verbs.SendWR) (uint64, error) {
	x := c.easy
	if x == nil {
		return 0, errNotEasy
	}
	x.send.mu.Lock()
	defer x.send.mu.Unlock()
	sgl := [1]verbs.SGE{x.send.word.SGE(0, wordSize)}
	wr.SGL = sgl[:]
	if err := c.run(ctx, wr); err != nil {
		return 0, err
	}
	return x.send.word.Uint64(0).Load(), nil
}

// do runs one work request to its completion.
func (c *Conn) do(ctx context.Context, wr verbs.SendWR) error {
	x := c.easy
	if x == nil {
		return errNotEasy
	}
	x.send.mu.Lock()
	defer x.send.mu.Unlock()
	return c.run(ctx, wr)
}

// run is do for who holds the lock of the send side.
func (c *Conn) run(ctx context.Context, wr verbs.SendWR) error {
	x := c.easy
	x.send.id++
	wr.ID, wr.Flags = x.send.id, verbs.SendSignaled
	if _, err := c.PostSend([]verbs.SendWR{wr}); err != nil {
		return c.why(err)
	}
	var wc [1]verbs.WC
	for {
		n, err := x.send.cq.Wait(ctx, wc[:])
		if err != nil {
			// The memory goes back to the caller, so nothing may use it any more.
			return errors.Join(err, c.QP.Close())
		}
		if n == 1 && wc[0].ID == wr.ID {
			return c.why(wc[0].Err())
		}
	}
}

// Recv waits for the next message and copies it to b. A message longer than b
// is cut and reported as io.ErrShortBuffer. After the peer's end in order it
// returns io.EOF. If ctx ends first the connection is reset. An RDMA Write with
// Immediate of the peer counts as a message of no octets; its immediate data takes
// completion queues of one's own to see.
func (c *Conn) Recv(ctx context.Context, b []byte) (int, error) {
	x := c.easy
	if x == nil {
		return 0, errNotEasy
	}
	x.recv.mu.Lock()
	defer x.recv.mu.Unlock()
	if x.recv.end != nil {
		return 0, x.recv.end
	}
	var wc [1]verbs.WC
	if n, err := x.recv.cq.Wait(ctx, wc[:]); err != nil || n == 0 {
		return 0, errors.Join(err, c.QP.Close())
	}
	if err := wc[0].Err(); err != nil {
		if x.recv.end = io.EOF; c.QP.Err() != nil {
			x.recv.end = c.why(err)
		}
		return 0, x.recv.end
	}
	at, n := int(wc[0].ID)*x.size, 0
	if wc[0].Op == verbs.OpRecv { // else what the peer has written is elsewhere
		n = int(wc[0].ByteLen)
	}
	k := copy(b, x.recv.slots.Bytes()[at:at+n])
	if err := x.post(c.QP, wc[0].ID); err != nil && c.State() == verbs.QPSRTS {
		return k, err // elsewhere the message was the last one, and is good
	}
	if k < n {
		return k, io.ErrShortBuffer
	}
	return k, nil
}

// why prefers the reason that ended the connection to its consequences.
func (c *Conn) why(err error) error {
	if err == nil {
		return nil
	}
	if cause := c.QP.Err(); cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}
