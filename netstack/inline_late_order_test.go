package netstack

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// newWithOptions is newSpoken with a peer whose SYN has options, and what follows has those that it always has.
func newWithOptions(t *testing.T, fam family, c Config, options, always []byte) *spoken {
	t.Helper()
	s := &spoken{wire: newWireOf(t, fam, c), port: 1000, seq: 1_000_001}
	var err error
	s.l, err = s.h.Listen(netip.AddrPortFrom(fam.a, spokenPort), 8)
	require.NoError(t, err)
	syn := header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq - 1, Flags: header.TCPFlagSyn, WindowSize: window}
	s.sendIP(6, tcpSegmentWith(fam.b, fam.a, syn, options, nil))
	_, synAck := s.recvTCP("SYN and ACK", func(tcp header.TCP) bool { return tcp.Flags() == header.TCPFlagSyn|header.TCPFlagAck })
	s.una = synAck.SequenceNumber() + 1
	ack := header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: header.TCPFlagAck, WindowSize: window}
	s.sendIP(6, tcpSegmentWith(fam.b, fam.a, ack, always, nil))
	until(t, "accept", func() bool { var ok bool; s.c, ok = s.l.Accept(); return ok }, s.h)
	return s
}

// inlined returns what inline knows of the connection.
func (s *spoken) inlined() *inlineConn {
	in := s.h.user.link.rx.inline
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.conns[keyOf(&s.c.user.ep.TransportEndpointInfo.ID)]
}

// lone lets a segment with n octets arrive, the acknowledgement of which waits. The caller holds the receiver.
func (s *spoken) lone(n int) {
	s.t.Helper()
	c := s.inlined()
	c.whole = s.h.user.link.clock.now()
	s.arrive(s.frame(flagPSH, 0, n))
	s.seq += uint32(n)
	require.NotZero(s.t, c.late, "its acknowledgement waits")
}

// locked runs f with the endpoint locked.
func (s *spoken) locked(f func()) {
	s.c.user.ep.LockUser()
	defer s.c.user.ep.UnlockUser()
	f()
}

// The timestamp of a segment that TCP does not take is not the one to echo.
func TestTimestampOfWhatIsNotTaken(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		stamp := func(value uint32) []byte {
			return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1, 1, 8, 10}, value), 0)
		}
		s := newWithOptions(t, fam, Config{KeepACKs: forever}, stamp(1000), stamp(1000))
		frame := func(seq, value uint32) []byte {
			return s.packet(6, tcpSegmentWith(fam.b, fam.a, header.TCPFields{
				SrcPort: s.port, DstPort: spokenPort, SeqNum: seq, AckNum: s.una, Flags: flagPSH, WindowSize: window,
			}, stamp(value), []byte{7}))
		}
		s.hold()
		defer s.h.user.link.rx.mu.Unlock()
		echoed := func() (value uint32) { s.locked(func() { value = s.c.user.ep.RecentTS }); return value }
		s.inlined().whole = s.h.user.link.clock.now()
		s.arrive(frame(s.seq, 1001))
		require.EqualValues(t, 1001, echoed())
		s.arrive(frame(s.seq-1_000_000, 1<<30))
		require.EqualValues(t, 1001, echoed(), "of a segment outside of the window")
	})
}

// A segment that went gVisor's way meanwhile knows the peer's window better than one whose acknowledgement waited.
func TestLateACKKeepsNewerWindow(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{KeepACKs: forever})
	s.alive()
	wnd := func() (n int) { s.locked(func() { n = int(s.c.user.snd.SndWnd) }); return n }
	s.hold()
	defer s.h.user.link.rx.mu.Unlock()
	s.lone(10)
	s.c.user.ep.LockUser() // a write
	update := header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: flagACK, WindowSize: 3 * window}
	s.arrive(s.packet(6, tcpSegmentOf(s.fam.b, s.fam.a, update, nil)))
	s.c.user.ep.UnlockUser()
	until(t, "the other way", func() bool { return wnd() == 3*window })
	s.h.user.link.rx.inline.settle(true)
	require.Equal(t, 3*window, wnd())
	s.lone(10) // which is newer
	s.h.user.link.rx.inline.settle(true)
	require.Equal(t, window, wnd())
}

// The answer to a probe tells of a loss at once, also with an acknowledgement that waits before it.
func TestProbeAnsweredBehindLateACK(t *testing.T) {
	needInline(t)
	s := newWithOptions(t, inet4, Config{MinRTO: 2 * time.Second, KeepACKs: forever}, []byte{2, 4, 1460 >> 8, 1460 & 0xff, 4, 2, 1, 1}, nil)
	s.alive()
	s.hold()
	defer s.h.user.link.rx.mu.Unlock()
	require.NoError(t, s.c.Writev([][]byte{{1}}))
	s.una++
	s.arrive(s.frame(flagACK, 0, 0))
	for range 2 {
		require.NoError(t, s.c.Writev([][]byte{make([]byte, 1000)}))
	}
	s.lone(10)
	tail := &s.c.user.flow.tail
	s.locked(func() { tail.una, tail.next, tail.probed = s.una, s.una+2000, true })
	opts := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{1, 1, 5, 10}, s.una+1000), s.una+2000)
	s.arrive(s.packet(6, tcpSegmentWith(s.fam.b, s.fam.a, header.TCPFields{
		SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: flagACK, WindowSize: window,
	}, opts, nil)))
	st := s.h.Stats()
	require.EqualValues(t, 1, st.Recoveries)
	require.Zero(t, st.Timeouts)
}

