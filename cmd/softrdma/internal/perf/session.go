package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// session is one client. Its goroutine answers the control messages, and each
// data connection that has something to do gets one of its own.
type session struct {
	srv      *Server
	id       uint64
	ctl      *control
	incoming chan incoming // data connections, from Server.route
}

type incoming struct {
	req    *rdmacm.Request
	number int
}

// sessionIdle is how long a client may do nothing between two tests.
const sessionIdle = time.Minute

// serve answers one client to its end.
func (s *session) serve(ctx context.Context, req *rdmacm.Request) {
	var err error
	if s.ctl, err = newControl(s.srv.Device); err != nil {
		_ = req.Reject(ctx, []byte("no memory")) // the peer may have gone already
		return
	}
	defer s.ctl.close()
	s.ctl.conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: s.ctl.pd, QP: s.ctl.qpConfig(), Prepare: s.ctl.prepare})
	if err != nil {
		return
	}
	for {
		m, err := s.recv(ctx, sessionIdle)
		if err != nil {
			return // it has left, or never was a client
		}
		r := Report{Peer: req.RemoteAddr()}
		start := time.Now()
		r.Err = s.test(ctx, &m, &r)
		r.Elapsed = time.Since(start)
		if s.srv.OnTest != nil && ctx.Err() == nil {
			s.srv.OnTest(r)
		}
		if r.Err != nil {
			// Tell why, if the connection still stands, then end the session.
			c, cancel := context.WithTimeout(ctx, graceTime)
			_ = s.ctl.send(c, message{typ: msgRefused, text: r.Err.Error()})
			cancel()
			return
		}
	}
}

func (s *session) recv(ctx context.Context, limit time.Duration) (message, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.ctl.recv(ctx)
}

// expect waits for the message that is due.
func (s *session) expect(ctx context.Context, want msgType, limit time.Duration) (message, error) {
	m, err := s.recv(ctx, limit)
	switch {
	case errors.Is(err, io.EOF):
		return m, errors.New("the client closed the control connection")
	case err != nil:
		return m, err
	case m.typ != want:
		return m, fmt.Errorf("message type %d came where %d was due", m.typ, want)
	}
	return m, nil
}

// test runs the server's side of one test. An error ends the session.
func (s *session) test(ctx context.Context, open *message, report *Report) error {
	if open.typ != msgOpen {
		return fmt.Errorf("message type %d came where %d was due", open.typ, msgOpen)
	}
	t := &report.Test
	*t = Test{
		Op: open.op, Kind: open.kind, Size: int(open.size), QPs: int(open.qps), Depth: int(open.depth),
		Verify: open.verify, Duration: 1,
	}
	if t.Size == 0 || t.QPs == 0 || t.Depth == 0 {
		return errors.New("size, connections and depth must be given")
	}
	if err := t.Check(); err != nil {
		return err
	}
	l := t.layout()
	total := int64(l.size()) * int64(t.QPs)
	if err := s.srv.reserve(total); err != nil {
		return err
	}
	defer s.srv.release(total)
	x := &exam{session: s, test: t, layout: l, seed: open.seed}
	defer x.close()
	if err := x.setup(ctx); err != nil {
		return err
	}
	return x.run(ctx, min(time.Duration(open.limit)*time.Second, limitIdle), report)
}

// exam is one test of a session.
type exam struct {
	*session
	test   *Test
	layout layout
	seed   uint64
	pd     *verbs.PD
	mem    *verbs.MR
	lanes  []*serverLane
}

func (x *exam) close() {
	for _, l := range x.lanes {
		if l != nil {
			_ = l.close() // the client is through with it
		}
	}
	if x.pd != nil {
		_ = x.pd.Close() // and the memory in it
	}
}

