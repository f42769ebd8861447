package netstack

import (
	"fmt"
	"io"
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
		{"ride", Config{}, true},
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
				before := [2]uint64{p.a.Stats().FramesOut, p.b.Stats().FramesOut}
				p.pingPong(ca, cb, rounds)
				for i, h := range []*host{p.a, p.b} {
					n := float64(h.Stats().FramesOut-before[i]) / rounds
					t.Logf("%.3f frames a round", n)
					if c.inline {
						require.Less(t, n, 1.2)
					} else {
						require.Greater(t, n, 1.7)
					}
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

// Poll does not go to sleep on what is owed: it is sent by the time that the pump has its turn.
func TestLeaveAcknowledges(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: forever})
	s.alive()
	s.hold()
	s.sent()
	s.arrive(s.frame(flagPSH, 0, 5))
	require.Empty(t, s.sent(), "held back")
	s.h.user.link.rx.mu.Unlock()
	s.h.user.link.leave()
	s.acked(s.seq+5, func() {})
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

// bulk sends total octets from a to b, with one goroutine at both ends.
func (p *pair) bulk(ca, cb *Conn, total int) {
	p.t.Helper()
	k := checker{}
	sent := 0
	var end error
	p.until("the bulk", func() bool {
		if sent < total {
			if sent += send(p.t, ca, 0, sent, min(64<<10, total-sent)); sent == total {
				require.NoError(p.t, ca.CloseWrite())
			}
		}
		end = k.receive(p.t, cb)
		return end != nil
	})
	require.Equal(p.t, io.EOF, end)
	require.Equal(p.t, total, k.at)
}

// Octets that come without end are acknowledged often enough for the sender never to wait.
func TestBulkIsAcknowledged(t *testing.T) {
	needInline(t)
	const total = 16 << 20
	for _, c := range []struct {
		name string
		pipe pktio.PipeConfig
		conf Config
		most int // octets that come in one burst
	}{
		{"1500", pktio.PipeConfig{}, Config{}, rxBatch * 1500},
		{"waits as long as it may", pktio.PipeConfig{}, Config{KeepACKs: time.Millisecond}, rxBatch * 1500},
		{"small buffer", pktio.PipeConfig{}, Config{RecvBuffer: MinBuffer, SendBuffer: MinBuffer}, rxBatch * 1500},
		{"small buffer, waits as long as it may", pktio.PipeConfig{}, Config{RecvBuffer: MinBuffer, SendBuffer: MinBuffer, KeepACKs: time.Millisecond}, rxBatch * 1500},
		{"super-frames", pktio.PipeConfig{GSO: true}, Config{KeepACKs: time.Millisecond}, rxBatch << 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pipe.Depth = 4096
			pa, pb, err := pktio.NewPipe(c.pipe)
			require.NoError(t, err)
			rec := &recorder{Port: pb}
			// A sender that waits does so for two seconds at least, and is seen to.
			c.conf.MinRTO = 2 * time.Second
			p := newPortPairOf(t, inet4, pa, rec, c.conf)
			ca, cb, _ := p.connect()
			start := time.Now()
			p.bulk(ca, cb, total)
			took := time.Since(start)
			var last uint32
			acks, most := 0, 0
			for _, f := range rec.frames() {
				tcp := segmentOf(f.Data[0])
				if tcp == nil || tcp.Flags().Contains(header.TCPFlagSyn) {
					if tcp != nil {
						last = tcp.AckNumber()
					}
					continue
				}
				acks++
				most = max(most, int(tcp.AckNumber()-last))
				last = tcp.AckNumber()
			}
			t.Logf("%v, %d acknowledgements, of %d octets at most", took, acks, most)
			require.LessOrEqual(t, most, ackAtLeast+c.most)
			for _, h := range []*host{p.a, p.b} {
				st := h.Stats()
				require.Zero(t, st.Retransmits+st.Timeouts+st.Recoveries+st.DropsOut, "%+v", st)
			}
		})
	}
}

// The same by two programs that sleep, and with a peer that has the other way.
func TestMixedPair(t *testing.T) {
	needInline(t)
	for i, conf := range [][2]Config{{{}, {Handoff: true}}, {{Handoff: true}, {}}, {{}, {KeepACKs: -1}}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			pa, pb, err := pktio.NewPipe(pktio.PipeConfig{Depth: 1024})
			require.NoError(t, err)
			conf[0].MinRTO, conf[1].MinRTO = 2*time.Second, 2*time.Second
			conf[0].Addrs, conf[1].Addrs = prefixes("10.77.0.1/24"), prefixes("10.77.0.2/24")
			sa, err := New(pa, conf[0])
			require.NoError(t, err)
			sb, err := New(pb, conf[1])
			require.NoError(t, err)
			p := &pair{t: t, a: newHost(t, sa), b: newHost(t, sb), fam: inet4, addrA: addrA, addrB: addrB}
			t.Cleanup(p.close)
			runEcho(t, p, 3, 1<<20)
			require.Zero(t, p.a.Stats().Timeouts+p.b.Stats().Timeouts)
		})
	}
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
