package netstack

import (
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// More peers than the backlog holds: those that find no room try again, and all get in.
func TestBacklogFull(t *testing.T) {
	for _, car := range carriers() {
		t.Run(car.name, func(t *testing.T) {
			p := car.make(t, Config{})
			if p.enter == nil {
				t.Parallel() // it takes SYNs sent again after a second
			}
			l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 1)
			require.NoError(t, err)
			conns := make([]*Conn, 5)
			for i := range conns {
				conns[i], err = p.a.Dial(netip.Addr{}, l.Addr())
				require.NoError(t, err)
			}
			for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
				p.a.poll(time.Millisecond)
				p.b.poll(0)
			}
			var accepted []*Conn
			up := make(map[*Conn]bool)
			echoed := 0
			p.until("all to get in", func() bool {
				if c, ok := l.Accept(); ok {
					accepted = append(accepted, c)
				}
				for _, c := range accepted {
					if pieces, err := c.Peek(); len(pieces) > 0 {
						require.NoError(t, err)
						require.NoError(t, c.Writev(pieces))
						c.Discard(length(pieces))
					}
				}
				for i, c := range conns {
					ok, err := c.Connected()
					require.NoError(t, err)
					if ok && !up[c] {
						up[c] = true
						require.NoError(t, c.Writev([][]byte{{byte(i)}}))
					}
					if pieces, _ := c.Peek(); len(pieces) > 0 {
						require.Equal(t, byte(i), pieces[0][0])
						c.Discard(1)
						echoed++
					}
				}
				return echoed == len(conns)
			})
		})
	}
}

// With the least backlog a connection still has the window scale option: gVisor answers with SYN cookies, which leave
// it out, when it thinks that the backlog is full.
func TestBacklogOfOneScalesWindow(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		p, rec := newRecordedPairOf(t, fam, pipe1500, Config{}, nil)
		l, err := p.a.Listen(netip.AddrPortFrom(p.addrA, 0), 1)
		require.NoError(t, err)
		c, err := p.b.Dial(netip.Addr{}, l.Addr())
		require.NoError(t, err)
		p.until("connect", func() bool { ok, err := c.Connected(); require.NoError(t, err); return ok })
		for _, f := range rec.frames() {
			tcp := segmentOf(f.Data[0])
			if tcp == nil || !tcp.Flags().Contains(header.TCPFlagSyn) {
				continue
			}
			options := header.ParseSynOptions(tcp.Options(), true)
			require.Positive(t, options.WS)
			require.EqualValues(t, 1500-fam.headers(), options.MSS)
			require.True(t, options.SACKPermitted)
			return
		}
		t.Fatal("no SYN was recorded")
	})
}

// Ports are used again: one listener, many short connections, each side closing first in turn.
func TestReconnect(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 8)
		require.NoError(t, err)
		for i := range 40 {
			ca, cb := p.connectTo(l)
			if i%2 == 0 {
				ca, cb = cb, ca
			}
			require.Equal(t, 10, send(t, ca, 0, 0, 10))
			ca.Close()
			k := checker{}
			p.until("the end", func() bool { return k.receive(t, cb) == io.EOF })
			require.Equal(t, 10, k.at)
			cb.Close()
		}
		require.Zero(t, p.a.Stats().Conns+p.b.Stats().Conns)
	})
}

// Both ends close at the same time.
func TestSimultaneousClose(t *testing.T) {
	onAll(t, Config{}, func(t *testing.T, p *pair) {
		ca, cb, _ := p.connect()
		require.NoError(t, ca.CloseWrite())
		require.NoError(t, cb.CloseWrite())
		var ka, kb checker
		doneA, doneB := false, false
		p.until("both ends", func() bool {
			doneA = doneA || ka.receive(t, ca) == io.EOF
			doneB = doneB || kb.receive(t, cb) == io.EOF
			return doneA && doneB
		})
		require.ErrorIs(t, ca.Writev([][]byte{{1}}), syscall.EPIPE)
		ca.Close()
		cb.Close()
	})
}
