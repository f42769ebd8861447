package netstack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// wide is the window of a peer that acknowledges selectively.
const wide = 60_000

// newSelective is newSpoken with a peer that acknowledges selectively.
func newSelective(t *testing.T, fam family) *spoken {
	t.Helper()
	s := &spoken{wire: newWireOf(t, fam, Config{MinRTO: 2 * time.Second, KeepACKs: -1}), port: 1000, seq: 1_000_001}
	var err error
	s.l, err = s.h.Listen(netip.AddrPortFrom(fam.a, spokenPort), 8)
	require.NoError(t, err)
	syn := header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq - 1, Flags: header.TCPFlagSyn, WindowSize: wide}
	s.sendIP(6, tcpSegmentWith(fam.b, fam.a, syn, []byte{2, 4, 1460 >> 8, 1460 & 0xff, 4, 2, 1, 1}, nil))
	_, synAck := s.recvTCP("SYN and ACK", func(tcp header.TCP) bool { return tcp.Flags() == header.TCPFlagSyn|header.TCPFlagAck })
	s.una = synAck.SequenceNumber() + 1
	s.acknowledges()
	until(t, "accept", func() bool { var ok bool; s.c, ok = s.l.Accept(); return ok }, s.h)
	return s
}

// acknowledges acknowledges all that comes before una.
func (s *spoken) acknowledges() {
	s.t.Helper()
	s.sendTCP(header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: header.TCPFlagAck, WindowSize: wide}, nil)
}

// selective is a segment that acknowledges what comes before ack, and the octets from..to.
func (s *spoken) selective(ack, from, to uint32, wnd uint16) {
	s.t.Helper()
	opts := []byte{1, 1, 5, 10}
	opts = binary.BigEndian.AppendUint32(opts, from)
	opts = binary.BigEndian.AppendUint32(opts, to)
	s.sendIP(6, tcpSegmentWith(s.fam.b, s.fam.a, header.TCPFields{
		SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: ack, Flags: header.TCPFlagAck, WindowSize: wnd,
	}, opts, nil))
}

// sends makes the stack send n segments of 1000 octets.
func (s *spoken) sends(n int) {
	s.t.Helper()
	for i := range n {
		require.Equal(s.t, 1000, send(s.t, s.c, 0, i*1000, 1000))
	}
	s.segmentAt(uint32(n-1) * 1000)
}

// segmentAt waits for the segment with the octets from una+off on.
func (s *spoken) segmentAt(off uint32) {
	s.t.Helper()
	s.recvTCP("a segment", func(tcp header.TCP) bool { return len(tcp.Payload()) > 0 && tcp.SequenceNumber() == s.una+off })
}

// One acknowledgement is enough to find a loss, also if it says more than that: that octets in order have arrived, or that
// the window has changed.
func TestOneACKTellsOfALoss(t *testing.T) {
	needInline(t)
	for _, c := range []struct {
		name  string
		acked uint32
		wnd   uint16
	}{{"plain", 0, wide}, {"octets in order", 1000, wide}, {"another window", 0, wide - 5}, {"both", 1000, wide - 5}} {
		t.Run(c.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, fam family) {
				s := newSelective(t, fam)
				s.acknowledges()
				s.sends(8)
				s.selective(s.una+c.acked, s.una+2000, s.una+8000, c.wnd)
				s.segmentAt(c.acked)
				st := s.h.Stats()
				require.Zero(t, st.Timeouts)
				require.EqualValues(t, 1, st.Recoveries)
			})
		})
	}
}

// The loss of the first segment after a recovery is found as any other.
func TestLossRightAfterRecovery(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSelective(t, fam)
		s.sends(4)
		s.selective(s.una, s.una+1000, s.una+4000, wide)
		s.segmentAt(0)
		s.una += 4000
		s.acknowledges()
		s.sends(4)
		s.selective(s.una, s.una+1000, s.una+4000, wide)
		s.segmentAt(0)
		st := s.h.Stats()
		require.Zero(t, st.Timeouts)
		require.EqualValues(t, 2, st.Recoveries)
	})
}

