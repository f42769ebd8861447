package netstack

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// recorder keeps a copy of what is sent through it.
type recorder struct {
	pktio.Port
	mu   sync.Mutex
	sent []pktio.Frame
}

func (r *recorder) Send(batch []pktio.Frame) (int, error) {
	n, err := r.Port.Send(batch)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range batch[:n] {
		b := make([]byte, batch[i].Len())
		batch[i].CopyTo(b)
		r.sent = append(r.sent, pktio.Frame{Data: [][]byte{b}, Offload: batch[i].Offload})
	}
	return n, err
}

// frames returns what was sent so far.
func (r *recorder) frames() []pktio.Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// newRecordedPair is a user-space pair whose a-side frames are recorded.
func newRecordedPair(t *testing.T, pipe pktio.PipeConfig, c Config, wrap func(pktio.Port) pktio.Port) (*pair, *recorder) {
	pa, pb, err := pktio.NewPipe(pipe)
	require.NoError(t, err)
	rec := &recorder{Port: pa}
	var portB pktio.Port = pb
	if wrap != nil {
		portB = wrap(pb)
	}
	return newPortPair(t, rec, portB, c), rec
}

// exchange sends n octets from a to b and checks them.
func (p *pair) exchange(n int) (ca, cb *Conn) {
	p.t.Helper()
	ca, cb, _ = p.connect()
	sent := 0
	k := checker{}
	p.until("the octets", func() bool {
		sent += send(p.t, ca, 0, sent, min(n-sent, 100_000))
		require.NoError(p.t, k.receive(p.t, cb))
		return k.at == n
	})
	return ca, cb
}

func TestFramesOnTheWire(t *testing.T) {
	for _, c := range []struct {
		name string
		pipe pktio.PipeConfig
		mtu  int // of the Config
		mss  int
	}{
		{"plain", pktio.PipeConfig{}, 0, 1420},
		{"checksum", pktio.PipeConfig{Checksum: true}, 0, 1420},
		{"odd MTU", pktio.PipeConfig{MTU: 1499}, 0, 1419},
		{"small MTU", pktio.PipeConfig{MTU: 576}, 0, 496},
		{"jumbo", pktio.PipeConfig{MTU: 9000}, 0, 8920},
		{"GSO", pktio.PipeConfig{GSO: true}, 0, 1420},
		{"below the port's MTU", pktio.PipeConfig{MTU: 9000}, 1500, 1420},
		{"GSO below the port's MTU", pktio.PipeConfig{MTU: 9000, GSO: true}, 1500, 1420},
	} {
		t.Run(c.name, func(t *testing.T) {
			const total = 200_001 // fits the pipe, however slow its reader, so that no frame is lost
			p, rec := newRecordedPair(t, c.pipe, Config{MTU: c.mtu}, nil)
			ca, _ := p.exchange(total)
			require.Equal(t, c.mss, ca.MSS(), "options counted off")
			require.NoError(t, ca.CloseWrite())
			p.until("FIN", func() bool { return wireFIN(rec.frames()) })

			link := rec.Link()
			if c.mtu > 0 {
				link.MTU = c.mtu
			}
			var next uint32
			octets, super, full := 0, 0, 0
			for i, f := range rec.frames() {
				b := f.Data[0]
				if binary.BigEndian.Uint16(b[12:]) != 0x0800 {
					require.Zero(t, f.Offload, "ARP asks for nothing")
					continue
				}
				ip := header.IPv4(b[14:])
				require.Equal(t, len(ip), int(ip.TotalLength()))
				require.True(t, ip.IsChecksumValid(), "IP checksum of frame %d", i)
				tcp := header.TCP(ip.Payload())
				payload := len(ip) - int(ip.HeaderLength()) - int(tcp.DataOffset())
				if f.GSO == pktio.GSONone {
					require.LessOrEqual(t, len(ip), link.MTU)
					require.LessOrEqual(t, payload, c.mss)
				} else {
					require.True(t, link.GSO)
					require.Equal(t, pktio.GSOTCPv4, f.GSO)
					require.EqualValues(t, c.mss, f.GSOSize)
					require.Greater(t, payload, c.mss)
					require.Equal(t, len(b)-payload, int(f.HdrLen))
					super++
				}
				if f.NeedsCsum {
					require.True(t, link.Checksum)
					require.EqualValues(t, 34, f.CsumStart)
					require.EqualValues(t, 16, f.CsumOffset)
					tcp.SetChecksum(^checksum.Checksum(ip.Payload(), 0))
				}
				require.True(t, tcp.IsChecksumValid(ip.SourceAddress(), ip.DestinationAddress(), checksum.Checksum(tcp.Payload(), 0), uint16(payload)), "TCP checksum of frame %d", i)
				switch {
				case tcp.Flags().Contains(header.TCPFlagSyn):
					next = tcp.SequenceNumber() + 1
				case payload > 0 && tcp.SequenceNumber() == next:
					next += uint32(payload)
					octets += payload
				case payload > 0:
					require.Positive(t, int32(next-tcp.SequenceNumber()), "frame %d leaves a gap", i)
				}
				if payload == c.mss {
					full++
				}
			}
			require.Equal(t, total, octets)
			if link.GSO {
				require.Positive(t, super)
			} else {
				require.Greater(t, full, total/c.mss*9/10, "segments are full")
			}
			require.Zero(t, p.b.Stats().ChecksumErrors)
			require.EqualValues(t, len(rec.frames()), p.a.Stats().FramesOut)
		})
	}
}

func wireFIN(frames []pktio.Frame) bool {
	b := frames[len(frames)-1].Data[0]
	return len(b) > 34+14 && b[34+13]&1 != 0
}

// splitter hands out received frames in pieces, padded as short frames are on the wire.
type splitter struct {
	pktio.Port
	r *rand.Rand
}

