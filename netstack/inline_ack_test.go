package netstack

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// pingPong sends an octet there and back, rounds times, with one goroutine at both ends.
func (p *pair) pingPong(ca, cb *Conn, rounds int) {
	p.t.Helper()
	one := [][]byte{{7}}
	take := func(h *host, c *Conn) {
		p.until("an octet", func() bool {
			pieces, err := c.Peek()
			require.NoError(p.t, err)
			if len(pieces) == 0 {
				h.poll(0)
				return false
			}
			c.Discard(length(pieces))
			return true
		})
	}
	for range rounds {
		require.NoError(p.t, ca.Writev(one))
		take(p.b, cb)
		require.NoError(p.t, cb.Writev(one))
		take(p.a, ca)
	}
}

// Who answers at once sends one frame for each that arrives, and with acknowledgements of their own two.
func TestAcknowledgementsRide(t *testing.T) {
	const rounds = 1000
	for _, c := range []struct {
		name   string
		conf   Config
		inline bool
	}{
		{"ride", Config{KeepACKs: 100 * time.Millisecond}, true}, // far more than a round takes anywhere
		{"do not wait", Config{KeepACKs: -1}, false},
		{"handoff", Config{Handoff: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.inline {
				needInline(t)
			}
			bothFamilies(t, func(t *testing.T, fam family) {
				c.conf.MinRTO = 2 * time.Second // a machine that is busy elsewhere is no reason to send anything again
				p := newUserPairOf(t, fam, pktio.PipeConfig{}, c.conf)
				ca, cb, _ := p.connect()
				p.pingPong(ca, cb, 10)
				var a, b float64 // frames a round
				// On a busy machine the pump takes the test for an application that is gone.
				for try := 0; try == 0 || c.inline && max(a, b) >= 1.2 && try < 20; try++ {
					st := [2]Stats{p.a.Stats(), p.b.Stats()}
					p.pingPong(ca, cb, rounds)
					a, b = float64(p.a.Stats().FramesOut-st[0].FramesOut)/rounds, float64(p.b.Stats().FramesOut-st[1].FramesOut)/rounds
					t.Logf("%.3f and %.3f frames a round", a, b)
				}
				switch {
				case !c.inline:
					require.Greater(t, min(a, b), 1.7)
				case raceEnabled: // a round takes long enough for the pump to have a look
					require.Less(t, max(a, b), 1.6)
				default:
					require.Less(t, max(a, b), 1.2)
				}
				require.Zero(t, p.a.Stats().Retransmits+p.b.Stats().Retransmits)
			})
		})
	}
}

// acked waits until the stack has acknowledged all octets up to seq, calling poll meanwhile.
func (s *spoken) acked(seq uint32, poll func()) {
	s.t.Helper()
	for end := time.Now().Add(patience / 3); ; {
		poll()
		for _, tcp := range s.sent() {
			if tcp.Flags() == header.TCPFlagAck && tcp.AckNumber() == seq {
				return
			}
		}
		if time.Now().After(end) {
			s.t.Fatal("never acknowledged")
		}
	}
}

// An octet that nobody answers is acknowledged all the same.
func TestUnansweredOctetIsAcknowledged(t *testing.T) {
	for _, c := range []struct {
		name string
		keep time.Duration // KeepACKs
		poll func(s *spoken)
	}{
		{"while Poll keeps being called", 0, func(s *spoken) { s.h.poll(0) }},
		{"before Poll sleeps", forever, func(s *spoken) { s.h.poll(2 * time.Millisecond) }},
		{"while Poll spins", 0, func(s *spoken) { s.h.poll(2 * time.Millisecond) }},
		{"without any Poll", forever, func(*spoken) { time.Sleep(10 * time.Microsecond) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, fam family) {
				s := newSpoken(t, fam, Config{KeepACKs: c.keep})
				var took []time.Duration
				for range 50 {
					s.h.poll(0) // awake
					s.swallow()
					s.send(s.frame(flagPSH, 0, 1))
					start := time.Now()
					s.seq++
					s.acked(s.seq, func() { c.poll(s) })
					took = append(took, time.Since(start))
				}
				t.Log("in ", took[:10])
				require.Zero(t, s.h.Stats().Retransmits)
			})
		})
	}
	// The same with the octet taken by the last Poll there is.
	t.Run("behind the last Poll", func(t *testing.T) {
		s := newSpoken(t, inet4, Config{KeepACKs: forever})
		for range 50 {
			s.swallow()
			s.send(s.frame(flagPSH, 0, 1))
			s.seq++
			until(t, "the octet", func() bool { pieces, _ := s.c.Peek(); return length(pieces) > 0 }, s.h)
			s.c.Discard(1)
			s.acked(s.seq, func() { time.Sleep(10 * time.Microsecond) })
		}
	})
}

// Poll does not go to sleep on what is owed, nor leave it to the pump, unless that is at it already.
func TestLeaveAcknowledges(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: forever})
	s.alive()
	at := 0
	var all []header.TCP
	for try := 0; len(all) == 0 && try < 20; try++ {
		s.h.poll(0) // awake
		s.hold()
		s.h.user.link.rx.inline.acknowledge(true)
		s.sent()
		s.arrive(s.frame(flagPSH, at, 5))
		at += 5
		require.Empty(t, s.sent(), "held back")
		s.h.user.link.rx.mu.Unlock()
		s.h.user.link.leave()
		all = s.sent()
	}
	require.Len(t, all, 1)
	require.Equal(t, s.seq+uint32(at), all[0].AckNumber())
}

