package netstack

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// stormCarriers are links that deliver segments one by one, in bursts that are joined, and as super-frames.
func stormCarriers(t *testing.T, f func(t *testing.T, pipe pktio.PipeConfig)) {
	for name, pipe := range map[string]pktio.PipeConfig{"1500": {}, "GSO": {GSO: true}} {
		t.Run(name, func(t *testing.T) { f(t, pipe) })
	}
}

// talker sends total octets on each of its connections and receives as many. Each is written to by a goroutine of its own.
type talker struct {
	e     *engine
	total int
	left  int // connections; the engine's
	all   chan struct{}
}

// newTalker makes the talker for conns connections of s. It takes those that come in.
func newTalker(t *testing.T, p *pair, s *Stack, conns, total int) *talker {
	k := &talker{total: total, left: conns, all: make(chan struct{})}
	k.e = startEngine(t, p, s, k.talk)
	return k
}

// talk makes the owner of a connection.
func (k *talker) talk(*Conn) handler {
	more := make(chan struct{}, 1)
	started, ended := false, false
	var in checker
	return func(c *Conn) {
		if ok, err := c.Connected(); !ok {
			if err != nil {
				k.e.fail(err)
			}
			return
		}
		if !started {
			started = true
			go k.write(c, more)
		}
		select {
		case more <- struct{}{}:
		default:
		}
		for !ended {
			pieces, err := c.Peek()
			for _, p := range pieces {
				if err := in.check(p); err != nil {
					k.e.fail(err)
					return
				}
			}
			c.Discard(length(pieces))
			switch {
			case err == io.EOF && in.at == k.total:
				ended = true
				if k.left--; k.left == 0 {
					close(k.all)
				}
			case err != nil:
				k.e.fail(err)
				return
			case len(pieces) == 0:
				return
			}
		}
	}
}

// write sends the octets of a connection, in portions of all sizes.
func (k *talker) write(c *Conn, more <-chan struct{}) {
	r := rand.New(rand.NewPCG(uint64(c.RemoteAddr().Port()), 7))
	buf := make([]byte, 50_000)
	for sent := 0; sent < k.total; {
		n := min(1+r.IntN(len(buf)), k.total-sent)
		if r.IntN(2) == 0 {
			n = min(n, 1+r.IntN(100))
		}
		for c.Room() < n {
			<-more
		}
		pattern(buf[:n], 0, sent)
		if err := c.Writev([][]byte{buf[:n]}); err != nil {
			k.e.fail(err)
			return
		}
		sent += n
	}
	if err := c.CloseWrite(); err != nil {
		k.e.fail(err)
	}
}

// Many connections send and receive at once, each written to by a goroutine of its own while one other receives for all.
func TestInlineManyWriters(t *testing.T) {
	conns, total := 50, 1<<20
	if raceEnabled || testing.Short() {
		conns, total = 20, 200_000
	}
	stormCarriers(t, func(t *testing.T, pipe pktio.PipeConfig) {
		p := newUserPair(t, pipe, Config{})
		a, b := newTalker(t, p, p.a.Stack, conns, total), newTalker(t, p, p.b.Stack, conns, total)
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 4*conns)
		require.NoError(t, err)
		a.e.do(func() {
			for range conns {
				c, err := a.e.s.Dial(netip.Addr{}, l.Addr())
				if err != nil {
					a.e.fail(err)
					return
				}
				c.SetOwner(a.talk(c))
			}
		})
		wait(t, "all at a", a.all, a.e, b.e)
		wait(t, "all at b", b.all, a.e, b.e)
		st := p.a.Stats()
		t.Logf("%d of %d frames dropped, %d timeouts, %d recoveries", st.DropsOut, st.FramesOut, st.Timeouts, st.Recoveries)
	})
}

