package netstack

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// ending is a way for a connection to come to its end, and what is to be seen of it.
type ending struct {
	name   string
	do     func(s *spoken)
	octets int               // that arrive
	err    error             // what Peek says behind them; nil for a connection that lives
	state  tcp.EndpointState // of TCP
	ack    int               // the last acknowledgement is of so many octets, FIN included
	fin    bool              // the stack sends FIN
	resets int               // the stack sends so many
}

// late is segments that acknowledge n octets, or FIN, more than was acknowledged before.
func (s *spoken) late(n int) *spoken {
	c := *s
	c.una += uint32(n)
	return &c
}

var endings = []ending{
	{name: "FIN", do: func(s *spoken) { s.burst(s.frame(flagFIN, 0, 0)) },
		err: io.EOF, state: tcp.StateCloseWait, ack: 1},
	{name: "octets, FIN", do: func(s *spoken) { s.burst(s.frame(flagPSH, 0, 10), s.frame(flagFIN, 10, 0)) },
		octets: 10, err: io.EOF, state: tcp.StateCloseWait, ack: 11},
	{name: "octets with FIN", do: func(s *spoken) { s.burst(s.frame(flagFIN, 0, 10)) },
		octets: 10, err: io.EOF, state: tcp.StateCloseWait, ack: 11},
	{name: "octets, octets with FIN", do: func(s *spoken) { s.burst(s.frame(flagACK, 0, 10), s.frame(flagFIN|flagPSH, 10, 10)) },
		octets: 20, err: io.EOF, state: tcp.StateCloseWait, ack: 21},
	{name: "FIN in front of octets", do: func(s *spoken) { // gVisor forgets it, and the peer says it again
		s.burst(s.frame(flagFIN, 10, 0), s.frame(flagPSH, 0, 10))
		s.burst(s.frame(flagFIN, 10, 0))
	},
		octets: 10, err: io.EOF, state: tcp.StateCloseWait, ack: 11},
	{name: "octets behind FIN", do: func(s *spoken) { s.burst(s.frame(flagFIN, 0, 0), s.frame(flagPSH, 1, 10)) },
		err: io.EOF, state: tcp.StateCloseWait, ack: 1},
	{name: "RST", do: func(s *spoken) { s.burst(s.frame(flagRST, 0, 0)) },
		err: syscall.ECONNRESET, state: tcp.StateError},
	{name: "octets, RST", do: func(s *spoken) { s.burst(s.frame(flagPSH, 0, 10), s.frame(flagRST, 10, 0)) },
		octets: 10, err: syscall.ECONNRESET, state: tcp.StateError, ack: -1},
	{name: "octets, then RST", do: func(s *spoken) { s.burst(s.frame(flagPSH, 0, 10)); s.burst(s.frame(flagRST|flagACK, 10, 0)) },
		octets: 10, err: syscall.ECONNRESET, state: tcp.StateError, ack: -1},
	{name: "RST, octets", do: func(s *spoken) { s.burst(s.frame(flagRST, 0, 0), s.frame(flagPSH, 0, 10)) },
		err: syscall.ECONNRESET, state: tcp.StateError, ack: -1, resets: 1},
	{name: "RST that is not the next", do: func(s *spoken) { s.burst(s.frame(flagRST, 5, 0), s.frame(flagPSH, 0, 10)) },
		octets: 10, state: tcp.StateEstablished, ack: 10},
	{name: "RST far away", do: func(s *spoken) { s.burst(s.frame(flagPSH, 0, 10), s.frame(flagRST, 1<<30, 0)) },
		octets: 10, state: tcp.StateEstablished, ack: 10},
	{name: "SYN", do: func(s *spoken) { s.burst(s.frame(flagPSH, 0, 10), s.frame(header.TCPFlagSyn, 10, 0)) },
		octets: 10, state: tcp.StateEstablished, ack: 10},
	{name: "octets, FIN, RST", do: func(s *spoken) {
		s.burst(s.frame(flagPSH, 0, 10), s.frame(flagFIN, 10, 0), s.frame(flagRST, 11, 0))
	}, octets: 10, err: io.EOF, state: tcp.StateClose, ack: 11},
	{name: "our FIN", do: func(s *spoken) {
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.late(1).frame(flagACK, 0, 0))
	}, state: tcp.StateFinWait2, fin: true},
	{name: "octets behind our FIN", do: func(s *spoken) {
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.late(1).frame(flagPSH, 0, 10), s.late(1).frame(flagPSH, 10, 10))
		s.burst(s.late(1).frame(flagPSH, 20, 10))
	}, octets: 30, state: tcp.StateFinWait2, fin: true, ack: 30},
	{name: "our FIN, octets, FIN", do: func(s *spoken) {
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.frame(flagPSH, 0, 10), s.late(1).frame(flagPSH, 10, 10), s.late(1).frame(flagFIN, 20, 0))
	}, octets: 20, err: io.EOF, state: tcp.StateTimeWait, fin: true, ack: 21},
	{name: "both at once", do: func(s *spoken) {
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.frame(flagFIN, 0, 0))
		s.burst(s.late(1).frame(flagACK, 1, 0))
	}, err: io.EOF, state: tcp.StateTimeWait, fin: true, ack: 1},
	{name: "both at once, in a burst", do: func(s *spoken) {
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.frame(flagFIN, 0, 10), s.late(1).frame(flagACK, 11, 0))
	}, octets: 10, err: io.EOF, state: tcp.StateTimeWait, fin: true, ack: 11},
	{name: "FIN, our FIN, its acknowledgement", do: func(s *spoken) {
		s.burst(s.frame(flagPSH, 0, 10), s.frame(flagFIN, 10, 0))
		until(s.t, "FIN", func() bool { return s.c.user.state() == tcp.StateCloseWait }, s.h)
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.late(1).frame(flagACK, 11, 0))
	}, octets: 10, err: io.EOF, state: tcp.StateClose, fin: true, ack: 11},
	{name: "octets, our FIN, RST", do: func(s *spoken) {
		s.burst(s.frame(flagPSH, 0, 10))
		until(s.t, "the octets", func() bool { pieces, _ := s.c.Peek(); return length(pieces) == 10 }, s.h)
		require.NoError(s.t, s.c.CloseWrite())
		s.burst(s.frame(flagRST, 10, 0))
	}, octets: 10, err: syscall.ECONNRESET, state: tcp.StateError, fin: true, ack: 10},
}

