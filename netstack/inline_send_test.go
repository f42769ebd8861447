package netstack

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/seqnum"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/softrdma/softrdma/pktio"
)

// keepLead lets the headers that c has be used for as long as the test takes.
func keepLead(c *Conn) {
	l := c.st.user.link
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	c.user.flow.lead.until = l.clock.now() + time.Hour
}

// byGvisor counts the packets that gVisor's IP has sent.
func byGvisor(h *host) uint64 { return h.user.tcp.Stats().IP.PacketsSent.Value() }

// sending is what TCP knows of sending after a write, and what a write is to change.
type sending struct {
	next, una   seqnum.Value
	outstanding int
	cwnd        int
	told        seqnum.Value
	measured    bool // the round trip, if it was to be
	sent        uint64
	timed       bool
}

func sendingOf(c *Conn, before *tcp.TCPSenderState) sending {
	ep := c.user.ep
	ep.LockUser()
	defer ep.UnlockUser()
	s, _ := senderOf(ep)
	return sending{
		next: s.SndNxt - before.SndNxt, una: s.SndUna - before.SndUna, outstanding: s.Outstanding - before.Outstanding, cwnd: s.SndCwnd - before.SndCwnd,
		told: s.MaxSentAck, measured: s.RTTMeasureTime.After(before.RTTMeasureTime) == (before.RTTMeasureSeqNum == before.SndNxt),
		sent:  ep.Stats().(*tcp.Stats).SegmentsSent.Value(),
		timed: s.LastSendTime.After(before.LastSendTime),
	}
}

// Frame and state are the same whoever sends a segment.
func TestQuickIsAsGvisor(t *testing.T) {
	for _, pipe := range []pktio.PipeConfig{{}, {Checksum: true}, {GSO: true}} {
		t.Run(fmt.Sprintf("%+v", pipe), func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, fam family) { testQuickIsAsGvisor(t, fam, pipe) })
		})
	}
}

func testQuickIsAsGvisor(t *testing.T, fam family, pipe pktio.PipeConfig) {
	needInline(t)
	p, rec := newRecordedPairOf(t, fam, pipe, Config{MinRTO: 10 * time.Second}, nil)
	ca, cb, _ := p.connect()
	uc, l := ca.user, p.a.user.link
	l.tx.mu.Lock()
	uc.flow.tail.fire = nil // however long this takes, nothing is sent again
	l.tx.mu.Unlock()
	mss := ca.MSS()
	k := checker{}
	const open = 1 << 20 // octets after which the window is open
	sent := 0
	p.until("the octets", func() bool {
		sent += send(t, ca, 0, sent, min(open-sent, 100_000))
		require.NoError(t, k.receive(t, cb))
		return k.at == open
	})
	poke := func() {
		from := p.b.user.link
		from.tx.mu.Lock()
		defer from.tx.mu.Unlock()
		_, _ = from.port.Send([]pktio.Frame{{Data: [][]byte{ethernet(l.info.Addr, wireMAC, 0x88b5), make([]byte, 46)}}})
	}
	start := p.a.Stats()
	sizes := []int{1, 2, 64, 192, mss - 1, mss}
	if pipe.GSO {
		sizes = append(sizes, mss+1, 20_000, quickMost, 40_000, 60_000)
	}
	for _, n := range sizes {
		var frames [2]pktio.Frame
		var states [2]sending
		for i, quick := range []bool{false, true} {
			what := fmt.Sprintf("%d octets, quick: %v", n, quick)
			p.until("acknowledgements", func() bool { una, nxt, _ := underWay(uc.ep); return una == nxt })
			keepLead(ca)
			segments, packets, sent := uc.ep.Stats().(*tcp.Stats).SegmentsSent.Value(), byGvisor(p.a), len(rec.frames())
			func() {
				holdReceiver(l, poke) // no acknowledgement changes the state
				defer l.rx.mu.Unlock()
				uc.ep.LockUser()
				before := *uc.snd
				uc.ep.UnlockUser()
				snd := uc.snd
				if !quick {
					uc.snd = nil
				}
				defer func() { uc.snd = snd }()
				b := make([]byte, n)
				pattern(b, 0, k.at)
				if n <= quickMost {
					require.NoError(t, ca.Writev([][]byte{b[:n/2], b[n/2:]}))
				} else {
					copy(ca.Stage(), b)
					require.NoError(t, ca.Commit(n))
				}
				states[i] = sendingOf(ca, &before)
				states[i].sent -= segments
				states[i].told -= before.MaxSentAck
			}()
			all := rec.frames()[sent:]
			require.Len(t, all, 1, what)
			frames[i] = all[0]
			if quick {
				require.Equal(t, packets, byGvisor(p.a), what)
			} else {
				require.Equal(t, packets+1, byGvisor(p.a), what)
			}
			at := k.at + n
			p.until(what, func() bool { require.NoError(t, k.receive(t, cb)); return k.at >= at })
			require.Equal(t, at, k.at)
		}
		require.Equal(t, states[0], states[1], n)
		require.Equal(t, seqnum.Value(n), states[1].next)
		require.True(t, states[1].measured)
		require.Equal(t, frames[0].Offload, frames[1].Offload, n)
		require.Equal(t, n > mss, frames[1].GSO != pktio.GSONone)
		for i := range frames {
			tcp := segmentOf(frames[i].Data[0])
			require.Equal(t, header.TCPFlagAck|header.TCPFlagPsh, tcp.Flags())
			tcp.SetSequenceNumber(0)
			tcp.SetAckNumber(0)
			if !frames[i].NeedsCsum {
				tcp.SetChecksum(0) // the receiver has looked at it
			}
			clear(tcp[header.TCPMinimumSize+4 : tcp.DataOffset()]) // timestamps
			clear(tcp[tcp.DataOffset():])                          // the octets are compared where they arrive
		}
		require.True(t, bytes.Equal(frames[0].Data[0], frames[1].Data[0]), "%d octets: %x is not %x", n, frames[1].Data[0], frames[0].Data[0])
	}
	st := p.a.Stats()
	require.Equal(t, start.Retransmits+start.Timeouts, st.Retransmits+st.Timeouts, "%+v", st)
}