// setup offers the memory and takes the data connections.
func (x *exam) setup(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, setupTime)
	defer cancel()
	if x.pd, err = x.srv.Device.AllocPD(); err != nil {
		return err
	}
	// What the client is to do with it, and no more. A test of anything but
	// atomics ends with a Read, whose answer says that all before it has come.
	access := verbs.AccessLocalWrite | verbs.AccessRemoteRead
	switch {
	case x.test.Op.Atomic():
		access = verbs.AccessLocalWrite | verbs.AccessRemoteAtomic
	case x.test.Op == Write:
		access |= verbs.AccessRemoteWrite
	}
	if x.mem, err = x.pd.AllocMR(x.layout.size()*x.test.QPs, access); err != nil {
		return err
	}
	own := x.mem.Remote()
	err = x.ctl.send(ctx, message{
		typ: msgReady, session: x.id, receives: uint16(x.layout.receives), step: uint16(x.layout.step),
		slots: uint16(x.layout.slots), stride: uint32(x.layout.stride),
		addr: own.Addr, key: uint32(own.RKey), len: uint64(len(x.mem.Bytes())),
	})
	if err != nil {
		return err
	}
	x.lanes = make([]*serverLane, x.test.QPs)
	for range x.test.QPs {
		select {
		case in := <-x.incoming:
			if err := x.accept(ctx, in); err != nil {
				return err
			}
		case <-x.ctl.conn.Done():
			return errors.New("the client closed the control connection")
		case <-ctx.Done():
			return fmt.Errorf("waiting for data connections: %w", ctx.Err())
		}
	}
	start, err := x.expect(ctx, msgStart, setupTime)
	if err != nil {
		return err
	}
	if x.test.Op == Write && x.test.Kind == Latency {
		if start.len < uint64(x.layout.size()) {
			return fmt.Errorf("the client's memory has %d octets and needs %d", start.len, x.layout.size())
		}
		x.lanes[0].remote = verbs.RemoteBuf{Addr: start.addr, RKey: verbs.Key(start.key)}
		x.lanes[0].theirs = x.layout
	}
	return nil
}

// accept takes one data connection.
func (x *exam) accept(ctx context.Context, in incoming) error {
	refuse := func(err error) error {
		_ = in.req.Reject(ctx, []byte(err.Error())) // the peer may have gone already
		return err
	}
	if in.number >= len(x.lanes) || x.lanes[in.number] != nil {
		return refuse(fmt.Errorf("connection %d is not one that is due", in.number))
	}
	ln, err := newLane(x.srv.Device, x.test, in.number, x.seed, x.layout)
	if err != nil {
		return refuse(err)
	}
	ln.mem, ln.base = x.mem, in.number*x.layout.size()
	l := &serverLane{lane: ln}
	x.lanes[in.number] = l
	l.prefill()
	cfg := rdmacm.AcceptConfig{
		PD: x.pd, Prepare: l.prepare,
		QP: verbs.QPConfig{SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: serverSends, MaxRecvWR: max(1, x.layout.receives)},
	}
	if x.test.Op.Answered() {
		cfg.IRD = min(x.test.Depth, maxReads)
	}
	l.conn, err = in.req.Accept(ctx, cfg)
	return err
}

// run is the test itself, from Go to Result.
func (x *exam) run(ctx context.Context, limit time.Duration, report *Report) error {
	work, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, l := range x.lanes {
		wg.Go(func() { l.err = l.work(work) })
	}
	defer wg.Wait()
	defer stop()
	cpu := CPUTime()
	if err := x.ctl.send(ctx, message{typ: msgGo}); err != nil {
		return err
	}
	m, err := x.expect(ctx, msgStop, limit)
	if err != nil {
		return err
	}
	if len(m.counts) != len(x.lanes) {
		return fmt.Errorf("the client counts %d connections and has %d", len(m.counts), len(x.lanes))
	}
	for i, l := range x.lanes {
		l.target.Store(m.counts[i])
	}
	stop()
	wg.Wait()
	res := message{typ: msgResult, cpu: uint64(CPUTime() - cpu)}
	for i, l := range x.lanes {
		if l.err != nil {
			return fmt.Errorf("data connection %d: %w", i, l.err)
		}
		l.checkWritten(m.counts[i])
		res.messages += m.counts[i]
		if res.wrong == 0 {
			res.text = l.wrongAt
		}
		res.wrong += l.wrong
	}
	res.octets = res.messages * uint64(x.test.Size)
	report.Messages, report.Wrong = res.messages, res.wrong
	return x.ctl.send(ctx, res)
}
