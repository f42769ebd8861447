package demo

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/pattern"
	"github.com/softrdma/softrdma/verbs"
)

// wordSize is what an atomic works on, in octets.
const wordSize = 8

// atomic has a change a word of b's memory and looks at what it fetched, at the
// word, and at the memory around both. A compare and swap comes twice: once it
// finds what it compares with, once it does not.
func (t *transfer) atomic(ctx context.Context, s *Step, op verbs.Opcode) error {
	seed := t.prepare(t.b, t.a, wordSize)
	was := binary.NativeEndian.Uint64(t.b.message(wordSize))
	wr := verbs.SendWR{Op: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{t.a.sge(wordSize)}, Remote: t.b.name()}
	next := pattern.Seed(seed, 1)
	if wr.Val = next - was; op == verbs.OpCompareSwap {
		wr.Compare, wr.Val = was, next
	}
	start := time.Now()
	for i, fetched := range []uint64{was, next} {
		if i == 1 && op != verbs.OpCompareSwap {
			break
		}
		err := t.a.send(wr)
		if err == nil {
			_, err = t.a.complete(ctx)
		}
		if i == 0 {
			s.timed(start)
		}
		if err != nil {
			return t.over(ctx, s, t.a, 0, seed, err)
		}
		t.word(s, "the word that was fetched", t.a, fetched)
		t.word(s, "the word that was changed", t.b, next)
	}
	g := t.a.guards(wordSize)
	for i, where := range []string{"the memory before the word", "the memory behind the word"} {
		if d := pattern.CheckByte(g[i][:guard], untouched); !d.OK() {
			s.wrongData(where, d)
		}
	}
	return nil
}

// word compares the word in a host's memory with what it should be.
func (t *transfer) word(s *Step, where string, h *host, want uint64) {
	var w [wordSize]byte
	binary.NativeEndian.PutUint64(w[:], want)
	if d := pattern.CheckOctets(h.message(wordSize), w[:]); !d.OK() {
		s.wrongData(where, d)
	}
}