// Where something has to be decided gVisor does it.
func TestQuickLeavesDecisions(t *testing.T) {
	needInline(t)
	const n = 100
	for _, c := range []struct {
		name  string
		quick bool
		make  func(s *spoken)
	}{
		{"plain", true, func(*spoken) {}},
		{"old headers", false, func(s *spoken) { s.c.user.flow.lead.until = s.h.user.link.clock.now() }},
		{"another segment size", false, func(s *spoken) { s.c.user.flow.lead.mss-- }},
		{"a window that is too small", false, func(s *spoken) {
			s.sendTCP(header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: flagACK, WindowSize: n - 1}, nil)
			until(t, "window", func() bool {
				s.c.user.ep.LockUser()
				defer s.c.user.ep.UnlockUser()
				return s.c.user.snd.SndWnd == n-1
			}, s.h)
		}},
		{"a gap in what arrived", false, func(s *spoken) { s.burst(s.frame(flagPSH, 50, 10)) }},
		{"the peer's end", false, func(s *spoken) {
			s.burst(s.frame(flagFIN, 0, 0))
			s.seq++
		}},
		{"a congestion window that is full", false, func(s *spoken) {
			s.c.user.ep.LockUser()
			s.c.user.snd.SndCwnd = s.c.user.snd.Outstanding + 1
			s.c.user.snd.Outstanding++
			s.c.user.ep.UnlockUser()
		}},
		{"long silence", false, func(s *spoken) {
			s.c.user.ep.LockUser()
			s.c.user.snd.RTO = 0
			s.c.user.ep.UnlockUser()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSaid(t, inet4)
			s.say(header.TCPFlagAck, s.seq, s.una)
			until(t, "acknowledgement", func() bool { una, nxt, _ := underWay(s.c.user.ep); return una == nxt }, s.h)
			keepLead(s.c)
			c.make(s)
			s.sent()
			before := byGvisor(s.h)
			require.NoError(t, s.c.Writev([][]byte{make([]byte, n)}))
			got := byGvisor(s.h) - before
			segments := s.sent()
			if c.quick {
				require.Zero(t, got)
				require.Len(t, segments, 1)
				require.Equal(t, s.una, segments[0].SequenceNumber())
				return
			}
			for _, tcp := range segments {
				if len(tcp) > int(tcp.DataOffset()) {
					require.NotZero(t, got, "not by gVisor")
				}
			}
			until(t, "the octets", func() bool {
				_, nxt, _ := underWay(s.c.user.ep)
				return uint32(nxt) != s.una || c.name == "a congestion window that is full"
			}, s.h)
		})
	}
}
