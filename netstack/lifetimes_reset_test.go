package netstack

import (
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// spoken is a connection whose far end the test speaks for.
type spoken struct {
	*wire
	l    *Listener
	c    *Conn
	seq  uint32 // what the peer sends next
	una  uint32 // what the stack sends next
	port uint16 // of the peer
}

const spokenPort, window = 2000, 10_000

// newSpoken is a connection accepted from a peer that the test speaks for.
func newSpoken(t *testing.T, fam family, c Config) *spoken {
	s := &spoken{wire: newWireOf(t, fam, c), port: 1000}
	var err error
	s.l, err = s.h.Listen(netip.AddrPortFrom(fam.a, spokenPort), 8)
	require.NoError(t, err)
	s.connect(1_000_000)
	return s
}

// connect opens the connection with an initial sequence number.
func (s *spoken) connect(iss uint32) {
	s.t.Helper()
	s.seq = iss
	s.say(header.TCPFlagSyn, iss, 0)
	resolved := s.h.known(s.fam.b) != ""
	if !resolved {
		s.resolve(s.fam.b)
	}
	_, synAck := s.recvTCP("SYN and ACK", func(tcp header.TCP) bool {
		return tcp.Flags() == header.TCPFlagSyn|header.TCPFlagAck && tcp.AckNumber() == iss+1
	})
	s.seq, s.una = iss+1, synAck.SequenceNumber()+1
	s.say(header.TCPFlagAck, s.seq, s.una)
	until(s.t, "accept", func() bool { var ok bool; s.c, ok = s.l.Accept(); return ok }, s.h)
}

// say sends a segment without octets.
func (s *spoken) say(flags header.TCPFlags, seq, ack uint32) {
	s.t.Helper()
	s.sendTCP(header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: seq, AckNum: ack, Flags: flags, WindowSize: window}, nil)
}

// challenged waits for the acknowledgement that asks a peer whether it meant what it said.
func (s *spoken) challenged() {
	s.t.Helper()
	s.recvTCP("a challenge", func(tcp header.TCP) bool {
		return tcp.Flags() == header.TCPFlagAck && tcp.AckNumber() == s.seq && tcp.SequenceNumber() == s.una
	})
	time.Sleep(600 * time.Millisecond) // gVisor sends one each half second at most
}

// alive checks that octets still arrive.
func (s *spoken) alive() {
	s.t.Helper()
	s.sendTCP(header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: window}, []byte{7})
	s.seq++
	until(s.t, "an octet", func() bool {
		pieces, err := s.c.Peek()
		require.NoError(s.t, err)
		return length(pieces) == 1
	}, s.h)
	s.c.Discard(1)
}

// Who cannot see a connection cannot reset it (RFC 5961, Sections 3 and 4): a reset has to have the very number that is
// expected next, others within the window and SYNs are challenged.
func TestBlindResets(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		t.Parallel()
		s := newSpoken(t, fam, Config{})
		s.say(header.TCPFlagRst, s.seq+1, 0)
		s.challenged()
		s.say(header.TCPFlagRst|header.TCPFlagAck, s.seq+5000, s.una)
		s.challenged()
		s.alive()
		for _, seq := range []uint32{s.seq - 1, s.seq - 100_000, s.seq + 1<<30} {
			s.say(header.TCPFlagRst, seq, 0)
		}
		s.alive()
		for _, seq := range []uint32{s.seq, s.seq + 100, s.seq - 100, s.seq + 1<<31} {
			s.say(header.TCPFlagSyn, seq, 0)
			s.challenged()
		}
		s.alive()
		require.EqualValues(t, 0, s.h.Stats().ResetsOut)

		s.say(header.TCPFlagRst, s.seq, 0)
		until(t, "the reset", func() bool { _, err := s.c.Peek(); return err != nil }, s.h)
		_, err := s.c.Peek()
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// A peer that was killed and comes back with the same ports: its SYN is challenged, its reset ends the connection of
// old, and its next SYN is answered at once, again and again.
func TestPeerComesBackWithTheSamePorts(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		for i := range 50 {
			old := s.c
			require.NoError(t, old.Writev([][]byte{make([]byte, 1000)})) // under way when the peer dies
			iss := s.seq + uint32(i)*77_777_777
			s.say(header.TCPFlagSyn, iss, 0)
			_, tcp := s.recvTCP("a challenge", func(tcp header.TCP) bool { return tcp.Flags() == header.TCPFlagAck && tcp.AckNumber() == s.seq })
			s.say(header.TCPFlagRst, tcp.AckNumber(), 0)
			until(t, "the reset", func() bool { _, err := old.Peek(); return err != nil }, s.h)
			_, err := old.Peek()
			require.ErrorIs(t, err, syscall.ECONNRESET)
			old.Close()
			s.connect(iss)
			s.alive()
		}
		require.EqualValues(t, 1, s.h.Stats().Conns)
	})
}

