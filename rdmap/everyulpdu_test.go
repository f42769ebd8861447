package rdmap

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/mempool"
	"github.com/softrdma/softrdma/mpa"
)

// doing is what an end does when a ULPDU arrives: each lets another parser be reached.
type doing uint8

const (
	idle     doing = iota // a responder that has heard nothing yet
	reading               // a Read is outstanding
	adding                // an atomic operation is outstanding
	sendOpen              // the first octet of a Send has come
	doings
)

// listener is an end that does something, with all it may touch.
type listener struct {
	k    *scene
	e    *end
	peer *raw
	sink *region
}

func newListener(t testing.TB, pool *mempool.Pool, d doing) *listener {
	k := newScene(t)
	cfg := k.config()
	cfg.Initiator = d != idle
	l := &listener{k: k, sink: fixedRegion(t, k.table, 16, testPD, ddp.LocalWrite, 0x1000, 0xaabbcc01)}
	l.e, l.peer = newRawPool(t, cfg, pool)
	l.e.recvs = []RecvBuf{{ID: 1, SGL: []SGE{k.recv.sge(0, 16)}}}
	switch d {
	case reading:
		l.e.post(&Op{Kind: Read, ID: 3, RemoteSTag: 1, SGL: []SGE{l.sink.sge(0, 16)}})
	case adding:
		l.e.post(&Op{Kind: FetchAdd, ID: 5, RemoteSTag: 1, SGL: []SGE{l.sink.sge(0, 8)}})
	case sendOpen:
		l.peer.play(fpdu(untaggedSeg(0x01, 0x43, 0, 0, 1, 0, 1)))
	}
	settle(l.e)
	l.peer.read()
	l.peer.got = nil
	l.e.events = nil
	return l
}

// outcomes has what a message of each opcode leads to.
var outcomes = map[byte]struct {
	event EventKind // 0: none
	parts bool      // part of it leads to nothing
	len   int       // of the ULPDU; 0: any
}{
	0: {0, true, 0}, 1: {RequestQueued, false, 46}, 2: {ReadDone, true, 0},
	3: {RecvDone, true, 0}, 4: {RecvDone, true, 0}, 5: {RecvDone, true, 0}, 6: {RecvDone, true, 0},
	8: {RecvDone, false, 26}, 9: {RecvDone, false, 26}, 10: {RequestQueued, false, 70}, 11: {ReadDone, false, 30},
}

// hear plays a ULPDU under the right CRC and tells what is wrong with the outcome:
// it must be an error with its Terminate, or what such a message leads to.
func (l *listener) hear(t testing.TB, u []byte) error {
	l.peer.play(fpdu(u))
	settle(l.e)
	for _, g := range []*region{l.k.s, l.k.r, l.k.w, l.k.p, l.k.recv, l.sink} {
		g.intact(t)
	}
	for _, g := range []*region{l.k.r, l.k.p} {
		g.untouched(t)
	}
	var events []EventKind
	for _, ev := range l.e.events {
		if ev.Kind != FirstFPDU {
			events = append(events, ev.Kind)
		}
	}
	err := l.e.rxErr
	short := len(u) < 14 || u[0]&0x80 == 0 && len(u) < 18
	var (
		link *mpa.Error
		own  *Error
		low  *ddp.Error
		said *PeerError
	)
	switch {
	case errors.As(err, &link):
		if !errors.Is(err, ddp.ErrShort) || link.Code != mpa.CodeMarker || !short && u[1]&0xf != 1 {
			return fmt.Errorf("the error is %w", err)
		}
	case short:
		return fmt.Errorf("shorter than its header, and the outcome is %v, events %v", err, events)
	case errors.As(err, &said):
		term := said.Terminate
		if u[1]&0xf != 7 || !bytes.Contains(u, append(bytes.Clone(term.DDPHeader), term.ReadHeader...)) {
			return fmt.Errorf("the peer did not say that: %+v", term)
		}
		if term.String() == "" || len(l.e.txErrs) > 0 {
			return fmt.Errorf("errors %v", l.e.txErrs)
		}
		l.peer.silent()
		return nil
	case err == nil:
		o, known := outcomes[u[1]&0xf]
		whole := len(events) == 1 && events[0] == o.event
		if !known || o.len > 0 && len(u) != o.len || !whole && (len(events) > 0 || !o.parts) {
			return fmt.Errorf("no error, events %v", events)
		}
		return nil
	case !errors.As(err, &own) && !errors.As(err, &low):
		return fmt.Errorf("not an error of the peer: %w", err)
	}
	if len(events) > 0 {
		return fmt.Errorf("events %v with %w", events, err)
	}
	want, ok := TerminateOf(err)
	l.peer.read()
	if !ok || !bytes.Equal(fpdu(append(untaggedSeg(0x41, 0x47, 0, 2, 1, 0), want.append(nil)...)), l.peer.got) {
		return fmt.Errorf("% x was sent for %w", l.peer.got, err)
	}
	return nil
}

