package iwarp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/iwarp"
)

// fetchAdd and compareSwap are the operations bit by bit, as RFC 7306, Section
// 5.1, describes them.
func fetchAdd(was, val, mask uint64) (now uint64) {
	carry := uint64(0)
	for i := range 64 {
		s := was>>i&1 + val>>i&1 + carry
		now |= s & 1 << i
		if carry = s >> 1; mask>>i&1 != 0 {
			carry = 0
		}
	}
	return now
}

func compareSwap(was uint64, wr *verbs.SendWR) (now uint64) {
	cm, vm := wr.CompareMask, wr.ValMask
	if cm == 0 && vm == 0 {
		cm, vm = math.MaxUint64, math.MaxUint64
	}
	now = was
	for i := range 64 {
		if cm>>i&1 != 0 && was>>i&1 != wr.Compare>>i&1 {
			return was
		}
		if vm>>i&1 != 0 {
			now = now&^(1<<i) | wr.Val>>i&1<<i
		}
	}
	return now
}

// randomAtomic makes an atomic that is likely to meet the edges of words, fields
// and masks.
func randomAtomic(r *rand.Rand, was uint64) verbs.SendWR {
	word := func() uint64 {
		switch r.IntN(6) {
		case 0:
			return 0
		case 1:
			return math.MaxUint64
		case 2:
			return 1 << r.IntN(64)
		case 3:
			return uint64(r.IntN(3))
		}
		return r.Uint64()
	}
	wr := verbs.SendWR{Op: verbs.OpFetchAdd, Val: word(), ValMask: word()}
	if r.IntN(2) == 0 {
		wr.Op, wr.Compare, wr.CompareMask = verbs.OpCompareSwap, word(), word()
		if r.IntN(2) == 0 {
			wr.Compare = was
		}
	}
	return wr
}

func TestAtomics(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		const at = 256
		t.Run("RDM-72 RDM-80 results, masks and order are those of the definition bit by bit", func(t *testing.T) {
			p := l.connect(t, 4096, nil)
			r := rand.New(rand.NewPCG(7, 306))
			word := p.theirs.mr.Uint64(at)
			now := r.Uint64()
			word.Store(now)
			const rounds, batch = 40, 25 // more than may be in flight at once
			for range rounds {
				var wrs []verbs.SendWR
				var fetched []uint64
				for i := range batch {
					wr := randomAtomic(r, now)
					wr.ID, wr.Flags, wr.Remote = uint64(i), verbs.SendSignaled, p.theirs.remote.Slice(at, 8)
					wr.SGL = []verbs.SGE{p.mine.mr.SGE(8*i, 8)}
					fetched = append(fetched, now)
					if wr.Op == verbs.OpFetchAdd {
						now = fetchAdd(now, wr.Val, wr.ValMask)
					} else {
						now = compareSwap(now, &wr)
					}
					wrs = append(wrs, wr)
				}
				p.mine.send(t, wrs...)
				for i, wc := range p.mine.wait(t, batch) {
					require.Equal(t, verbs.WC{ID: uint64(i), Op: wrs[i].Op, ByteLen: 8, QP: p.mine.Num(), Time: wc.Time}, wc)
					require.Equal(t, fetched[i], p.mine.mr.Uint64(8*i).Load(), "%+v", wrs[i])
				}
				require.Equal(t, now, word.Load())
			}
		})
		t.Run("RDM-72 no mask is a plain operation over all 64 bits", func(t *testing.T) {
			p := l.connect(t, 4096, nil)
			word := p.theirs.mr.Uint64(at)
			do := func(wr verbs.SendWR) uint64 {
				wr.Flags, wr.SGL, wr.Remote = verbs.SendSignaled, []verbs.SGE{p.mine.mr.SGE(0, 8)}, p.theirs.remote.Slice(at, 8)
				p.mine.send(t, wr)
				require.NoError(t, p.mine.wait(t, 1)[0].Err())
				return p.mine.mr.Uint64(0).Load()
			}
			word.Store(math.MaxUint64)
			require.EqualValues(t, uint64(math.MaxUint64), do(verbs.SendWR{Op: verbs.OpFetchAdd, Val: 3}))
			require.EqualValues(t, 2, word.Load(), "it wraps")
			require.EqualValues(t, 2, do(verbs.SendWR{Op: verbs.OpCompareSwap, Compare: 3, Val: 9}))
			require.EqualValues(t, 2, word.Load(), "not equal, not swapped")
			require.EqualValues(t, 2, do(verbs.SendWR{Op: verbs.OpCompareSwap, Compare: 2, Val: 9}))
			require.EqualValues(t, 9, word.Load())
			require.EqualValues(t, 9, do(verbs.SendWR{Op: verbs.OpCompareSwap, Val: 5, ValMask: math.MaxUint64}), "a swap")
			require.EqualValues(t, 5, word.Load())
			require.EqualValues(t, 5, do(verbs.SendWR{Op: verbs.OpCompareSwap, Compare: 5, CompareMask: math.MaxUint64, Val: 1}), "a look")
			require.EqualValues(t, 5, word.Load())
			word.Store(0x00ff_00ff)
			require.EqualValues(t, 0x00ff_00ff, do(verbs.SendWR{Op: verbs.OpFetchAdd, Val: 0x0001_0001, ValMask: 0x0080_0080}))
			require.EqualValues(t, 0x0000_0000, word.Load(), "two counters of 8 bits in one word")
		})
		t.Run("RDM-73 RDM-83 numbers stand in host order in the memory of both sides", func(t *testing.T) {
			p := l.connect(t, 4096, nil)
			b := p.theirs.mr.Bytes()[at : at+8]
			binary.NativeEndian.PutUint64(b, 0x0102030405060729)
			fill(p.mine.mr.Bytes(), 1)
			before := bytes.Clone(p.mine.mr.Bytes())
			p.mine.send(t, verbs.SendWR{Op: verbs.OpFetchAdd, Flags: verbs.SendSignaled, Val: 1,
				SGL: []verbs.SGE{p.mine.mr.SGE(21, 8)}, Remote: p.theirs.remote.Slice(at, 8)})
			require.NoError(t, p.mine.wait(t, 1)[0].Err())
			require.EqualValues(t, 0x010203040506072a, p.theirs.mr.Uint64(at).Load())
			binary.NativeEndian.PutUint64(before[21:], 0x0102030405060729)
			require.True(t, bytes.Equal(before, p.mine.mr.Bytes()), "the SGE and nothing around it, aligned or not")
		})
	})
}

