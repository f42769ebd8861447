package netstack

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// engine runs a stack the way a program does: one goroutine that sleeps in Poll and acts on nothing but events. An
// event that does not come is a test that does not end.
type engine struct {
	s      *Stack
	accept func(*Conn) handler
	done   chan struct{}
	stop   bool
	once   sync.Once
	calls  chan func()
	errs   chan error
	enter  func()
}

// handler acts on an event of its conn. It is the conn's owner.
type handler func(c *Conn)

func startEngine(t testing.TB, p *pair, s *Stack, accept func(*Conn) handler) *engine {
	e := &engine{s: s, enter: p.enter, accept: accept, done: make(chan struct{}), calls: make(chan func(), 16), errs: make(chan error, 16)}
	go e.loop()
	t.Cleanup(e.end)
	return e
}

func (e *engine) loop() {
	defer close(e.done)
	if e.enter != nil {
		e.enter()
	}
	ev := make([]Event, 8)
	for !e.stop {
		n := e.s.Poll(ev, -1)
		for _, x := range ev[:n] {
			if x.Listener != nil {
				for c, ok := x.Listener.Accept(); ok; c, ok = x.Listener.Accept() {
					c.SetOwner(e.accept(c))
				}
				continue
			}
			if h, ok := x.Conn.Owner().(handler); ok {
				h(x.Conn)
			}
		}
		for more := true; more; {
			select {
			case f := <-e.calls:
				f()
			default:
				more = false
			}
		}
	}
}

// do runs f on the engine's goroutine.
func (e *engine) do(f func()) {
	e.calls <- f
	e.s.Wake()
}

func (e *engine) end() {
	e.once.Do(func() {
		e.do(func() { e.stop = true })
		<-e.done
	})
}

func (e *engine) fail(err error) {
	select {
	case e.errs <- err:
	default:
	}
}

// wait ends the test unless ok comes.
func wait(t testing.TB, what string, ok <-chan struct{}, engines ...*engine) {
	t.Helper()
	end := time.After(patience)
	for {
		for _, e := range engines {
			select {
			case err := <-e.errs:
				t.Fatal(err)
			default:
			}
		}
		select {
		case <-ok:
			return
		case <-end:
			for _, e := range engines {
				t.Logf("%+v", e.s.Stats())
				e.s.dump(t)
			}
			t.Fatal("no end of waiting: " + what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// dump logs the conns of a stack that hangs.
func (s *Stack) dump(t testing.TB) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.out.mu.Lock()
		t.Logf("%v: over %v, owing %v, fin %v, ended %v, send %v", c.remote, c.over, len(c.out.rest), c.out.fin, c.out.ended, c.out.err)
		c.out.mu.Unlock()
		if c.user != nil {
			t.Logf("  %v, peeked %d, end %v", c.user.state(), c.user.in.view.n, c.user.in.err)
		}
	}
	if s.user != nil {
		for _, ep := range s.user.tcp.RegisteredEndpoints() {
			if e, ok := ep.(*tcp.Endpoint); ok {
				var info tcpip.TCPInfoOption
				_ = e.GetSockOpt(&info)
				r := &e.Stats().(*tcp.Stats).ReceiveErrors
				t.Logf("  endpoint %d to %d: %v, %+v, dropped %d, window wanted shut %d, shut %d", e.ID.LocalPort, e.ID.RemotePort, e.EndpointState(), info,
					r.SegmentQueueDropped.Value(), r.WantZeroRcvWindow.Value(), r.ZeroRcvWindowState.Value())
			}
		}
	}
}

// echo sends back what comes, never holding more than TCP does.
func (e *engine) echo(*Conn) handler {
	return func(c *Conn) {
		for {
			pieces, err := c.Peek()
			n := min(length(pieces), c.Room())
			if n > 0 {
				if werr := c.Writev(head(pieces, n)); werr != nil {
					e.fail(werr)
					c.Abort()
					return
				}
				c.Discard(n)
				continue
			}
			if err != nil && len(pieces) == 0 {
				if err != io.EOF {
					e.fail(err)
				}
				c.Close()
			}
			return
		}
	}
}

func head(pieces [][]byte, n int) [][]byte {
	out := make([][]byte, 0, len(pieces))
	for _, p := range pieces {
		p = p[:min(n, len(p))]
		n -= len(p)
		if len(p) > 0 {
			out = append(out, p)
		}
	}
	return out
}

// dialEcho sends total octets of a stream in random portions and checks what comes back.
func (e *engine) dialEcho(to netip.AddrPort, stream, total int, done func()) {
	r := rand.New(rand.NewPCG(uint64(stream), 1))
	sent := 0
	k := checker{stream: stream}
	buf := make([]byte, 100_000)
	var h handler = func(c *Conn) {
		if ok, err := c.Connected(); !ok {
			if err != nil {
				e.fail(err)
			}
			return
		}
		for sent < total {
			n := min(1+r.IntN(len(buf)), total-sent)
			if r.IntN(2) == 0 {
				n = min(n, 1+r.IntN(200))
			}
			if c.Room() < n {
				break
			}
			pattern(buf[:n], stream, sent)
			if err := c.Writev([][]byte{buf[:n/2], buf[n/2 : n]}); err != nil {
				e.fail(err)
				return
			}
			sent += n
		}
		for {
			pieces, err := c.Peek()
			if len(pieces) > 0 {
				if err := k.check(pieces[0]); err != nil {
					e.fail(err)
					return
				}
				c.Discard(len(pieces[0]))
				if k.at == total {
					// Not before: gVisor answers without SACK blocks once it has sent FIN, and recovery crawls.
					if err := c.CloseWrite(); err != nil {
						e.fail(err)
					}
				}
				continue
			}
			if err != nil {
				if err != io.EOF || k.at != total {
					e.fail(fmt.Errorf("stream %d ended with %v after %d of %d octets", stream, err, k.at, total))
				}
				c.Close()
				done()
				return
			}
			return
		}
	}
	c, err := e.s.Dial(netip.Addr{}, to)
	if err != nil {
		e.fail(err)
		return
	}
	c.SetOwner(h)
}

// runEcho runs conns echo connections of total octets each from a to b and waits for them.
func runEcho(t testing.TB, p *pair, conns, total int) {
	b := startEngine(t, p, p.b.Stack, nil)
	b.accept = b.echo
	a := startEngine(t, p, p.a.Stack, nil)
	l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 4*conns)
	require.NoError(t, err)
	all := make(chan struct{})
	left := conns
	a.do(func() {
		for i := range conns {
			a.dialEcho(l.Addr(), i, total, func() {
				if left--; left == 0 {
					close(all)
				}
			})
		}
	})
	wait(t, "echo", all, a, b)
	a.end()
	b.end()
	require.NoError(t, l.Close())
}

func TestEchoByEvents(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) { runEcho(t, p, 1, 4<<20) })
}

