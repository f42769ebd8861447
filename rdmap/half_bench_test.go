package rdmap

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/ddp"
	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/mpa"
)

// tape is a stream that, once it rolls, keeps or swallows what is written and plays
// what it holds over and over: a connection of which only one half has work.
type tape struct {
	*simnet.Stream
	rolling, keep bool
	data          []byte
	at            int // first octet of data not discarded
	pieces        [3][]byte
}

func (s *tape) Writev(parts [][]byte) error {
	if !s.rolling {
		return s.Stream.Writev(parts)
	}
	for _, p := range parts {
		if s.keep {
			s.data = append(s.data, p...)
		}
	}
	return nil
}

func (s *tape) Stage() []byte {
	if !s.rolling {
		return s.Stream.Stage()
	}
	return nil
}

func (s *tape) Room() int {
	if !s.rolling {
		return s.Stream.Room()
	}
	return 1 << 20
}

func (s *tape) MSS() int {
	if !s.rolling {
		return s.Stream.MSS()
	}
	return tapeMSS
}

// Peek shows two pieces, as a ring would whose end is 64 KiB away.
func (s *tape) Peek() ([][]byte, error) {
	if !s.rolling {
		return s.Stream.Peek()
	}
	left := s.data[s.at:]
	n := min(64<<10, len(left))
	m := min(64<<10, len(left)-n)
	s.pieces[0], s.pieces[1] = left[:n:n], left[n:n+m:n+m]
	return s.pieces[:2], nil
}

func (s *tape) Discard(n int) {
	if !s.rolling {
		s.Stream.Discard(n)
		return
	}
	if s.at += n; s.at == len(s.data) {
		s.at = 0
	}
}

// tapeMSS makes FPDUs of 1448 octets.
const tapeMSS = 1448

// halves are two ends of which each has a tape in place of the other.
type halves struct {
	a, b   *Stream
	ta, tb *tape
	op     Op
}

func newHalves(t testing.TB, size int) *halves {
	pool := newPool(t)
	na, nb := simnet.StreamPair(tapeMSS, 1<<16)
	h := &halves{ta: &tape{Stream: na}, tb: &tape{Stream: nb}}
	ma, mb := mpa.NewConn(h.ta, pool), mpa.NewConn(h.tb, pool)
	require.NoError(t, ma.Request(mpa.Config{ClientServer: true, NoCRC: true}, nil))
	_, ok, err := mb.RecvRequest(mpa.Config{NoCRC: true})
	require.True(t, ok, "%v", err)
	_, err = mb.Accept(mpa.Config{NoCRC: true}, nil)
	require.NoError(t, err)
	_, ok, err = ma.RecvReply()
	require.True(t, ok, "%v", err)
	t.Cleanup(ma.Drop)
	t.Cleanup(mb.Drop)
	tab := ddp.NewTable()
	for range 20 { // others
		newRegion(t, tab, 8, testPD, remoteRights)
	}
	mem, peer := newRegion(t, tab, size, testPD, remoteRights), newRegion(t, tab, size, testPD, remoteRights)
	h.a = NewStream(ma, Config{Table: tab, PD: testPD, QP: 1, Initiator: true})
	h.b = NewStream(mb, Config{Table: tab, PD: testPD, QP: 2})
	h.ta.rolling, h.tb.rolling = true, true
	h.op = Op{Kind: Write, SGL: []SGE{mem.sge(0, size)}, RemoteSTag: peer.stag, RemoteTO: peer.base}
	return h
}

// send does n Writes and flushes.
func (h *halves) send(n int) {
	for range n {
		if ok, err := h.a.Submit(&h.op); !ok {
			panic(err)
		}
		for {
			p, err := h.a.Pump()
			if err != nil {
				panic(err)
			}
			if p.Sent {
				break
			}
		}
	}
	if err := h.a.Flush(); err != nil {
		panic(err)
	}
}

// receive goes on for so many turns, each a little more than maxTurn octets.
func (h *halves) receive(turns int) {
	for n := 0; n < turns; {
		e, ok, err := h.b.Receive()
		if err != nil {
			panic(err)
		}
		if ok && e.Kind == Turn {
			n++
		}
	}
}

// BenchmarkHalf is the work of one side alone, over a stream that costs nothing
// and without CRC: ns/fpdu is what this package and those below take for an FPDU.
func BenchmarkHalf(b *testing.B) {
	for _, c := range []struct {
		name        string
		size, batch int
	}{{"1MiB", 1 << 20, 1}, {"64KiBx4", 64 << 10, 4}, {"64Bx32", 64, 32}} {
		b.Run("Send/"+c.name, func(b *testing.B) {
			h := newHalves(b, c.size)
			h.send(1)
			first := h.a.Stats().DDP.SegmentsOut
			b.ReportAllocs()
			for b.Loop() {
				h.send(c.batch)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(h.a.Stats().DDP.SegmentsOut-first), "ns/fpdu")
		})
		b.Run("Receive/"+c.name, func(b *testing.B) {
			h := newHalves(b, c.size)
			h.ta.keep = true
			h.send(c.batch)
			h.tb.data = h.ta.data
			h.receive(1)
			first := h.b.Stats().DDP.SegmentsIn
			b.ReportAllocs()
			for b.Loop() {
				h.receive(1)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(h.b.Stats().DDP.SegmentsIn-first), "ns/fpdu")
		})
	}
}
