package netstack

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// loser is a port that loses some of the frames sent through it.
type loser struct {
	pktio.Port
	mu    sync.Mutex
	loses func(tcp header.TCP) bool // of frames with TCP segments
	lost  int
	saw   func(f *pktio.Frame)
}

func (p *loser) Send(batch []pktio.Frame) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range batch {
		b := make([]byte, batch[i].Len())
		batch[i].CopyTo(b)
		tcp := segmentOf(b)
		if tcp != nil && p.saw != nil {
			p.saw(&batch[i])
		}
		if tcp != nil && p.loses != nil && p.loses(tcp) {
			p.lost++
			continue
		}
		if n, err := p.Port.Send(batch[i : i+1]); n == 0 || err != nil {
			return i, err
		}
	}
	return len(batch), nil
}

// lose sets what is lost from now on.
func (p *loser) lose(loses func(header.TCP) bool) {
	p.mu.Lock()
	p.loses = loses
	p.mu.Unlock()
}

// every returns what picks the nth, the 2nth and so on of the segments with octets, or of those without.
func every(n int, octets bool) func(header.TCP) bool {
	seen := -64 // with nothing under way there is nothing to find a loss by
	return func(tcp header.TCP) bool {
		if (len(tcp.Payload()) > 0) != octets || tcp.Flags().Contains(header.TCPFlagSyn) {
			return false
		}
		seen++
		return seen > 0 && seen%n == 0
	}
}

// ahead tells whether a sequence number is beyond all it was asked of before, and top.
func ahead(top uint32) func(n uint32) bool {
	return func(n uint32) bool {
		further := int32(n-top) > 0
		if further {
			top = n
		}
		return further
	}
}

// lossPair is a pair whose retransmission timer, if it expires, does so after seconds.
func lossPair(t *testing.T, fam family, pipe pktio.PipeConfig, c Config) (p *pair, la, lb *loser) {
	t.Helper()
	pipe.Depth = 8192
	pa, pb, err := pktio.NewPipe(pipe)
	require.NoError(t, err)
	la, lb = &loser{Port: pa}, &loser{Port: pb}
	c.MinRTO = 2 * time.Second
	return newPortPairOf(t, fam, la, lb, c), la, lb
}

var (
	superPipe = pktio.PipeConfig{GSO: true}
	plainPipe = pktio.PipeConfig{}
)

// What single frames carried, octets or acknowledgements, is there again before the retransmission timer expires.
func TestLossesDoNotWaitForTheTimer(t *testing.T) {
	needInline(t)
	for _, c := range []struct {
		name       string
		pipe       pktio.PipeConfig
		data, acks int
	}{
		{"super-frames, one in 100", superPipe, 100, 1 << 30},
		{"super-frames, one in 20", superPipe, 20, 1 << 30},
		{"super-frames and acknowledgements, one in 50", superPipe, 50, 50},
		{"frames, one in 100", plainPipe, 100, 1 << 30},
		{"frames and acknowledgements, one in 20", plainPipe, 20, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, fam family) {
				p, la, lb := lossPair(t, fam, c.pipe, Config{})
				ca, cb, _ := p.connect()
				end := next(ca) + 8<<20
				data, acks := every(c.data, true), every(c.acks, false)
				// What replaces a lost frame is not lost in its turn: for that there is the timer.
				newData, newAck := ahead(next(ca)-1), ahead(next(ca)-1)
				la.lose(func(tcp header.TCP) bool {
					return newData(tcp.SequenceNumber()) && int32(tcp.SequenceNumber()-end) < 0 && data(tcp)
				})
				lb.lose(func(tcp header.TCP) bool {
					return newAck(tcp.AckNumber()) && int32(tcp.AckNumber()-end) < 0 && acks(tcp)
				})
				p.burst(ca, cb, new(checker), 9<<20)
				st := p.a.Stats()
				t.Logf("%d and %d lost: %d recoveries, %d retransmits", la.lost, lb.lost, st.Recoveries, st.Retransmits)
				require.Positive(t, la.lost)
				require.Zero(t, st.Timeouts, "%+v", st)
			})
		})
	}
}

// A super-frame that was lost is sent again as one or a few, with headers that are right for it.
func TestLostSuperFrameIsSentWhole(t *testing.T) {
	needInline(t)
	bothFamilies(t, func(t *testing.T, fam family) {
		p, la, _ := lossPair(t, fam, superPipe, Config{})
		var high uint32
		again, octets := 0, 0
		var bad []string
		la.loses = every(40, true)
		la.saw = func(f *pktio.Frame) {
			b := make([]byte, f.Len())
			f.CopyTo(b)
			tcp := segmentOf(b)
			n := len(tcp.Payload())
			if n == 0 {
				return
			}
			if n > 1460 && f.GSO == pktio.GSONone || !lengthsAreGood(b) { // not the goroutine to end the test
				bad = append(bad, fmt.Sprintf("%d octets, %+v", n, f.Offload))
			}
			if seq := tcp.SequenceNumber(); int32(seq-high) < 0 && high != 0 {
				again++
				octets += n
			} else {
				high = seq + uint32(n)
			}
		}
		ca, cb, _ := p.connect()
		p.burst(ca, cb, new(checker), 8<<20)
		la.mu.Lock()
		defer la.mu.Unlock()
		t.Logf("%d lost, %d octets in %d frames sent again", la.lost, octets, again)
		require.Empty(t, bad)
		require.Positive(t, la.lost)
		if raceEnabled {
			return // acknowledgements come one by one where all takes ten times as long, and what they ask for leaves likewise
		}
		require.Less(t, again, octets/1400/2, "most go together with others")
	})
}

