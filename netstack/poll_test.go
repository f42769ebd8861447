package netstack

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

var (
	pipe1500 = pktio.PipeConfig{}
	pipeGSO  = pktio.PipeConfig{GSO: true}
)

func TestPollWaits(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ev := make([]Event, 1)
		start := time.Now()
		require.Zero(t, p.a.Poll(ev, 0))
		require.Zero(t, p.a.Poll(ev, 30*time.Millisecond))
		require.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
		require.Less(t, time.Since(start), patience)
		require.Panics(t, func() { p.a.Poll(nil, 0) })
	})
}

// deaf is a port that sends the pump home: it takes it for closed.
type deaf struct {
	flooded
	told atomic.Bool
}

func (p *deaf) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	if !p.told.Swap(true) {
		return 0, net.ErrClosed
	}
	return p.flooded.Recv(batch, wait)
}

// Frames that are nothing to the caller, without end, do not keep Poll longer than it may take. There is no pump, which
// would take some of them, and a spin so long that a busy machine does not end it.
func TestPollEndsInAFlood(t *testing.T) {
	near, far, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	port := &deaf{flooded: flooded{Port: near, frame: joined(ethernet(near.Link().Addr, wireMAC, 0x88b5), make([]byte, 46))}}
	st, err := New(port, Config{Addrs: prefixes("10.77.0.1/24"), SpinFor: time.Hour})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, st.Close())
		require.NoError(t, far.Close())
	})
	<-st.user.link.rx.done
	port.on.Store(true)
	for _, wait := range []time.Duration{0, time.Microsecond, 20 * time.Millisecond, 100 * time.Millisecond} {
		done := make(chan int, 1)
		start := time.Now()
		go func() { done <- st.Poll(make([]Event, 1), wait) }()
		select {
		case n := <-done:
			require.Zero(t, n)
			require.GreaterOrEqual(t, time.Since(start), wait)
		case <-time.After(patience / 3):
			t.Errorf("Poll still looks, after %v and not %v", time.Since(start), wait)
			st.Wake()
			<-done
		}
	}
}

// A spinner that is renewed ends its time after that, and at its limit at the latest.
func TestSpinnerIsRenewed(t *testing.T) {
	const d = 10 * time.Millisecond
	sp := newSpinner(d)
	for time.Since(sp.epoch) < d/2 {
		require.True(t, sp.again() || time.Since(sp.epoch) >= d)
	}
	sp.renew(-1)
	require.GreaterOrEqual(t, sp.most, d+d/2)
	sp.renew(d)
	require.Equal(t, d, sp.most)
	sp.renew(time.Hour)
	require.Less(t, sp.most, time.Minute)
	sp.renew(0)
	require.False(t, sp.again())
}

func TestWake(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ev := make([]Event, 1)
		p.a.Wake() // before Poll: the next one does not sleep
		require.Zero(t, p.a.Poll(ev, -1))

		for range 20 {
			done := make(chan int)
			go func() { done <- p.a.Poll(ev, -1) }()
			time.Sleep(time.Millisecond) // long enough to sleep
			p.a.Wake()
			select {
			case n := <-done:
				require.Zero(t, n)
			case <-time.After(patience):
				t.Fatal("Poll sleeps on")
			}
		}
	})
}

func TestStackCloseEndsPoll(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		done := make(chan int)
		go func() { done <- p.a.Poll(make([]Event, 1), -1) }()
		time.Sleep(5 * time.Millisecond)
		require.NoError(t, p.a.Close())
		select {
		case n := <-done:
			require.Zero(t, n)
		case <-time.After(patience):
			t.Fatal("Poll sleeps on")
		}
	})
}

// A sleeping Poll hears of a connection, of octets and of the end, without any look from outside.
func TestEventsEndSleep(t *testing.T) {
	for _, spin := range []time.Duration{-1, 0} {
		onAll(t, Config{SpinFor: spin}, func(t *testing.T, p *pair) {
			ca, cb, _ := p.connect()
			ev := make([]Event, 1)
			for p.b.Poll(ev, 20*time.Millisecond) > 0 {
			}
			heard := func(what string, act func()) {
				done := make(chan Event)
				go func() {
					for {
						if p.b.Poll(ev, -1) > 0 {
							done <- ev[0]
							return
						}
					}
				}()
				time.Sleep(2 * time.Millisecond)
				act()
				select {
				case e := <-done:
					require.Equal(t, cb, e.Conn, what)
				case <-time.After(patience):
					t.Fatal("Poll slept through " + what)
				}
			}
			heard("octets", func() { require.Equal(t, 10, send(t, ca, 0, 0, 10)) })
			k := checker{}
			require.NoError(t, k.receive(t, cb))
			require.Equal(t, 10, k.at)
			heard("the end", func() { require.NoError(t, ca.CloseWrite()) })
		})
	}
}

func TestQueueHoldsEachOnce(t *testing.T) {
	q := ready{kick: func() {}}
	conns := make([]*Conn, 300)
	for i := range conns {
		conns[i] = &Conn{}
		q.push(Event{Conn: conns[i]})
		q.push(Event{Conn: conns[i]})
	}
	q.drop(Event{Conn: conns[7]})
	ev := make([]Event, 100)
	seen := map[*Conn]int{}
	for range 5 {
		n, stop := q.take(ev)
		require.False(t, stop)
		for _, e := range ev[:n] {
			seen[e.Conn]++
			if e.Conn == conns[0] && seen[e.Conn] == 1 {
				q.push(e) // handed out: it may come again
			}
		}
	}
	require.Len(t, seen, len(conns)-1)
	require.Equal(t, 2, seen[conns[0]])
	require.Equal(t, 1, seen[conns[299]])
	require.Zero(t, seen[conns[7]])
	require.False(t, q.some.Load())
}
