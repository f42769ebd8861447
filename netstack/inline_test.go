package netstack

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// Over bad links everything arrives, and what was lost is found out by what the receiver says of it.
func TestInlineOverBadLinks(t *testing.T) {
	total := 4 << 20
	if raceEnabled || testing.Short() {
		total = 2 << 20
	}
	for name, faults := range map[string]pktio.Faults{
		"loss":       {Seed: 1, Loss: 0.005},
		"reorder":    {Seed: 2, Reorder: 0.02},
		"duplicates": {Seed: 3, Duplicate: 0.05},
		"all":        {Seed: 4, Loss: 0.005, Reorder: 0.01, Duplicate: 0.01},
		"damage":     {Seed: 5, Corrupt: 0.005, CorruptAnywhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, Config{MinRTO: 50 * time.Millisecond}, func(t *testing.T, c Config) {
				bothFamilies(t, func(t *testing.T, fam family) {
					p := newUserPairOf(t, fam, pktio.PipeConfig{}, c)
					ca, cb, _ := p.connect()
					p.portA.SetFaults(faults)
					faults.Seed += 100
					p.portB.SetFaults(faults)
					there, back := checker{}, checker{stream: 1}
					sent, returned := 0, 0
					p.until("octets both ways", func() bool {
						sent += send(t, ca, 0, sent, min(total-sent, 64<<10))
						returned += send(t, cb, 1, returned, min(total-returned, 64<<10))
						require.NoError(t, there.receive(t, cb))
						require.NoError(t, back.receive(t, ca))
						return there.at == total && back.at == total
					})
					a, b := p.a.Stats(), p.b.Stats()
					t.Logf("recoveries %d, timeouts %d, sent again %d, of %d frames", a.Recoveries+b.Recoveries, a.Timeouts+b.Timeouts, a.Retransmits+b.Retransmits, a.FramesOut+b.FramesOut)
					if faults.Loss+faults.Corrupt+faults.Reorder > 0 {
						require.Positive(t, a.Recoveries+b.Recoveries)
						require.Less(t, a.Timeouts+b.Timeouts, a.Recoveries+b.Recoveries)
					}
				})
			})
		})
	}
}

// inlined is how many connections h processes segments of.
func (h *host) inlined() int {
	in := h.user.link.rx.inline
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.conns)
}

// What is established, by either side, is in; what is let go of is not.
func TestWhatIsInlined(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		p := newUserPairOf(t, fam, pktio.PipeConfig{}, Config{})
		l, err := p.b.Listen(netip.AddrPortFrom(fam.b, 0), 4)
		require.NoError(t, err)
		require.Zero(t, p.a.inlined()+p.b.inlined())
		refused, err := p.a.Dial(netip.Addr{}, netip.AddrPortFrom(fam.b, 1))
		require.NoError(t, err)
		p.until("refusal", func() bool { _, err := refused.Connected(); return err != nil })
		refused.Close()
		var as, bs []*Conn
		for i := range 4 {
			ca, cb := p.connectTo(l)
			as, bs = append(as, ca), append(bs, cb)
			require.Equal(t, i+1, p.a.inlined())
			require.Equal(t, i+1, p.b.inlined())
		}
		as[0].Close()
		bs[1].Abort()
		require.Equal(t, 3, p.a.inlined())
		require.Equal(t, 3, p.b.inlined())
		// One that is closed and has something left goes when that is sent.
		sent := 0
		for n := 1; n > 0; sent += n {
			n = send(t, as[2], 0, sent, writeMax)
		}
		as[2].Close()
		require.Equal(t, 3, p.a.inlined())
		k := checker{}
		p.until("the rest", func() bool { _ = k.receive(t, bs[2]); return k.at == sent })
		p.until("the release", func() bool { return p.a.inlined() == 2 })
		require.NoError(t, p.b.Close())
		require.Zero(t, p.b.inlined())
	})
}