// A peer that was killed and does not come back with the same ports knows nothing of the connection: the first segment
// to it is answered by a reset.
func TestPeerForgot(t *testing.T) {
	s := newSpoken(t, inet4, Config{})
	require.NoError(t, s.c.Writev([][]byte{make([]byte, 10)}))
	_, tcp := s.recvTCP("octets", func(tcp header.TCP) bool { return len(tcp.Payload()) == 10 })
	s.say(header.TCPFlagRst, tcp.AckNumber(), 0)
	until(t, "the reset", func() bool { _, err := s.c.Peek(); return err != nil }, s.h)
	_, err := s.c.Peek()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.ErrorIs(t, s.c.Writev([][]byte{{1}}), syscall.ECONNRESET)
}

// A peer that was killed while nothing was under way says that it begins anew when it is there again, and is asked at
// once whether it still knows the connection.
func TestPeerBeginsAnew(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		s.alive()
		s.send(announcement(fam.gateway, wireMAC)) // of no interest
		s.send(announcement(fam.b, wireMAC))
		isQuestion := func(tcp header.TCP) bool {
			return tcp.Flags() == header.TCPFlagAck && tcp.SequenceNumber() == s.una-1 && len(tcp.Payload()) == 0
		}
		start := time.Now()
		s.recvTCP("a question", isQuestion)
		require.Less(t, time.Since(start), DefaultKeepalive.Idle-time.Second)
		s.say(header.TCPFlagAck, s.seq, s.una) // it does
		until(t, "the usual times again", func() bool {
			var idle tcpip.KeepaliveIdleOption
			require.NoError(t, toError(s.c.user.ep.GetSockOpt(&idle)))
			return time.Duration(idle) == DefaultKeepalive.Idle
		}, s.h)
		s.alive()

		time.Sleep(steadyTime)
		s.send(announcement(fam.b, wireMAC))
		s.recvTCP("another question", isQuestion)
		s.say(header.TCPFlagRst, s.seq, 0) // now it does not
		until(t, "the reset", func() bool { _, err := s.c.Peek(); return err != nil }, s.h)
		_, err := s.c.Peek()
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// A SYN that comes while the old connection with the same ports is in TIME_WAIT opens a new one.
func TestTimeWaitGivesWay(t *testing.T) {
	s := newSpoken(t, inet4, Config{})
	for i := range 3 {
		s.c.Close() // we close first, and so wait
		_, fin := s.recvTCP("FIN", func(tcp header.TCP) bool { return tcp.Flags().Contains(header.TCPFlagFin) })
		s.say(header.TCPFlagFin|header.TCPFlagAck, s.seq, fin.SequenceNumber()+1)
		s.recvTCP("the last ACK", func(tcp header.TCP) bool { return tcp.AckNumber() == s.seq+1 })
		s.connect(s.seq + 1000 + uint32(i))
		s.alive()
	}
	s.say(header.TCPFlagFin|header.TCPFlagAck, s.seq, s.una)
	until(t, "the end", func() bool { _, err := s.c.Peek(); return err == io.EOF }, s.h)
}