// lengthsAreGood checks the length in the IP header of a frame, that header's checksum, and the sum of TCP's pseudo header.
func lengthsAreGood(b []byte) bool {
	tcp := segmentOf(b)
	var ip header.Network = header.IPv4(b[14:])
	if b[14]>>4 == 6 {
		ip = header.IPv6(b[14:])
		if int(header.IPv6(b[14:]).PayloadLength()) != len(tcp) {
			return false
		}
	} else if v4 := header.IPv4(b[14:]); int(v4.TotalLength()) != len(v4) || !v4.IsChecksumValid() {
		return false
	}
	return tcp.Checksum() == header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(tcp)))
}

// burst sends n octets from a, until they are there and a knows. There is no FIN behind them: gVisor drops one that comes
// before what is in front of it.
func (p *pair) burst(ca, cb *Conn, k *checker, n int) {
	p.t.Helper()
	from := k.at
	at := from
	p.until("the burst", func() bool {
		if at < from+n {
			at += send(p.t, ca, 0, at, min(64<<10, from+n-at))
		}
		require.NoError(p.t, k.receive(p.t, cb))
		return k.at == from+n && una(ca) == next(ca)
	})
}

// The last of what is sent, and the acknowledgement of it, are as good as the rest.
func TestLostTail(t *testing.T) {
	needInline(t)
	for _, c := range []struct {
		name string
		pipe pktio.PipeConfig
	}{{"super-frames", superPipe}, {"frames", plainPipe}} {
		t.Run(c.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, fam family) {
				const n = 512 << 10
				p, la, lb := lossPair(t, fam, c.pipe, Config{})
				ca, cb, _ := p.connect()
				k := checker{}
				p.burst(ca, cb, &k, 4*n)

				high := next(ca)
				var end atomic.Uint32 // sequence number behind the burst
				var asked atomic.Bool // of the end something was sent again
				end.Store(high + n)
				la.lose(func(tcp header.TCP) bool { // the last frames, but not when they are sent again
					last := tcp.SequenceNumber() + uint32(len(tcp.Payload()))
					if int32(last-high) <= 0 {
						if int32(last-end.Load()) > -5000 && len(tcp.Payload()) > 0 {
							asked.Store(true)
						}
						return false
					}
					high = last
					return !asked.Load() && la.lost < 2 && int32(last-end.Load()) > -3000
				})
				p.burst(ca, cb, &k, n)
				require.Positive(t, la.lost)
				require.Zero(t, p.a.Stats().Timeouts)

				// What acknowledges all, or nearly: a lone segment is not asked for.
				la.lose(func(tcp header.TCP) bool {
					last := tcp.SequenceNumber() + uint32(len(tcp.Payload()))
					if int32(last-high) > 0 {
						high = last
					} else if int32(last-end.Load()) > -5000 && len(tcp.Payload()) > 0 {
						asked.Store(true)
					}
					return false
				})
				asked.Store(false)
				end.Store(next(ca) + n)
				lb.lose(func(tcp header.TCP) bool { return !asked.Load() && int32(tcp.AckNumber()-end.Load()) > -5000 })
				p.burst(ca, cb, &k, n)
				require.Positive(t, lb.lost)
				require.Zero(t, p.a.Stats().Timeouts)
			})
		})
	}
}

// una is the first octet that the peer has not acknowledged, next the one to be sent next.
func una(c *Conn) uint32 {
	c.user.ep.LockUser()
	defer c.user.ep.UnlockUser()
	s, _ := senderOf(c.user.ep)
	return uint32(s.SndUna)
}

func next(c *Conn) uint32 {
	c.user.ep.LockUser()
	defer c.user.ep.UnlockUser()
	s, _ := senderOf(c.user.ep)
	return uint32(s.SndNxt)
}

// Without any loss nothing of this shows: no segment is sent twice, and frames that come in another order take nothing of
// the window for long.
func TestNoLossNoChange(t *testing.T) {
	needInline(t)
	for _, pipe := range []pktio.PipeConfig{superPipe, plainPipe} {
		p, _, _ := lossPair(t, inet4, pipe, Config{})
		ca, cb, _ := p.connect()
		p.bulk(ca, cb, 8<<20)
		st := p.a.Stats()
		require.Zero(t, st.Retransmits+st.Recoveries+st.Timeouts, "%+v", st)
	}
}

func TestPathRateWindow(t *testing.T) {
	const mss, large = 1000, 60_000
	gbit := func(p *pathRate, now, rtt time.Duration, g float64) {
		p.note(now, rtt, uint32(g*1e9/8*rtt.Seconds()))
	}
	var p pathRate
	require.Equal(t, 3, p.window(mss, large), "of an unknown path")
	require.Equal(t, 3, p.window(mss, mss))
	gbit(&p, 0, 100*time.Microsecond, 8)
	require.InDelta(t, 100+3*60, p.window(mss, large), 1)
	require.InDelta(t, 100+3, p.window(mss, mss), 1, "where frames are lost one by one")
	gbit(&p, 0, time.Millisecond, 4)
	require.InDelta(t, 100+3*60, p.window(mss, large), 1, "a queue does not count")
	for range rateRounds {
		gbit(&p, 0, 200*time.Microsecond, 0.08)
	}
	require.InDelta(t, 1+3*10, p.window(mss, large), 1, "the rate of long ago does not count, and super-frames are short")
	for i := range 2 {
		gbit(&p, time.Duration(i+1)*(shortestFor+1), 200*time.Microsecond, 8)
	}
	require.InDelta(t, 200+3*60, p.window(mss, large), 1, "nor does the round trip")
	require.Zero(t, p.window(0, large))
}
