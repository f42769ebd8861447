package iwarp_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// within returns a context that ends a test which hangs.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// link is two devices that can reach each other; listeners go on b.
type link struct {
	a, b *verbs.Device
	addr netip.Addr // of b
}

// forBackends runs test over every carrier that needs no right.
func forBackends(t *testing.T, p iwarp.Protocol, test func(t *testing.T, l link)) {
	t.Run("pipe", func(t *testing.T) { test(t, pipe(t, iwarp.PipeConfig{Protocol: p})) })
	t.Run("kernel", func(t *testing.T) { test(t, kernel(t, p)) })
}

func pipe(t testing.TB, c iwarp.PipeConfig) link {
	a, b, err := iwarp.Pipe(c)
	require.NoError(t, err)
	closeAfter(t, a, b)
	return link{a, b, iwarp.PipeAddrB}
}

func kernel(t testing.TB, p iwarp.Protocol) link {
	open := func() *verbs.Device {
		d, err := iwarp.Open(within(t, time.Minute), iwarp.Config{Backend: iwarp.Kernel, Protocol: p})
		require.NoError(t, err)
		return d
	}
	l := link{open(), open(), netip.MustParseAddr("127.0.0.1")}
	closeAfter(t, l.a, l.b)
	return l
}

// closeAfter closes the devices at the end and checks that nothing was left in
// them.
func closeAfter(t testing.TB, devs ...*verbs.Device) {
	t.Cleanup(func() {
		for _, d := range devs {
			require.NoError(t, d.Close())
			s := d.Stats()
			require.Zero(t, s.QPs+s.CQs+s.MRs+s.PDs, "objects left open")
			require.Zero(t, s.Counter("mempool.tx_out"), "transmit buffers left out")
		}
	})
}

// pair is a connection; mine is the initiator's end.
type pair struct {
	mine, theirs end
}

// end is one side of a connection with queues of its own.
type end struct {
	*rdmacm.Conn
	dev    *verbs.Device
	pd     *verbs.PD
	cq     *verbs.CQ
	recvs  *verbs.CQ // takes the completions of receives; cq if nil
	mr     *verbs.MR // all rights
	remote verbs.RemoteBuf
}

const arena = 1 << 20

func newEnd(t testing.TB, d *verbs.Device, size int) end {
	pd, err := d.AllocPD()
	require.NoError(t, err)
	cq, err := d.CreateCQ(verbs.CQConfig{Depth: 1024})
	require.NoError(t, err)
	mr, err := pd.AllocMR(size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	require.NoError(t, err)
	return end{dev: d, pd: pd, cq: cq, mr: mr, remote: mr.Remote()}
}

func (e *end) qp() verbs.QPConfig {
	c := verbs.QPConfig{SendCQ: e.cq, RecvCQ: e.cq}
	if e.recvs != nil {
		c.RecvCQ = e.recvs
	}
	return c
}

// connect makes a connection. prepare, if not nil, is run on both queue pairs
// before start-up.
func (l link) connect(t testing.TB, size int, prepare func(e *end, qp *verbs.QP) error) pair {
	p := pair{newEnd(t, l.a, size), newEnd(t, l.b, size)}
	l.join(t, &p, prepare)
	return p
}

// connectWith is connect for ends that exist.
func (l link) connectWith(t testing.TB, mine, theirs end) pair {
	p := pair{mine, theirs}
	l.join(t, &p, nil)
	return p
}

func (l link) join(t testing.TB, p *pair, prepare func(e *end, qp *verbs.QP) error) {
	ctx := within(t, 20*time.Second)
	lis, err := (&rdmacm.ListenConfig{Device: l.b}).Listen(ctx, netip.AddrPortFrom(l.addr, 0).String())
	require.NoError(t, err)
	defer lis.Close()
	hook := func(e *end) func(*verbs.QP) error {
		if prepare == nil {
			return nil
		}
		return func(qp *verbs.QP) error { return prepare(e, qp) }
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := lis.Accept(ctx)
		if err == nil {
			p.theirs.Conn, err = req.Accept(ctx, rdmacm.AcceptConfig{PD: p.theirs.pd, QP: p.theirs.qp(), Prepare: hook(&p.theirs)})
		}
		accepted <- err
	}()
	d := rdmacm.Dialer{Device: l.a, PD: p.mine.pd, QP: p.mine.qp(), Prepare: hook(&p.mine)}
	p.mine.Conn, err = d.Dial(ctx, lis.Addr().String())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
}

// send posts work requests that must be taken.
func (e *end) send(t testing.TB, wrs ...verbs.SendWR) {
	n, err := e.PostSend(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

func (e *end) recv(t testing.TB, wrs ...verbs.RecvWR) {
	n, err := e.PostRecv(wrs)
	require.NoError(t, err)
	require.Equal(t, len(wrs), n)
}

// wait returns the next n completions.
func (e *end) wait(t testing.TB, n int) []verbs.WC {
	ctx := within(t, 20*time.Second)
	wcs := make([]verbs.WC, n)
	for got := 0; got < n; {
		k, err := e.cq.Wait(ctx, wcs[got:])
		require.NoError(t, err, "%d of %d completions came", got, n)
		got += k
	}
	return wcs
}

// quiet checks that no completion is there.
func (e *end) quiet(t testing.TB) {
	var wc [1]verbs.WC
	n, err := e.cq.Poll(wc[:])
	require.NoError(t, err)
	require.Zero(t, n, "unexpected completion %+v", wc[0])
}

func statuses(wcs []verbs.WC) (s []verbs.WCStatus) {
	for _, wc := range wcs {
		s = append(s, wc.Status)
	}
	return s
}

func ids(wcs []verbs.WC) (s []uint64) {
	for _, wc := range wcs {
		s = append(s, wc.ID)
	}
	return s
}

// over waits until both ends are in ERR with everything flushed.
func (p *pair) over(t testing.TB) {
	for _, e := range []*end{&p.mine, &p.theirs} {
		select {
		case <-e.Done():
		case <-time.After(10 * time.Second):
			require.Fail(t, "queue pair did not end", "state %v", e.State())
		}
		require.Equal(t, verbs.QPSErr, e.State())
	}
}
