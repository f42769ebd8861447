package iwarp_test

import (
	"fmt"
	"testing"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// benchLinks are the carriers that need no right.
func benchLinks(b *testing.B, bench func(b *testing.B, l link)) {
	b.Run("pipe", func(b *testing.B) { bench(b, pipe(b, iwarp.PipeConfig{})) })
	b.Run("kernel", func(b *testing.B) { bench(b, kernel(b, iwarp.Protocol{})) })
}

// BenchmarkStream keeps a window of work requests in flight.
func BenchmarkStream(b *testing.B) {
	const window = 16
	benchLinks(b, func(b *testing.B, l link) {
		p := l.connect(b, arena, nil)
		for _, op := range []verbs.Opcode{verbs.OpWrite, verbs.OpRead} {
			for _, size := range []int{64, 4096, 64 << 10, 1 << 20} {
				b.Run(fmt.Sprintf("%v/%d", op, size), func(b *testing.B) {
					b.SetBytes(int64(size))
					b.ReportAllocs()
					wr := []verbs.SendWR{{Op: op, Flags: verbs.SendSignaled,
						SGL: []verbs.SGE{p.mine.mr.SGE(0, size)}, Remote: p.theirs.remote.Slice(0, size)}}
					var wcs [window]verbs.WC
					ctx := b.Context()
					posted, done := 0, 0
					for done < b.N {
						for posted < b.N && posted-done < window {
							if _, err := p.mine.PostSend(wr); err != nil {
								b.Fatal(err)
							}
							posted++
						}
						n, err := p.mine.cq.Wait(ctx, wcs[:])
						if err != nil {
							b.Fatal(err)
						}
						for _, wc := range wcs[:n] {
							if wc.Err() != nil {
								b.Fatal(wc.Err())
							}
						}
						done += n
					}
				})
			}
		}
	})
}

// BenchmarkPingPong is one Send each way per round.
func BenchmarkPingPong(b *testing.B) {
	benchLinks(b, func(b *testing.B, l link) {
		for _, size := range []int{64, 4096, 64 << 10} {
			b.Run(fmt.Sprint(size), func(b *testing.B) {
				recv := func(e *end) []verbs.RecvWR {
					return []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{e.mr.SGE(0, size)}}}
				}
				p := l.connect(b, arena, func(e *end, qp *verbs.QP) error {
					_, err := qp.PostRecv(recv(e))
					return err
				})
				b.ReportAllocs()
				play := func(e *end, first bool) error {
					in, out := recv(e), []verbs.SendWR{{Op: verbs.OpSend, SGL: []verbs.SGE{e.mr.SGE(size, size)}}}
					var wc [1]verbs.WC
					for i := range b.N {
						if first || i > 0 {
							if _, err := e.PostSend(out); err != nil {
								return err
							}
						}
						if _, err := e.cq.Wait(b.Context(), wc[:]); err != nil {
							return err
						}
						if err := wc[0].Err(); err != nil {
							return err
						}
						if _, err := e.PostRecv(in); err != nil {
							return err
						}
					}
					if !first {
						_, err := e.PostSend(out)
						return err
					}
					return nil
				}
				other := make(chan error, 1)
				b.ResetTimer()
				go func() { other <- play(&p.theirs, false) }()
				if err := play(&p.mine, true); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := <-other; err != nil {
					b.Fatal(err)
				}
			})
		}
	})
}

// BenchmarkOneThread is a round of Writes between two devices that one goroutine
// polls in turn: the work of both sides and nothing of waiting for each other.
func BenchmarkOneThread(b *testing.B) {
	p := pipe(b, iwarp.PipeConfig{}).connect(b, arena, nil)
	wrA := []verbs.SendWR{{Op: verbs.OpWrite, SGL: []verbs.SGE{p.mine.mr.SGE(64, 64)}, Remote: p.theirs.remote.Slice(0, 64)}}
	wrB := []verbs.SendWR{{Op: verbs.OpWrite, SGL: []verbs.SGE{p.theirs.mr.SGE(64, 64)}, Remote: p.mine.remote.Slice(0, 64)}}
	var wcs [4]verbs.WC
	b.ReportAllocs()
	for i := range b.N {
		p.mine.mr.Bytes()[64] = byte(i + 1)
		if _, err := p.mine.PostSend(wrA); err != nil {
			b.Fatal(err)
		}
		for p.theirs.mr.Bytes()[0] != byte(i+1) {
			p.theirs.cq.Poll(wcs[:])
		}
		p.theirs.mr.Bytes()[64] = byte(i + 1)
		if _, err := p.theirs.PostSend(wrB); err != nil {
			b.Fatal(err)
		}
		for p.mine.mr.Bytes()[0] != byte(i+1) {
			p.mine.cq.Poll(wcs[:])
		}
	}
}
