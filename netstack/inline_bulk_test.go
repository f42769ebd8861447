package netstack

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// bulk sends total octets from a to b, with one goroutine at both ends.
func (p *pair) bulk(ca, cb *Conn, total int) {
	p.t.Helper()
	k := checker{}
	sent := 0
	var end error
	p.until("the bulk", func() bool {
		if sent < total {
			if sent += send(p.t, ca, 0, sent, min(64<<10, total-sent)); sent == total {
				require.NoError(p.t, ca.CloseWrite())
			}
		}
		end = k.receive(p.t, cb)
		return end != nil
	})
	require.Equal(p.t, io.EOF, end)
	require.Equal(p.t, total, k.at)
}

// Octets that come without end are acknowledged often enough for the sender never to wait.
func TestBulkIsAcknowledged(t *testing.T) {
	needInline(t)
	const total = 16 << 20
	for _, c := range []struct {
		name string
		pipe pktio.PipeConfig
		conf Config
	}{
		{"1500", pktio.PipeConfig{}, Config{}},
		{"waits for longer", pktio.PipeConfig{}, Config{KeepACKs: time.Millisecond}},
		{"small buffer", pktio.PipeConfig{}, Config{RecvBuffer: MinBuffer, SendBuffer: MinBuffer}},
		{"small buffer, waits for longer", pktio.PipeConfig{}, Config{RecvBuffer: MinBuffer, SendBuffer: MinBuffer, KeepACKs: time.Millisecond}},
		{"super-frames", pktio.PipeConfig{GSO: true}, Config{KeepACKs: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.pipe.Depth = 4096
			pa, pb, err := pktio.NewPipe(c.pipe)
			require.NoError(t, err)
			rec := &recorder{Port: pb}
			// A sender that waits does so for two seconds at least, and is seen to.
			c.conf.MinRTO = 2 * time.Second
			p := newPortPairOf(t, inet4, pa, rec, c.conf)
			ca, cb, _ := p.connect()
			start := time.Now()
			p.bulk(ca, cb, total)
			took := time.Since(start)
			var last uint32
			acks, most := 0, 0
			for _, f := range rec.frames() {
				tcp := segmentOf(f.Data[0])
				if tcp == nil || tcp.Flags().Contains(header.TCPFlagSyn) {
					if tcp != nil {
						last = tcp.AckNumber()
					}
					continue
				}
				acks++
				most = max(most, int(tcp.AckNumber()-last))
				last = tcp.AckNumber()
			}
			t.Logf("%v, %d acknowledgements, of %d octets at most", took, acks, most)
			for _, h := range []*host{p.a, p.b} {
				st := h.Stats()
				require.Zero(t, st.Retransmits+st.Timeouts+st.Recoveries+st.DropsOut, "%+v", st)
			}
		})
	}
}

// However long an acknowledgement may wait, a part of the receive buffer it waits for, and no more.
func TestACKWaitsForSomeOctets(t *testing.T) {
	needInline(t)
	const most, size = MinBuffer / 8, 1000 // octets that wait, octets in a segment
	s := newSpoken(t, inet4, Config{RecvBuffer: MinBuffer, KeepACKs: forever})
	s.alive()
	s.hold()
	defer s.h.user.link.rx.mu.Unlock()
	s.sent()
	at := 0
	for round := range 5 {
		var all []header.TCP
		from := at
		s.h.user.link.rx.inline.conns[keyOf(&s.c.user.ep.TransportEndpointInfo.ID)].whole = s.h.user.link.clock.now()
		for ; len(all) == 0; all = s.sent() {
			require.LessOrEqual(t, at, from+most, "round %d", round)
			s.arrive(s.frame(flagPSH, at, size))
			at += size
		}
		require.Len(t, all, 1)
		require.Equal(t, s.seq+uint32(at), all[0].AckNumber())
		require.Greater(t, at-from, most/2, "not before")
		k := checker{at: from}
		require.NoError(t, k.receive(t, s.c))
		require.Equal(t, at, k.at)
		s.sent()
	}
}

// The same by two programs that sleep, and with a peer that has the other way.
func TestMixedPair(t *testing.T) {
	needInline(t)
	for i, conf := range [][2]Config{{{}, {Handoff: true}}, {{Handoff: true}, {}}, {{}, {KeepACKs: -1}}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			pa, pb, err := pktio.NewPipe(pktio.PipeConfig{Depth: 1024})
			require.NoError(t, err)
			conf[0].MinRTO, conf[1].MinRTO = 2*time.Second, 2*time.Second
			conf[0].Addrs, conf[1].Addrs = prefixes("10.77.0.1/24"), prefixes("10.77.0.2/24")
			sa, err := New(pa, conf[0])
			require.NoError(t, err)
			sb, err := New(pb, conf[1])
			require.NoError(t, err)
			p := &pair{t: t, a: newHost(t, sa), b: newHost(t, sb), fam: inet4, addrA: addrA, addrB: addrB}
			t.Cleanup(p.close)
			runEcho(t, p, 3, 1<<20)
			require.Zero(t, p.a.Stats().Timeouts+p.b.Stats().Timeouts)
		})
	}
}

// flooded is a port on which there is always something of no interest.
type flooded struct {
	pktio.Port
	on    atomic.Bool
	frame []byte
}

func (p *flooded) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	n, err := p.Port.Recv(batch, 0)
	if n > 0 || err != nil {
		return n, err
	}
	if p.on.Load() {
		batch[0].Data = append(batch[0].Data[:0], p.frame)
		batch[0].Offload = pktio.Offload{}
		return 1, nil
	}
	if wait < 0 || wait > time.Millisecond {
		wait = time.Millisecond // to see that it is flooded by now
	}
	return p.Port.Recv(batch, wait)
}

// Acknowledgements are sent also while there is no end of what the pump has to catch up with.
func TestFloodDoesNotHoldBackACKs(t *testing.T) {
	near, far, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	port := &flooded{Port: near, frame: joined(ethernet(near.Link().Addr, wireMAC, 0x88b5), make([]byte, 46))}
	st, err := New(port, Config{Addrs: prefixes("10.77.0.1/24")})
	require.NoError(t, err)
	t.Cleanup(func() {
		port.on.Store(false)
		require.NoError(t, st.Close())
		require.NoError(t, far.Close())
	})
	s := &spoken{wire: &wire{t: t, fam: inet4, port: far, h: newHost(t, st), in: make([]pktio.Frame, 1)}, port: 1000}
	s.l, err = s.h.Listen(netip.AddrPortFrom(addrA, spokenPort), 8)
	require.NoError(t, err)
	s.connect(1_000_000)
	for range 20 {
		s.alive() // Poll was called a moment ago
		port.on.Store(true)
		time.Sleep(2 * watch) // it is not any more
		s.sent()
		s.send(s.frame(flagPSH, 0, 1))
		s.seq++
		s.acked(s.seq, func() { time.Sleep(10 * time.Microsecond) })
		port.on.Store(false)
		until(t, "the octet", func() bool { pieces, _ := s.c.Peek(); return length(pieces) == 1 }, s.h)
		s.c.Discard(1)
	}
}
