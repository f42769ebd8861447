package verbs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/softrdma/softrdma/internal/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a provider whose queue pairs are wired to each other in memory. Work
// is done inside Doorbell, in the caller's goroutine, unless hold is set.
type fake struct {
	mu                                    sync.Mutex
	mrs                                   map[Key]*fakeMR
	qps                                   map[uint32]*fakeQP
	next                                  Key
	events                                chan AsyncEvent
	log                                   []string // control calls in order
	hold                                  bool     // leave posted work in the rings
	regErr, deregErr, createErr, closeErr error
	setups                                []QPSetup
	valid                                 map[Key]bool // of windows and fast regions, by a key without its last octet: see withKeys
	binds                                 []ring.Bind
}

type fakeMR struct {
	pd   uint32
	mem  []byte
	addr uint64
	acc  Access
}

type fakeQP struct {
	f     *fake
	s     QPSetup
	state atomic.Uint32
	peer  *fakeQP
	done  chan struct{}
	once  sync.Once
	wqe   [512]byte
	recv  [512]byte
	bells atomic.Int64
}

func newFake() *fake {
	return &fake{mrs: map[Key]*fakeMR{}, qps: map[uint32]*fakeQP{}, next: 0x100, events: make(chan AsyncEvent, 16)}
}

func (f *fake) provider(attr DeviceAttr) Provider {
	return Provider{
		Attr: attr,
		RegMR: func(pd uint32, mem []byte, a Access) (Key, uint64, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.regErr != nil {
				return 0, 0, f.regErr
			}
			f.next += 0x101
			m := &fakeMR{pd: pd, mem: mem, acc: a}
			if a&AccessZeroBased == 0 {
				m.addr = 0x7000_0000_0000 + uint64(f.next)<<32
			}
			f.mrs[f.next] = m
			return f.next, m.addr, nil
		},
		DeregMR: func(k Key) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.deregErr != nil {
				return f.deregErr
			}
			f.log = append(f.log, "dereg")
			delete(f.mrs, k)
			return nil
		},
		CreateQP: f.createQP,
		Events:   f.events,
		Stats:    func() Stats { return Stats{Counters: []Counter{{"fake.bells", 7}}} },
		Close: func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.log = append(f.log, "close")
			return f.closeErr
		},
	}
}

func (f *fake) createQP(s QPSetup) (QPOps, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.createErr != nil {
		return QPOps{}, f.createErr
	}
	q := &fakeQP{f: f, s: s, done: make(chan struct{})}
	q.state.Store(uint32(QPSInit))
	f.qps[s.Num] = q
	f.setups = append(f.setups, s)
	return QPOps{
		Doorbell: func() {
			q.bells.Add(1)
			f.mu.Lock()
			defer f.mu.Unlock()
			if !f.hold {
				q.run()
			}
		},
		State: func() QPState { return QPState(q.state.Load()) },
		Done:  q.done,
		Err:   func() error { return nil },
		Close: func() error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.log = append(f.log, "qp")
			q.fail()
			return nil
		},
		Modify: func(_ context.Context, to QPState) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if to == QPSErr {
				q.fail()
				return nil
			}
			q.state.Store(uint32(to))
			return nil
		},
	}, nil
}

// connect wires a and b together; they may be one.
func (f *fake) connect(a, b *QP) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x, y := f.qps[a.Num()], f.qps[b.Num()]
	x.peer, y.peer = y, x
	x.state.Store(uint32(QPSRTS))
	y.state.Store(uint32(QPSRTS))
}

func (f *fake) qp(q *QP) *fakeQP {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.qps[q.Num()]
}

func (f *fake) setHold(h bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = h
}

// fail runs under f.mu, as do all below.
func (q *fakeQP) fail() {
	q.state.Store(uint32(QPSErr))
	q.flush()
	q.once.Do(func() { close(q.done) })
}

func (q *fakeQP) flush() {
	for _, w := range []struct {
		r  *ring.Queue
		cq *ring.CQ
	}{{q.s.SQ, q.s.SendCQ}, {q.s.RQ, q.s.RecvCQ}} {
		if w.r == nil { // it has a shared one
			continue
		}
		for rec := w.r.Next(); rec != nil; rec = w.r.Next() {
			id := ring.WQE(rec).ID()
			w.r.Release(w.r.Head() + 1)
			q.push(w.cq, &ring.Completion{ID: id, Status: uint8(WCWRFlushErr), QP: q.s.Num, ByteLen: 77, Imm: 77})
		}
	}
}

func (q *fakeQP) push(cq *ring.CQ, e *ring.Completion) {
	if !cq.Push(e) && q.state.Load() != uint32(QPSErr) {
		select {
		case q.f.events <- AsyncEvent{Type: EventCQErr, CQ: q.s.SendCQNum}:
		default:
		}
		q.fail()
	}
}

func (q *fakeQP) run() {
	for q.s.SQ.Next() != nil {
		if q.state.Load() == uint32(QPSErr) {
			break
		}
		w := ring.WQE(q.wqe[:q.s.SQ.Load(q.s.SQ.Head(), q.wqe[:])])
		e := ring.Completion{ID: w.ID(), Op: w.Op(), QP: q.s.Num, Time: 42}
		st := WCLocQPOpErr
		if w.Valid() {
			st = q.do(w, &e)
		}
		q.s.SQ.Release(q.s.SQ.Head() + 1)
		if st != WCSuccess {
			e.Status, e.VendorErr = uint8(st), 0x1234
			q.state.Store(uint32(QPSErr))
			q.push(q.s.SendCQ, &e)
			break
		}
		if w.Flags()&ring.FlagSignaled != 0 {
			q.push(q.s.SendCQ, &e)
		}
	}
	if q.state.Load() == uint32(QPSErr) {
		q.fail()
	}
}

