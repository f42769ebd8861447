package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

const (
	slots     = 8        // tasks in flight on a lane
	slotSize  = 32 << 10 // octets of the largest Write, Read
	slotGuard = 64
	slotPitch = slotSize + slotGuard
	recvSize  = 4 << 10
	recvs     = 4 * slots
	filler    = 96 << 10 // a Write longer than any FPDU that a damaged length promises
	basePort  = 7174

	atSource  = 0 // what a task of a slot sends
	atLanding = atSource + slots*slotPitch
	atRecv    = atLanding + slots*slotPitch
	atCounter = atRecv + recvs*recvSize
	atFiller  = atCounter + 8*slots
	memSize   = atFiller + 2*filler // to send, and to land

	fillerSeed = 7
	guardSeed  = 9
)

// run is one run of the whole: two devices, a wire, lanes.
type run struct {
	tap  *tap
	a, b *verbs.Device
	goal uint64 // frames

	tasks, conns, failed atomic.Uint64
	octets               atomic.Uint64 // compared
	wrong                atomic.Uint64 // deliveries of wrong octets
	crcEnds              atomic.Uint64 // CRC terminations that queue pairs report

	mu      sync.Mutex
	notes   []string      // what is wrong, the first few
	slowest time.Duration // that an end has taken, once it had begun
}

// endLimit is how long a connection may take to end. TCP may have to repeat what was
// lost, on a machine that has other things to do.
const endLimit = 30 * time.Second

// blame notes a delivery of wrong octets.
func (r *run) blame(format string, args ...any) {
	r.wrong.Add(1)
	r.note(format, args...)
}

// note keeps the first few words about what is wrong.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.notes) < 10 {
		r.notes = append(r.notes, fmt.Sprintf(format, args...))
	}
}

// over says that no more is to be begun.
func (r *run) over() bool { return r.tap.passed() >= r.goal }

// end is one side of a lane, with memory that outlives its connections.
type end struct {
	run  *run
	name string
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	mr   *verbs.MR
	mem  []byte
	peer *end
	conn *rdmacm.Conn

	land   [slots]landing
	filled bool // a filler is under way
	bad    bool // the connection is of no use any more
	torn   bool // because of what came over it: nobody else will end it
}

// landing is what a slot of landing memory holds: was, and as far as a Write or Read
// is under way, octets of next.
type landing struct {
	was  []byte
	next uint64
	n    int // octets under way
}

func (r *run) newEnd(name string, dev *verbs.Device) (e *end, err error) {
	e = &end{run: r, name: name, dev: dev}
	if e.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.cq, err = dev.CreateCQ(verbs.CQConfig{Depth: 1024}); err != nil {
		return nil, err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	if e.mr, err = e.pd.AllocMR(memSize, access); err != nil {
		return nil, err
	}
	e.mem = e.mr.Bytes()
	for i := range slots {
		for _, at := range []int{atSource, atLanding} {
			fill(e.mem[at+i*slotPitch+slotSize:at+(i+1)*slotPitch], guardSeed)
		}
		e.land[i].was = make([]byte, slotSize)
	}
	fill(e.mem[atFiller:atFiller+filler], fillerSeed)
	fill(e.mem[atFiller+filler:], fillerSeed)
	return e, nil
}

func (e *end) close() error { return errors.Join(e.cq.Close(), e.pd.Close()) }

func (e *end) source(slot, n int) []byte { return e.mem[atSource+slot*slotPitch:][:n] }
func (e *end) landed(slot, n int) []byte { return e.mem[atLanding+slot*slotPitch:][:n] }

func (e *end) qp() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 8 * slots, MaxRecvWR: recvs}
}

// prepare posts all receives.
func (e *end) prepare(qp *verbs.QP) error {
	for i := range recvs {
		if _, err := qp.PostRecv([]verbs.RecvWR{e.recv(i)}); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) recv(i int) verbs.RecvWR {
	return verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{e.mr.SGE(atRecv+i*recvSize, recvSize)}}
}

// lane runs connections one after the other until the run is over.
func (r *run) lane(ctx context.Context, n int, seed uint64) (*client, error) {
	c, err := r.newEnd(fmt.Sprintf("lane %d client", n), r.a)
	if err != nil {
		return nil, err
	}
	s, err := r.newEnd(fmt.Sprintf("lane %d server", n), r.b)
	if err != nil {
		return nil, err
	}
	c.peer, s.peer = s, c
	lis, err := (&rdmacm.ListenConfig{Device: r.b}).Listen(ctx, fmt.Sprintf("%v:%d", iwarp.PipeAddrB, basePort+n))
	if err != nil {
		return nil, err
	}
	client := newClient(c, mix(seed)+uint64(n)<<56)
	for !r.over() {
		if err := ctx.Err(); err != nil {
			return client, fmt.Errorf("%s: after %d frames: %w", c.name, r.tap.passed(), err)
		}
		if !r.connect(ctx, lis, c, s) {
			r.failed.Add(1)
			continue
		}
		r.conns.Add(1)
		var served sync.WaitGroup
		served.Go(func() { s.serve(ctx) })
		client.run(ctx)
		served.Wait()
		for _, e := range []*end{c, s} {
			e.finish(ctx)
		}
		client.settle()
	}
	return client, errors.Join(lis.Close(), c.close(), s.close())
}

