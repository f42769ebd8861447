package ddp

import "github.com/softrdma/softrdma/mpa"

// tx is the send half of a Stream: the message being cut into segments.
type tx struct {
	msn  [queues]MSN // of the next message of each queue
	busy bool

	tagged bool
	ulp    byte
	word   uint32 // untagged: rest of RsvdULP
	qn     uint32
	num    MSN
	stag   STag
	to     uint64 // of the first octet
	size   uint32
	sent   uint32

	segments, octets uint64 // not yet in Stats

	head [UntaggedLen]byte
}

// StartUntagged begins a message of size octets on queue qn. ulp and word fill
// RsvdULP. No other message is in progress.
func (s *Stream) StartUntagged(qn uint32, ulp byte, word, size uint32) {
	t := &s.tx
	t.start(size)
	t.tagged, t.ulp, t.word, t.qn = false, ulp, word, qn
	t.num = t.msn[qn]
	t.msn[qn] = t.num.Next()
}

// StartTagged begins a message of size octets for region stag of the peer, from
// tagged offset to on. The caller has made sure with [Wraps] that the range
// does not pass 2^64. No other message is in progress.
func (s *Stream) StartTagged(ulp byte, stag STag, to uint64, size uint32) {
	t := &s.tx
	t.start(size)
	t.tagged, t.ulp, t.stag, t.to = true, ulp, stag, to
}

func (t *tx) start(size uint32) {
	if t.busy {
		panic("ddp: a message is in progress already")
	}
	t.busy, t.size, t.sent = true, size, 0
}

// Wraps reports whether n octets from tagged offset to on pass 2^64. Ending
// exactly there is fine.
func Wraps(to, n uint64) bool { return n != 0 && n-1 > ^uint64(0)-to }

// Busy reports whether a message is in progress.
func (s *Stream) Busy() bool { return s.tx.busy }

// Sent returns how many octets of the message in progress have been written.
func (s *Stream) Sent() uint32 { return s.tx.sent }

// Room returns the payload octets of the next segment, cut for the MULPDU of
// this moment, and whether the connection takes it now. If not, Flush and wait
// until the stream is writable.
func (s *Stream) Room() (n int, ok bool) {
	t := &s.tx
	head, rest := t.headLen(), uint64(t.size-t.sent)
	if rest+uint64(head) > mpa.MinMULPDU { // what is no longer need not ask
		if mulpdu := s.conn.MULPDU(); rest+uint64(head) > uint64(mulpdu) {
			rest = uint64(PayloadMax(mulpdu, head))
		}
	}
	n = int(rest)
	return n, s.conn.CanWrite(head + n)
}

// PayloadMax returns the payload of a segment that others follow: as much as
// the MULPDU allows, and so much that the FPDU needs no pad octets.
func PayloadMax(mulpdu, head int) int { return (mulpdu+2)&^3 - 2 - head }

func (t *tx) headLen() int {
	if t.tagged {
		return TaggedLen
	}
	return UntaggedLen
}

// Write sends the next segment, with the payload that Room asked for. It
// borrows payload for the call. done is true when that was the last one.
func (s *Stream) Write(payload [][]byte) (done bool, err error) {
	t := &s.tx
	n := uint32(0)
	for _, p := range payload {
		n += uint32(len(p))
	}
	last := t.sent+n == t.size
	var h Header
	if t.tagged {
		h = PutTagged(t.head[:], last, t.ulp, t.stag, t.to+uint64(t.sent))
	} else {
		h = PutUntagged(t.head[:], last, t.ulp, t.word, t.qn, t.num, t.sent)
	}
	if err := s.conn.Write(h, payload); err != nil {
		return false, err
	}
	t.segments++
	t.octets += uint64(n)
	t.sent += n
	t.busy = !last
	return last, nil
}

// Abandon gives up the message in progress between two segments; only a
// Terminate may follow.
func (s *Stream) Abandon() { s.tx.busy = false }

// Flush hands everything written to the byte stream and brings Stats up to date.
func (s *Stream) Flush() error {
	if t := &s.tx; t.segments > 0 {
		s.stats.segmentsOut.Add(t.segments)
		s.stats.octetsOut.Add(t.octets)
		t.segments, t.octets = 0, 0
	}
	return s.conn.Flush()
}

// Table returns the table the stream places into.
func (s *Stream) Table() *Table { return s.table }
