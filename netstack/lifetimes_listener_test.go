package netstack

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// crowdCarriers are one of each kind.
func crowdCarriers() []carrier {
	return []carrier{
		{"user", func(t testing.TB, c Config) *pair { return newUserPair(t, pktio.PipeConfig{GSO: true}, c) }},
		{"kernel", func(t testing.TB, c Config) *pair { return newKernelPair(t, inet4, c) }},
	}
}

// dialMany starts n connections to l.
func (p *pair) dialMany(l *Listener, n int) []*Conn {
	conns := make([]*Conn, n)
	for i := range conns {
		var err error
		conns[i], err = p.a.Dial(netip.Addr{}, l.Addr())
		require.NoError(p.t, err)
	}
	return conns
}

// speak writes an octet to each connection that is established by now, as an initiator of MPA does, and returns how
// many have failed.
func (p *pair) speak(conns []*Conn, spoke []bool) (failed int) {
	for i, c := range conns {
		ok, err := c.Connected()
		switch {
		case err != nil:
			failed++
		case ok && !spoke[i]:
			spoke[i] = true
			_ = c.Writev([][]byte{{byte(i)}})
		case ok:
			if _, err := c.Peek(); err != nil {
				failed++
			}
		}
	}
	return failed
}

// More peers at once than any queue holds, to a listener with the least backlog: all get in, and soon.
func TestCrowdAtTheListener(t *testing.T) {
	for _, car := range crowdCarriers() {
		t.Run(car.name, func(t *testing.T) {
			crowds := []int{1000, minBacklog + 500}
			if raceEnabled {
				crowds = []int{300}
			}
			for _, n := range crowds {
				p := car.make(t, Config{})
				l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
				require.NoError(t, err)
				start := time.Now()
				conns := p.dialMany(l, n)
				spoke := make([]bool, n)
				var accepted []*Conn
				got := 0
				p.until("all to get in", func() bool {
					require.Zero(t, p.speak(conns, spoke))
					for c, ok := l.Accept(); ok; c, ok = l.Accept() {
						accepted = append(accepted, c)
					}
					for i, c := range accepted {
						if c == nil {
							continue
						}
						if pieces, err := c.Peek(); len(pieces) > 0 {
							require.NoError(t, err)
							c.Discard(length(pieces))
							got++
							accepted[i] = nil
						}
					}
					return got == n
				})
				t.Logf("%d in %v", n, time.Since(start).Round(time.Millisecond))
			}
		})
	}
}

// A listener that is closed while connections wait for Accept tells each peer, those in the handshake included.
func TestListenerClosedOverWaitingPeers(t *testing.T) {
	for _, car := range crowdCarriers() {
		t.Run(car.name, func(t *testing.T) {
			p := car.make(t, Config{})
			l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
			require.NoError(t, err)
			const n = 300
			conns := p.dialMany(l, n)
			spoke := make([]bool, n)
			for range 5 {
				p.a.poll(time.Millisecond)
				p.b.poll(time.Millisecond)
				p.speak(conns, spoke)
			}
			require.NoError(t, l.Close())
			p.until("all to be told", func() bool { return p.speak(conns, spoke) == n })
			for _, c := range conns {
				if ok, err := c.Connected(); ok {
					_, err = c.Peek()
					require.ErrorIs(t, err, syscall.ECONNRESET)
				} else if !errors.Is(err, syscall.ECONNRESET) { // up and reset before we looked
					require.ErrorIs(t, err, syscall.ECONNREFUSED)
				}
				c.Close()
			}
			// And there is room for another one on the port.
			again, err := p.b.Listen(l.Addr(), 1)
			require.NoError(t, err)
			p.connectTo(again)
		})
	}
}
