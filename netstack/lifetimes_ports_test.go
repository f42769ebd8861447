package netstack

import (
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/pktio"
)

// With all its ports in use a stack says so, and what to do; a port that was given up a second ago is good again.
func TestPortsRunOut(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		t.Parallel()
		p := newUserPairOf(t, fam, pktio.PipeConfig{}, Config{})
		require.NoError(t, toError(p.a.user.tcp.SetPortRange(20000, 20003)))
		l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 8)
		require.NoError(t, err)
		var conns, accepted []*Conn
		for range 4 {
			ca, cb := p.connectTo(l)
			conns, accepted = append(conns, ca), append(accepted, cb)
		}
		for _, local := range []netip.Addr{{}, p.addrA} {
			_, err = p.a.Dial(local, l.Addr())
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
			require.ErrorContains(t, err, "close connections that are not needed")
		}
		require.EqualValues(t, 4, p.a.Stats().Conns)

		conns[2].Close()
		p.until("the end", func() bool { _, err := accepted[2].Peek(); return err == io.EOF })
		accepted[2].Close()
		var again *Conn
		for end := time.Now().Add(patience); ; {
			if again, err = p.a.Dial(netip.Addr{}, l.Addr()); err == nil {
				break
			}
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
			require.True(t, time.Now().Before(end))
			p.a.poll(10 * time.Millisecond)
			p.b.poll(0)
		}
		p.until("connect", func() bool { ok, err := again.Connected(); require.NoError(t, err); return ok })
		require.Equal(t, conns[2].LocalAddr(), again.LocalAddr())
	})
}

// Thousands of short connections from one address to one listener, each side closing first in turn: none fails, and
// what is left of them goes away.
func TestManyShortConnections(t *testing.T) {
	n := 3000
	if raceEnabled {
		n = 600
	}
	for _, car := range crowdCarriers() {
		t.Run(car.name, func(t *testing.T) {
			t.Parallel()
			p := car.make(t, Config{})
			l, err := p.b.Listen(netip.AddrPortFrom(p.addrB, 0), 8)
			require.NoError(t, err)
			for i := range n {
				ca, cb := p.connectTo(l)
				if i%2 == 0 {
					ca, cb = cb, ca
				}
				ca.Close()
				p.until("the end", func() bool { _, err := cb.Peek(); return err == io.EOF })
				cb.Close()
			}
			require.Zero(t, p.a.Stats().Conns+p.b.Stats().Conns)
			if p.a.user == nil {
				return
			}
			for end := time.Now().Add(timeWait + patience); time.Now().Before(end) && len(p.a.user.tcp.RegisteredEndpoints()) > 0; {
				p.a.poll(10 * time.Millisecond)
				p.b.poll(10 * time.Millisecond)
			}
			require.Empty(t, p.a.user.tcp.RegisteredEndpoints())
		})
	}
}
