package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/softrdma/softrdma/pktio"
)

// tap is the damaged wire: it wraps the port of device A, so that it sees the frames
// of both directions in the order they pass.
type tap struct {
	pktio.Port
	one [1]pktio.Frame // Send's own
	buf []byte

	mu     sync.Mutex // guards what follows
	rnd    *rand.Rand
	every  int    // one frame in so many is flipped; 0: none
	lose   int    // one in so many is lost, and one in so many doubled; 0: none
	only   bool   // flip payload of Sends, Writes and Read Responses alone
	wait   int    // frames until the next flip
	frames uint64 // that carried TCP
	data   uint64 // of those, with payload
	lost   uint64
	twice  uint64
	stale  int
	live   map[ports]*link
	past   []*link
	err    error // the ledger cannot be trusted
}

// ports name a connection as long as it lives. A takes the same port for several
// listeners of B.
type ports struct{ a, b uint16 }

// link is one connection.
type link struct {
	ports
	toB    flow
	toA    flow
	resets int // before both sides had said FIN
}

func newTap(seed uint64, every, lose int, only bool) *tap {
	t := &tap{rnd: rand.New(rand.NewPCG(seed, 0x636f7272)), every: every, lose: lose, only: only, live: map[ports]*link{}}
	t.draw()
	return t
}

func (t *tap) draw() {
	if t.every > 0 {
		t.wait += 1 + t.rnd.IntN(2*t.every-1)
	}
}

// stop ends the damage.
func (t *tap) stop() {
	t.mu.Lock()
	t.every, t.lose = 0, 0
	t.mu.Unlock()
}

func (t *tap) passed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frames
}

func (t *tap) once(n int) bool { return n > 0 && t.rnd.IntN(n) == 0 }

// Send passes frames on to B. The sender's octets are borrowed: damage is done to a copy.
func (t *tap) Send(batch []pktio.Frame) (int, error) {
	for i := range batch {
		f := &batch[i]
		n := f.Len()
		if cap(t.buf) < n {
			t.buf = make([]byte, n)
		}
		b := t.buf[:n]
		f.CopyTo(b)
		copies := t.pass(b, true)
		t.one[0].Data = append(t.one[0].Data[:0], b)
		t.one[0].Offload = f.Offload
		for k := range copies {
			if taken, err := t.Port.Send(t.one[:]); taken == 0 && k == 0 {
				return i, err
			}
		}
	}
	return len(batch), nil
}

// Recv passes frames on to A. They are damaged where they lie: nobody else has them.
func (t *tap) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	for {
		n, err := t.Port.Recv(batch, wait)
		if n == 0 {
			return n, err
		}
		kept := 0
		for i := range n {
			f := &batch[i]
			if len(f.Data) != 1 {
				t.distrust(fmt.Errorf("a frame came in %d pieces", len(f.Data)))
			}
			if t.pass(f.Data[0], false) > 0 {
				batch[kept], batch[i] = batch[i], batch[kept]
				kept++
			}
		}
		if kept > 0 || wait >= 0 {
			return kept, err
		}
	}
}

func (t *tap) distrust(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
}

// pass notes a frame, damages it as the dice say, and returns how often it goes on.
func (t *tap) pass(b []byte, out bool) (copies int) {
	p, ok := parse(b)
	if !ok {
		return 1
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frames++
	t.wait--
	l := t.link(&p, out)
	if l == nil {
		return 1
	}
	f, back := &l.toB, &l.toA
	if !out {
		f, back = back, f
	}
	if p.flags&flagSYN != 0 && !f.open {
		f.open, f.isn = true, p.seq
	}
	if p.flags&flagACK != 0 && back.open {
		if at := back.offset(p.ack); at > int64(back.acked) {
			back.acked = uint64(min(at, int64(back.next)))
		}
	}
	f.fin = f.fin || p.flags&flagFIN != 0
	if p.flags&flagRST != 0 && !(f.fin && back.fin) {
		l.resets++
	}
	if len(p.payload) > 0 && f.open {
		t.payload(&p, f)
	}
	switch {
	case t.once(t.lose):
		t.lost++
		return 0
	case t.once(t.lose):
		t.twice++
		return 2
	}
	return 1
}

// link finds the connection of a segment, or begins one.
func (t *tap) link(p *packet, out bool) *link {
	k := ports{p.to, p.from}
	if out {
		k = ports{p.from, p.to}
	}
	l := t.live[k]
	if out && p.flags&(flagSYN|flagACK) == flagSYN && (l == nil || l.toB.isn != p.seq) {
		if l != nil {
			t.past = append(t.past, l)
		}
		l = &link{ports: k}
		t.live[k] = l
	}
	return l
}

// farOff is far outside any window.
const farOff = 64 << 20

// payload follows the octets of a segment and does the damage.
func (t *tap) payload(p *packet, f *flow) {
	t.data++
	from := f.offset(p.seq)
	to := from + int64(len(p.payload))
	fresh := int64(f.next) - from // octets that have passed before
	switch {
	case fresh < -farOff: // of an earlier connection of these ports: TCP takes it for nothing
		return
	case fresh < 0: // those before it did not get so far: it passes as it is
		f.keepAhead(uint64(from), p.payload)
		return
	case fresh >= int64(len(p.payload)):
		f.applies(from, to, func(x flip) {
			p.flip(int(int64(x.pos)-from), x.bit)
			f.repeats++
		})
		if t.every > 0 && t.wait <= 0 && !t.only && to <= int64(f.acked) {
			p.flip(t.rnd.IntN(len(p.payload)), 1<<t.rnd.IntN(8))
			t.stale++
			t.draw()
		}
		return
	}
	if t.every > 0 && t.wait <= 0 {
		first := min(uint64(to), f.passed()) - f.next // octets that no copy has passed of
		at := int(fresh) + t.rnd.IntN(int(first))
		if !t.only || t.isPayload(p, f, at, int(fresh)) {
			f.pending = append(f.pending, flip{pos: uint64(from) + uint64(at), bit: 1 << t.rnd.IntN(8)})
			t.draw()
		}
	}
	chosen := append([]flip(nil), f.pending...)
	chosen = append(chosen, f.flips...)
	f.follow(p.payload[fresh:])
	for _, x := range chosen {
		if int64(x.pos) >= from && int64(x.pos) < to {
			p.flip(int(int64(x.pos)-from), x.bit)
		}
	}
}

// isPayload says whether an octet is payload of an FPDU that begins with this segment
// and is a Write, a Read Response or a Send.
func (t *tap) isPayload(p *packet, f *flow, at, fresh int) bool {
	if fresh > 0 || f.at != f.next || f.startup == 0 || len(p.payload) < 24 {
		return false
	}
	b := p.payload
	n := int(b[0])<<8 | int(b[1])
	switch b[3] & 0x0f {
	case 0, 2, 3:
		return at >= 2+18 && at < 2+n
	}
	return false
}