// TestEveryULPDU gives ULPDUs of 0 to 80 octets under a right CRC to each of the
// parsers behind MPA.
func TestEveryULPDU(t *testing.T) {
	const longest = 80
	pool := newPool(t)
	try := func(t testing.TB, d doing, u []byte) {
		if err := newListener(t, pool, d).hear(t, u); err != nil {
			require.NoError(t, err, "doing %d, the ULPDU % x", d, u)
		}
	}
	t.Run("SEC-37 DDP-05 SEC-43 every message, cut and filled up to every length", func(t *testing.T) {
		good := [][]byte{atomicResp(1, 0, 9), taggedSeg(0xc1, 0x42, 0xaabbcc01, 0x1000, make([]byte, 16)...), untaggedSeg(0x41, 0x43, 0, 0, 1, 1, 2)}
		for _, v := range allVectors {
			b := unhex(t, v)
			good = append(good, b[2:2+int(b[1])])
		}
		for _, g := range good {
			for n := range longest + 1 {
				u := append(bytes.Clone(g), bytes.Repeat([]byte{0xff}, longest)...)[:n:n]
				for d := range doings {
					if slow == 1 || n < len(g)+2 {
						try(t, d, u)
					}
				}
			}
		}
	})
	t.Run("SEC-37 every opcode in either model, of every length", func(t *testing.T) {
		for op := range byte(16) {
			for _, control := range []byte{0x41, 0xc1, 0x01, 0x81} {
				for n := 0; n <= longest; n += 1 + (slow-1)/3 {
					u := make([]byte, longest)
					u[0], u[1] = control, 0x40|op
					if control&0x80 == 0 {
						u[9], u[13] = map[byte]byte{1: 1, 10: 1, 7: 2, 11: 3}[op], 1
					}
					try(t, doing(n)%doings, u[:n:n])
				}
			}
		}
	})
	t.Run("SEC-37 any octets behind headers near those of every opcode", func(t *testing.T) {
		number := rapid.OneOf(rapid.Uint32Range(0, 4), rapid.SampledFrom([]uint32{math.MaxUint32, 1 << 31, 0x12345678, 0xaabbcc01}), rapid.Uint32())
		queue := map[byte]uint32{1: 1, 10: 1, 7: 2, 11: 3}
		outer := t
		rapid.Check(t, func(t *rapid.T) {
			for range 10 {
				op := rapid.ByteRange(0, 15).Draw(t, "opcode")
				control := rapid.SampledFrom([]byte{0x41, 0xc1, 0x01, 0x81, 0x40, 0x42, 0xc0, 0xff}).Draw(t, "control")
				ulp := rapid.SampledFrom([]byte{0x40, 0x40, 0x40, 0x70, 0x00, 0x80, 0xc0}).Draw(t, "version") | op
				var u []byte
				switch {
				case control&0x80 != 0:
					u = taggedSeg(control, ulp, ddp.STag(number.Draw(t, "STag")), rapid.SampledFrom([]uint64{0x1000, base, 0, math.MaxUint64}).Draw(t, "TO"))
				case rapid.Bool().Draw(t, "in its queue"):
					u = untaggedSeg(control, ulp, number.Draw(t, "word"), queue[op], 1, 0)
				default:
					u = untaggedSeg(control, ulp, number.Draw(t, "word"), number.Draw(t, "QN"), number.Draw(t, "MSN"), number.Draw(t, "MO"))
				}
				u = append(u, rapid.SliceOfN(rapid.Byte(), longest-14, longest-14).Draw(t, "payload")...)
				n := rapid.OneOf(rapid.IntRange(0, longest), rapid.SampledFrom([]int{13, 14, 15, 17, 18, 19, 22, 23, 24, 26, 30, 45, 46, 47, 69, 70, 71})).Draw(t, "length")
				d := doing(rapid.ByteRange(0, byte(doings)-1).Draw(t, "doing"))
				if err := newListener(outer, pool, d).hear(outer, u[:n:n]); err != nil {
					t.Fatalf("doing %d, the ULPDU % x: %v", d, u[:n], err)
				}
			}
		})
	})
}
