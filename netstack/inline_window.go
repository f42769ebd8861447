package netstack

import (
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// Each loss halves the congestion window of RFC 5681, whatever was lost. Where frames get lost although nobody's queue
// is full, at the round trip times of a data center, the window ends below one super-frame, and the next one lost is all
// there was under way. So with CongestionPath a loss leaves of the window at least what the path has carried until then:
// what it delivered at its best in the shortest round trip seen, as Westwood has it, and three super-frames, as BBR in
// Linux has it, for what is in hand at either end is not on the path. It never leaves more than there was. A path that is
// shared by more delivers less to each, which makes this less. A timeout begins with one segment, as ever.

const (
	// rateRounds is of how many round trips the highest rate counts.
	rateRounds = 10
	// shortestFor is for how long the shortest round trip counts; up to twice that.
	shortestFor = 5 * time.Second
	// burstTime is what part of the rate a super-frame carries at most.
	burstTime = time.Millisecond
)

// sample is a segment whose acknowledgement tells the rate of delivery. The link sets it as it sends one, and the receive
// side takes it back: whoever finds set as he needs it has the rest.
type sample struct {
	set  atomic.Bool
	end  uint32        // sequence number behind it
	at   time.Duration // see clock
	acks uint32        // pathRate.delivered at that time

	high      uint32        // what was sent up to now, under txSide.mu
	delivered atomic.Uint32 // what the peer has, by the last acknowledgement: sequence number in order, and octets beyond
}

// pathRate is what acknowledgements tell of a path. Guarded by rxSide.mu.
type pathRate struct {
	rates    [rateRounds]float64 // octets a second
	rounds   int
	shortest [2]time.Duration // round trips: now and in the time before
	since    time.Duration    // when now began
	smooth   time.Duration    // the usual one
	lossy    bool             // since the last one there was a loss
	drops    uint64           // frames that found no room in our own port, up to the last loss

	cwnd, ssthresh int // of TCP, as they were left
}

// note takes a round trip and the octets delivered in it.
func (p *pathRate) note(now, took time.Duration, octets uint32) {
	if took <= 0 {
		return
	}
	p.rates[p.rounds%rateRounds] = float64(octets) / took.Seconds()
	p.rounds++
	if p.smooth == 0 {
		p.smooth = took
	}
	if !p.lossy { // else the octets may have been sent again meanwhile
		p.smooth += (took - p.smooth) / 8
	}
	p.lossy = false
	if now-p.since > shortestFor {
		p.shortest[1], p.shortest[0], p.since = p.shortest[0], took, now
	}
	if p.shortest[0] == 0 || took < p.shortest[0] {
		p.shortest[0] = took
	}
}

// window is how many segments of mss octets the path is known to carry, in frames of up to burst octets.
func (p *pathRate) window(mss, burst int) int {
	rate := 0.0
	for _, r := range p.rates {
		rate = max(rate, r)
	}
	rtt := p.shortest[0]
	if p.shortest[1] != 0 {
		rtt = min(rtt, p.shortest[1])
	}
	if mss <= 0 {
		return 0
	}
	if burst > mss {
		burst = max(min(int(rate*burstTime.Seconds()), burst), mss)
	}
	return (int(rate*rtt.Seconds()) + 3*burst) / mss
}

// mark makes s the segment to wait for, if there is none, and reports whether its octets are new ones. Caller holds
// txSide.mu.
func (m *sample) mark(s *sentSegment, now *clock) (news bool) {
	end := s.tcp.SequenceNumber() + uint32(s.payload)
	if int32(end-m.high) <= 0 && m.high != 0 {
		return false
	}
	m.high = end
	if s.payload > s.mss && !m.set.Load() { // small ones tell of no rate
		m.end, m.at, m.acks = end, now.now(), m.delivered.Load()
		m.set.Store(true)
	}
	return true
}

// measure takes what acknowledgements have told of the path.
func (p *pathRate) measure(now time.Duration, s *tcp.TCPSenderState, board *tcp.SACKScoreboard, f *flow) {
	m := &f.sample
	delivered := uint32(s.SndUna) + uint32(board.Sacked())
	m.delivered.Store(delivered)
	if !m.set.Load() || int32(uint32(s.SndUna)-m.end) < 0 {
		return
	}
	if n := delivered - m.acks; int32(n) > 0 {
		p.note(now, now-m.at, n)
		f.tail.after.Store(int64(max(2*p.smooth, leastProbe)))
	}
	m.set.Store(false)
}

// keep sees what TCP has made of losses, and corrects that. drops are the frames that found no room in our own port.
func (p *pathRate) keep(s *tcp.TCPSenderState, burst int, drops uint64) {
	loss := s.Ssthresh < p.ssthresh
	p.lossy = p.lossy || s.FastRecovery.Active || loss
	switch {
	case !loss:
	case drops != p.drops:
		p.drops = drops // it is us who send more than goes out
	default:
		if w := min(p.window(s.MaxPayloadSize, burst), p.cwnd); w > s.Ssthresh {
			s.Ssthresh = w
			if s.FastRecovery.Active && s.SndCwnd < w {
				s.SndCwnd = w
			}
		}
	}
	p.cwnd, p.ssthresh = s.SndCwnd, s.Ssthresh
}