func TestManyConns(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		conns := 200
		if p.enter != nil {
			conns = 50 // a packet port keeps 256 frames, and each conn starts with a few
		}
		runEcho(t, p, conns, 20_000)
		until(t, "the conns to be forgotten", func() bool { return p.b.Stats().Conns == 0 }, p.b)
		require.Zero(t, p.a.Stats().Conns)
	})
}

func TestSmallBuffersByEvents(t *testing.T) {
	onAll(t, Config{SendBuffer: MinBuffer, RecvBuffer: MinBuffer}, func(t *testing.T, p *pair) { runEcho(t, p, 3, 2<<20) })
}

func TestNoSpinByEvents(t *testing.T) {
	onAll(t, Config{SpinFor: -1}, func(t *testing.T, p *pair) { runEcho(t, p, 2, 1<<20) })
}

// The two halves of a conn at once: one goroutine sends all it can, the receive goroutine of each side only receives.
func TestBulk(t *testing.T) {
	total := 64 << 20
	if testing.Short() || raceEnabled {
		total = 8 << 20
	}
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		all := make(chan struct{})
		k := checker{}
		b := startEngine(t, p, p.b.Stack, nil)
		b.accept = func(*Conn) handler {
			return func(c *Conn) {
				for {
					pieces, err := c.Peek()
					n := 0
					for _, piece := range pieces {
						if err := k.check(piece); err != nil {
							b.fail(err)
							return
						}
						n += len(piece)
					}
					c.Discard(n)
					if err == io.EOF {
						if k.at != total {
							b.fail(fmt.Errorf("%d of %d octets came", k.at, total))
						}
						c.Close()
						c.SetOwner(nil)
						close(all)
						return
					}
					if n == 0 {
						return
					}
				}
			}
		}
		a := startEngine(t, p, p.a.Stack, nil)
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
		require.NoError(t, err)
		ready := make(chan *Conn, 1)
		more := make(chan struct{}, 1)
		a.do(func() {
			c, err := a.s.Dial(netip.Addr{}, l.Addr())
			require.NoError(t, err)
			connected := false
			c.SetOwner(handler(func(c *Conn) {
				if ok, _ := c.Connected(); ok && !connected {
					connected = true
					ready <- c
				}
				select {
				case more <- struct{}{}:
				default:
				}
			}))
		})
		go func() {
			c := <-ready
			buf := make([]byte, 128<<10)
			for sent := 0; sent < total; {
				n := min(len(buf), total-sent)
				for c.Room() < n {
					<-more
				}
				pattern(buf[:n], 0, sent)
				if err := c.Writev([][]byte{buf[:n]}); err != nil {
					a.fail(err)
					return
				}
				sent += n
			}
			if err := c.CloseWrite(); err != nil {
				a.fail(err)
			}
		}()
		wait(t, "the bulk", all, a, b)
		a.end()
		b.end()
	})
}

// Abort by the receive goroutine while another writes: the writer gets an error, nothing breaks.
func TestAbortUnderWritev(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		for range 20 {
			ca, cb, l := p.connect()
			failed := make(chan error)
			go func() {
				buf := make([]byte, 10_000)
				for {
					if ca.Room() >= len(buf) || ca.MSS() == 0 {
						if err := ca.Writev([][]byte{buf}); err != nil {
							failed <- err
							return
						}
					} else if err := ca.Writev([][]byte{buf}); err != nil && !errors.Is(err, ErrNoRoom) {
						failed <- err
						return
					}
				}
			}()
			for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
				p.a.poll(0)
				p.b.poll(0)
			}
			ca.Abort()
			select {
			case <-failed:
			case <-time.After(patience):
				t.Fatal("the writer hears nothing")
			}
			cb.Abort()
			require.NoError(t, l.Close())
		}
	})
}
