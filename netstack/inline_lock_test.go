package netstack

import (
	"net/netip"
	"reflect"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/softrdma/softrdma/pktio"
)

// What ICMP says about a connection may arrive right behind a segment of it.
func TestICMPRightBehindASegment(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		s.alive()
		require.NoError(t, s.c.Writev([][]byte{make([]byte, 3000)}))
		frame, _ := s.recvTCP("octets", func(tcp header.TCP) bool { return tcp.SequenceNumber() == s.una && len(tcp.Payload()) > 0 })
		quote := frame[14 : 14+fam.headers()-20+8]
		unreachable, tooBig := s.icmpFrame(3, 1, 0, quote), s.icmpFrame(3, 4, 1300, quote)
		if fam == inet6 {
			unreachable, tooBig = s.icmpFrame(1, 0, 0, quote), s.icmpFrame(2, 0, 1300, quote)
		}
		ends(t, "a burst with ICMP in it", func() {
			s.burst(s.frame(flagPSH, 0, 10), unreachable, s.frame(flagPSH, 10, 10), tooBig, s.frame(flagPSH, 20, 10))
		})
		k := checker{}
		until(t, "the octets", func() bool { require.NoError(t, k.receive(t, s.c)); return k.at == 30 }, s.h)
		s.seq += 30
		s.alive()
	})
}

// A neighbour that begins anew may say so right behind a segment, while another one that did is still looked up and the
// application writes: whoever receives must not wait for the one with what the other waits for.
func TestNeighbourBeginsAnewBehindASegment(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		s.alive()
		other, mac := stranger(fam, 1)
		var write, ask = make(chan struct{}), make(chan struct{})
		blocked := func(of *time.Time) bool { return time.Since(*of) > 20*time.Millisecond }
		s.hold()
		ends(t, "a burst with an announcement in it", func() {
			defer s.h.user.link.rx.mu.Unlock()
			l := s.h.user.link
			l.rx.polled.Store(true)
			s.send(s.frame(flagPSH, 0, 10))
			n, err := l.port.Recv(l.rx.frames, 0)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			l.deliver(&l.rx.frames[0])
			start := time.Now()
			go func() { defer close(write); _ = s.c.Writev([][]byte{{1}}) }()
			for !blocked(&start) && s.c.out.mu.TryLock() {
				s.c.out.mu.Unlock()
			}
			go func() { defer close(ask); s.h.askable(fam.b) }()
			for !blocked(&start) {
				time.Sleep(time.Millisecond)
			}
			s.arrive(announcement(other, mac))
		})
		<-write
		<-ask
		s.seq += 10
		until(t, "the octets", func() bool { pieces, err := s.c.Peek(); require.NoError(t, err); return length(pieces) == 10 }, s.h)
	})
}

// What was owed when a connection went into TIME_WAIT does not begin that anew.
func TestTimeWaitBeginsOnce(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: forever})
	s.alive()
	s.hold()
	s.arrive(s.frame(flagPSH, 0, 10))
	s.seq += 10
	require.NoError(t, s.c.CloseWrite())
	s.una++
	s.arrive(s.frame(flagFIN, 0, 0))
	require.Equal(t, tcp.StateTimeWait, s.c.user.state())
	timer := func() uintptr {
		s.c.user.ep.LockUser()
		defer s.c.user.ep.UnlockUser()
		return reflect.ValueOf(s.c.user.ep).Elem().FieldByName("timeWaitTimer").Elem().Pointer()
	}
	before := timer()
	s.h.user.link.rx.inline.acknowledge(true)
	s.h.user.link.rx.mu.Unlock()
	require.Equal(t, before, timer(), "a second timer, and the first one cannot be stopped any more")
}

// A packet of a connection that goes gVisor's way while others of it do not is processed as any other.
func TestResetThatTakesTheOtherWay(t *testing.T) {
	bothWays(t, Config{}, func(t *testing.T, c Config) {
		bothFamilies(t, func(t *testing.T, fam family) {
			s := newSpoken(t, fam, c)
			s.alive()
			rst := tcpSegmentOf(fam.b, fam.a, header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq + 10, Flags: header.TCPFlagRst}, nil)
			s.sent()
			s.burst(s.frame(flagPSH, 0, 10), s.detour(rst))
			var err error
			var pieces [][]byte
			until(t, "the reset", func() bool { pieces, err = s.c.Peek(); return err != nil }, s.h)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.Equal(t, 10, length(pieces), "the octets in front of it")
			require.Zero(t, s.h.Stats().ResetsOut, "a reset has no answer")
		})
	})
}

// detour is a frame with a segment behind a header that inline leaves to gVisor: IPv4 options, or an IPv6 extension header.
func (s *spoken) detour(segment []byte) []byte {
	if s.fam == inet6 {
		return joined(s.eth(), ipPacket(s.fam.b, s.fam.a, 60, 8+len(segment)), []byte{6, 0, 1, 4, 0, 0, 0, 0}, segment)
	}
	return joined(s.eth(), ipWithOptions(s.fam.b, s.fam.a, 6, []byte{1, 1, 1, 0}, len(segment)), segment)
}

