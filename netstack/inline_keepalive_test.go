package netstack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// gaps counts how often a test was not run for longer than it should have been, and a gap of many times that as many.
type gaps struct {
	most time.Duration
	last time.Time
	n    int
}

func (g *gaps) look() {
	now := time.Now()
	if !g.last.IsZero() {
		g.n += int(now.Sub(g.last) / g.most)
	}
	g.last = now
}

// receive waits at both ends for n octets at c.
func (p *pair) receive(c *Conn, n int) {
	p.t.Helper()
	p.until("octets", func() bool {
		pieces, err := c.Peek()
		require.NoError(p.t, err)
		if length(pieces) < n {
			return false
		}
		c.Discard(n)
		return true
	})
}

// pollFor polls both ends for d.
func (p *pair) pollFor(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		p.a.poll(0)
		p.b.poll(50 * time.Microsecond)
	}
}

// An application that only receives has nothing acknowledged: that octets arrive is sign of life enough, and no question
// is asked. The neighbour stays known.
func TestBusyPeerIsNotSilent(t *testing.T) {
	for name, pause := range map[string]time.Duration{"every millisecond": time.Millisecond, "every 7 ms": 7 * time.Millisecond, "every 30 ms": 30 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothWays(t, Config{Keepalive: Keepalive{Idle: 300 * time.Millisecond, Interval: 100 * time.Millisecond, Count: 5}}, func(t *testing.T, c Config) {
				t.Parallel()
				pa, pb, err := pktio.NewPipe(pktio.PipeConfig{})
				require.NoError(t, err)
				rec := &recorder{Port: pb}
				p := newPortPairOf(t, inet4, pa, rec, c)
				ca, cb, _ := p.connect()
				g := gaps{most: 150 * time.Millisecond}
				for end := time.Now().Add(2 * time.Second); time.Now().Before(end); g.look() {
					require.NoError(t, ca.Writev([][]byte{{1}}))
					p.receive(cb, 1)
					p.pollFor(pause)
				}
				una, _, ok := underWay(cb.user.ep)
				require.True(t, ok)
				asked := 0
				for _, f := range rec.frames() {
					if tcp := segmentOf(f.Data[0]); tcp != nil && tcp.Flags() == header.TCPFlagAck && tcp.SequenceNumber() == uint32(una)-1 {
						asked++
					}
				}
				require.LessOrEqual(t, asked, g.n, "questions for a sign of life")
				require.Zero(t, p.a.Stats().Silent+p.b.Stats().Silent)
				require.NotEmpty(t, p.b.known(addrA))
			})
		})
	}
}

// A peer that falls silent at work is found out, whatever came from it last: octets, or acknowledgements.
func TestPeerFallsSilentAtWork(t *testing.T) {
	for name, work := range map[string]func(p *pair, ca, cb *Conn){
		"ping-pong": func(p *pair, ca, cb *Conn) { p.pingPong(ca, cb, 300) },
		"one way": func(p *pair, ca, cb *Conn) {
			for range 300 {
				require.NoError(p.t, ca.Writev([][]byte{make([]byte, 1000)}))
				p.receive(cb, 1000)
			}
			p.until("the last acknowledgement", func() bool {
				una, nxt, ok := underWay(ca.user.ep)
				return ok && una == nxt
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, soon, func(t *testing.T, c Config) {
				t.Parallel()
				p := newUserPair(t, pktio.PipeConfig{}, c)
				ca, cb, _ := p.connect()
				work(p, ca, cb)
				start := time.Now()
				p.portA.Cut(true)
				p.silent(ca, cb)
				t.Log(time.Since(start))
			})
		})
	}
}

// Frames with damage in them are no sign of life: a peer of which nothing else is heard is silent.
func TestDamagedSegmentsAreNoSignOfLife(t *testing.T) {
	bothWays(t, Config{Keepalive: KeepaliveWithin(600 * time.Millisecond)}, func(t *testing.T, c Config) {
		t.Parallel()
		s := newSpoken(t, inet4, c)
		s.alive()
		bad := s.frame(flagPSH, 0, 10)
		bad[len(bad)-1] ^= 1
		var err error
		for end := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(end); _, err = s.c.Peek() {
			s.send(bad)
			s.h.poll(time.Millisecond)
			s.swallow()
		}
		require.ErrorContains(t, err, "answers no more")
		require.Positive(t, s.h.Stats().ChecksumErrors)
	})
}

// Acknowledgements tell that the neighbour is reachable, also where the answers of the application come too late to carry
// any: it is not asked for.
func TestNeighbourStaysReachable(t *testing.T) {
	bothWays(t, Config{}, func(t *testing.T, c Config) {
		t.Parallel()
		p, rec := newRecordedPair(t, pktio.PipeConfig{}, c, nil)
		nud := nudConfig()
		nud.BaseReachableTime, nud.DelayFirstProbeTime = 400*time.Millisecond, 50*time.Millisecond
		require.NoError(t, toError(p.a.user.tcp.SetNUDConfigurations(nicID, protocolOf(addrA), nud)))
		ca, cb, _ := p.connect()
		p.pingPong(ca, cb, 10)
		asked := func() (n int) {
			for _, f := range rec.frames() {
				if isARPRequest(addrB)(f.Data[0]) {
					n++
				}
			}
			return n
		}
		before := asked()
		g := gaps{most: 100 * time.Millisecond}
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); g.look() {
			require.NoError(t, cb.Writev([][]byte{{1}}))
			p.receive(ca, 1)
			p.pollFor(300 * time.Microsecond)
			require.NoError(t, ca.Writev([][]byte{{1}}))
			p.receive(cb, 1)
			p.pollFor(300 * time.Microsecond)
		}
		require.LessOrEqual(t, asked()-before, g.n)
		require.NotEqual(t, tcpip.LinkAddress(""), p.a.known(addrB))
	})
}

// A peer that answers the questions of a connection whose Keepalive is over in a moment is not taken for dead.
func TestShortKeepaliveHearsAnswers(t *testing.T) {
	bothWays(t, Config{Keepalive: Keepalive{Idle: 6 * time.Millisecond, Interval: 3 * time.Millisecond, Count: 1}}, func(t *testing.T, c Config) {
		heard := 0
		const conns = 20
		for range conns {
			s := newSpoken(t, inet4, c)
			s.alive()
			var err error
			for end := time.Now().Add(60 * time.Millisecond); err == nil && time.Now().Before(end); _, err = s.c.Peek() {
				s.h.poll(0)
				for _, seg := range s.sent() {
					if seg.SequenceNumber() == s.una-1 {
						s.send(s.frame(flagACK, 0, 0))
					}
				}
			}
			if err == nil {
				heard++
			}
		}
		require.Greater(t, heard, conns/4, "on a busy machine some answers come too late")
	})
}

// Octets that TCP would have none of are owed no acknowledgement.
func TestDamagedSegmentsMakeNoDebt(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: forever})
	s.alive()
	s.hold()
	defer s.h.user.link.rx.mu.Unlock()
	in := s.h.user.link.rx.inline
	in.acknowledge(true)
	bad := s.frame(flagPSH, 0, 10)
	bad[len(bad)-1] ^= 1
	s.arrive(bad)
	require.Len(t, in.conns, 1)
	for _, c := range in.conns {
		require.Zero(t, c.debt.octets)
		require.False(t, c.debt.listed)
	}
}
