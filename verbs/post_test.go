package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/ring"
)

func TestLoopback(t *testing.T) {
	r := newRig(t, QPConfig{})
	copy(r.mr.Bytes(), "hello, remote memory")

	n, err := r.b.PostRecv([]RecvWR{{ID: 1, SGL: []SGE{r.mr.SGE(1024, 64)}}, {ID: 2, SGL: []SGE{r.mr.SGE(2048, 64)}}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = r.a.PostSend([]SendWR{
		{ID: 10, Op: OpSend, Flags: SendSignaled | SendSolicited, SGL: []SGE{r.mr.SGE(0, 5), r.mr.SGE(6, 7)}},
		{ID: 11, Op: OpSendWithInv, Inline: []byte("inline"), Inv: 0xabc},
		{ID: 12, Op: OpWrite, Flags: SendSignaled, SGL: []SGE{r.mr.SGE(7, 6)}, Remote: r.mr.Remote().Slice(3000, 6)},
		{ID: 13, Op: OpRead, Flags: SendSignaled | SendFence, SGL: []SGE{r.mr.SGE(3500, 6)}, Remote: r.mr.Remote().Slice(3000, 6)},
	})
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, int64(1), r.f.qp(r.a).bells.Load(), "one doorbell for the list")

	require.Equal(t, "hello remote", string(r.mr.Bytes()[1024:1036]))
	require.Equal(t, "inline", string(r.mr.Bytes()[2048:2054]))
	require.Equal(t, "remote", string(r.mr.Bytes()[3000:3006]))
	require.Equal(t, "remote", string(r.mr.Bytes()[3500:3506]))

	t.Run("VRB-34 completions come in posting order, VRB-66 with the fields of their operation", func(t *testing.T) {
		require.Equal(t, []WC{
			{ID: 10, Op: OpSend, QP: r.a.Num(), Time: 42},
			{ID: 12, Op: OpWrite, QP: r.a.Num(), Time: 42},
			{ID: 13, Op: OpRead, QP: r.a.Num(), ByteLen: 6, Time: 42},
		}, poll(t, r.cq))
		require.Equal(t, []WC{
			{ID: 1, Op: OpRecv, QP: r.b.Num(), ByteLen: 12},
			{ID: 2, Op: OpRecv, QP: r.b.Num(), ByteLen: 6, Flags: WCWithInv, Inv: 0xabc},
		}, poll(t, r.rcq))
	})
	t.Run("no request, no doorbell", func(t *testing.T) {
		n, err := r.a.PostSend(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = r.a.PostRecv(nil)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, int64(1), r.f.qp(r.a).bells.Load())
	})
}

func TestPostSendChecks(t *testing.T) {
	r := newRig(t, QPConfig{MaxSendSGE: 2, MaxInline: 64})
	other, err := r.dev.AllocPD()
	require.NoError(t, err)
	foreign, err := other.AllocMR(64, AccessLocalWrite)
	require.NoError(t, err)
	closed, err := r.pd.AllocMR(64, AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	readOnly, err := r.pd.AllocMR(64, 0)
	require.NoError(t, err)
	maxInline := r.a.Config().MaxInline
	far := r.mr.Remote()
	sge := func(off, n int) []SGE { return []SGE{r.mr.SGE(off, n)} }

	for _, c := range []struct {
		name string
		wr   SendWR
		want error // nil: accepted
	}{
		{"VRB-28 unknown opcode", SendWR{Op: 10}, syscall.EINVAL},
		{"VRB-28 a receive is no send request", SendWR{Op: OpRecv}, syscall.EINVAL},
		{"VRB-28 Send with Immediate has no iWARP message", SendWR{Op: OpSendWithImm}, syscall.EINVAL},
		{"RDM-68 VRB-28 Send with Immediate is refused with data too", SendWR{Op: OpSendWithImm, Imm: 1, SGL: sge(0, 8)}, syscall.EINVAL},
		{"VRB-28 VRB-58 an atomic with no SGE", SendWR{Op: OpFetchAdd, Remote: far}, syscall.EINVAL},
		{"VRB-28 VRB-58 an atomic with two SGEs", SendWR{Op: OpCompareSwap, Remote: far, SGL: []SGE{r.mr.SGE(0, 4), r.mr.SGE(4, 4)}}, syscall.EINVAL},
		{"VRB-58 an atomic of 7 octets", SendWR{Op: OpFetchAdd, Remote: far, SGL: sge(0, 7)}, syscall.EINVAL},
		{"VRB-58 an atomic of 9 octets", SendWR{Op: OpCompareSwap, Remote: far, SGL: sge(0, 9)}, syscall.EINVAL},
		{"VRB-58 an atomic of 16 octets", SendWR{Op: OpFetchAdd, Remote: far, SGL: sge(0, 16)}, syscall.EINVAL},
		{"VRB-58 an atomic of no octets", SendWR{Op: OpFetchAdd, Remote: far, SGL: []SGE{{}}}, syscall.EINVAL},
		{"VRB-58 an atomic into a region without LOCAL_WRITE", SendWR{Op: OpFetchAdd, Remote: far, SGL: []SGE{readOnly.SGE(0, 8)}}, syscall.EINVAL},
		{"VRB-28 an atomic inline by flag", SendWR{Op: OpFetchAdd, Remote: far, Flags: SendInline, SGL: sge(0, 8)}, syscall.EINVAL},
		{"VRB-28 an atomic inline by data", SendWR{Op: OpCompareSwap, Remote: far, Inline: make([]byte, 8), SGL: sge(0, 8)}, syscall.EINVAL},
		{"VRB-32 an atomic out of bounds", SendWR{Op: OpFetchAdd, Remote: far, SGL: sge(4089, 8)}, syscall.EINVAL},
		{"VRB-42 an atomic on remote key 0", SendWR{Op: OpFetchAdd, SGL: sge(0, 8)}, syscall.EINVAL},
		{"local invalidate later", SendWR{Op: OpLocalInv}, errors.ErrUnsupported},
		{"bind window later", SendWR{Op: OpBindMW}, errors.ErrUnsupported},
		{"unknown flag", SendWR{Op: OpSend, Flags: 16}, syscall.EINVAL},
		{"VRB-28 too many SGEs", SendWR{Op: OpSend, SGL: make([]SGE, 3)}, syscall.EINVAL},
		{"VRB-28 read with no SGE", SendWR{Op: OpRead, Remote: far}, syscall.EINVAL},
		{"VRB-28 read with two SGEs", SendWR{Op: OpRead, Remote: far, SGL: make([]SGE, 2)}, syscall.EINVAL},
		{"VRB-28 inline read by flag", SendWR{Op: OpRead, Remote: far, Flags: SendInline, SGL: sge(0, 8)}, syscall.EINVAL},
		{"VRB-28 inline read by data", SendWR{Op: OpRead, Remote: far, Inline: []byte{1}, SGL: sge(0, 8)}, syscall.EINVAL},
		{"VRB-28 too much inline", SendWR{Op: OpSend, Inline: make([]byte, maxInline+1)}, syscall.EINVAL},
		{"VRB-28 too much inline from SGEs", SendWR{Op: OpSend, Flags: SendInline, SGL: sge(0, maxInline+1)}, syscall.EINVAL},
		{"inline data and SGEs", SendWR{Op: OpSend, Inline: []byte{1}, SGL: sge(0, 8)}, syscall.EINVAL},
		{"VRB-32 no region", SendWR{Op: OpSend, SGL: []SGE{{Len: 1}}}, syscall.EINVAL},
		{"VRB-32 negative length", SendWR{Op: OpSend, SGL: sge(0, -1)}, syscall.EINVAL},
		{"VRB-32 negative offset", SendWR{Op: OpSend, SGL: sge(-1, 1)}, syscall.EINVAL},
		{"VRB-32 one octet past the end", SendWR{Op: OpSend, SGL: sge(4090, 7)}, syscall.EINVAL},
		{"VRB-32 offset past the end", SendWR{Op: OpSend, SGL: sge(4097, 1)}, syscall.EINVAL},
		{"VRB-32 offset and length overflow", SendWR{Op: OpSend, SGL: sge(4096, math.MaxInt)}, syscall.EINVAL},
		{"VRB-32 second SGE bad", SendWR{Op: OpSend, SGL: []SGE{r.mr.SGE(0, 1), r.mr.SGE(4096, 1)}}, syscall.EINVAL},
		{"VRB-32 other protection domain", SendWR{Op: OpSend, SGL: []SGE{foreign.SGE(0, 8)}}, syscall.EINVAL},
		{"VRB-32 closed region", SendWR{Op: OpSend, SGL: []SGE{closed.SGE(0, 8)}}, syscall.EINVAL},
		{"VRB-45 read into a region without LOCAL_WRITE", SendWR{Op: OpRead, Remote: far, SGL: []SGE{readOnly.SGE(0, 8)}}, syscall.EINVAL},
		{"VRB-42 remote key 0", SendWR{Op: OpWrite, SGL: sge(0, 1)}, syscall.EINVAL},
		{"inline bounds hold too", SendWR{Op: OpSend, Flags: SendInline, SGL: sge(4095, 2)}, syscall.EINVAL},

		{"send from a region without LOCAL_WRITE", SendWR{Op: OpSend, SGL: []SGE{readOnly.SGE(0, 8)}}, nil},
		{"VRB-29 inline does not check keys: other domain", SendWR{Op: OpSend, Flags: SendInline, SGL: []SGE{foreign.SGE(0, 8)}}, nil},
		{"VRB-29 inline does not check keys: closed", SendWR{Op: OpSend, Flags: SendInline, SGL: []SGE{closed.SGE(0, 8)}}, nil},
		{"most inline", SendWR{Op: OpSend, Inline: make([]byte, maxInline)}, nil},
		{"VRB-31 Send of nothing", SendWR{Op: OpSend}, nil},
		{"VRB-31 SGE of length 0 is skipped, its region not looked at", SendWR{Op: OpSend, SGL: []SGE{{Off: -5}, foreign.SGE(99, 0)}}, nil},
		{"VRB-31 RDMA Write of nothing needs no key", SendWR{Op: OpWrite}, nil},
		{"VRB-31 RDMA Read of nothing needs no key", SendWR{Op: OpRead, SGL: []SGE{{}}}, nil},
		{"VRB-39 fence on a read", SendWR{Op: OpRead, Flags: SendFence, Remote: far, SGL: sge(0, 8)}, nil},
		{"VRB-58 an atomic of 8 octets", SendWR{Op: OpFetchAdd, Flags: SendFence | SendSolicited, Remote: far, SGL: sge(0, 8)}, nil},
		{"VRB-58 an atomic at an odd place of ours", SendWR{Op: OpCompareSwap, Remote: far, SGL: sge(3, 8)}, nil},
		{"VRB-31 RDMA Write with Immediate of nothing needs no key", SendWR{Op: OpWriteWithImm}, nil},
		{"VRB-28 RDMA Write with Immediate inline", SendWR{Op: OpWriteWithImm, Remote: far, Inline: make([]byte, maxInline)}, nil},
		{"solicited on a write is ignored", SendWR{Op: OpWrite, Flags: SendSolicited, Remote: far, SGL: sge(0, 8)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := r.b.PostRecv([]RecvWR{{SGL: sge(0, 4096)}})
			require.NoError(t, err)
			before := r.dev.Stats().SendsPosted
			n, err := r.a.PostSend([]SendWR{c.wr})
			if c.want == nil {
				require.NoError(t, err)
				require.Equal(t, 1, n)
			} else {
				require.ErrorIs(t, err, c.want)
				var op *OpError
				require.ErrorAs(t, err, &op)
				require.Equal(t, "post send", op.Op)
				require.Zero(t, n)
				require.Equal(t, before, r.dev.Stats().SendsPosted, "no trace")
			}
			require.Equal(t, QPSRTS, r.a.State())
			poll(t, r.cq)
			poll(t, r.rcq)
		})
	}
}

func TestPostRecvChecks(t *testing.T) {
	r := newRig(t, QPConfig{MaxRecvSGE: 2})
	readOnly, err := r.pd.AllocMR(64, AccessRemoteRead)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		wr   RecvWR
		want error
	}{
		{"VRB-28 too many SGEs", RecvWR{SGL: make([]SGE, 3)}, syscall.EINVAL},
		{"VRB-32 needs LOCAL_WRITE", RecvWR{SGL: []SGE{readOnly.SGE(0, 1)}}, syscall.EINVAL},
		{"VRB-32 bounds", RecvWR{SGL: []SGE{r.mr.SGE(4096, 1)}}, syscall.EINVAL},
		{"VRB-31 no octets", RecvWR{SGL: []SGE{{}, readOnly.SGE(0, 0)}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			n, err := r.a.PostRecv([]RecvWR{{}, c.wr})
			if c.want == nil {
				require.NoError(t, err)
				require.Equal(t, 2, n)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.Equal(t, 1, n, "the good one before is in")
			require.ErrorContains(t, err, fmt.Sprintf("post recv qp %d request 1: ", r.a.Num()))
		})
	}
}

func TestPostList(t *testing.T) {
	t.Run("VRB-27 the bad one of a list and what follows is not posted", func(t *testing.T) {
		r := newRig(t, QPConfig{SignalAll: true})
		wr := SendWR{Op: OpWrite, Remote: r.mr.Remote(), SGL: []SGE{r.mr.SGE(0, 1)}}
		list := []SendWR{wr, {ID: 1, Op: 99}, wr}
		list[0].ID, list[2].ID = 7, 8
		n, err := r.a.PostSend(list)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "request 1")
		require.Equal(t, 1, n)
		wcs := poll(t, r.cq)
		require.Len(t, wcs, 1)
		require.Equal(t, uint64(7), wcs[0].ID)
	})
	t.Run("VRB-28 a full queue is ENOMEM and names the first that found no room", func(t *testing.T) {
		r := newRig(t, QPConfig{MaxSendWR: 4, MaxRecvWR: 2})
		r.f.setHold(true)
		n, err := r.a.PostSend(make([]SendWR, 5, 6)) // five writes of nothing
		require.ErrorIs(t, err, ErrQueueFull)
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.Equal(t, 4, n)
		n, err = r.a.PostSend(make([]SendWR, 1))
		require.ErrorIs(t, err, ErrQueueFull)
		require.Zero(t, n)
		n, err = r.a.PostRecv(make([]RecvWR, 3))
		require.ErrorIs(t, err, ErrQueueFull)
		require.Equal(t, 2, n)
		r.f.setHold(false)
		r.a.Ops().Doorbell()
		n, err = r.a.PostSend(make([]SendWR, 4))
		require.NoError(t, err, "room again")
		require.Equal(t, 4, n)
	})
	t.Run("VRB-03 the depth that was asked for is there", func(t *testing.T) {
		r := newRig(t, QPConfig{MaxSendWR: 100, MaxRecvWR: 33})
		r.f.setHold(true)
		n, err := r.a.PostSend(make([]SendWR, 100))
		require.NoError(t, err)
		require.Equal(t, 100, n)
		n, err = r.a.PostRecv(make([]RecvWR, 33))
		require.NoError(t, err)
		require.Equal(t, 33, n)
	})
}

func TestPostKeepsNothing(t *testing.T) {
	r := newRig(t, QPConfig{})
	r.f.setHold(true)
	copy(r.mr.Bytes(), "abcdef")
	data := []byte("12345")
	sgl := []SGE{r.mr.SGE(0, 3)}
	wrs := []SendWR{
		{ID: 1, Op: OpSend, Inline: data},
		{ID: 2, Op: OpSend, SGL: sgl},
		{ID: 3, Op: OpSend, Flags: SendInline, SGL: []SGE{r.mr.SGE(0, 3), {}, r.mr.SGE(3, 3)}},
	}
	_, err := r.b.PostRecv([]RecvWR{{SGL: []SGE{r.mr.SGE(100, 9)}}, {SGL: []SGE{r.mr.SGE(200, 9)}}, {SGL: []SGE{r.mr.SGE(300, 9)}}})
	require.NoError(t, err)
	_, err = r.a.PostSend(wrs)
	require.NoError(t, err)
	// VRB-29: everything the call was given changes before the transport looks.
	clear(wrs)
	copy(data, "xxxxx")
	sgl[0] = SGE{}
	copy(r.mr.Bytes(), "ABCDEF")
	r.f.setHold(false)
	r.a.Ops().Doorbell()
	require.Equal(t, "12345", string(r.mr.Bytes()[100:105]), "VRB-29 inline data was copied")
	require.Equal(t, "ABC", string(r.mr.Bytes()[200:203]), "VRB-30 other memory is lent, not copied")
	require.Equal(t, "abcdef", string(r.mr.Bytes()[300:306]), "VRB-29 inline by flag copies from the region")
}

func TestWQEContent(t *testing.T) {
	r := newRig(t, QPConfig{SignalAll: true})
	r.f.setHold(true)
	_, err := r.a.PostSend([]SendWR{
		{ID: 5, Op: OpWrite, Flags: SendFence, SGL: []SGE{{}, r.mr.SGE(8, 16), {}, r.mr.SGE(0, 4)}, Remote: RemoteBuf{1, 2, 3}, Inv: 4, Imm: 6},
		{ID: 6, Op: OpRead, SGL: []SGE{{}}},
	})
	require.NoError(t, err)
	sq := r.f.qp(r.a).s.SQ
	w := ring.WQE(sq.Record(0))
	require.True(t, w.Valid())
	require.Equal(t, uint64(5), w.ID())
	require.Equal(t, ring.WRRDMAWrite, w.Op())
	require.Equal(t, ring.FlagFence|ring.FlagSignaled, w.Flags(), "VRB-35 SignalAll sets the flag")
	require.Equal(t, 2, w.NumSGE(), "VRB-31 empty elements are left out")
	key, n, off := w.SGE(0)
	require.Equal(t, []any{r.mr.Key(), uint32(16), uint64(8)}, []any{Key(key), n, off})
	require.Equal(t, uint64(1), w.RemoteAddr())
	require.Equal(t, uint32(2), w.RKey())
	require.Equal(t, 1, ring.WQE(sq.Record(1)).NumSGE(), "a read keeps its one element")
	require.Zero(t, ring.WQE(sq.Record(1)).RKey())
}

func TestPostByState(t *testing.T) {
	for s, want := range map[QPState]struct{ send, recv error }{
		QPSReset: {send: syscall.EINVAL},
		QPSInit:  {send: syscall.EINVAL},
		QPSRTR:   {send: syscall.EINVAL},
		QPSRTS:   {},
		QPSSQD:   {send: syscall.EINVAL, recv: syscall.EINVAL},
		QPSSQE:   {send: syscall.EINVAL},
		QPSErr:   {},
	} {
		t.Run(s.String(), func(t *testing.T) {
			r := newRig(t, QPConfig{})
			r.f.qp(r.a).state.Store(uint32(s))
			n, err := r.a.PostSend(make([]SendWR, 2))
			if want.send == nil {
				require.NoError(t, err)
				require.Equal(t, 2, n)
			} else {
				require.ErrorIs(t, err, want.send)
				require.Zero(t, n)
			}
			n, err = r.a.PostRecv(make([]RecvWR, 2))
			if want.recv == nil {
				require.NoError(t, err)
				require.Equal(t, 2, n)
			} else {
				require.ErrorIs(t, err, want.recv)
				require.Zero(t, n)
			}
			if s == QPSErr {
				wcs := poll(t, r.cq)
				require.Len(t, wcs, 4, "VRB-18 posts in ERR complete")
				for _, wc := range wcs {
					require.Equal(t, WCWRFlushErr, wc.Status)
				}
			}
			if s == QPSSQE {
				require.Equal(t, int64(1), r.f.qp(r.a).bells.Load(), "the provider is told of receives to flush")
			}
		})
	}
	t.Run("closed", func(t *testing.T) {
		r := newRig(t, QPConfig{})
		require.NoError(t, r.a.Close())
		_, err := r.a.PostSend(make([]SendWR, 1))
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = r.a.PostRecv(make([]RecvWR, 1))
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestPostErrorText(t *testing.T) {
	r := newRig(t, QPConfig{})
	_, err := r.a.PostSend([]SendWR{{Op: OpSend, SGL: []SGE{r.mr.SGE(4000, 100)}}})
	require.EqualError(t, err, fmt.Sprintf("post send qp %d: SGE 0: octets 4000+100 of a region of 4096", r.a.Num()))
	_, err = r.a.PostSend([]SendWR{{Op: OpFetchAdd, SGL: []SGE{r.mr.SGE(0, 4)}}})
	require.EqualError(t, err, fmt.Sprintf("post send qp %d: ATOMIC_FETCH_AND_ADD needs an SGE of 8 octets, has 4", r.a.Num()))
}

func TestInlineSize(t *testing.T) {
	r := newRig(t, QPConfig{MaxInline: 256})
	require.GreaterOrEqual(t, r.a.Config().MaxInline, 256)
	data := bytes.Repeat([]byte("0123456789abcdef"), 16)
	_, err := r.a.PostSend([]SendWR{{Op: OpWrite, Inline: data, Remote: r.mr.Remote()}})
	require.NoError(t, err)
	require.Equal(t, data, r.mr.Bytes()[:256])
	require.False(t, strings.Contains(string(r.mr.Bytes()[256:]), "0"))
}