// ipWithOptions is an IPv4 header with options.
func ipWithOptions(from, to netip.Addr, proto uint8, options []byte, payload int) []byte {
	h := header.IPv4(append(ipPacket(from, to, proto, len(options)+payload), options...))
	h.SetHeaderLength(uint8(header.IPv4MinimumSize + len(options)))
	h.SetChecksum(0)
	h.SetChecksum(^h.CalculateChecksum())
	return h
}

// What gVisor's IP would not let through does not get past it here: another version, and packets cut short.
func TestPacketsThatIPWouldDrop(t *testing.T) {
	bothWays(t, Config{}, func(t *testing.T, c Config) {
		bothFamilies(t, func(t *testing.T, fam family) {
			s := newSpoken(t, fam, c)
			s.alive()
			drop := func(what string, change func(ip []byte)) {
				b := s.frame(flagPSH, 0, 10)
				change(b[14:])
				s.hold()
				l := s.h.user.link
				fr := frameOf(b)[0]
				fr.CsumValid = true // as a port says that has looked at TCP's alone
				l.rx.polled.Store(true)
				l.deliver(&fr)
				l.take(0, nil)
				l.rx.mu.Unlock()
				for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
					s.h.poll(time.Millisecond)
				}
				pieces, err := s.c.Peek()
				require.NoError(t, err)
				require.Empty(t, pieces, what)
			}
			if fam == inet6 {
				drop("a length beyond the end", func(ip []byte) { header.IPv6(ip).SetPayloadLength(31) })
			} else {
				again := func(ip header.IPv4) { ip.SetChecksum(0); ip.SetChecksum(^ip.CalculateChecksum()) }
				drop("version 6", func(ip []byte) { ip[0] = 0x65; again(ip) })
				drop("a length beyond the end", func(ip []byte) { header.IPv4(ip).SetTotalLength(51); again(ip) })
			}
			s.alive()
		})
	})
}

// Somebody who is after a connection may be faster than whoever has queued segments for it: they are processed all the same.
func TestSegmentsUnderLock(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: -1})
	s.alive()
	rounds := 3000
	if raceEnabled {
		rounds = 500
	}
	l := s.h.user.link
	ep := s.c.user.ep
	s.hold()
	for at := range rounds {
		s.send(s.frame(flagPSH, at, 1))
		n, err := l.port.Recv(l.rx.frames, 0)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		l.deliver(&l.rx.frames[0])
		require.Len(t, l.rx.inline.pending, 1)
		var now atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for !now.Load() {
				runtime.Gosched()
			}
			ep.LockUser()
			ep.UnlockUser()
		}()
		if at%2 == 0 {
			runtime.Gosched() // who is there waits for the lock, or is about to
		}
		now.Store(true)
		l.take(0, nil)
		<-done
		arrived := false
		for end := time.Now().Add(patience / 6); !arrived && time.Now().Before(end); runtime.Gosched() {
			pieces, err := s.c.Peek()
			require.NoError(t, err)
			arrived = length(pieces) == 1
		}
		require.True(t, arrived, "octet %d", at)
		s.c.Discard(1)
		s.sent()
	}
	l.rx.mu.Unlock()
	s.seq += uint32(rounds)
	s.alive()
}

// A connection is aborted while segments of it arrive, at any moment: they are not processed by what is left of it.
func TestAbortUnderSegments(t *testing.T) {
	needInline(t)
	p := newUserPair(t, pktio.PipeConfig{}, Config{})
	l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 4096)
	require.NoError(t, err)
	conns := 800
	if raceEnabled {
		conns = 200
	}
	link := p.b.user.link
	in := link.rx.inline
	taken := 0
	for range conns {
		ca, cb := p.connectTo(l)
		_, nxt, ok := underWay(ca.user.ep)
		require.True(t, ok)
		una, _, ok := underWay(cb.user.ep)
		require.True(t, ok)
		segment := func(ahead uint32) *stack.PacketBuffer {
			seg := tcpSegmentOf(addrA, addrB, header.TCPFields{
				SrcPort: ca.LocalAddr().Port(), DstPort: l.Addr().Port(), SeqNum: uint32(nxt) + ahead, AckNum: uint32(una), Flags: flagPSH, WindowSize: window,
			}, []byte{1})
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(joined(ipPacket(addrA, addrB, 6, len(seg)), seg))})
			pkt.NetworkProtocolNumber = header.IPv4ProtocolNumber
			return pkt
		}
		var now atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for !now.Load() {
				runtime.Gosched()
			}
			cb.user.kill() // as by Stack.Close
		}()
		for !link.rx.mu.TryLock() {
			p.b.poll(0)
		}
		// What begins behind a gap is acknowledged at once, by the way to the peer, which a dead connection has not.
		// Not here: with what would be locked no test could end.
		end := make(chan struct{})
		go func() {
			for i, held := 0, true; i < 300 && held; i++ {
				now.Store(i > 5)
				pkt := segment(1000 + uint32(i))
				if held = in.takes(header.IPv4ProtocolNumber, pkt); held {
					taken++
				}
				in.process(true)
				pkt.DecRef()
			}
			close(end)
		}()
		<-end
		now.Store(true)
		link.rx.mu.Unlock()
		<-done
		cb.Abort()
		ca.Abort()
	}
	t.Log(taken, "segments")
	p.until("the end of all", func() bool { return p.b.Stats().Conns == 0 && p.a.Stats().Conns == 0 })
}
