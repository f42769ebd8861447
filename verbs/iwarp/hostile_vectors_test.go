package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// guarded is a region with octets on both sides that nothing may touch.
type guarded struct {
	name string
	all  []byte // guard, region, guard
	want []byte // likewise: what must be there
	mr   *verbs.MR
}

const (
	guard     = 64
	untouched = 0xa5
)

func newGuarded(t *testing.T, pd *verbs.PD, name string, n int, a verbs.Access) *guarded {
	g := &guarded{name: name, all: bytes.Repeat([]byte{untouched}, n+2*guard)}
	var err error
	g.mr, err = pd.RegMR(g.all[guard:guard+n], a)
	require.NoError(t, err)
	g.want = bytes.Clone(g.all)
	return g
}

func (g *guarded) check(t *testing.T) {
	t.Helper()
	require.True(t, bytes.Equal(g.want, g.all), "%s or the octets around it have changed", g.name)
}

// stage is a device with the four regions of the hostile FPDUs, of which one is
// in another protection domain, and a listener on it.
type stage struct {
	link
	table     *ddp.Table
	fixed     map[*byte]verbs.Key // what the region that begins there gets
	lis       *rdmacm.Listener
	pd, other *verbs.PD
	s         *guarded
	regions   []*guarded
}

func newStage(t *testing.T, p iwarp.Protocol) *stage {
	s := &stage{fixed: map[*byte]verbs.Key{}}
	var err error
	s.b, s.table, err = iwarp.OpenKernelWithKeys(p, func(mem []byte) (uint64, verbs.Key, bool) {
		k, ok := s.fixed[&mem[0]]
		return wiretest.HostileBase, k, ok
	})
	require.NoError(t, err)
	s.a, err = iwarp.Open(t.Context(), iwarp.Config{Backend: iwarp.Kernel, Protocol: p})
	require.NoError(t, err)
	closeAfter(t, s.a, s.b)
	s.addr = netip.MustParseAddr("127.0.0.1")
	s.lis, err = (&rdmacm.ListenConfig{Device: s.b}).Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { s.lis.Close() })
	s.pd, err = s.b.AllocPD()
	require.NoError(t, err)
	s.other, err = s.b.AllocPD()
	require.NoError(t, err)
	s.s = s.at(t, s.pd, "region S", wiretest.RegionAll, allRights)
	s.regions = []*guarded{
		s.s,
		s.at(t, s.pd, "region R", wiretest.RegionNoW, allRights&^verbs.AccessRemoteWrite),
		s.at(t, s.pd, "region W", wiretest.RegionNoR, allRights&^verbs.AccessRemoteRead),
		s.at(t, s.other, "region P", wiretest.RegionOther, allRights),
	}
	return s
}

// at makes a region of the hostile FPDUs.
func (s *stage) at(t *testing.T, pd *verbs.PD, name string, key verbs.Key, a verbs.Access) *guarded {
	g := &guarded{name: name, all: bytes.Repeat([]byte{untouched}, wiretest.HostileSize+2*guard)}
	mem := g.all[guard : guard+wiretest.HostileSize]
	s.fixed[&mem[0]] = key
	var err error
	g.mr, err = pd.RegMR(mem, a)
	delete(s.fixed, &mem[0])
	require.NoError(t, err)
	require.Equal(t, verbs.RemoteBuf{Addr: wiretest.HostileBase, RKey: key, Len: wiretest.HostileSize}, g.mr.Remote())
	g.want = bytes.Clone(g.all)
	return g
}

// scene is a connection of a scripted peer to the stage, with a receive of 16
// octets posted.
type scene struct {
	end
	*stage
	p    *wiretest.Peer
	recv *guarded
}

const allRights = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func (s *stage) scene(t *testing.T) *scene {
	k := &scene{stage: s}
	var err error
	k.cq, err = s.b.CreateCQ(verbs.CQConfig{})
	require.NoError(t, err)
	k.recv = newGuarded(t, s.pd, "the receive", 16, verbs.AccessLocalWrite)
	accepted := make(chan error, 1)
	go func() {
		req, err := s.lis.Accept(within(t, 10*time.Second))
		if err == nil {
			k.Conn, err = req.Accept(within(t, 10*time.Second), rdmacm.AcceptConfig{PD: s.pd, QP: k.qp(), Prepare: func(qp *verbs.QP) error {
				_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{k.recv.mr.SGE(0, 16)}}})
				return err
			}})
		}
		accepted <- err
	}()
	k.p = wiretest.DialPeer(t, s.lis.Addr().String())
	k.p.Initiate(request)
	require.NoError(t, <-accepted)
	return k
}