// A segment with octets is no duplicate acknowledgement, even if its octets are read by the time that it is looked at.
func TestLateACKIsNoDuplicate(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{MinRTO: 2 * time.Second, KeepACKs: forever})
	s.alive()
	s.hold()
	defer s.h.user.link.rx.mu.Unlock()
	require.NoError(t, s.c.Writev([][]byte{make([]byte, 2000)}))
	for range 5 {
		s.lone(1000)
		pieces, err := s.c.Peek()
		require.NoError(t, err)
		s.c.Discard(length(pieces))
		s.h.user.settle()
		s.h.user.link.rx.inline.settle(true)
		s.locked(func() {
			require.Zero(t, s.c.user.snd.DupAckCount)
			require.True(t, fluent(s.c.user.ep))
		})
	}
	require.Zero(t, s.h.Stats().Retransmits)
}

// An acknowledgement does not wait for others to be silent.
func TestLateACKAmongOthersFrames(t *testing.T) {
	needInline(t)
	s := newSpoken(t, inet4, Config{MinRTO: time.Minute})
	s.alive()
	l := s.h.user.link
	s.hold()
	defer l.rx.mu.Unlock()
	require.NoError(t, s.c.Writev([][]byte{make([]byte, 100)}))
	s.una += 100
	s.lone(10)
	settled := func() bool { una, nxt, _ := underWay(s.c.user.ep); return una == nxt }
	rounds := 0
	for end := time.Now().Add(100 * time.Millisecond); !settled() && time.Now().Before(end); rounds++ {
		s.arrive(joined(ethernet(l.info.Addr, wireMAC, 0x88b5), make([]byte, 46)))
		l.rx.inline.acknowledge(false)
	}
	require.True(t, settled(), "not once in %d looks", rounds)
}

// gVisor's goroutine, which goes away where a connection is locked, is told when it is not any more.
func TestLockTellsGvisor(t *testing.T) {
	needInline(t)
	for _, c := range []struct {
		name string
		work func(s *spoken)
	}{
		{"an acknowledgement that waited", func(s *spoken) { s.h.user.link.rx.inline.settle(false) }},
		{"the end of what was sent", func(s *spoken) {
			tail := &s.c.user.flow.tail
			s.h.user.link.tx.mu.Lock()
			tail.timer = time.AfterFunc(time.Hour, tail.fire)
			s.h.user.link.tx.mu.Unlock()
			s.h.user.link.rx.inline.lookAtTail(s.inlined())
			s.h.user.link.tx.mu.Lock()
			tail.timer.Stop()
			s.h.user.link.tx.mu.Unlock()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpoken(t, inet4, Config{KeepACKs: forever})
			s.alive()
			s.h.user.settle()
			s.hold()
			defer s.h.user.link.rx.mu.Unlock()
			s.lone(10)
			s.c.user.ep.LockUser()
			s.arrive(s.frame(flagPSH, 0, 20))
			// The goroutine that UnlockUser wakes comes when the connection is locked again.
			s.c.user.ep.ResumeWork()
			c.work(s)
			queue := s.inlined().queue // to ask the endpoint would wake it
			until(t, "all octets", func() bool { return queueEmpty(queue) })
		})
	}
}

// Poll does not sleep on octets that are read.
func TestPollGivesBackBeforeItSleeps(t *testing.T) {
	s := newSpoken(t, inet4, Config{SpinFor: -1})
	s.alive()
	s.h.user.settle()
	size := func() int {
		n, terr := s.c.user.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
		require.Nil(t, terr)
		return n
	}
	for range 20 {
		s.send(s.frame(flagPSH, 0, 10))
		s.seq += 10
		until(t, "octets", func() bool { pieces, err := s.c.Peek(); require.NoError(t, err); return length(pieces) == 10 }, s.h)
		s.h.poll(0) // no event is left
		s.hold()
		s.c.Discard(10)
		s.h.user.link.rx.polled.Store(true)
		s.h.user.link.rx.mu.Unlock()
		s.send(ethernet(s.h.user.link.info.Addr, wireMAC, 0x88b5), make([]byte, 46)) // Poll finds something, of no interest
		done := make(chan struct{})
		go func() { defer close(done); s.h.poll(-1) }()
		for end := time.Now().Add(patience / 20); size() > 0 && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		left := size()
		s.h.Wake()
		<-done
		require.Zero(t, left)
	}
}
