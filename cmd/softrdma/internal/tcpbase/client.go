package tcpbase

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/perf"
)

// Client runs tests against a Server.
type Client struct {
	Addr string // host:port
	Spin bool   // both sides spin; Linux only
}

// stream is a connection, blocking or spinning.
type stream interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// graceTime is how long a test may take beyond its duration.
const graceTime = 5 * time.Second

// dialTime bounds the set-up of a connection.
const dialTime = 5 * time.Second

// Run measures. Of the test, the number of connections counts as one, and
// nothing is verified. When ctx ends during the measurement the result so far
// is returned, marked as interrupted.
func (c *Client) Run(ctx context.Context, t perf.Test) (*perf.Result, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	t.QPs, t.Verify = 1, false
	h, err := headFor(&t, c.Spin)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp", c.Addr)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(h.append(nil)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p := newPacer(ctx)
	defer p.stop()
	s := stream(conn.(*net.TCPConn))
	if c.Spin {
		if s, err = spinning(conn.(*net.TCPConn), p.hurry); err != nil {
			return nil, err
		}
	}
	defer s.Close()
	// Whatever hangs is cut off when it can no longer be of use.
	limit := t.Warmup + t.Duration + graceTime
	if t.Iterations > 0 {
		limit = time.Hour
	}
	cut := time.AfterFunc(limit, func() { p.cut(conn) })
	defer cut.Stop()

	m := &meter{stream: s, pacer: p, test: &t, head: h, buf: make([]byte, max(int(h.call), requestLen))}
	if t.Warmup > 0 {
		if err := m.phase(nil, 0, t.Warmup); err != nil {
			return nil, err
		}
	}
	res := &perf.Result{Test: t}
	cpu, start := perf.CPUTime(), time.Now()
	err = m.phase(res, t.Iterations, t.Duration)
	res.Elapsed, res.CPU = time.Since(start), perf.CPUTime()-cpu
	res.Interrupted = ctx.Err() != nil
	if h.test == sink && err == nil {
		err = m.confirm(res, start)
	}
	return res, err
}

// meter is a running test.
type meter struct {
	stream
	pacer *pacer
	test  *perf.Test
	head  head
	buf   []byte
	moved uint64 // octets, the warm-up included
}

// phase runs n messages or rounds, or for d if n is 0.
func (m *meter) phase(res *perf.Result, n int, d time.Duration) error {
	if n > 0 {
		d = time.Hour
	}
	until := time.Now().Add(d)
	if m.test.Kind == perf.Latency {
		return m.rounds(res, n, until)
	}
	move := m.Write
	if m.head.test == source {
		move = m.Read
	}
	before := m.moved
	want := uint64(n) * uint64(m.test.Size)
	for (n == 0 || m.moved-before < want) && !m.pacer.stopped() && time.Now().Before(until) {
		k, err := move(m.buf[:m.head.call])
		m.moved += uint64(k)
		if err != nil {
			return err
		}
	}
	if res != nil {
		res.Messages = (m.moved - before) / uint64(m.test.Size)
	}
	return nil
}

// rounds takes turns with the server.
func (m *meter) rounds(res *perf.Result, n int, until time.Time) error {
	times := perf.NewTimes()
	request := m.test.Size
	if m.head.test == respond {
		request = requestLen
	}
	start := time.Now()
	for i := 0; (n == 0 || i < n) && !m.pacer.stopped() && start.Before(until); i++ {
		if _, err := m.Write(m.buf[:request]); err != nil {
			return err
		}
		if _, err := io.ReadFull(m.stream, m.buf[:m.test.Size]); err != nil {
			return err
		}
		now := time.Now()
		times.Record(now.Sub(start))
		start = now
		if res != nil {
			res.Messages++
		}
	}
	if res != nil {
		res.Times = times
	}
	return nil
}

// confirm waits until the server says that it has all octets; only then the
// clock stops.
func (m *meter) confirm(res *perf.Result, start time.Time) error {
	if err := m.CloseWrite(); err != nil {
		return err
	}
	var count [countLen]byte
	if _, err := io.ReadFull(m.stream, count[:]); err != nil {
		return err
	}
	res.Elapsed = time.Since(start)
	if got := binary.BigEndian.Uint64(count[:]); got != m.moved {
		return fmt.Errorf("the server has %d octets of %d", got, m.moved)
	}
	return nil
}