func (k *scene) untouched(t *testing.T) {
	t.Helper()
	k.recv.check(t)
	for _, g := range k.regions {
		g.check(t)
	}
}

// leave takes the scene down.
func (k *scene) leave(t *testing.T) {
	require.NoError(t, k.p.Conn().Close())
	require.NoError(t, k.Conn.Close())
	require.NoError(t, k.recv.mr.Close())
	require.NoError(t, k.cq.Close())
}

// settled waits until no more goroutines run than there were.
func settled(t *testing.T, goroutines int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
	}
}

// busy keeps a connection at work, with all data compared, until it is stopped.
type busy struct {
	pair
	rounds atomic.Uint64
	stop   chan struct{}
	done   chan error
}

func newBusy(t *testing.T, l link) *busy {
	b := &busy{pair: l.connect(t, 64<<10, nil), stop: make(chan struct{}), done: make(chan error, 1)}
	go func() { b.done <- b.work(t) }()
	return b
}

func (b *busy) work(t *testing.T) error {
	const size, word = 8 << 10, 48 << 10
	ctx := within(t, 5*time.Minute)
	mine, theirs := b.mine.mr, b.theirs.remote
	for n := uint64(0); ; n++ {
		select {
		case <-b.stop:
			return nil
		default:
		}
		fill(mine.Bytes()[:size], n)
		_, err := b.mine.PostSend([]verbs.SendWR{
			{ID: 1, Op: verbs.OpWrite, SGL: []verbs.SGE{mine.SGE(0, size)}, Remote: theirs.Slice(0, size)},
			{ID: 2, Op: verbs.OpRead, SGL: []verbs.SGE{mine.SGE(size, size)}, Remote: theirs.Slice(0, size)},
			{ID: 3, Op: verbs.OpFetchAdd, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mine.SGE(word, 8)}, Remote: theirs.Slice(word, 8), Val: 3},
		})
		if err != nil {
			return err
		}
		var wc [1]verbs.WC
		if _, err := b.mine.cq.Wait(ctx, wc[:]); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil {
			return errors.Join(err, b.mine.Err())
		}
		if !bytes.Equal(mine.Bytes()[:size], mine.Bytes()[size:2*size]) {
			return fmt.Errorf("round %d: what was read is not what was written", n)
		}
		if got := mine.Uint64(word).Load(); got != 3*n {
			return fmt.Errorf("round %d: fetched %d, want %d", n, got, 3*n)
		}
		b.rounds.Add(1)
	}
}

// advances waits until it has done another round.
func (b *busy) advances(t *testing.T) {
	t.Helper()
	n := b.rounds.Load()
	require.Eventually(t, func() bool { return b.rounds.Load() > n+1 || len(b.done) > 0 }, 20*time.Second, time.Millisecond)
	require.Empty(t, b.done, "the busy connection has ended: %v", b.mine.Err())
}

func (b *busy) end(t *testing.T) {
	close(b.stop)
	require.NoError(t, <-b.done)
	require.Equal(t, verbs.QPSRTS, b.mine.State())
	require.Equal(t, verbs.QPSRTS, b.theirs.State())
}

// TestHostileVectors plays each hostile FPDU alone on a fresh connection, with
// valid messages in the same write behind it, which must be dropped unread. A
// busy connection of the same device must not notice, and nothing may be left.
func TestHostileVectors(t *testing.T) {
	s := newStage(t, iwarp.Protocol{DrainTimeout: time.Second})
	busy := newBusy(t, s.link)
	vectors := wiretest.Hostile()
	require.Len(t, vectors, 40)
	regions, goroutines := s.table.Len(), 0
	t.Run("a peer that says nothing", func(t *testing.T) {
		s.scene(t).leave(t)
		goroutines = runtime.NumGoroutine()
	})
	for _, v := range vectors {
		t.Run(v.ID+" SEC-44 SEC-45 "+v.What, func(t *testing.T) {
			k := s.scene(t)
			valid := wiretest.Frame(wiretest.Tagged(0, true, wiretest.RegionAll, wiretest.HostileBase, []byte("behind!!")), true)
			valid = append(valid, wiretest.Frame(send(1, "behind"), true)...)
			if v.Want == 0 {
				k.harmless(t, v)
			} else {
				k.p.Write(append(bytes.Clone(v.Octets), valid...))
				k.terminated(t, v)
			}
			busy.advances(t)
			k.leave(t)
			require.Equal(t, regions, s.table.Len(), "regions in the table")
			settled(t, goroutines)
		})
	}
	t.Run("SEC-45 the busy connection of the same device has noticed nothing", func(t *testing.T) { busy.end(t) })
	t.Run("nothing is left", func(t *testing.T) {
		st := s.b.Stats()
		require.Zero(t, st.Counter("mempool.tx_out"), "transmit buffers")
		require.EqualValues(t, []int{1, 3, 1, 5}, []int{int(st.QPs), int(st.PDs), int(st.CQs), int(st.MRs)},
			"those of the busy connection, and the four regions")
	})
}

