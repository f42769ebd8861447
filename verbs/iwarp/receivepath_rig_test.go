package iwarp

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/pktio"
	"github.com/softrdma/softrdma/verbs"
)

// rig is a device whose two goroutines have gone home: the test does their work,
// one step after the other, so that there is nothing to wait for. Its connections
// run on memTCP. One rig serves any number of scenes, one at a time.
type rig struct {
	d          *device
	dev        *verbs.Device
	own, other *verbs.PD
	cq         *verbs.CQ
	next       []rigRegion // what the next regions registered are
	real, want []byte      // the memory of all regions with guards between, and what the model says of it
}

// rigRegion is memory with a name that the octets of a test can know.
type rigRegion struct {
	stag   uint32
	base   uint64
	size   int
	access verbs.Access
	other  bool // of another protection domain
	revoke bool // the peer may invalidate it
}

const (
	rigGuard  = 64
	rigAll    = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	stagRecv  = 0x55555501
	stagSink  = 0xaabbcc01
	stagAgain = 0x77777701 // may be invalidated
)

// The first four are those of the hostile FPDUs, the sink that of the vectors.
var rigRegions = [...]rigRegion{
	{wiretest.RegionAll, wiretest.HostileBase, wiretest.HostileSize, rigAll | verbs.AccessMWBind, false, false},
	{wiretest.RegionNoW, wiretest.HostileBase, wiretest.HostileSize, rigAll &^ verbs.AccessRemoteWrite, false, false},
	{wiretest.RegionNoR, wiretest.HostileBase, wiretest.HostileSize, rigAll &^ verbs.AccessRemoteRead, false, false},
	{wiretest.RegionOther, wiretest.HostileBase, wiretest.HostileSize, rigAll, true, false},
	{stagAgain, wiretest.HostileBase, 256, rigAll, false, true},
	{stagRecv, 0x5000, 128, verbs.AccessLocalWrite, false, false},
	{stagSink, 0x1000, 64, verbs.AccessLocalWrite, false, false},
}

const (
	regionRecv = 5 // in rigRegions
	regionSink = 6
)

func newRig(tb testing.TB) *rig {
	port, far, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(tb, err)
	require.NoError(tb, far.Close())
	s, err := netstack.New(port, netstack.Config{Addrs: []netip.Prefix{netip.PrefixFrom(PipeAddrA, 24)}})
	require.NoError(tb, err)
	cfg := Config{}
	cfg.Protocol, err = cfg.Protocol.withDefaults()
	require.NoError(tb, err)
	d, err := newDevice(s, &cfg, "rig")
	require.NoError(tb, err)
	r := &rig{d: d}
	// Send both goroutines home. The receiving one may sleep in Poll with the role in
	// its hands; while applications poll it only naps.
	d.role.polled.Store(true)
	for !d.role.mu.TryLock() {
		s.Wake()
		runtime.Gosched()
	}
	d.role.over = true
	d.role.mu.Unlock()
	d.role.rouse()
	d.rx.Wait()
	d.role.over = false
	d.txq.close()
	d.tx.Wait()
	d.txq.closed = false

	p := d.provider()
	p.RegMR = func(pd uint32, mem []byte, a verbs.Access) (verbs.Key, uint64, error) {
		g := r.next[0]
		r.next = r.next[1:]
		err := d.table.RegisterBase(mem, ddp.PD(pd), ddp.Access(a), g.base, ddp.STag(g.stag))
		return verbs.Key(g.stag), g.base, err
	}
	p.Progress, p.Parked = nil, nil
	r.dev = verbs.NewDevice(p)
	r.own, err = r.dev.AllocPD()
	require.NoError(tb, err)
	r.other, err = r.dev.AllocPD()
	require.NoError(tb, err)
	r.cq, err = r.dev.CreateCQ(verbs.CQConfig{Depth: 256})
	require.NoError(tb, err)
	size := rigGuard
	for _, g := range rigRegions {
		size += (g.size+7)&^7 + rigGuard
	}
	r.real, r.want = make([]byte, size), make([]byte, size)
	tb.Cleanup(func() {
		if tb.Failed() {
			return // a scene that broke off holds on to everything
		}
		r.run(func() {
			require.NoError(tb, r.cq.Close())
			require.NoError(tb, r.own.Close())
			require.NoError(tb, r.other.Close())
			require.NoError(tb, r.dev.Close())
		})
	})
	return r
}

// step does what the device's goroutines would do now; false if there was nothing.
func (r *rig) step() (some bool) {
	d := r.d
	d.role.mu.Lock()
	for c := range d.conns {
		if m, ok := c.tcp.(*memTCP); ok && m.dirty {
			m.dirty, some = false, true
			c.ready()
		}
	}
	if len(d.again) > 0 {
		some = true
		d.turns()
	}
	some = some || d.asked.Load()
	d.role.over = d.commands()
	d.role.mu.Unlock()
	for q := d.txq.tryPop(); q != nil; q = d.txq.tryPop() {
		some = true
		q.kicks.Add(1)
		q.tx.Lock()
		q.serve(false)
	}
	return some
}

// settle steps until all is quiet. A device that never comes to rest is a fault.
func (r *rig) settle(tb testing.TB) {
	for n := 0; r.step(); n++ {
		if n > 10000 {
			tb.Fatal("the device does not come to rest")
		}
	}
}

// run calls f, which waits for the device, and does the device's work meanwhile.
func (r *rig) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	limit := time.AfterFunc(20*time.Second, func() { panic("the device holds on to a queue pair or to memory") })
	defer limit.Stop()
	for {
		r.step()
		select {
		case <-done:
			return
		default:
			runtime.Gosched()
		}
	}
}
