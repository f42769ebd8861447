package netstack

import (
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
	return newRecordedPairOf(t, inet4, pipe, c, wrap)
}

func newRecordedPairOf(t *testing.T, fam family, pipe pktio.PipeConfig, c Config, wrap func(pktio.Port) pktio.Port) (*pair, *recorder) {
	pa, pb, err := pktio.NewPipe(pipe)
	require.NoError(t, err)
	rec := &recorder{Port: pa}
	var portB pktio.Port = pb
	if wrap != nil {
		portB = wrap(pb)
	}
	return newPortPairOf(t, fam, rec, portB, c), rec
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
	bothFamilies(t, testFramesOnTheWire)
}

func testFramesOnTheWire(t *testing.T, fam family) {
	for _, c := range []struct {
		name string
		pipe pktio.PipeConfig
		mtu  int // of the Config
		fits int // octets of an IP packet
	}{
		{"plain", pktio.PipeConfig{}, 0, 1500},
		{"checksum", pktio.PipeConfig{Checksum: true}, 0, 1500},
		{"odd MTU", pktio.PipeConfig{MTU: 1499}, 0, 1499},
		{"small MTU", pktio.PipeConfig{MTU: 576}, 0, 576},
		{"the least for IPv6", pktio.PipeConfig{MTU: 1280}, 0, 1280},
		{"jumbo", pktio.PipeConfig{MTU: 9000}, 0, 9000},
		{"more than jumbo", pktio.PipeConfig{MTU: 16114}, 0, 16114},
		{"the most there is", pktio.PipeConfig{MTU: 65535}, 0, 65535},
		{"GSO", pktio.PipeConfig{GSO: true}, 0, 1500},
		{"below the port's MTU", pktio.PipeConfig{MTU: 9000}, 1500, 1500},
		{"GSO below the port's MTU", pktio.PipeConfig{MTU: 9000, GSO: true}, 1500, 1500},
	} {
		if fam == inet6 && c.fits < minMTU6 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			const total = 200_001 // fits the pipe, however slow its reader, so that no frame is lost
			p, rec := newRecordedPairOf(t, fam, c.pipe, Config{MTU: c.mtu}, nil)
			ca, _ := p.exchange(total)
			mss := c.fits - fam.headers() - 40
			require.Equal(t, mss, ca.MSS(), "options counted off")
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
				tcp := segmentOf(b)
				if tcp == nil {
					require.Zero(t, f.Offload, "who asks for neighbours asks for nothing else")
					continue
				}
				gso, at := pktio.GSOTCPv4, 34
				if fam == inet6 {
					gso, at = pktio.GSOTCPv6, 54
				}
				ip := b[14:]
				payload := len(tcp) - int(tcp.DataOffset())
				if f.GSO == pktio.GSONone {
					require.LessOrEqual(t, len(ip), link.MTU)
					require.LessOrEqual(t, payload, mss)
				} else {
					require.True(t, link.GSO)
					require.Equal(t, gso, f.GSO)
					require.EqualValues(t, mss, f.GSOSize)
					require.Greater(t, payload, mss)
					require.Equal(t, len(b)-payload, int(f.HdrLen))
					super++
				}
				if f.NeedsCsum {
					require.True(t, link.Checksum)
					require.EqualValues(t, at, f.CsumStart)
					require.EqualValues(t, 16, f.CsumOffset)
					tcp.SetChecksum(^checksum.Checksum(tcp, 0))
				}
				require.True(t, sumIsGood(b), "checksums and length of frame %d", i)
				switch {
				case tcp.Flags().Contains(header.TCPFlagSyn):
					next = tcp.SequenceNumber() + 1
				case payload > 0 && tcp.SequenceNumber() == next:
					next += uint32(payload)
					octets += payload
				case payload > 0:
					require.Positive(t, int32(next-tcp.SequenceNumber()), "frame %d leaves a gap", i)
				}
				if payload == mss {
					full++
				}
			}
			require.Equal(t, total, octets)
			if link.GSO {
				require.Positive(t, super)
			} else if c.fits < 65000 {
				require.Greater(t, full, total/mss*9/10-1, "segments are full")
			}
			require.Zero(t, p.b.Stats().ChecksumErrors)
			require.EqualValues(t, len(rec.frames()), p.a.Stats().FramesOut)
		})
	}
}

