package verbs

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
)

func TestAtomicsAndImmediate(t *testing.T) {
	r := newRig(t, QPConfig{})
	word := r.mr.Uint64(256)
	word.Store(41)
	far := r.mr.Remote().Slice(256, 8)

	t.Run("VRB-66 VRB-34 completions of atomics and of a Write with Immediate have their fields and order", func(t *testing.T) {
		copy(r.mr.Bytes(), "data")
		_, err := r.b.PostRecv([]RecvWR{{ID: 9, SGL: []SGE{r.mr.SGE(1024, 64)}}})
		require.NoError(t, err)
		_, err = r.a.PostSend([]SendWR{
			{ID: 1, Op: OpFetchAdd, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(512, 8)}, Remote: far, Val: 2},
			{ID: 2, Op: OpCompareSwap, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(520, 8)}, Remote: far, Compare: 43, Val: 7},
			{ID: 3, Op: OpWriteWithImm, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(0, 4)}, Remote: r.mr.Remote().Slice(2048, 4), Imm: Imm32(0xdeadbeef)},
		})
		require.NoError(t, err)
		require.Equal(t, []WC{
			{ID: 1, Op: OpFetchAdd, QP: r.a.Num(), ByteLen: 8, Time: 42},
			{ID: 2, Op: OpCompareSwap, QP: r.a.Num(), ByteLen: 8, Time: 42},
			{ID: 3, Op: OpWrite, QP: r.a.Num(), Time: 42},
		}, poll(t, r.cq))
		wcs := poll(t, r.rcq)
		require.Equal(t, []WC{{ID: 9, Op: OpRecvWithImm, QP: r.b.Num(), ByteLen: 4, Flags: WCWithImm, Imm: 0xdeadbeef << 32}}, wcs)
		require.EqualValues(t, 0xdeadbeef, wcs[0].Imm32())
		require.EqualValues(t, 41, r.mr.Uint64(512).Load())
		require.EqualValues(t, 43, r.mr.Uint64(520).Load())
		require.EqualValues(t, 7, word.Load())
		require.Equal(t, "data", string(r.mr.Bytes()[2048:2052]))
	})
}

// TestAtomicOperands has the masks as the transport gets them.
func TestAtomicOperands(t *testing.T) {
	const all = math.MaxUint64
	for _, c := range []struct {
		name string
		wr   SendWR
		want [4]uint64 // compare, mask, value, mask
	}{
		{"fetch and add, no mask: a plain addition", SendWR{Op: OpFetchAdd, Val: 5}, [4]uint64{0, 0, 5, 0}},
		{"fetch and add, fields", SendWR{Op: OpFetchAdd, Val: 5, ValMask: 1 << 31}, [4]uint64{0, 0, 5, 1 << 31}},
		{"compare and swap, no mask: all bits", SendWR{Op: OpCompareSwap, Compare: 3, Val: 5}, [4]uint64{3, all, 5, all}},
		{"compare and swap, nothing to compare: a swap", SendWR{Op: OpCompareSwap, Compare: 3, Val: 5, ValMask: all}, [4]uint64{3, 0, 5, all}},
		{"compare and swap, nothing to swap: a look", SendWR{Op: OpCompareSwap, Compare: 3, CompareMask: 1, Val: 5}, [4]uint64{3, 1, 5, 0}},
		{"compare and swap, both masks", SendWR{Op: OpCompareSwap, Compare: 3, CompareMask: 0xf0, Val: 5, ValMask: 0xff}, [4]uint64{3, 0xf0, 5, 0xff}},
	} {
		t.Run("RDM-72 "+c.name, func(t *testing.T) {
			r := newRig(t, QPConfig{})
			r.f.setHold(true)
			c.wr.SGL, c.wr.Remote, c.wr.ID = []SGE{r.mr.SGE(16, 8)}, RemoteBuf{Addr: 77, RKey: 88}, 99
			_, err := r.a.PostSend([]SendWR{c.wr})
			require.NoError(t, err)
			w := ring.WQE(r.f.qp(r.a).s.SQ.Record(0))
			require.True(t, w.Valid())
			require.Equal(t, uint8(c.wr.Op), w.Op())
			require.EqualValues(t, 99, w.ID())
			require.EqualValues(t, 77, w.RemoteAddr())
			require.EqualValues(t, 88, w.RKey())
			require.Equal(t, c.want, [4]uint64{w.Compare(), w.CompareMask(), w.Val(), w.ValMask()})
			key, n, off := w.SGE(0)
			require.Equal(t, []any{r.mr.Key(), uint32(8), uint64(16), 1}, []any{Key(key), n, off, w.NumSGE()})
		})
	}
}

func TestImm32(t *testing.T) {
	t.Run("RDM-69 32 bits are the first four of the eight octets", func(t *testing.T) {
		require.EqualValues(t, uint64(0xdeadbeef_00000000), Imm32(0xdeadbeef))
		for _, v := range []uint32{0, 1, 0x80000000, math.MaxUint32} {
			require.Equal(t, v, (&WC{Imm: Imm32(v)}).Imm32())
		}
		require.EqualValues(t, 1, (&WC{Imm: 0x1_ffff_ffff}).Imm32(), "the last four are not looked at")
	})
}

// TestWithoutRFC7306 is a device that has neither atomics nor immediate data.
func TestWithoutRFC7306(t *testing.T) {
	f := newFake()
	dev := NewDevice(f.provider(DeviceAttr{Name: "fake1"}))
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	mr, err := pd.AllocMR(64, AccessLocalWrite)
	require.NoError(t, err)
	qp, err := pd.CreateQP(QPConfig{})
	require.NoError(t, err)
	f.connect(qp, qp)
	for what, wr := range map[string]SendWR{
		"an atomic":                 {Op: OpFetchAdd, SGL: []SGE{mr.SGE(0, 8)}, Remote: mr.Remote()},
		"RDMA Write with Immediate": {Op: OpWriteWithImm, Remote: mr.Remote()},
	} {
		_, err := qp.PostSend([]SendWR{wr})
		require.True(t, errors.Is(err, errors.ErrUnsupported), "%v", err)
		require.EqualError(t, err, fmt.Sprintf("post send qp %d: %s is not supported", qp.Num(), what))
	}
	_, err = qp.PostSend([]SendWR{{Op: OpCompareSwap, SGL: []SGE{mr.SGE(0, 8)}, Remote: mr.Remote()}})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}
