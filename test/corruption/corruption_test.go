package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/internal/wiretest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestDiffer(t *testing.T) {
	for n := range 40 {
		b := make([]byte, n)
		fill(b, 5)
		require.Equal(t, -1, differ(b, 5))
		for i := range b {
			b[i] ^= 0x10
			require.Equal(t, i, differ(b, 5))
			b[i] ^= 0x10
		}
		if n > 8 {
			require.NotEqual(t, -1, differ(b, 6))
		}
	}
}

// sum is the one's complement sum of RFC 1071.
func sum(b []byte) uint16 {
	s := uint32(0)
	for i, c := range b {
		s += uint32(c) << (8 * (1 - i&1))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// segment makes a frame with a TCP segment. Its checksum leaves the pseudo header out,
// which no flip touches.
func segment(payload []byte) []byte {
	b := make([]byte, 14+20+20+len(payload))
	b[12], b[14], b[23] = 8, 0x45, 6
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
	b[34+12] = 5 << 4
	copy(b[54:], payload)
	binary.BigEndian.PutUint16(b[34+16:], ^sum(b[34:]))
	return b
}

func TestFlipKeepsChecksum(t *testing.T) {
	for n := 1; n < 12; n++ {
		for at := range n {
			for bit := range 8 {
				b := segment(bytes.Repeat([]byte{0x5a}, n))
				p, ok := parse(b)
				require.True(t, ok)
				p.flip(at, 1<<bit)
				require.EqualValues(t, 0x5a^1<<bit, b[54+at])
				require.EqualValues(t, 0xffff, sum(b[34:]))
			}
		}
	}
	_, ok := parse(segment([]byte("x"))[:53])
	require.False(t, ok)
}

// stream is a direction with FPDUs of all sorts; ends holds where startup frame and
// FPDUs end.
func stream() (b []byte, ends []int) {
	add := func(o []byte) { b = append(b, o...); ends = append(ends, len(b)) }
	add(wiretest.Startup{Rev: 2, Private: []byte("12345")}.Octets())
	for _, v := range wiretest.FPDUs() {
		add(v.Octets)
	}
	add(wiretest.Frame(wiretest.Tagged(0, true, 1, 2, make([]byte, 1001)), true))
	return b, ends
}

// TestFlow follows a stream in pieces of any size with one flip, at each octet.
func TestFlow(t *testing.T) {
	b, ends := stream()
	rnd := rand.New(rand.NewPCG(1, 2))
	for at := range b {
		f := flow{}
		f.pending = append(f.pending, flip{pos: uint64(at), bit: 1})
		for rest := b; len(rest) > 0; {
			n := min(1+rnd.IntN(60), len(rest))
			f.follow(rest[:n])
			rest = rest[n:]
		}
		require.EqualValues(t, len(ends)-1, f.fpdus)
		require.Equal(t, 1, f.terms, "TERM-2002 is one of the vectors")
		require.Equal(t, 5, f.others)
		require.Len(t, f.flips, 1)
		x := f.flips[0]
		k := 0
		for ends[k] <= at {
			k++
		}
		start := 0
		if k > 0 {
			start = ends[k-1]
		}
		require.EqualValues(t, start, x.at)
		want := inStartup
		if k > 0 {
			n := int(binary.BigEndian.Uint16(b[start:]))
			head := 18
			if b[start+2]&0x80 != 0 {
				head = 14
			}
			switch off := at - start; {
			case off < 2:
				want = inLength
			case off < 2+head:
				want = inHeader
			case off < 2+n:
				want = inPayload
			case off < ends[k]-start-4:
				want = inPad
			default:
				want = inCRC
			}
		}
		require.Equal(t, fieldNames[want], fieldNames[x.field], "octet %d", at)

		// All of it received, but for the last octet of that FPDU, and all.
		var count [fatesN]int
		f.acked = uint64(ends[k] - 1)
		g := f
		due := g.verdict(&count)
		if k > 0 && want != inLength {
			require.False(t, due)
			require.Equal(t, 1, count[undelivered])
		}
		f.acked, count = uint64(len(b)), [fatesN]int{}
		due = f.verdict(&count)
		switch {
		case k == 0:
			require.False(t, due)
			require.Equal(t, 1, count[byStartup])
		case want == inLength && (at-start == 0 || count[cutShort] > 0):
			require.Equal(t, count[hit] == 1, due)
		default:
			require.True(t, due, "octet %d", at)
			require.Equal(t, 1, count[hit])
		}
	}
}

// TestVerdictOfSeveral counts one termination however many flips there are.
func TestVerdictOfSeveral(t *testing.T) {
	b, ends := stream()
	f := flow{}
	for _, at := range []int{ends[2] + 1, ends[1] + 9, ends[1] + 10, ends[3]} { // a length is among those behind
		f.pending = append(f.pending, flip{pos: uint64(at), bit: 4})
	}
	f.follow(b)
	f.acked = uint64(len(b))
	var count [fatesN]int
	require.True(t, f.verdict(&count))
	require.Equal(t, [fatesN]int{hit: 1, sameFPDU: 1, behind: 2}, count)
}

// TestLengthCutShort is a length that became longer than all that follows.
func TestLengthCutShort(t *testing.T) {
	b, ends := stream()
	f := flow{pending: []flip{{pos: uint64(ends[3]), bit: 0x80}}}
	f.follow(b)
	f.acked = uint64(len(b))
	var count [fatesN]int
	require.False(t, f.verdict(&count))
	require.Equal(t, [fatesN]int{cutShort: 1}, count)
}

// TestWrong has everything that must end in exit code 1.
func TestWrong(t *testing.T) {
	good := func() outcome {
		o := outcome{run: &run{tap: &tap{}}, due: 3, sent: 3, counted: 4, startEnds: 1}
		o.fates[hit] = 3
		o.run.crcEnds.Store(4)
		return o
	}
	o := good()
	require.Empty(t, o.wrong())
	for name, spoil := range map[string]func(*outcome){
		"wrong octets":         func(o *outcome) { o.run.wrong.Store(1) },
		"one too few":          func(o *outcome) { o.sent, o.unmatched = 2, 1 },
		"one elsewhere":        func(o *outcome) { o.unmatched = 2 },
		"the devices differ":   func(o *outcome) { o.counted++ },
		"queue pairs differ":   func(o *outcome) { o.run.crcEnds.Store(3) },
		"another Terminate":    func(o *outcome) { o.others = 1 },
		"nothing flipped":      func(o *outcome) { o.fates = [fatesN]int{} },
		"an untrusted ledger":  func(o *outcome) { o.err = context.Canceled },
		"more ends than flips": func(o *outcome) { o.run.crcEnds.Store(5) },
	} {
		o := good()
		spoil(&o)
		require.NotEmpty(t, o.wrong(), name)
	}
}

// TestRun runs the whole, with so much damage that connections hardly begin.
func TestRun(t *testing.T) {
	t.Run("SEC-49 MPA-56 MPA-59 nothing damaged is placed or delivered, and each first damage of a direction is a CRC termination", func(t *testing.T) {
		o := options{frames: 8000, every: 40, lose: 500, lanes: 2, mtu: 1500, seed: 3}
		if testing.Short() {
			o.frames = 2000
		}
		var out bytes.Buffer
		require.NoError(t, o.all(context.Background(), &out), "%s", &out)
		require.Contains(t, out.String(), "every flip is accounted for")
		t.Log(out.String())
	})
}

// TestOutOfOrder follows a stream whose segments pass in any order, some of them more
// than once and cut anew, with flips in what passes for the first time in order.
func TestOutOfOrder(t *testing.T) {
	b, ends := stream()
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		tap := newTap(seed, 3, 0, false)
		f := flow{open: true}
		var cuts []int // where segments begin
		for at := 0; at < len(b); at += 1 + rnd.IntN(200) {
			cuts = append(cuts, at)
		}
		got := make([]byte, len(b)) // what the receiver takes: the first copy, or the last
		have := make([]bool, len(b))
		send := func(from, to int) {
			frame := segment(b[from:to])
			binary.BigEndian.PutUint32(frame[34+4:], 1+uint32(from))
			p, ok := parse(frame)
			require.True(t, ok)
			tap.wait--
			tap.payload(&p, &f)
			for i, o := range p.payload {
				if !have[from+i] || seed%2 == 0 {
					got[from+i], have[from+i] = o, true
				}
			}
		}
		for _, i := range rnd.Perm(len(cuts)) {
			end := len(b)
			if i+1 < len(cuts) {
				end = cuts[i+1]
			}
			send(cuts[i], end)
			if rnd.IntN(4) == 0 {
				from := rnd.IntN(len(b))
				send(from, min(len(b), from+1+rnd.IntN(500)))
			}
		}
		require.EqualValues(t, len(b), f.next)
		require.Empty(t, f.ahead)
		require.EqualValues(t, len(ends)-1, f.fpdus)
		want := bytes.Clone(b)
		f.finish()
		for _, x := range f.flips {
			want[x.pos] ^= x.bit
		}
		require.True(t, bytes.Equal(want, got), "seed %d: every copy has the flips that the ledger tells of, and no others", seed)
	}
}