// A connection to an address of our own never touches the link, nor what arrives there. A stranger who says he is we is
// not believed.
func TestConnectionToOurselves(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		needInline(t)
		w := newWireOf(t, fam, Config{})
		l, err := w.h.Listen(netip.AddrPortFrom(fam.a, 0), 4)
		require.NoError(t, err)
		ca, err := w.h.Dial(netip.Addr{}, l.Addr())
		require.NoError(t, err)
		var cb *Conn
		until(t, "the connection", func() bool {
			if c, ok := l.Accept(); ok {
				cb = c
			}
			ok, err := ca.Connected()
			require.NoError(t, err)
			return ok && cb != nil
		}, w.h)
		require.Zero(t, w.h.inlined())
		before := w.h.Stats().FramesOut
		p := &pair{t: t, a: w.h, b: w.h, fam: fam}
		p.goesOn(ca, cb, 0, 0, 1<<20)
		p.pingPong(ca, cb, 100)
		require.Equal(t, before, w.h.Stats().FramesOut)

		_, nxt, ok := underWay(ca.user.ep)
		require.True(t, ok)
		una, _, ok := underWay(cb.user.ep)
		require.True(t, ok)
		seg := tcpSegmentOf(fam.a, fam.a, header.TCPFields{
			SrcPort: ca.LocalAddr().Port(), DstPort: l.Addr().Port(), SeqNum: uint32(nxt), AckNum: uint32(una), Flags: flagPSH, WindowSize: window,
		}, []byte("forged"))
		w.burst(joined(w.eth(), ipPacket(fam.a, fam.a, 6, len(seg)), seg))
		w.pollFor(10 * time.Millisecond)
		pieces, err := cb.Peek()
		require.NoError(t, err)
		require.Empty(t, pieces)
		require.NoError(t, ca.CloseWrite())
		until(t, "the end", func() bool { _, err := cb.Peek(); return err == io.EOF }, w.h)
		ca.Close()
		cb.Close()
	})
}

// Packets with IPv4 options or IPv6 extension headers, and those in fragments, go through IP; what they carry comes in
// order with what does not.
func TestPacketsThatNeedIP(t *testing.T) {
	t.Run("acknowledgements wait", func(t *testing.T) { testPacketsThatNeedIP(t, Config{Keepalive: Keepalive{Idle: -1}}) })
	t.Run("or not", func(t *testing.T) { testPacketsThatNeedIP(t, Config{Keepalive: Keepalive{Idle: -1}, KeepACKs: -1}) })
}

// Keepalive is off: it would wake up what sleeps.
func testPacketsThatNeedIP(t *testing.T, c Config) {
	bothWays(t, c, func(t *testing.T, c Config) {
		bothFamilies(t, func(t *testing.T, fam family) {
			s := newSpoken(t, fam, c)
			s.alive()
			k := checker{}
			at, id := 0, uint32(0)
			next := func(how, n int) (frames [][]byte) {
				seg := s.segment(flagPSH, at, n)
				at += n
				switch how {
				case 0:
					return [][]byte{s.packet(6, seg)}
				case 1:
					return [][]byte{s.detour(seg)}
				}
				id++
				first, second := s.fragment(fam.b, id, 6, 0, true, seg[:64]), s.fragment(fam.b, id, 6, 64, false, seg[64:])
				if how == 2 {
					return [][]byte{first, second}
				}
				return [][]byte{second, first}
			}
			for i := range 60 {
				var frames [][]byte
				for j := range 6 {
					frames = append(frames, next((i>>(j%3)+j)%4, 80+j)...)
				}
				s.burst(frames...)
				until(t, "the octets", func() bool { require.NoError(t, k.receive(t, s.c)); return k.at == at }, s.h)
			}
			// Behind an acknowledgement, of which the application hears nothing.
			for how := range 4 {
				s.burst(s.frame(flagACK, at, 0))
				s.burst(next(how, 100)...)
				until(t, "the octets", func() bool { require.NoError(t, k.receive(t, s.c)); return k.at == at }, s.h)
			}
			s.seq += uint32(at)
			s.alive()
			require.Zero(t, s.h.Stats().ChecksumErrors)
		})
	})
}