// connect makes a connection; false if the wire did not let it.
func (r *run) connect(ctx context.Context, lis *rdmacm.Listener, c, s *end) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, e := range []*end{c, s} {
		e.conn, e.bad, e.torn, e.filled = nil, false, false, false
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for ctx.Err() == nil && s.conn == nil {
			req, err := lis.Accept(ctx)
			if err != nil {
				return
			}
			// The one of an earlier try that has gone fails, and its receives come back.
			if s.conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: s.pd, QP: s.qp(), Prepare: s.prepare}); err != nil {
				s.drain()
			}
		}
	})
	d := rdmacm.Dialer{Device: r.a, PD: c.pd, QP: c.qp(), Prepare: c.prepare}
	c.conn, _ = d.Dial(ctx, lis.Addr().String())
	if c.conn == nil {
		cancel()
	} else {
		// The message that opens it may be what was hit: then the listener has nothing.
		go func(over <-chan struct{}) {
			select {
			case <-over:
				time.Sleep(10 * time.Millisecond)
				cancel()
			case <-ctx.Done():
			}
		}(c.conn.Done())
	}
	accepting.Wait()
	if c.conn != nil && s.conn != nil && c.conn.LocalAddr() == s.conn.RemoteAddr() {
		return true
	}
	for _, e := range []*end{c, s} {
		if e.conn != nil {
			e.finish(ctx)
		}
		e.drain()
	}
	return false
}

// finish waits until the connection is over on this side, looks at why, and takes what
// is still in the completion queue.
func (e *end) finish(ctx context.Context) {
	began := time.Now()
	limit := time.NewTimer(2 * endLimit)
	defer limit.Stop()
	select {
	case <-e.conn.Done():
	case <-limit.C:
		if e.run.tap.only {
			break // without CRC damage may do anything
		}
		e.run.blame("%s: the connection does not end", e.name)
	case <-ctx.Done():
	}
	e.run.mu.Lock()
	e.run.slowest = max(e.run.slowest, time.Since(began))
	e.run.mu.Unlock()
	var t *verbs.TerminateError
	if errors.As(e.conn.Err(), &t) && !t.Remote && t.Value() == 0x2002 {
		e.run.crcEnds.Add(1)
	}
	_ = e.conn.Close() // its errors are those of the connection
}

// drain takes completions that nobody waits for any more.
func (e *end) drain() {
	var wcs [64]verbs.WC
	for {
		if n, err := e.cq.Poll(wcs[:]); n == 0 || err != nil {
			return
		}
	}
}

// wait returns completions. Where none come for a while it sends a filler: an FPDU
// whose length was damaged may wait for octets that nobody would send.
func (e *end) wait(ctx context.Context, wcs []verbs.WC) int {
	for ctx.Err() == nil {
		if n, _ := e.cq.Poll(wcs); n > 0 {
			return n
		}
		short, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
		n, _ := e.cq.Wait(short, wcs)
		cancel()
		if n > 0 {
			return n
		}
		if !e.filled {
			e.filled = true
			e.post(&verbs.SendWR{ID: idFiller, Op: verbs.OpWrite, Flags: verbs.SendSignaled,
				SGL: []verbs.SGE{e.mr.SGE(atFiller, filler)}, Remote: e.peer.mr.Remote().Slice(atFiller+filler, filler)})
		}
	}
	return 0
}

const idFiller = 1 << 40

// post posts one send request; a connection that has ended takes it too.
func (e *end) post(wr *verbs.SendWR) {
	if _, err := e.conn.PostSend([]verbs.SendWR{*wr}); err != nil {
		e.bad = true
	}
}

// compare holds octets against what they have to be.
func (e *end) compare(b []byte, seed uint64, what string) bool {
	e.run.octets.Add(uint64(len(b)))
	if at := differ(b, seed); at >= 0 {
		e.run.blame("%s: %s of %d octets: octet %d is wrong", e.name, what, len(b), at)
		return false
	}
	return true
}

// settleLanding looks at a slot of landing memory when a connection has ended: each
// octet is what it was, or what was under way.
func (e *end) settleLanding(slot int) {
	l := &e.land[slot]
	now := e.landed(slot, slotSize)
	next := make([]byte, l.n)
	fill(next, l.next)
	for i := range now {
		if now[i] != l.was[i] && (i >= l.n || now[i] != next[i]) {
			e.run.blame("%s: octet %d of slot %d is neither what it was nor what was under way", e.name, i, slot)
			break
		}
	}
	copy(l.was, now)
	l.n = 0
	for _, at := range []int{atSource, atLanding} {
		e.compare(e.mem[at+slot*slotPitch+slotSize:at+(slot+1)*slotPitch], guardSeed, "the guard of a slot")
	}
}

// message is what a Send says: 32 octets, all of them bound to each other.
type message struct {
	kind, slot uint8
	n          uint32
	seed       uint64
}

const messageLen = 32

func (m message) put(b []byte) {
	clear(b[:messageLen])
	b[0], b[1] = m.kind, m.slot
	binary.LittleEndian.PutUint32(b[4:], m.n)
	binary.LittleEndian.PutUint64(b[8:], m.seed)
	fill(b[16:messageLen], mix(m.seed)^uint64(m.n)<<16^uint64(m.slot)<<8^uint64(m.kind))
}

func getMessage(b []byte) (m message, ok bool) {
	if len(b) < messageLen {
		return m, false
	}
	m = message{b[0], b[1], binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[8:])}
	var again [messageLen]byte
	m.put(again[:])
	return m, string(again[:]) == string(b[:messageLen]) && m.slot < slots && m.n <= slotSize
}

// The kinds of tasks, and of answers to them.
const (
	kindWrite  = iota // a Write, and a Send that tells of it
	kindSend          // a Send, answered by another one
	kindPull          // the server Writes to the client
	kindRead          // a Read of what the server holds
	kindImm           // a Write with immediate data
	kindAtomic        // FetchAdd and CompareSwap in turn
	kinds
	kindAck
	kindEcho
	kindPulled
)

var kindNames = [...]string{"Write", "Send", "Write back", "Read", "Write with immediate", "atomic"}
