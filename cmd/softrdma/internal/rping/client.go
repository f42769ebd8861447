package rping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// Client pings an rping server.
type Client struct {
	Device   *verbs.Device
	Size     int           // octets of a ping, MinSize to MaxSize; DefaultSize if 0
	Count    int           // pings; until the context ends if 0
	Interval time.Duration // from the start of one ping to the next; none if 0
	Timeout  time.Duration // of one ping; 10 s if 0
	OnPing   func(Ping)    // is called after each; may be nil
}

// Ping is one round that came back right.
type Ping struct {
	Seq  int
	Size int
	Time time.Duration // of the whole round: three turns of the network
	Text []byte        // what came back; valid during the call only
}

// Mismatch is a ping that came back different.
type Mismatch struct {
	Seq       int
	Offset    int // of the first octet that differs
	Want, Got byte
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("ping %d came back wrong: octet %d is 0x%02x and should be 0x%02x", m.Seq, m.Offset, m.Got, m.Want)
}

// Run connects to addr and pings. When ctx ends it stops without an error.
// Each ping's data is compared; the first difference is a *Mismatch.
func (c *Client) Run(ctx context.Context, addr string) error {
	size := c.Size
	if size == 0 {
		size = DefaultSize
	}
	if size < MinSize || size > MaxSize {
		return fmt.Errorf("a ping of %d octets is out of range: take %d to %d", size, MinSize, MaxSize)
	}
	// The server reads the source and writes the sink: one right for each.
	e, err := newEndpoint(c.Device, size, verbs.AccessRemoteRead)
	if err != nil {
		return err
	}
	defer e.close()
	p := pinger{endpoint: e, size: size}
	if p.back, err = e.pd.AllocMR(size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return err
	}
	d := rdmacm.Dialer{
		Device: c.Device, PD: e.pd, QP: e.qpConfig(), Prepare: e.prepare,
		IRD: readDepth, ORD: readDepth,
	}
	if e.conn, err = d.Dial(ctx, addr); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	for n := 0; c.Count == 0 || n < c.Count; n++ {
		start := time.Now()
		if err := c.ping(ctx, &p, n); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		took := time.Since(start)
		if c.OnPing != nil {
			c.OnPing(Ping{Seq: n, Size: size, Time: took, Text: p.sink()})
		}
		if n+1 == c.Count || !pause(ctx, e.conn, c.Interval-time.Since(start)) {
			break
		}
	}
	return nil
}

const defaultTimeout = 10 * time.Second

// ping does one round in time.
func (c *Client) ping(ctx context.Context, p *pinger, n int) error {
	limit := c.Timeout
	if limit == 0 {
		limit = defaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := p.ping(ctx, n)
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the server closed the connection")
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("ping %d was not answered in %v: %w", n, limit, ctx.Err())
	}
	return err
}

// pause waits for d; false when ctx ended. It returns early when the
// connection has ended, for the next ping to tell why.
func pause(ctx context.Context, conn *rdmacm.Conn, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-conn.Done():
	case <-ctx.Done():
		return false
	}
	return true
}

// pinger is the client's side of the rounds.
type pinger struct {
	*endpoint
	back *verbs.MR // what the server writes
	size int
}

func (p *pinger) source() []byte { return p.data.Bytes() }
func (p *pinger) sink() []byte   { return p.back.Bytes() }

// name is what a Send says about a region.
func (p *pinger) name(mr *verbs.MR) info {
	r := mr.Remote()
	return info{addr: r.Addr, key: uint32(r.RKey), size: uint32(p.size)}
}

// ping does one round.
func (p *pinger) ping(ctx context.Context, n int) error {
	Text(p.source(), n)
	clear(p.sink())
	for _, mr := range []*verbs.MR{p.data, p.back} {
		if err := p.drain(ctx); err != nil {
			return err
		}
		if err := p.post(p.message(p.name(mr))); err != nil {
			return err
		}
		if _, err := p.next(ctx); err != nil {
			return err
		}
	}
	if bytes.Equal(p.source(), p.sink()) {
		return nil
	}
	for i, want := range p.source() {
		if got := p.sink()[i]; got != want {
			return &Mismatch{Seq: n, Offset: i, Want: want, Got: got}
		}
	}
	return nil
}