// TestAtomicTogether adds from many goroutines through several queue pairs to
// words that this host adds to as well.
func TestAtomicTogether(t *testing.T) {
	forBackends(t, iwarp.Protocol{}, func(t *testing.T, l link) {
		t.Run("RDM-76 atomics through any queue pair are atomic with respect to each other", func(t *testing.T) {
			const conns, posters, each = 4, 4, 200
			theirs := newEnd(t, l.b, 4096)
			var ps []pair
			for range conns {
				other := newEnd(t, l.b, 4096)
				other.pd, other.mr, other.remote = theirs.pd, theirs.mr, theirs.remote
				ps = append(ps, l.connectWith(t, newEnd(t, l.a, 4096), other))
			}
			sum, swaps := theirs.mr.Uint64(0), theirs.mr.Uint64(8)
			errs := make(chan error, conns*(posters+1)+1)
			var wg sync.WaitGroup
			for _, p := range ps {
				var posts sync.WaitGroup
				for g := range posters {
					wr := verbs.SendWR{ID: uint64(g), Op: verbs.OpFetchAdd, Flags: verbs.SendSignaled, Val: uint64(g + 1),
						SGL: []verbs.SGE{p.mine.mr.SGE(8*g, 8)}, Remote: theirs.remote.Slice(0, 8)}
					posts.Go(func() {
						for i := range each {
							if i%2 == 1 { // an increment that may lose the race and is counted if it wins
								wr.Op, wr.Remote = verbs.OpCompareSwap, theirs.remote.Slice(8, 8)
								wr.Compare, wr.Val = uint64(i/2), uint64(i/2+1)
							} else {
								wr.Op, wr.Remote, wr.Val = verbs.OpFetchAdd, theirs.remote.Slice(0, 8), uint64(g+1)
							}
							for {
								_, err := p.mine.PostSend([]verbs.SendWR{wr})
								if err == nil {
									break
								}
								if !errors.Is(err, verbs.ErrQueueFull) {
									errs <- err
									return
								}
								time.Sleep(20 * time.Microsecond)
							}
						}
					})
				}
				wg.Go(func() {
					defer posts.Wait()
					var wcs [16]verbs.WC
					ctx := within(t, 5*time.Minute)
					for got := 0; got < posters*each; {
						n, err := p.mine.cq.Wait(ctx, wcs[:])
						if err != nil {
							errs <- err
							return
						}
						for _, wc := range wcs[:n] {
							if wc.Err() != nil {
								errs <- fmt.Errorf("%+v: %w", wc, p.mine.Err())
								return
							}
						}
						got += n
					}
				})
			}
			// This host adds as fast as it can all the while, so that whatever is not
			// one step is met in the middle sooner or later.
			stop, own := make(chan struct{}), make(chan uint64)
			go func() {
				for n := uint64(0); ; {
					for range 1000 {
						sum.Add(1)
						n++
					}
					select {
					case <-stop:
						own <- n
						return
					default:
					}
				}
			}()
			wg.Wait()
			close(stop)
			want := <-own
			close(errs)
			for err := range errs {
				require.NoError(t, err)
			}
			for g := range posters {
				want += uint64(conns * each / 2 * (g + 1))
			}
			require.Equal(t, want, sum.Load(), "not one addition was lost")
			require.LessOrEqual(t, swaps.Load(), uint64(each/2))
			require.Positive(t, swaps.Load())
		})
	})
}

