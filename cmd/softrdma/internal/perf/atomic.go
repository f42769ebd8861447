package perf

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/cmd/softrdma/internal/pattern"
	"github.com/softrdma/softrdma/verbs"
)

// Atomics go round the words of the server's memory, which in a latency test is
// one. Each word takes a sequence of random values, the same for both sides: an
// atomic finds one of them and leaves the next. So a wrong, lost or doubled
// atomic, or two in the wrong order, show in what the next one fetches.

// atomicOpcode is the work request of an atomic.
func (o Op) atomicOpcode() verbs.Opcode {
	if o == CompareSwap {
		return verbs.OpCompareSwap
	}
	return verbs.OpFetchAdd
}

// value is that of a word after so many atomics.
func (l *lane) value(word, times uint64) uint64 {
	return pattern.Seed(messageSeed(l.seed, l.n, word), times)
}

// operands makes wr the atomic number seq.
func (l *lane) operands(wr *verbs.SendWR, seq uint64) {
	n := uint64(l.theirs.words(l.test))
	was := l.value(seq%n, seq/n)
	next := l.value(seq%n, seq/n+1)
	if l.test.Op == CompareSwap {
		wr.Compare, wr.Val = was, next
	} else {
		wr.Val = next - was
	}
}

// checkFetched compares what atomic seq has fetched to b with what it must have
// found.
func (l *lane) checkFetched(seq uint64, b []byte) {
	n := uint64(l.theirs.words(l.test))
	l.checkWord("atomic", seq, b, l.value(seq%n, seq/n))
}

// checkWord compares a word in memory with a value.
func (l *lane) checkWord(what string, seq uint64, b []byte, want uint64) {
	var w [AtomicSize]byte
	binary.NativeEndian.PutUint64(w[:], want)
	l.count(what, seq, pattern.CheckOctets(b, w[:]))
}

// words is how many words atomics go round in memory of this layout.
func (l layout) words(t *Test) int {
	if t.Kind == Latency {
		return 1
	}
	return l.slots
}

// word is the memory of one of the server's words.
func (l *serverLane) word(i uint64) int { return l.base + int(i)*l.layout.stride }

// prefillWords puts the first value into each word.
func (l *serverLane) prefillWords() {
	for i := range uint64(l.layout.words(l.test)) {
		l.mem.Uint64(l.word(i)).Store(l.value(i, 0))
	}
}

// checkWords compares the words with what they must be after so many atomics.
func (l *serverLane) checkWords(sent uint64) {
	n := uint64(l.layout.words(l.test))
	for i := range n {
		times := sent / n
		if i < sent%n {
			times++
		}
		var b [AtomicSize]byte
		binary.NativeEndian.PutUint64(b[:], l.mem.Uint64(l.word(i)).Load())
		l.checkWord("word", i, b[:], l.value(i, times))
	}
}
