package iwarp

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
)

// The shapes of a scene, in the low three bits of its mode; the bits above vary it.
const (
	asResponder     = iota // revision 1, nothing of ours under way
	asResponderBusy        // the same with operations of ours in flight
	asInitiatorBusy        // revision 1, with operations of ours in flight
	asInitiatorRTR         // revision 2, peer-to-peer: the Read that opens is in flight
	asResponderRaw         // the octets begin with the Request
	asInitiatorRaw         // the octets begin with the Reply
	shapes          = 6
	withoutCRC      = 0x08
	stingy          = 0x10 // the peer reads nothing before the end, and the window is small
	endsInReset     = 0x20
	narrow          = 0x40 // IRD 1
	marked          = 0x80 // with markers, both ways
	longestPiece    = 4096
	stingyWindow    = 2048
	generousWindow  = 1 << 30
	idBind          = 100
	firstOwn        = 101 // id of the first operation of ours
	receives        = 4
	maxSceneOctets  = 16 << 10
	sceneIRD        = MaxReadDepth
)

// scene is one connection from its start to its end.
type scene struct {
	*rig
	tb       testing.TB
	mode     uint16
	tcp      *memTCP
	c        *conn
	lis      *listener
	qp       *verbs.QP
	regions  []*verbs.MR
	m        *model
	posted   []uint64  // ids, in posting order
	stream   []byte    // all that the peer has said
	parsed   int       // octets of it the model has seen
	base     int       // where FPDU mode begins in it
	window   *verbs.MW // of type 2, in the first region; nil if there is none
	sent     []byte    // all that we have said
	answered int
	refused  bool   // the peer's Reply was
	term     []byte // the Terminate that came out, at the end
}

func (s *scene) shape() uint16 { return s.mode & 7 % shapes }
func (s *scene) initiator() bool {
	return s.shape() == asInitiatorBusy || s.shape() == asInitiatorRTR || s.shape() == asInitiatorRaw
}
func (s *scene) raw() bool { return s.shape() == asResponderRaw || s.shape() == asInitiatorRaw }