// Connections are opened, used and ended in all ways there are, at both ends and without end, while segments of theirs
// arrive. Nothing is left over.
func TestInlineStorm(t *testing.T) {
	span, most := 1500*time.Millisecond, 64
	if raceEnabled || testing.Short() {
		span, most = time.Second, 24
	}
	stormCarriers(t, func(t *testing.T, pipe pktio.PipeConfig) {
		p := newUserPair(t, pipe, Config{RecvBuffer: MinBuffer, SendBuffer: MinBuffer})
		ended := 0
		seed := rand.Uint64()
		t.Log("seed", seed)
		r := rand.New(rand.NewPCG(seed, 1))
		// play does something to a connection at an event of it, and reports whether it has ended.
		play := func(r *rand.Rand, c *Conn, buf []byte) bool {
			if ok, err := c.Connected(); !ok {
				if err != nil {
					c.Close()
				}
				return err != nil
			}
			pieces, err := c.Peek()
			c.Discard(length(pieces))
			if err != nil && r.IntN(2) == 0 {
				c.Close()
				return true
			}
			switch r.IntN(12) {
			case 0:
				c.Abort()
				return true
			case 1:
				c.Close()
				return true
			case 2:
				_ = c.CloseWrite()
			case 3:
				if c.Room() > 0 {
					go func() { _ = c.Writev([][]byte{buf}) }() // when that is, is open
				}
			default:
				if n := 1 + r.IntN(3000); c.Room() >= n {
					_ = c.Writev([][]byte{buf[:n]})
				}
			}
			if err != nil && !errors.Is(err, io.EOF) {
				c.Close()
				return true
			}
			return false
		}
		buf := make([]byte, 100_000)
		rb := rand.New(rand.NewPCG(seed, 2))
		b := startEngine(t, p, p.b.Stack, func(*Conn) handler { return func(c *Conn) { play(rb, c, buf) } })
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), most)
		require.NoError(t, err)
		stop := make(chan struct{})
		a := startEngine(t, p, p.a.Stack, nil)
		live := map[*Conn]bool{}
		over := false
		var open func()
		h := handler(func(c *Conn) {
			if play(r, c, buf) {
				delete(live, c)
				ended++
				open()
			}
		})
		open = func() {
			for len(live) < most && !over {
				c, err := p.a.Dial(netip.Addr{}, l.Addr())
				if err != nil {
					a.fail(err)
					return
				}
				c.SetOwner(h)
				live[c] = true
			}
		}
		a.do(open)
		// Who waits for the other lives on: one is poked, now and then.
		for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(time.Millisecond) {
			a.do(func() {
				for c := range live {
					h(c)
					break
				}
			})
		}
		a.do(func() {
			over = true
			for c := range live {
				c.Abort()
			}
			close(stop)
		})
		wait(t, "the end of all", stop, a, b)
		a.end()
		b.end()
		t.Log(ended, "connections")
		require.NoError(t, l.Close())
		until(t, "b to let go of all", func() bool {
			for _, c := range p.b.all() {
				c.Abort()
			}
			return p.b.Stats().Conns == 0 && p.a.Stats().Conns == 0
		}, p.a, p.b)
		if canInline() {
			require.Zero(t, p.a.inlined()+p.b.inlined())
		}
	})
}

// all returns the connections of h. Nobody else may use them.
func (h *host) all() (list []*Conn) {
	h.Stack.mu.Lock()
	defer h.Stack.mu.Unlock()
	for c := range h.conns {
		list = append(list, c)
	}
	return list
}

// A Stack is closed while its connections are written to, and segments arrive by the hundred.
func TestInlineCloseUnderTraffic(t *testing.T) {
	rounds := 20
	if raceEnabled || testing.Short() {
		rounds = 10
	}
	stormCarriers(t, func(t *testing.T, pipe pktio.PipeConfig) {
		for round := range rounds {
			p := newUserPair(t, pipe, Config{})
			l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 16)
			require.NoError(t, err)
			var conns []*Conn
			for range 8 {
				ca, cb := p.connectTo(l)
				conns = append(conns, ca, cb)
			}
			var wg sync.WaitGroup
			for _, c := range conns {
				wg.Add(1)
				go func() {
					defer wg.Done()
					buf := make([]byte, 5000)
					for {
						if err := c.Writev([][]byte{buf}); err != nil && !errors.Is(err, ErrNoRoom) {
							return
						} else if err != nil {
							time.Sleep(20 * time.Microsecond)
						}
					}
				}()
			}
			for _, h := range []*host{p.a, p.b} {
				wg.Add(1)
				go func() {
					defer wg.Done()
					ev := make([]Event, 8)
					for {
						select {
						case <-h.done:
							return
						default:
						}
						n := h.Poll(ev, time.Millisecond)
						for _, e := range ev[:n] {
							if e.Conn != nil {
								pieces, _ := e.Conn.Peek()
								e.Conn.Discard(length(pieces))
							}
						}
					}
				}()
			}
			time.Sleep(time.Duration(round%10) * time.Millisecond)
			ends(t, "Close under traffic", func() {
				first, second := p.a, p.b
				if round%2 == 1 {
					first, second = second, first
				}
				require.NoError(t, first.Close())
				time.Sleep(time.Duration(round%3) * time.Millisecond)
				require.NoError(t, second.Close())
				wg.Wait()
			})
		}
	})
}