// TestAtomicRefused has what the responder denies: a status, a Terminate and no
// change.
func TestAtomicRefused(t *testing.T) {
	const key = verbs.Key(0x12345601)
	misaligned := func(zero verbs.Access) func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
		return func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
			mem := make([]byte, 4096)
			mr, err := p.theirs.pd.RegMR(mem[4:], verbs.AccessLocalWrite|verbs.AccessRemoteAtomic|zero)
			if err != nil {
				panic(err)
			}
			return mr, mr.Remote()
		}
	}
	with := func(a verbs.Access, off int64) func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
		return func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
			mr, err := p.theirs.pd.AllocMR(64, a)
			if err != nil {
				panic(err)
			}
			r := mr.Remote()
			r.Addr += uint64(off)
			return mr, r
		}
	}
	const rights = verbs.AccessLocalWrite | verbs.AccessRemoteAtomic
	type row struct {
		name   string
		target func(p *pair) (*verbs.MR, verbs.RemoteBuf)
		code   uint16 // 0: done
	}
	rows := []row{
		{"RDM-75 an unknown key", func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
			return p.theirs.mr, verbs.RemoteBuf{Addr: p.theirs.remote.Addr, RKey: key}
		}, 0x0100},
		{"RDM-75 past the end", with(rights, 64), 0x0101},
		{"RDM-75 before the beginning", with(rights, -8), 0x0101},
		{"RDM-75 VRB-58 SEC-06 SEC-47 without the right", with(verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead, 0), 0x0102},
		{"RDM-75 SEC-03 in another protection domain", func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
			pd, err := p.theirs.dev.AllocPD()
			if err != nil {
				panic(err)
			}
			mr, err := pd.AllocMR(64, rights)
			if err != nil {
				panic(err)
			}
			return mr, mr.Remote()
		}, 0x0103},
		{"RDM-75 SEC-05 beyond 2^64", func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
			r := p.theirs.remote
			r.Addr = math.MaxUint64 - 3
			return p.theirs.mr, r
		}, 0x0104},
		{"RDM-74 an aligned offset of a region that is not", misaligned(verbs.AccessZeroBased), 0x0207},
		{"RDM-74 an offset that is not aligned, of a region that is not", func(p *pair) (*verbs.MR, verbs.RemoteBuf) {
			mr, r := misaligned(verbs.AccessZeroBased)(p)
			r.Addr += 4
			return mr, r
		}, 0},
		{"VRB-58 a region with no other right", with(rights, 56), 0},
	}
	for off := int64(1); off < 8; off++ {
		rows = append(rows, row{fmt.Sprintf("RDM-74 SEC-47 an address %d octets off", off), with(rights, off), 0x0207})
		rows = append(rows, row{fmt.Sprintf("RDM-75 SEC-47 %d octets before the beginning", off), with(rights, -off), 0x0101})
		rows = append(rows, row{fmt.Sprintf("RDM-75 SEC-47 %d octets past the end", off), with(rights, 56+off), 0x0101})
	}
	l := pipe(t, iwarp.PipeConfig{})
	for i, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			p := l.connect(t, 4096, nil)
			mr, remote := c.target(&p)
			fill(mr.Bytes(), 3)
			before := bytes.Clone(mr.Bytes())
			wr := verbs.SendWR{ID: 1, Op: verbs.OpFetchAdd, SGL: []verbs.SGE{p.mine.mr.SGE(0, 8)}, Remote: remote, Val: 1}
			if i%2 == 1 {
				wr.Op, wr.CompareMask, wr.ValMask = verbs.OpCompareSwap, 0, math.MaxUint64
			}
			if c.code == 0 {
				wr.Flags = verbs.SendSignaled
			}
			p.mine.send(t, wr)
			if c.code == 0 {
				require.NoError(t, p.mine.wait(t, 1)[0].Err())
				require.NotEqual(t, before, mr.Bytes())
				return
			}
			wc := p.mine.wait(t, 1)[0]
			want := verbs.WC{ID: 1, Status: verbs.WCRemAccessErr, QP: p.mine.Num(), VendorErr: uint32(c.code), Time: wc.Time}
			if c.code == 0x0207 {
				want.Status = verbs.WCRemOpErr
			}
			require.Equal(t, want, wc, "VRB-35 an unsignaled error has its completion")
			p.over(t)
			require.True(t, bytes.Equal(before, mr.Bytes()), "memory has changed")
			require.Equal(t, make([]byte, 8), p.mine.mr.Bytes()[:8], "nothing was fetched")
			var term *verbs.TerminateError
			require.ErrorAs(t, p.mine.Err(), &term)
			require.Equal(t, c.code, term.Value())
			require.True(t, term.Remote)
			require.ErrorAs(t, p.theirs.Err(), &term)
			require.False(t, term.Remote)
			p.mine.quiet(t)
		})
	}
}
