package netstack

import (
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// What gVisor's recovery from losses (RFC 6675) leaves to the retransmission timer, which begins anew with a window of
// one segment, is found out here.

// recovery is what is known of the recovery of a connection. Guarded by the lock of its endpoint.
type recovery struct {
	next  uint32 // first sequence number not sent before the segments in hand were processed
	front uint32 // first octet that is missing, and was sent again
	proof uint32 // that it was lost again: octets from here on have arrived
	again bool   // the two mean something
}

// before is called before segments are processed.
func (r *recovery) before(s *tcp.TCPSenderState) { r.next = uint32(s.SndNxt) }

// answered is called before the answer to a probe is processed, if that tells of octets beyond a gap: what was sent
// before the probe and is missing is lost (RFC 8985), without any more duplicates.
func (r *recovery) answered(s *tcp.TCPSenderState, board *tcp.SACKScoreboard) {
	if s.FastRecovery.Active {
		s.FastRecovery.HighRxt = s.SndUna - 1
		return
	}
	// gVisor counts three, and only those that tell something new. The peer may have told of the probe's octets before.
	s.DupAckCount = max(s.DupAckCount, 2)
	if blocks, _ := board.Copy(); len(blocks) > 0 {
		board.Reset()
		for _, b := range blocks[:len(blocks)-1] {
			board.Insert(b)
		}
	}
}

// after is called after segments are processed.
func (r *recovery) after(s *tcp.TCPSenderState, board *tcp.SACKScoreboard) {
	fr, una := &s.FastRecovery, uint32(s.SndUna)
	switch {
	case !fr.Active || int32(uint32(fr.HighRxt)-una) < 0:
		r.again = false
	case !r.again || una != r.front:
		r.again, r.front, r.proof = true, una, r.next
	case int32(uint32(board.MaxSACKED())-r.proof) > int32(2*s.MaxPayloadSize):
		// Octets that were sent after the first missing ones were sent again have arrived: those are lost once more. Back
		// to the first gap.
		fr.HighRxt = s.SndUna - 1
		r.again = false
	}
	// After one recovery gVisor begins the next only when more is acknowledged than was under way at its beginning (RFC
	// 6582), so that the loss of the very next segment would wait for the timer. With selective acknowledgements it is
	// enough that all of it is (RFC 6675, Section 5.1).
	if !fr.Active && fr.Last == s.SndUna-1 {
		fr.Last--
	}
}