// A connection ends as it does when gVisor processes its segments, whatever comes together.
func TestEndings(t *testing.T) {
	bothWays(t, Config{MinRTO: 5 * time.Second}, func(t *testing.T, c Config) {
		bothFamilies(t, func(t *testing.T, fam family) {
			for _, e := range endings {
				t.Run(e.name, func(t *testing.T) { testEnding(t, fam, c, e) })
			}
		})
	})
}

func testEnding(t *testing.T, fam family, c Config, e ending) {
	s := newSpoken(t, fam, c)
	s.alive()
	s.pollFor(time.Millisecond) // its acknowledgement
	s.sent()
	e.do(s)
	var pieces [][]byte
	var err error
	until(t, "the end", func() bool {
		pieces, err = s.c.Peek()
		return length(pieces) == e.octets && (err != nil) == (e.err != nil) && s.c.user.state() == e.state
	}, s.h)
	if e.err != nil {
		require.ErrorIs(t, err, e.err)
	}
	k := checker{}
	for _, p := range pieces {
		require.NoError(t, k.check(p))
	}
	ack, fin, resets := 0, false, 0
	until(t, "its answers", func() bool {
		s.pollFor(2 * time.Millisecond)
		for _, seg := range s.sent() {
			flags := seg.Flags()
			fin = fin || flags.Contains(header.TCPFlagFin)
			if flags.Contains(header.TCPFlagRst) {
				resets++
			} else {
				ack = max(ack, int(seg.AckNumber()-s.seq))
			}
		}
		return ack >= e.ack && resets >= e.resets && (fin || !e.fin)
	}, s.h)
	if e.ack >= 0 { // else it depends on what is looked at first
		require.Equal(t, e.ack, ack, "acknowledged")
	}
	require.Equal(t, e.fin, fin, "FIN")
	require.Equal(t, e.resets, resets, "resets")
	if e.err == nil || errors.Is(e.err, io.EOF) {
		s.c.Close()
	} else {
		require.ErrorIs(t, s.c.Writev([][]byte{{1}}), e.err, "of both halves")
		s.c.Abort()
	}
	require.Zero(t, s.h.Stats().Conns)
}

// pollFor polls the stack for d.
func (w *wire) pollFor(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
		w.h.poll(0)
	}
}

// What arrives for a connection that the application has let go of is answered as ever.
func TestSegmentsBehindClose(t *testing.T) {
	bothWays(t, Config{MinRTO: 5 * time.Second}, func(t *testing.T, c Config) {
		for name, let := range map[string]func(*Conn){"closed": (*Conn).Close, "aborted": (*Conn).Abort} {
			t.Run(name, func(t *testing.T) {
				bothFamilies(t, func(t *testing.T, fam family) {
					s := newSpoken(t, fam, c)
					s.alive()
					let(s.c)
					s.sent()
					if in := s.h.user.link.rx.inline; in != nil {
						require.Empty(t, in.conns)
					}
					s.burst(s.late(1).frame(flagPSH, 0, 10))
					s.recvTCP("a reset", func(tcp header.TCP) bool { return tcp.Flags().Contains(header.TCPFlagRst) })
				})
			})
		}
	})
}