// gather yields the local octets of w piece by piece.
func (q *fakeQP) pieces(w ring.WQE, yield func([]byte) bool) WCStatus {
	if w.Flags()&ring.FlagInline != 0 {
		yield(w.Inline())
		return WCSuccess
	}
	for i := range w.NumSGE() {
		key, n, off := w.SGE(i)
		if n == 0 {
			continue
		}
		m := q.f.mrs[Key(key)]
		if m == nil || m.pd != q.s.PD || off+uint64(n) > uint64(len(m.mem)) {
			return WCLocProtErr
		}
		if !yield(m.mem[off : off+uint64(n)]) {
			break
		}
	}
	return WCSuccess
}

func (q *fakeQP) remote(w ring.WQE, need Access) ([]byte, bool) {
	m := q.f.mrs[Key(w.RKey())]
	if m == nil || m.pd != q.peer.s.PD || m.acc&need == 0 || w.RemoteAddr() < m.addr || w.RemoteAddr()-m.addr > uint64(len(m.mem)) {
		return nil, false
	}
	return m.mem[w.RemoteAddr()-m.addr:], true
}

func (q *fakeQP) do(w ring.WQE, e *ring.Completion) WCStatus {
	switch w.Op() {
	case ring.WRSend, ring.WRSendWithInv:
		return q.send(w)
	case ring.WRAtomicFetchAndAdd, ring.WRAtomicCmpAndSwp:
		return q.atomic(w, e)
	case ring.WRRDMAWriteWithImm:
		if st := q.move(w, e); st != WCSuccess {
			return st
		}
		e.Op = ring.WRRDMAWrite
		return q.immediate(w)
	case ring.WRRDMAWrite, ring.WRRDMARead:
		return q.move(w, e)
	case ring.WRLocalInv, ring.WRBindMW, ring.WRRegMR:
		return q.f.key(w)
	}
	return WCLocQPOpErr
}

func (q *fakeQP) send(w ring.WQE) WCStatus {
	p := q.peer
	rec := p.s.RQ.Next()
	if rec == nil {
		return WCRemOpErr
	}
	r := ring.WQE(p.recv[:copy(p.recv[:], rec)])
	p.s.RQ.Release(p.s.RQ.Head() + 1)
	e := ring.Completion{ID: r.ID(), Op: ring.WCRecv, QP: p.s.Num, Solicited: w.Flags()&ring.FlagSolicited != 0}
	var room []byte // of one receive buffer at most: enough for these tests
	p.pieces(r, func(b []byte) bool { room = b; return false })
	st := q.pieces(w, func(b []byte) bool {
		e.ByteLen += uint32(copy(room, b))
		room = room[min(len(b), len(room)):]
		return true
	})
	if w.Op() == ring.WRSendWithInv {
		e.Flags, e.Inv = ring.WCFlagWithInv, w.Inv()
	}
	p.push(p.s.RecvCQ, &e)
	return st
}

// rig is a fake device with two connected queue pairs in one domain.
type rig struct {
	f    *fake
	dev  *Device
	pd   *PD
	cq   *CQ // of both queues of a
	rcq  *CQ // of both queues of b
	a, b *QP
	mr   *MR // 4 KiB, all rights
}

func newRig(t testing.TB, cfg QPConfig) *rig {
	t.Helper()
	r := &rig{f: newFake()}
	r.dev = NewDevice(r.f.provider(DeviceAttr{
		Name: "fake0", NodeType: NodeRNIC, Transport: TransportIWARP, AtomicCap: AtomicHCA, Immediate: true,
	}))
	t.Cleanup(func() { require.NoError(t, r.dev.Close()) })
	var err error
	r.pd, err = r.dev.AllocPD()
	require.NoError(t, err)
	r.cq, err = r.dev.CreateCQ(CQConfig{})
	require.NoError(t, err)
	r.rcq, err = r.dev.CreateCQ(CQConfig{})
	require.NoError(t, err)
	cfg.SendCQ, cfg.RecvCQ = r.cq, r.cq
	r.a, err = r.pd.CreateQP(cfg)
	require.NoError(t, err)
	cfg.SendCQ, cfg.RecvCQ = r.rcq, r.rcq
	r.b, err = r.pd.CreateQP(cfg)
	require.NoError(t, err)
	r.f.connect(r.a, r.b)
	r.mr, err = r.pd.AllocMR(4096, AccessLocalWrite|AccessRemoteWrite|AccessRemoteRead|AccessRemoteAtomic)
	require.NoError(t, err)
	return r
}

// poll takes everything that is there.
func poll(t testing.TB, c *CQ) []WC {
	t.Helper()
	var all []WC
	for {
		var wcs [8]WC
		n, err := c.Poll(wcs[:])
		if n == 0 {
			if err != nil && !errors.Is(err, ErrCQOverrun) && !errors.Is(err, ErrClosed) {
				require.NoError(t, err)
			}
			return all
		}
		all = append(all, wcs[:n]...)
	}
}

// soon fails the test if f takes very long.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}
