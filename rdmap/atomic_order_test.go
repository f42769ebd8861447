package rdmap

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAtomicOrder(t *testing.T) {
	t.Run("RDM-80 RDM-81 a chain of CmpSwap, each on the result of the one before", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.IRD = 16
		e, peer := newRaw(t, cfg)
		setWord(k.s, 0, 0)
		for i := range uint32(16) {
			peer.play(fpdu(atomicReq(i+1, codeCompareSwap, 100+i, k.s.stag, base, uint64(i)+1, math.MaxUint64, uint64(i), math.MaxUint64)))
		}
		e.receive()
		require.Zero(t, word(k.s, 0), "nothing is done before its answer is due")
		settle(e)
		for i := range uint32(16) {
			require.Equal(t, atomicResp(i+1, 100+i, uint64(i)), peer.expectFPDU())
		}
		require.Equal(t, uint64(16), word(k.s, 0))
	})
	t.Run("DDP-14 RDM-15 RDM-79 reads and atomic operations are numbered and answered in one order", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		setWord(k.s, 0, 7)
		peer.play(fpdu(atomicReq(1, codeFetchAdd, 1, k.s.stag, base, 1)))
		peer.play(fpdu(readReq(2, 1, 0, 8, k.s.stag, base)))
		peer.play(fpdu(atomicReq(3, codeFetchAdd, 2, k.s.stag, base, 1)))
		peer.play(fpdu(readReq(4, 1, 0, 8, k.s.stag, base)))
		settle(e)
		require.NoError(t, e.rxErr)
		value := func(v uint64) []byte {
			return taggedSeg(0xc1, 0x42, 1, 0, binary.NativeEndian.AppendUint64(nil, v)...)
		}
		require.Equal(t, atomicResp(1, 1, 7), peer.expectFPDU())
		require.Equal(t, value(8), peer.expectFPDU())
		require.Equal(t, atomicResp(2, 2, 8), peer.expectFPDU())
		require.Equal(t, value(9), peer.expectFPDU())
		peer.silent()
		st := e.Stats()
		require.EqualValues(t, 2, st.AtomicsIn)
		require.EqualValues(t, 2, st.AtomicResponsesOut)
		require.EqualValues(t, 2, st.RequestsIn)
		require.EqualValues(t, 2, st.ResponsesOut)
	})
	t.Run("RDM-14 an atomic operation sees what was written before it", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, k.config())
		peer.play(fpdu(taggedSeg(0xc1, 0x40, k.s.stag, base, binary.NativeEndian.AppendUint64(nil, 5)...)))
		peer.play(fpdu(atomicReq(1, codeFetchAdd, 1, k.s.stag, base, 1)))
		settle(e)
		require.Equal(t, atomicResp(1, 1, 5), peer.expectFPDU())
	})
	for _, over := range [][]byte{atomicReq(3, 0, 3, 0x12345678, base, 1), readReq(3, 1, 0, 8, 0x12345678, base)} {
		t.Run(fmt.Sprintf("DDP-40 RDM-23 RDM-79 SEC-24 IRD 2 holds a read and an atomic operation and not opcode octet %02x", over[1]), func(t *testing.T) {
			k := newScene(t)
			cfg := k.config()
			cfg.IRD = 2
			e, peer := newRaw(t, cfg)
			peer.play(fpdu(readReq(1, 1, 0, 8, k.s.stag, base)))
			peer.play(fpdu(atomicReq(2, codeFetchAdd, 2, k.s.stag, base, 1)))
			e.receive()
			require.NoError(t, e.rxErr)
			peer.play(fpdu(over))
			e.receive()
			require.Error(t, e.rxErr)
			settle(e)
			require.Equal(t, termULPDU(0x1203, over), peer.expectFPDU())
			k.s.untouched(t)
		})
	}
	t.Run("RDM-23 IOP-38 with IRD 0 none", func(t *testing.T) {
		k := newScene(t)
		e, peer := newRaw(t, Config{Table: k.table})
		seg := atomicReq(1, codeFetchAdd, 1, k.s.stag, base, 0)
		peer.play(fpdu(seg))
		settle(e)
		require.Equal(t, termULPDU(0x1203, seg), peer.expectFPDU())
	})
	t.Run("RDM-26 answers to atomic operations and the send queue take turns", func(t *testing.T) {
		k := newScene(t)
		cfg := k.config()
		cfg.IRD = 16
		e, peer := newRaw(t, cfg)
		for i := range uint32(8) {
			peer.play(fpdu(atomicReq(i+1, codeFetchAdd, i, k.s.stag, base, 1)))
		}
		e.receive()
		e.post(&Op{Kind: Send}, &Op{Kind: Send})
		settle(e)
		var kinds []byte
		for range 10 {
			kinds = append(kinds, peer.expectFPDU()[1]&0xf)
		}
		require.Equal(t, []byte{11, 11, 11, 11, 3, 11, 11, 11, 11, 3}, kinds)
	})
}

