package netstack

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// newSaid has a connection that has sent an octet, which the peer has taken and not acknowledged: s.una is behind it.
func newSaid(t *testing.T, fam family) *spoken {
	needInline(t)
	s := newSpoken(t, fam, Config{MinRTO: time.Minute})
	s.alive()
	require.NoError(t, s.c.Writev([][]byte{{1}})) // gVisor's, which has the headers to use again
	s.recvTCP("an octet", func(tcp header.TCP) bool { return tcp.SequenceNumber() == s.una && len(tcp) > int(tcp.DataOffset()) })
	s.una++
	return s
}

// newLate has a connection that has sent an octet, which a lone segment acknowledges that has one, too: that one is here,
// and the acknowledgement waits. The caller holds the receiver.
func newLate(t *testing.T) *spoken {
	s := newSaid(t, inet4)
	s.hold()
	s.inlined().whole = s.h.user.link.clock.now()
	s.arrive(s.frame(flagPSH, 0, 1))
	pieces, err := s.c.Peek()
	require.NoError(t, err)
	require.Equal(t, 1, length(pieces))
	require.False(t, s.acknowledged(), "it waits")
	return s
}

// acknowledged reports whether TCP knows that the peer has all that was sent.
func (s *spoken) acknowledged() bool {
	una, nxt, _ := underWay(s.c.user.ep)
	return una == nxt
}

// The octets of a lone segment are there before its acknowledgement is processed, which happens whatever comes next.
func TestAnswerGoesFirst(t *testing.T) {
	for _, c := range []struct {
		name string
		next func(s *spoken) // with the receiver held, which it lets go of
	}{
		{"nothing", func(s *spoken) {
			s.h.user.link.rx.mu.Unlock()
			n, _ := s.h.user.link.look()
			require.Zero(s.t, n)
		}},
		{"sleep", func(s *spoken) {
			s.h.user.link.rx.mu.Unlock()
			s.h.user.link.leave()
			until(s.t, "acknowledgement", s.acknowledged)
		}},
		{"no look for a long time", func(s *spoken) {
			s.h.user.link.rx.mu.Unlock()
			until(s.t, "acknowledgement", s.acknowledged)
		}},
		{"another segment", func(s *spoken) {
			s.seq++
			s.arrive(s.frame(flagPSH, 0, 1), s.frame(flagPSH, 1, 1))
			s.h.user.link.rx.mu.Unlock()
		}},
		{"an acknowledgement", func(s *spoken) {
			s.seq++
			s.arrive(s.frame(flagACK, 0, 0))
			s.h.user.link.rx.mu.Unlock()
		}},
		{"the end", func(s *spoken) {
			s.seq++
			s.arrive(s.frame(flagFIN, 0, 0))
			s.h.user.link.rx.mu.Unlock()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newLate(t)
			c.next(s)
			require.True(t, s.acknowledged())
			s.h.user.link.look()
			require.Nil(t, s.inlined().late)
		})
	}
}

// An acknowledgement that waits keeps nobody from ending its connection, or its stack. (That no memory is left over is
// looked at when the test ends.)
func TestEndBeforeAcknowledgement(t *testing.T) {
	for name, end := range map[string]func(s *spoken){
		"reset": func(s *spoken) { s.seq++; s.arrive(s.frame(flagRST, 0, 0)) },
		"abort": func(s *spoken) { s.c.Abort() },
		"close": func(s *spoken) { s.c.Close() },
		"stack": func(*spoken) {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLate(t)
			end(s)
			s.h.user.link.rx.mu.Unlock()
			if name != "stack" {
				s.h.user.link.look()
				require.Empty(t, s.h.user.link.rx.inline.late)
			}
		})
	}
}

// A damaged acknowledgement changes nothing: neither what TCP knows nor what is known of the acknowledgements before.
func TestDamagedAcknowledgement(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSaid(t, fam)
		s.hold()
		c := s.inlined()
		ack, window, before := c.lastACK, c.lastWindow, s.h.Stats().ChecksumErrors
		frame := s.frame(flagACK, 0, 0)
		segmentOf(frame).SetChecksum(segmentOf(frame).Checksum() ^ 0x0100)
		s.arrive(frame)
		s.h.user.link.rx.mu.Unlock()
		require.False(t, s.acknowledged())
		require.Equal(t, before+1, s.h.Stats().ChecksumErrors)
		require.Equal(t, ack, c.lastACK)
		require.Equal(t, window, c.lastWindow)
		s.burst(s.frame(flagACK, 0, 0))
		require.True(t, s.acknowledged())
	})
}

// The answer echoes the timestamp of the segment that it answers, although TCP has not processed all of that.
func TestAnswerEchoesTimestamp(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		needInline(t)
		p, _ := newFuzzPair(t, fam)
		ca, cb, _ := p.connect()
		ka, kb := checker{stream: 1}, checker{}
		for range 5 {
			time.Sleep(3 * time.Millisecond) // the clock of timestamps counts milliseconds
			at := kb.at + 10
			require.Equal(t, 10, send(t, ca, 0, kb.at, 10))
			p.until("question", func() bool { require.NoError(t, kb.receive(t, cb)); return kb.at == at })
			time.Sleep(3 * time.Millisecond)
			cb.user.ep.LockUser()
			asked, _ := timestamps(cb.user.ep)
			cb.user.ep.UnlockUser()
			require.Equal(t, 10, send(t, cb, 1, ka.at, 10))
			for ka.at != at {
				p.a.poll(0)
				require.NoError(t, ka.receive(t, ca))
			}
			ca.user.ep.LockUser()
			_, echo := timestamps(ca.user.ep)
			ca.user.ep.UnlockUser()
			require.GreaterOrEqual(t, int32(echo-asked), int32(0))
		}
	})
}
