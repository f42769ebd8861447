package netstack

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// moving is a port whose Ethernet address changes on the wire, as if its stack had moved to another interface: what is
// sent to the old address is lost, and the new one is in all it sends.
type moving struct {
	pktio.Port
	mu   sync.Mutex
	real [6]byte // the stack's
	wire [6]byte // the neighbours'
}

func newMoving(p pktio.Port) *moving {
	mac := p.Link().Addr
	return &moving{Port: p, real: mac, wire: mac}
}

func (m *moving) move(mac [6]byte) {
	m.mu.Lock()
	m.wire = mac
	m.mu.Unlock()
}

func (m *moving) Send(batch []pktio.Frame) (int, error) {
	out := make([]pktio.Frame, len(batch))
	m.mu.Lock()
	for i := range batch {
		b := make([]byte, batch[i].Len())
		batch[i].CopyTo(b)
		m.rename(b, m.real, m.wire)
		out[i] = pktio.Frame{Data: [][]byte{b}, Offload: batch[i].Offload}
	}
	m.mu.Unlock()
	return m.Port.Send(out)
}

func (m *moving) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	for {
		n, err := m.Port.Recv(batch, wait)
		if n == 0 || err != nil {
			return n, err
		}
		kept := 0
		m.mu.Lock()
		for i := range batch[:n] {
			b := batch[i].Data[0]
			if b[0]&1 == 0 && [6]byte(b) != m.wire {
				continue
			}
			m.rename(b, m.wire, m.real)
			batch[kept], batch[i] = batch[i], batch[kept]
			kept++
		}
		m.mu.Unlock()
		if kept > 0 || wait == 0 {
			return kept, nil
		}
	}
}

// rename replaces an Ethernet address in a frame that lies in one piece.
func (m *moving) rename(b []byte, from, to [6]byte) {
	swap := func(at []byte) {
		if [6]byte(at) == from {
			copy(at, to[:])
		}
	}
	swap(b)
	swap(b[6:])
	switch binary.BigEndian.Uint16(b[12:]) {
	case 0x0806:
		swap(b[22:])
		swap(b[32:])
	case 0x86dd:
		icmp := b[54:]
		if b[20] != 58 || icmp[0] != 135 && icmp[0] != 136 || len(icmp) < 32 {
			return
		}
		swap(icmp[26:])
		sumICMPv6(b[14:54], icmp)
	}
}

// newMovingPair is a pair whose b side can move.
func newMovingPair(t *testing.T, fam family, c Config) (*pair, *moving) {
	pa, pb, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	m := newMoving(pb)
	return newPortPairOf(t, fam, pa, m, c), m
}

var movedTo = [6]byte{2, 0, 0, 0, 0, 0x99}

// known returns what h believes to be the Ethernet address of a.
func (h *host) known(a netip.Addr) tcpip.LinkAddress {
	all, err := h.user.tcp.Neighbors(nicID, protocolOf(a))
	require.NoError(h.t, toError(err))
	for _, e := range all {
		if e.Addr == toAddress(a) {
			return e.LinkAddr
		}
	}
	return ""
}

// goesOn sends n octets each way on a connection that has carried some there and some back.
func (p *pair) goesOn(ca, cb *Conn, there, back, n int) {
	p.t.Helper()
	out, in := checker{at: there}, checker{stream: 1, at: back}
	sent, returned := there, back
	p.until("traffic both ways", func() bool {
		sent += send(p.t, ca, 0, sent, min(there+n-sent, 10_000))
		returned += send(p.t, cb, 1, returned, min(back+n-returned, 10_000))
		require.NoError(p.t, out.receive(p.t, cb))
		require.NoError(p.t, in.receive(p.t, ca))
		return out.at == there+n && in.at == back+n
	})
}

// A neighbour that moves and says so is followed at once.
func TestNeighbourMovesAndSaysSo(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		t.Parallel()
		p, m := newMovingPair(t, fam, Config{})
		ca, cb := p.exchange(1000)
		require.Equal(t, tcpip.LinkAddress(m.real[:]), p.a.known(fam.b))
		time.Sleep(steadyTime + 100*time.Millisecond)
		m.move(movedTo)
		p.b.user.link.say()
		start := time.Now()
		p.until("the news to arrive", func() bool { return p.a.known(fam.b) != tcpip.LinkAddress(m.real[:]) })
		p.goesOn(ca, cb, 1000, 0, 100_000)
		require.Equal(t, tcpip.LinkAddress(movedTo[:]), p.a.known(fam.b))
		t.Logf("%v", time.Since(start))
	})
}

// One that says nothing is asked for when its silence has lasted some seconds, long before connections end.
func TestNeighbourMovesInSilence(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		t.Parallel()
		p, m := newMovingPair(t, fam, Config{})
		ca, cb := p.exchange(1000)
		m.move(movedTo)
		start := time.Now()
		p.goesOn(ca, cb, 1000, 0, 100_000)
		require.Equal(t, tcpip.LinkAddress(movedTo[:]), p.a.known(fam.b))
		require.Less(t, time.Since(start), 40*time.Second)
		t.Logf("%v", time.Since(start))
	})
}

// Neighbours that are forgotten under traffic are asked for again, and nothing is lost.
func TestNeighboursAreForgotten(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		p := newUserPairOf(t, fam, pktio.PipeConfig{}, Config{})
		ca, cb := p.exchange(1000)
		for i := range 30 {
			for _, h := range []*host{p.a, p.b} {
				require.NoError(t, toError(h.user.tcp.ClearNeighbors(nicID, protocolOf(fam.a))))
			}
			p.goesOn(ca, cb, 1000+i*50_000, i*50_000, 50_000)
		}
	})
}

// Two hosts that both have a neighbour's address do not make us ask anew with each answer.
func TestNeighbourHasTwoAddresses(t *testing.T) {
	w := newWire(t, Config{})
	l, err := w.h.Listen(netip.AddrPortFrom(addrA, 2000), 1)
	require.NoError(t, err)
	defer l.Close()
	w.sendTCP(header.TCPFields{SrcPort: 1000, DstPort: 2000, SeqNum: 99, Flags: header.TCPFlagSyn, WindowSize: 1000}, nil)
	w.resolve(addrB)
	asked := 0
	for range 300 {
		w.send(announcement(addrB, wireMAC))
		w.send(announcement(addrB, otherMAC))
		w.h.poll(time.Millisecond)
		w.sendTCP(header.TCPFields{SrcPort: 1, DstPort: 1, SeqNum: 1, Flags: header.TCPFlagSyn, WindowSize: 1000}, nil) // wants an answer
		for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
			if isARPRequest(addrB)(w.in[0].Data[0]) {
				asked++
				w.answerARP(w.in[0].Data[0])
			}
		}
	}
	require.Less(t, asked, 100, "at most once a second, and when there is doubt")
}

// Any number of neighbours can be heard of; what is remembered is bounded.
func TestManyNeighboursAreHeard(t *testing.T) {
	w := newWire(t, Config{})
	told := 0
	n := neighbours{tcp: w.h.user.tcp, anew: func(netip.Addr) { told++ }}
	now := time.Now()
	for i := range 5 * heardMost {
		now = now.Add(lookEvery)
		n.heard(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), [6]byte{2, byte(i >> 8), byte(i)}, now)
		n.began(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), now)
		require.LessOrEqual(t, max(len(n.last), len(n.begun)), heardMost)
	}
	require.Equal(t, 5*heardMost, told)
	for range 100 {
		now = now.Add(time.Microsecond)
		n.began(addrB, now)
	}
	require.Equal(t, 5*heardMost+1, told)
}