// What tells a peer of losses does not wait, nor does what opens the window, nor the answer to FIN.
func TestWhatDoesNotWait(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{KeepACKs: forever})
		s.alive()
		one := func(what string, ack int) {
			t.Helper()
			all := s.sent()
			require.Len(t, all, 1, what)
			require.Equal(t, header.TCPFlags(header.TCPFlagAck), all[0].Flags(), what)
			require.Equal(t, s.seq+uint32(ack), all[0].AckNumber(), what)
		}
		s.hold()
		defer s.h.user.link.rx.mu.Unlock()
		s.sent()
		s.arrive(s.frame(flagPSH, 0, 10))
		require.Empty(t, s.sent(), "octets in order")
		s.arrive(s.frame(flagPSH, 20, 10))
		one("a gap", 10)
		s.arrive(s.frame(flagPSH, 30, 10))
		one("a gap, still", 10)
		s.arrive(s.frame(flagPSH, 0, 10))
		one("octets for the second time", 10)
		s.arrive(s.frame(flagPSH, 5, 5), s.frame(flagPSH, 50, 5))
		require.Len(t, s.sent(), 2, "one for each")
		s.arrive(s.frame(flagPSH, 10, 10))
		require.Empty(t, s.sent(), "the gap is closed: in order again")
		s.arrive(s.frame(flagPSH, 40, 10))
		require.Empty(t, s.sent())
		s.h.user.link.rx.inline.acknowledge(true)
		one("all of it", 55)
		s.arrive(s.frame(flagPSH, 55, 10))
		require.Empty(t, s.sent())
		s.arrive(s.frame(flagFIN, 65, 0))
		require.Equal(t, s.seq+66, s.sent()[0].AckNumber())
		s.h.user.link.rx.inline.acknowledge(true)
		require.Empty(t, s.sent(), "nothing is left to say")
	})
}

// Octets that are sent pay what was owed, and so does all else that is sent.
func TestWhatPaysDebts(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: forever, RecvBuffer: MinBuffer})
	s.alive()
	in := s.h.user.link.rx.inline
	s.hold()
	defer s.h.user.link.rx.mu.Unlock()
	s.sent()
	s.arrive(s.frame(flagPSH, 0, 10))
	require.NoError(t, s.c.Writev([][]byte{{1}}))
	require.Equal(t, s.seq+10, s.sent()[0].AckNumber())
	s.una++
	in.acknowledge(true)
	require.Empty(t, s.sent())
	// A new debt is one of its own, whether the old one was looked at or not.
	s.arrive(s.frame(flagPSH, 10, 10))
	require.NoError(t, s.c.Writev([][]byte{{1}}))
	s.una++
	s.sent()
	s.arrive(s.frame(flagPSH, 20, 10))
	in.acknowledge(false)
	require.Empty(t, s.sent())
	in.acknowledge(true)
	all := s.sent()
	require.Len(t, all, 1)
	require.Equal(t, s.seq+30, all[0].AckNumber())
	// FIN carries one as well.
	s.arrive(s.frame(flagPSH, 30, 10))
	require.NoError(t, s.c.CloseWrite())
	all = s.sent()
	require.Len(t, all, 1)
	require.Equal(t, s.seq+40, all[0].AckNumber())
	in.acknowledge(true)
	require.Empty(t, s.sent())
}

// An acknowledgement that could not be sent because somebody else was busy with the connection is sent later.
func TestACKWaitsForTheLock(t *testing.T) {
	needInline(t)
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprint(all), func(t *testing.T) {
			s := newSpoken(t, inet4, Config{KeepACKs: time.Microsecond})
			s.alive()
			s.hold()
			s.arrive(s.frame(flagPSH, 0, 10))
			s.sent()
			s.c.user.ep.LockUser()
			free := time.AfterFunc(20*time.Millisecond, s.c.user.ep.UnlockUser)
			defer free.Stop()
			s.h.user.link.rx.inline.acknowledge(all)
			s.h.user.link.rx.mu.Unlock()
			s.acked(s.seq+10, func() { s.h.poll(time.Millisecond) })
		})
	}
}

// A connection that always has new octets, and always answers, does not keep the acknowledgements of others back.
func TestBusyConnLetsOthersAcknowledge(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{})
	other := &spoken{wire: s.wire, l: s.l, port: 1999}
	other.connect(5_000_000)
	s.alive()
	other.alive()
	s.hold()
	in := s.h.user.link.rx.inline
	s.arrive(s.frame(flagPSH, 0, 1)) // it owes first
	s.arrive(other.frame(flagPSH, 0, 1))
	s.sent()
	acked, rounds := false, 0
	for start := time.Now(); time.Since(start) < 5*time.Millisecond || rounds < 10; rounds++ {
		require.NoError(t, s.c.Writev([][]byte{{1}}))
		s.arrive(s.frame(flagPSH, 1+rounds, 1))
		in.acknowledge(false)
		for _, tcp := range s.sent() {
			acked = acked || tcp.DestinationPort() == other.port
		}
		s.una++
	}
	s.h.user.link.rx.mu.Unlock()
	require.True(t, acked, "not once in %d rounds", rounds)
}