// What was sent again and got lost is sent once more when octets that were sent later have arrived.
func TestLostAgain(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSelective(t, fam)
		s.sends(8)
		s.selective(s.una, s.una+1000, s.una+8000, wide)
		s.segmentAt(0)
		again := false
		for end := uint32(9000); end <= 16000 && !again; end += 1000 {
			require.Equal(t, 1000, send(t, s.c, 0, int(end-1000), 1000))
			_, tcp := s.recvTCP("more", func(tcp header.TCP) bool { return len(tcp.Payload()) > 0 })
			if again = tcp.SequenceNumber() == s.una; !again {
				require.Equal(t, s.una+end-1000, tcp.SequenceNumber())
			}
			s.selective(s.una, s.una+1000, s.una+end, wide)
		}
		require.True(t, again)
		st := s.h.Stats()
		require.Zero(t, st.Timeouts)
		require.EqualValues(t, 1, st.Recoveries)
	})
}

// Blocks of selective acknowledgements are read as far as they can be.
func TestSACKsIn(t *testing.T) {
	sack := []byte{5, 18, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 1, 0, 0, 0, 1, 5}
	for _, c := range []struct {
		opts []byte
		want [][2]uint32
	}{
		{nil, nil},
		{[]byte{1, 1, 1, 1}, nil},
		{sack, [][2]uint32{{1, 3}, {256, 261}}},
		{slices.Concat([]byte{1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1}, sack), [][2]uint32{{1, 3}, {256, 261}}},
		{slices.Concat([]byte{0}, sack), nil},
		{slices.Concat([]byte{8, 0}, sack), nil},
		{sack[:17], nil},
		{[]byte{5, 7, 0, 0, 0, 1, 0}, nil},
		{[]byte{5}, nil},
	} {
		s := sacksIn(c.opts)
		require.Equal(t, c.want, append([][2]uint32(nil), s.blocks[:s.n]...), "%v", c.opts)
	}
	all := sacksIn(append([]byte{5, 42}, make([]byte, 40)...))
	require.Equal(t, maxSACKs, all.n)
}

// A segment whose header says it is longer than the segment, or shorter than a header can be, is dropped and counted: its
// options, which nobody has sent, are not looked for. Anyone who guesses the ports can send one.
func TestHeaderOfImpossibleLength(t *testing.T) {
	bothWays(t, Config{}, func(t *testing.T, c Config) {
		bothFamilies(t, func(t *testing.T, fam family) {
			s := newSpoken(t, fam, c)
			s.alive()
			defer func() {
				if why := recover(); why != nil { // what there is to clean up is locked
					go panic(fmt.Sprintf("%v\n%s", why, debug.Stack()))
					select {}
				}
			}()
			invalid := s.h.user.tcp.Stats().TCP.InvalidSegmentsReceived
			for words := range 16 {
				for _, octets := range []int{0, 3} {
					seg := s.segment(flagACK, 1000, octets)
					tcp := header.TCP(seg)
					tcp[header.TCPDataOffset] = byte(words << 4)
					tcp.SetChecksum(0)
					sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, toAddress(fam.b), toAddress(fam.a), uint16(len(seg)))
					tcp.SetChecksum(^checksum.Checksum(seg, sum))
					before := invalid.Value()
					frame := s.packet(6, seg)
					s.burst(frame)
					s.burst(s.frame(flagACK, 0, 0), frame, frame, s.frame(flagACK, 0, 0))
					want := uint64(3)
					if words == header.TCPMinimumSize/4 {
						want = 0
					}
					require.Equal(t, want, invalid.Value()-before, "%d words, %d octets", words, octets)
				}
			}
			s.alive()
		})
	})
}

func TestSACKsCover(t *testing.T) {
	of := func(blocks ...[2]uint32) *sacks {
		s := &sacks{n: len(blocks)}
		copy(s.blocks[:], blocks)
		return s
	}
	for _, c := range []struct {
		is, was *sacks
		ack     uint32
		want    bool
	}{
		{of(), of(), 10, true},
		{of(), of([2]uint32{20, 30}), 10, false},
		{of(), of([2]uint32{20, 30}), 30, true},
		{of([2]uint32{20, 40}), of([2]uint32{20, 30}), 10, true},
		{of([2]uint32{21, 40}), of([2]uint32{20, 30}), 10, false},
		{of([2]uint32{20, 29}), of([2]uint32{20, 30}), 10, false},
		{of([2]uint32{50, 60}, [2]uint32{20, 30}), of([2]uint32{20, 30}, [2]uint32{50, 55}), 10, true},
		{of([2]uint32{1<<32 - 10, 20}), of([2]uint32{1<<32 - 5, 10}), 1<<32 - 100, true},
	} {
		require.Equal(t, c.want, c.is.cover(c.was, c.ack), "%+v", c)
	}
}