func wireFIN(frames []pktio.Frame) bool {
	tcp := segmentOf(frames[len(frames)-1].Data[0])
	return tcp != nil && tcp.Flags().Contains(header.TCPFlagFin)
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
	bothFamilies(t, func(t *testing.T, fam family) {
		for _, pipe := range []pktio.PipeConfig{pipe1500, pipeGSO} {
			p, _ := newRecordedPairOf(t, fam, pipe, Config{}, func(port pktio.Port) pktio.Port {
				return &splitter{port, rand.New(rand.NewPCG(1, 2))}
			})
			p.exchange(400_000)
			if fam == inet4 { // of IPv6's multicast reports some are not for us
				require.Zero(t, p.b.Stats().DropsIn)
			}
			require.Zero(t, p.b.Stats().ChecksumErrors)
		}
	})
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
			fam  family
			pktio.PipeConfig
		}{{"1500", inet4, pipe1500}, {"GSO", inet4, pipeGSO}, {"IPv6 1500", inet6, pipe1500}, {"IPv6 GSO", inet6, pipeGSO}} {
			t.Run(c.name+"/"+pipe.name, func(t *testing.T) {
				t.Parallel()
				p := newUserPairOf(t, pipe.fam, pipe.PipeConfig, Config{MinRTO: 10 * time.Millisecond})
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
func TestCutAndJoined(t *testing.T) { bothFamilies(t, testCutAndJoined) }

func testCutAndJoined(t *testing.T, fam family) {
	p := newUserPairOf(t, fam, pipe1500, Config{MinRTO: 10 * time.Millisecond})
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
func TestOutage(t *testing.T) { bothFamilies(t, testOutage) }

func testOutage(t *testing.T, fam family) {
	for _, pipe := range []pktio.PipeConfig{pipe1500, pipeGSO} {
		for _, last := range []time.Duration{time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond} {
			pipe.Depth = 2048
			pa, pb, err := pktio.NewPipe(pipe)
			require.NoError(t, err)
			hole := &outage{Port: pa, from: 300, last: last}
			if pipe.GSO {
				hole.from = 30
			}
			p := newPortPairOf(t, fam, hole, pb, Config{})
			p.exchange(8 << 20)
			require.Positive(t, hole.lost)
			require.Less(t, p.a.Stats().Timeouts, uint64(20))
		}
	}
}

// A connection to one of our own addresses does not need the link.
func TestToOurselves(t *testing.T) { bothFamilies(t, testToOurselves) }

func testToOurselves(t *testing.T, fam family) {
	p := newUserPairOf(t, fam, pipe1500, Config{})
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

// Segments of one burst that continue each other reach TCP as one, with the same octets.
func TestJoinsSegments(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		w := newWireOf(t, fam, Config{})
		c, una := w.acceptOne(1000)
		received := w.h.user.tcp.Stats().TCP.ValidSegmentsReceived
		before := received.Value()
		const n, size = 8, 1000
		frames := make([]pktio.Frame, n)
		for i := range frames {
			b := make([]byte, size)
			pattern(b, 0, i*size)
			seg := tcpSegmentOf(fam.b, fam.a, header.TCPFields{
				SrcPort: 1000, DstPort: 2000, SeqNum: uint32(100 + i*size), AckNum: una, Flags: header.TCPFlagAck, WindowSize: 1000}, b)
			frames[i].Data = [][]byte{w.eth(), ipPacket(fam.b, fam.a, 6, len(seg)), seg}
		}
		link := w.h.user.link
		mac := link.info.Addr
		holdReceiver(link, func() { w.send(ethernet(mac, wireMAC, 0x88b5), make([]byte, 46)) })
		copy(link.rx.frames, frames)
		link.take(n, nil)
		link.rx.mu.Unlock()
		k := checker{}
		until(t, "the octets", func() bool { require.NoError(t, k.receive(t, c)); return k.at == n*size }, w.h)
		require.EqualValues(t, 1, received.Value()-before)
	})
}