// terminated checks the end that a hostile FPDU must bring.
func (k *scene) terminated(t *testing.T, v wiretest.HostileVector) {
	term := k.p.ExpectTerminate(v.Want)
	require.Equal(t, fmt.Sprintf("% x", quoted(v)), fmt.Sprintf("% x", term[2:]), "what the Terminate quotes")
	select {
	case <-k.Done():
	case <-time.After(10 * time.Second):
		require.Fail(t, "the queue pair did not end", "state %v", k.State())
	}
	k.p.ExpectEOF()
	k.untouched(t)
	wcs := k.wait(t, 1)
	want := verbs.WC{ID: 1, Status: verbs.WCWRFlushErr, QP: k.Num(), Time: wcs[0].Time}
	if v.Want == 0x1205 {
		want.Status, want.VendorErr = verbs.WCLocLenErr, 0x1205
	}
	require.Equal(t, want, wcs[0], "the receive")
	k.quiet(t)
	var e *verbs.TerminateError
	require.ErrorAs(t, k.Err(), &e)
	require.Equal(t, v.Want, e.Value())
	require.False(t, e.Remote)
}

// quoted is the rest of the Terminate behind layer, type and code, made from the
// table of the specification by hand: M and D with the DDP header where a segment
// caused the error, R with the header of a Read Request that was refused.
func quoted(v wiretest.HostileVector) []byte {
	u := v.Octets[2:]
	header := 18
	if u[0]&0x80 != 0 {
		header = 14
	}
	if v.Want>>12 == 2 {
		return []byte{0, 0}
	}
	b := []byte{0xc0, 0, v.Octets[0], v.Octets[1]}
	b = append(b, u[:header]...)
	if v.Want>>8 == 0x01 && u[1] == 0x41 {
		b[0] |= 0x20
		b = append(b, u[header:header+28]...)
	}
	return b
}

// harmless checks those of the list that look strange and are right.
func (k *scene) harmless(t *testing.T, v wiretest.HostileVector) {
	k.p.Write(v.Octets)
	switch v.ID {
	case "N38": // nothing comes of it, and the connection goes on
		k.p.ExpectSilence(20 * time.Millisecond)
		k.p.Send(send(1, "hello"))
	case "N40":
	default:
		require.Fail(t, "no expectation for "+v.ID)
	}
	wc := k.wait(t, 1)[0]
	require.Equal(t, verbs.WC{ID: 1, Op: verbs.OpRecv, ByteLen: 5, QP: k.Num(), Time: wc.Time}, wc)
	copy(k.recv.want[guard:], "hello")
	k.untouched(t)
	require.Equal(t, verbs.QPSRTS, k.State())
	// It still answers: what was received is intact on the way back.
	k.p.Send(wiretest.ReadRequest(1, 7, 0, 8, wiretest.RegionAll, wiretest.HostileBase))
	k.p.Expect(wiretest.Tagged(2, true, 7, 0, bytes.Repeat([]byte{untouched}, 8)))
}

// atomicRequest makes an Atomic Request (RFC 7306, Section 5.2.1).
func atomicRequest(msn, code, ident, stag uint32, to, val, valMask, compare, compareMask uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, code)
	b = binary.BigEndian.AppendUint32(b, ident)
	b = binary.BigEndian.AppendUint32(b, stag)
	for _, v := range []uint64{to, val, valMask, compare, compareMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return wiretest.Untagged(0xa, true, 0, 1, msn, 0, b)
}

// atomicResponse makes an Atomic Response (RFC 7306, Section 5.2.2).
func atomicResponse(msn, ident uint32, value uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, ident)
	return wiretest.Untagged(0xb, true, 0, 3, msn, 0, binary.BigEndian.AppendUint64(b, value))
}

// immediate makes an Immediate Data message (RFC 7306, Section 6.1).
func immediate(msn uint32, solicited bool, octets []byte) []byte {
	op := uint8(8)
	if solicited {
		op = 9
	}
	return wiretest.Untagged(op, true, 0, 0, msn, 0, octets)
}