func (s *splitter) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	n, err := s.Port.Recv(batch, wait)
	for i := range batch[:n] {
		f := &batch[i]
		b := f.Data[0]
		if len(b) < 60 {
			b = append(append([]byte(nil), b...), make([]byte, 60-len(b))...)
		}
		f.Data = f.Data[:0]
		for len(b) > 0 {
			k := min(len(b), 1+s.r.IntN(100))
			f.Data = append(f.Data, b[:k])
			b = b[k:]
		}
	}
	return n, err
}

func TestFramesInPiecesAndPadded(t *testing.T) {
	for _, pipe := range []pktio.PipeConfig{pipe1500, pipeGSO} {
		p, _ := newRecordedPair(t, pipe, Config{}, func(port pktio.Port) pktio.Port {
			return &splitter{port, rand.New(rand.NewPCG(1, 2))}
		})
		p.exchange(400_000)
		require.Zero(t, p.b.Stats().DropsIn)
	}
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		f    pktio.Faults
	}{
		{"loss", pktio.Faults{Loss: 0.01}},
		{"heavy loss", pktio.Faults{Loss: 0.02}},
		{"reorder", pktio.Faults{Reorder: 0.05}},
		{"duplicate", pktio.Faults{Duplicate: 0.05}},
		{"corrupt", pktio.Faults{Corrupt: 0.01}},
		{"corrupt anywhere", pktio.Faults{Corrupt: 0.01, CorruptAnywhere: true}},
		{"delay", pktio.Faults{Delay: 200 * time.Microsecond, Jitter: 100 * time.Microsecond}},
		{"all", pktio.Faults{Loss: 0.005, Reorder: 0.01, Duplicate: 0.01, Corrupt: 0.005, Jitter: 50 * time.Microsecond}},
	} {
		for _, pipe := range []struct {
			name string
			pktio.PipeConfig
		}{{"1500", pipe1500}, {"GSO", pipeGSO}} {
			t.Run(c.name+"/"+pipe.name, func(t *testing.T) {
				t.Parallel()
				p := newUserPair(t, pipe.PipeConfig, Config{MinRTO: 10 * time.Millisecond})
				f := c.f
				f.Seed = 7
				p.portA.SetFaults(f)
				f.Seed = 8
				p.portB.SetFaults(f)
				runEcho(t, p, 2, 1<<20)
				if f.Corrupt > 0 && !f.CorruptAnywhere && p.portA.Stats().Corrupted+p.portB.Stats().Corrupted > 0 {
					require.Positive(t, p.a.Stats().ChecksumErrors+p.b.Stats().ChecksumErrors+p.a.Stats().DropsIn+p.b.Stats().DropsIn)
				}
			})
		}
	}
}

// A link that is cut for a while, then joined, loses nothing.
func TestCutAndJoined(t *testing.T) {
	p := newUserPair(t, pipe1500, Config{MinRTO: 10 * time.Millisecond})
	ca, cb, _ := p.connect()
	p.portA.Cut(true)
	require.Equal(t, 50_000, send(t, ca, 0, 0, 50_000))
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		p.a.poll(time.Millisecond)
	}
	p.portA.Cut(false)
	k := checker{}
	p.until("the octets", func() bool { require.NoError(t, k.receive(t, cb)); return k.at == 50_000 })
	require.Positive(t, p.a.Stats().Retransmits)
	require.Positive(t, p.a.Stats().Timeouts)
}

// outage is a port that loses all large frames for some time, from the n-th on.
type outage struct {
	pktio.Port
	n, from int
	last    time.Duration
	began   time.Time
	lost    int
}

func (o *outage) Send(batch []pktio.Frame) (int, error) {
	for i := range batch {
		if batch[i].Len() > 500 {
			if o.n++; o.n == o.from {
				o.began = time.Now()
			}
			if o.n >= o.from && time.Since(o.began) < o.last {
				o.lost++
				continue
			}
		}
		if n, err := o.Port.Send(batch[i : i+1]); n == 0 {
			return i, err
		}
	}
	return len(batch), nil
}

// All that is under way is lost at once, in the middle of a transfer. It is sent again at full speed.
func TestOutage(t *testing.T) {
	for _, pipe := range []pktio.PipeConfig{pipe1500, pipeGSO} {
		for _, last := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond} {
			pipe.Depth = 2048
			pa, pb, err := pktio.NewPipe(pipe)
			require.NoError(t, err)
			hole := &outage{Port: pa, from: 300, last: last}
			if pipe.GSO {
				hole.from = 30
			}
			p := newPortPair(t, hole, pb, Config{})
			p.exchange(8 << 20)
			require.Positive(t, hole.lost)
			require.Less(t, p.a.Stats().Timeouts, uint64(20))
		}
	}
}

// A connection to one of our own addresses does not need the link.
func TestToOurselves(t *testing.T) {
	p := newUserPair(t, pipe1500, Config{})
	p.portA.Cut(true)
	l, err := p.a.Listen(netip.AddrPortFrom(p.addrA, 0), 1)
	require.NoError(t, err)
	c, err := p.a.Dial(netip.Addr{}, l.Addr())
	require.NoError(t, err)
	var other *Conn
	p.until("connect", func() bool {
		ok, err := c.Connected()
		require.NoError(t, err)
		if x, waits := l.Accept(); waits {
			other = x
		}
		return ok && other != nil
	})
	k := checker{}
	require.Equal(t, 200_000, send(t, c, 0, 0, 200_000))
	p.until("octets", func() bool { require.NoError(t, k.receive(t, other)); return k.at == 200_000 })
	c.Close()
	p.until("the end", func() bool { return k.receive(t, other) == io.EOF })
}