// TestAtomicRoom holds the answers back. Room is kept for the agreed IRD rounded up
// to a power of two, for whatever mixture of requests, and for not one more.
func TestAtomicRoom(t *testing.T) {
	for _, depth := range []struct{ ird, held int }{{1, 1}, {2, 2}, {3, 4}, {4, 4}, {5, 8}} {
		for mix, atomic := range map[string]func(i int) bool{
			"atomic operations":                    func(int) bool { return true },
			"a Read, then atomic operations":       func(i int) bool { return i > 0 },
			"atomic operations and Reads by turns": func(i int) bool { return i%2 == 0 },
			"Reads":                                func(int) bool { return false },
		} {
			ask := func(k *scene, i int, atomic bool) []byte {
				if msn := uint32(i + 1); atomic {
					return atomicReq(msn, codeFetchAdd, 100+msn, k.s.stag, base, 1)
				}
				return readReq(uint32(i+1), 1, 0, 8, k.s.stag, base)
			}
			// filled is an end that has as many requests as it has room for.
			filled := func(t *testing.T) (*scene, *end, *raw) {
				k := newScene(t)
				setWord(k.s, 0, 1000)
				cfg := k.config()
				cfg.IRD = depth.ird
				e, peer := newRaw(t, cfg)
				require.Equal(t, depth.held, e.IRD())
				for i := range depth.held {
					peer.play(fpdu(ask(k, i, atomic(i))))
				}
				e.receive()
				require.NoError(t, e.rxErr, "there is room for %d", depth.held)
				require.Equal(t, uint64(1000), word(k.s, 0), "nothing is done before its answer is due")
				return k, e, peer
			}
			t.Run(fmt.Sprintf("IOP-38 RDM-23 RDM-79 IRD %d holds %d requests, and each is answered: %s", depth.ird, depth.held, mix), func(t *testing.T) {
				k, e, peer := filled(t)
				settle(e)
				require.NoError(t, e.rxErr)
				value, answers := uint64(1000), uint32(0)
				for i := range depth.held {
					if !atomic(i) {
						require.Equal(t, taggedSeg(0xc1, 0x42, 1, 0, binary.NativeEndian.AppendUint64(nil, value)...), peer.expectFPDU())
						continue
					}
					answers++
					require.Equal(t, atomicResp(answers, 101+uint32(i), value), peer.expectFPDU())
					value++
				}
				require.Equal(t, value, word(k.s, 0))
				peer.silent()
			})
			for _, last := range []bool{true, false} {
				t.Run(fmt.Sprintf("IOP-38 RDM-23 RDM-79 SEC-24 IRD %d holds %d requests and not one more: %s, then atomic %t", depth.ird, depth.held, mix, last), func(t *testing.T) {
					k, e, peer := filled(t)
					over := ask(k, depth.held, last)
					peer.play(fpdu(over))
					e.receive()
					require.Error(t, e.rxErr)
					settle(e)
					require.Equal(t, termULPDU(0x1203, over), peer.expectFPDU())
					peer.silent()
					require.Equal(t, uint64(1000), word(k.s, 0))
				})
			}
		}
	}
}
