package ring

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWQEStride(t *testing.T) {
	for _, c := range []struct{ sges, inline, stride int }{
		{0, 0, 128}, {1, 0, 128}, {2, 0, 144}, {4, 0, 176}, {16, 0, 368}, {1, 88, 128}, {1, 89, 144}, {4, 512, 560},
	} {
		s := WQEStride(c.sges, c.inline)
		require.Equal(t, c.stride, s, "%+v", c)
		w := make(WQE, s)
		require.GreaterOrEqual(t, w.MaxSGE(), c.sges)
		require.GreaterOrEqual(t, w.MaxInline(), c.inline)
	}
}

func TestWQEFields(t *testing.T) {
	w := make(WQE, WQEStride(3, 0))
	for i := range w {
		w[i] = 0xee // octets of an earlier lap
	}
	w.SetHead(0x0102030405060708, WRRDMARead, FlagFence|FlagSignaled)
	require.Zero(t, w.NumSGE())
	require.Zero(t, w.InlineLen())
	require.Zero(t, w.RKey())
	w.SetRemote(0x1112131415161718, 0x21222324)
	w.SetInv(0x31323334)
	w.SetImm(0x4142434445464748)
	w.SetAtomic(1, 2, 3, 4)
	bind := Bind{Key: 0x71, Region: 0x72, Off: 1 << 41, Len: 1 << 42, Access: 0x73}
	w.SetBind(bind)
	w.SetSGE(0, 0x51, 0x52, 0x53)
	w.SetSGE(2, 0x61, 0x62, 1<<40)
	w.SetNumSGE(3)

	require.Equal(t, uint64(0x0102030405060708), w.ID())
	require.Equal(t, WRRDMARead, w.Op())
	require.Equal(t, FlagFence|FlagSignaled, w.Flags())
	require.Equal(t, uint64(0x1112131415161718), w.RemoteAddr())
	require.Equal(t, uint32(0x21222324), w.RKey())
	require.Equal(t, uint32(0x31323334), w.Inv())
	require.Equal(t, uint64(0x4142434445464748), w.Imm())
	require.Equal(t, []uint64{1, 2, 3, 4}, []uint64{w.Compare(), w.CompareMask(), w.Val(), w.ValMask()})
	require.Equal(t, bind, w.Bind())
	require.Equal(t, 3, w.NumSGE())
	key, n, off := w.SGE(2)
	require.Equal(t, []uint64{0x61, 0x62, 1 << 40}, []uint64{uint64(key), uint64(n), off})
	require.True(t, w.Valid())
	// The layout is shared between processes: pin some octets.
	require.Equal(t, []byte{8, 7, 6, 5, 4, 3, 2, 1, 4, 3, 3, 0, 0, 0, 0, 0}, []byte(w[:16]))
	require.Equal(t, []byte{0x24, 0x23, 0x22, 0x21}, []byte(w[24:28]))
	require.Equal(t, []byte{0x71, 0, 0, 0, 0x72}, []byte(w[72:77]))
	require.Equal(t, []byte{0x73, 0xee}, []byte(w[96:98]), "rights, then octets of the earlier lap")
	require.Equal(t, byte(0x53), w[112])
}

func TestWQEInline(t *testing.T) {
	w := make(WQE, WQESize)
	w.SetHead(1, WRSend, FlagInline)
	w.AppendInline([]byte("abc"))
	w.AppendInline(nil)
	w.AppendInline([]byte("de"))
	require.Equal(t, "abcde", string(w.Inline()))
	w.SetRemote(9, 8)
	w.SetInv(7)
	w.SetImm(6)
	require.Equal(t, "abcde", string(w.Inline()), "no field overlaps inline data")
	require.Panics(t, func() { w.AppendInline(make([]byte, 84)) })
}

func TestWQEHostileCounts(t *testing.T) {
	t.Run("SEC-59 a count of SGEs beyond the record is cut to its room", func(t *testing.T) {
		w := make(WQE, WQESize)
		binary.LittleEndian.PutUint16(w[10:], 0xffff)
		require.Equal(t, 1, w.NumSGE())
		require.False(t, w.Valid())
		w.SetNumSGE(1)
		require.True(t, w.Valid())
	})
	t.Run("SEC-59 so is a length of inline data", func(t *testing.T) {
		w := make(WQE, WQESize)
		binary.LittleEndian.PutUint32(w[12:], 0xffffffff)
		require.Len(t, w.Inline(), 88)
		require.False(t, w.Valid())
		w.SetHead(1, WRSend, FlagInline)
		require.True(t, w.Valid())
	})
	t.Run("SEC-59 half a record is not valid", func(t *testing.T) {
		require.False(t, make(WQE, WQESize)[:64].Valid())
	})
}

func FuzzWQE(f *testing.F) {
	w := make(WQE, WQEStride(4, 0))
	w.SetHead(1, WRSend, FlagInline)
	w.AppendInline([]byte("hello"))
	f.Add([]byte(w))
	f.Add(make([]byte, WQESize))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := WQE(b)
		if len(w) < WQESize || len(w) > MaxStride {
			return
		}
		require.LessOrEqual(t, w.NumSGE(), w.MaxSGE())
		for i := range w.NumSGE() {
			w.SGE(i)
		}
		require.LessOrEqual(t, len(w.Inline()), w.MaxInline())
		_, _, _, _, _, _, _ = w.ID(), w.Op(), w.Flags(), w.RemoteAddr(), w.RKey(), w.Inv(), w.Imm()
		w.Bind()
		_, _, _, _ = w.Compare(), w.CompareMask(), w.Val(), w.ValMask()
		if w.Valid() { // what was read writes back to the same counts
			n := w.NumSGE()
			w.SetNumSGE(n)
			require.Equal(t, n, w.NumSGE())
		}
	})
}

func TestCQERoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := Completion{
			ID: rapid.Uint64().Draw(t, "id"), Status: rapid.Uint8().Draw(t, "status"), Op: rapid.Uint8().Draw(t, "op"),
			Flags: rapid.Uint8().Draw(t, "flags"), Solicited: rapid.Bool().Draw(t, "sol"), ByteLen: rapid.Uint32().Draw(t, "len"),
			QP: rapid.Uint32().Draw(t, "qp"), SRQ: rapid.Uint32().Draw(t, "srq"), SrcQP: rapid.Uint32().Draw(t, "src"),
			Inv: rapid.Uint32().Draw(t, "inv"), VendorErr: rapid.Uint32().Draw(t, "vendor"), Imm: rapid.Uint64().Draw(t, "imm"),
			Off: rapid.Uint64().Draw(t, "off"), Time: rapid.Int64().Draw(t, "time"),
		}
		var r [CQESize]byte
		var got Completion
		CQE(r[:]).Put(&e)
		CQE(r[:]).Get(&got)
		require.Equal(t, e, got)
	})
}