// newScene sets up the connection as far as the shape says.
func (r *rig) newScene(tb testing.TB, mode uint16) *scene {
	s := &scene{rig: r, tb: tb, mode: mode, tcp: &memTCP{window: generousWindow}}
	if mode&stingy != 0 {
		s.tcp.window = stingyWindow
	}
	d := r.d
	// What a scene that has failed has left.
	clear(d.conns)
	_, _ = r.cq.Poll(make([]verbs.WC, 64))
	d.table = ddp.NewTable()
	d.proto.NoCRC, d.proto.Markers = mode&withoutCRC != 0, mode&marked != 0
	d.proto.Rev1 = s.shape() == asInitiatorBusy
	for i := range r.real {
		r.real[i] = 0xa5
	}
	copy(r.want, r.real)
	s.m = &model{pd: r.own.Num(), msn: [4]uint32{1, 1, 1, 1}, slots: sceneIRD, imm: true, ato: true}
	at := rigGuard
	for _, g := range rigRegions {
		r.next = append(r.next[:0], g)
		pd := r.own
		if g.other {
			pd = r.other
		}
		mr, err := pd.RegMR(r.real[at:at+g.size:at+g.size], g.access)
		require.NoError(tb, err)
		if g.revoke {
			require.NoError(tb, d.table.AllowInvalidate(ddp.STag(g.stag)))
		}
		s.regions = append(s.regions, mr)
		s.m.mem = append(s.m.mem, &modelRegion{stag: g.stag, base: g.base, mem: r.want[at : at+g.size], pd: pd.Num(), access: ddp.Access(g.access), revoke: g.revoke})
		at += (g.size+7)&^7 + rigGuard
	}
	var err error
	s.qp, err = r.own.CreateQP(verbs.QPConfig{SendCQ: r.cq, RecvCQ: r.cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(tb, err)
	s.postReceives()
	if s.initiator() {
		s.dial()
	} else {
		s.listen()
	}
	s.settle(tb)
	s.start()
	return s
}

// postReceives posts receives of 16 octets, 16 in two pieces, none, and 64.
func (s *scene) postReceives() {
	mr := s.regions[regionRecv]
	want := s.m.mem[regionRecv].mem
	post := func(parts ...[2]int) {
		wr := verbs.RecvWR{ID: uint64(len(s.posted) + 1)}
		rc := modelRecv{id: wr.ID}
		for _, p := range parts {
			wr.SGL = append(wr.SGL, mr.SGE(p[0], p[1]))
			rc.buf = append(rc.buf, want[p[0]:p[0]+p[1]])
		}
		_, err := s.qp.PostRecv([]verbs.RecvWR{wr})
		require.NoError(s.tb, err)
		s.posted = append(s.posted, wr.ID)
		s.m.recvs = append(s.m.recvs, rc)
	}
	post([2]int{0, 16})
	post([2]int{16, 3}, [2]int{20, 13})
	post()
	post([2]int{40, 64})
}

func (s *scene) params() verbs.ConnParams {
	p := verbs.ConnParams{IRD: sceneIRD, ORD: 16}
	if s.mode&narrow != 0 {
		p.IRD = 1
	}
	return p
}

// dial does what startDial does, over memory.
func (s *scene) dial() {
	d := s.d
	q, err := d.qp(s.qp.Num())
	require.NoError(s.tb, err)
	w := &dial{qp: q, params: s.params(), done: make(chan struct{})}
	d.role.mu.Lock()
	defer d.role.mu.Unlock()
	q.dial = w
	w.conn = d.newConn(s.tcp, dialing, time.Hour)
	w.conn.dial = w
	s.c = w.conn
	s.c.ready()
}

// listen does what a listener does with a connection that arrives.
func (s *scene) listen() {
	d := s.d
	d.role.mu.Lock()
	defer d.role.mu.Unlock()
	s.lis = &listener{dev: d, ready: make(chan *request, 1), closed: make(chan struct{})}
	s.c = d.newConn(s.tcp, awaitRequest, time.Hour)
	s.c.lis = s.lis
	s.lis.young = append(s.lis.young, s.c)
	s.c.ready()
}

// accept takes the connection, if its Request is there.
func (s *scene) accept() {
	if s.lis == nil {
		return
	}
	select {
	case r := <-s.lis.ready:
		q, err := s.d.qp(s.qp.Num())
		require.NoError(s.tb, err)
		r.answered.Store(true)
		r.done = make(chan struct{})
		s.d.role.mu.Lock()
		r.start(q, s.params())
		s.d.role.mu.Unlock()
	default:
	}
}

// start plays the peer's part of a set-up that is not fuzzed.
func (s *scene) start() {
	var f wiretest.Startup
	if s.mode&withoutCRC == 0 {
		f.Flags = wiretest.FlagC
	}
	if s.mode&marked != 0 {
		f.Flags |= wiretest.FlagM
	}
	f.Rev, f.Reply = 1, s.initiator()
	switch s.shape() {
	case asResponderRaw, asInitiatorRaw:
		return
	case asInitiatorRTR:
		f.Flags |= wiretest.FlagS
		f.Rev, f.Private = 2, wiretest.Block(wiretest.BlockA|16, wiretest.BlockD|16)
	}
	s.play(f.Octets())
	require.NotNil(s.tb, s.c.stream, "the connection is up")
	if s.shape() == asResponderBusy { // the first FPDU opens the way for ours
		s.play(s.frame(0, wiretest.Tagged(0, true, 1, 0, nil)))
	}
	if s.shape() == asResponderBusy || s.shape() == asInitiatorBusy {
		s.postOwn()
	}
}

// frame makes an FPDU for a position of the peer's stream.
func (s *scene) frame(pos int, u []byte) []byte {
	b, _ := rawOf(u).octets(pos, s.c.params.CRC, s.c.params.MarkersIn)
	return b
}

// at is the position of FPDU mode that the peer's stream has reached.
func (s *scene) at() int { return len(s.stream) - s.base }

// bind makes a window of octets 1024 to 1279 of the first region, with all rights.
func (s *scene) bind() {
	var err error
	s.window, err = s.own.AllocMW(verbs.MWType2)
	require.NoError(s.tb, err)
	_, err = s.qp.PostSend([]verbs.SendWR{{ID: idBind, Op: verbs.OpBindMW, Flags: verbs.SendSignaled, MW: s.window,
		SGL: []verbs.SGE{s.regions[0].SGE(1024, 256)}, Access: rigAll &^ verbs.AccessLocalWrite}})
	require.NoError(s.tb, err)
	s.posted = append(s.posted, idBind)
	s.m.mem = append(s.m.mem, &modelRegion{stag: uint32(s.window.Key()), base: wiretest.HostileBase + 1024,
		mem: s.m.mem[0].mem[1024:1280], pd: s.own.Num(), access: ddp.Access(rigAll), revoke: true, window: true})
}

// postOwn brings operations of ours under way: two Reads, an atomic, a Write and a Send.
func (s *scene) postOwn() {
	sink := s.regions[regionSink]
	s.bind()
	far := verbs.RemoteBuf{Addr: wiretest.HostileBase, RKey: wiretest.RegionAll}
	wrs := []verbs.SendWR{
		{Op: verbs.OpRead, SGL: []verbs.SGE{sink.SGE(0, 16)}, Remote: far},
		{Op: verbs.OpRead, SGL: []verbs.SGE{sink.SGE(16, 24)}, Remote: far},
		{Op: verbs.OpFetchAdd, SGL: []verbs.SGE{sink.SGE(40, 8)}, Remote: far, Val: 1},
		{Op: verbs.OpWrite, Inline: []byte("write"), Remote: far},
		{Op: verbs.OpSend, Inline: []byte("send")},
	}
	for i := range wrs {
		wr := &wrs[i]
		wr.ID, wr.Flags = uint64(firstOwn+i), verbs.SendSignaled
		_, err := s.qp.PostSend(wrs[i : i+1])
		require.NoError(s.tb, err)
		s.posted = append(s.posted, wr.ID)
		if wr.Op == verbs.OpRead || wr.Op == verbs.OpFetchAdd {
			g := wr.SGL[0]
			s.m.reads = append(s.m.reads, modelRead{id: wr.ID, stag: stagSink, to: 0x1000 + uint64(g.Off), size: uint32(g.Len), atomic: wr.Op == verbs.OpFetchAdd})
		}
	}
	s.quiet()
	// Its identifier is ours to choose.
	for _, u := range s.messages() {
		if u[1] == 0x4a {
			s.m.reads[2].ident = binary.BigEndian.Uint32(u[22:])
		}
	}
}

// play lets octets come in as one piece and waits until all is quiet.
func (s *scene) play(b []byte) {
	s.arrive(b)
	s.quiet()
}

func (s *scene) arrive(b []byte) {
	s.stream = append(s.stream, b...)
	s.tcp.arrive(b)
}

// quiet runs the device, and then the model over the same octets.
func (s *scene) quiet() {
	s.settle(s.tb)
	s.accept()
	s.settle(s.tb)
	if s.mode&stingy == 0 {
		for len(s.tcp.out) > 0 {
			s.sent = append(s.sent, s.tcp.takeOut()...)
			s.settle(s.tb)
		}
	}
	s.follow()
}
