package verbs

import (
	"context"
	"encoding"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWCStatus(t *testing.T) {
	for n, c := range []struct {
		s    WCStatus
		text string
	}{
		{WCSuccess, "success"}, {WCLocLenErr, "local length error"}, {WCLocQPOpErr, "local QP operation error"},
		{WCLocEECOpErr, "local EE context operation error"}, {WCLocProtErr, "local protection error"},
		{WCWRFlushErr, "Work Request Flushed Error"}, {WCMWBindErr, "memory management operation error"},
		{WCBadRespErr, "bad response error"}, {WCLocAccessErr, "local access error"},
		{WCRemInvReqErr, "remote invalid request error"}, {WCRemAccessErr, "remote access error"},
		{WCRemOpErr, "remote operation error"}, {WCRetryExcErr, "transport retry counter exceeded"},
		{WCRNRRetryExcErr, "RNR retry counter exceeded"}, {WCLocRDDViolErr, "local RDD violation error"},
		{WCRemInvRdReqErr, "remote invalid RD request"}, {WCRemAbortErr, "aborted error"},
		{WCInvEECNErr, "invalid EE context number"}, {WCInvEECStateErr, "invalid EE context state"},
		{WCFatalErr, "fatal error"}, {WCRespTimeoutErr, "response timeout error"}, {WCGeneralErr, "general error"},
		{WCTMErr, "TM error"}, {WCTMRndvIncomplete, "TM software rendezvous"}, {24, "unknown status 24"},
	} {
		require.Equal(t, n, int(c.s), c.text)
		require.Equal(t, c.text, c.s.String())
		wc := WC{Status: c.s}
		if c.s == WCSuccess {
			require.NoError(t, wc.Err())
			continue
		}
		require.EqualError(t, wc.Err(), c.text)
		require.ErrorIs(t, wc.Err(), c.s)
		require.NotErrorIs(t, wc.Err(), c.s-1)
		var s WCStatus
		require.ErrorAs(t, fmt.Errorf("x: %w", wc.Err()), &s)
		require.Equal(t, c.s, s)
	}
}

func TestNumbersAndNames(t *testing.T) {
	for v, want := range map[fmt.Stringer]string{
		OpWrite: "0 RDMA_WRITE", OpWriteWithImm: "1 RDMA_WRITE_WITH_IMM", OpSend: "2 SEND", OpSendWithImm: "3 SEND_WITH_IMM",
		OpRead: "4 RDMA_READ", OpCompareSwap: "5 ATOMIC_CMP_AND_SWP", OpFetchAdd: "6 ATOMIC_FETCH_AND_ADD",
		OpLocalInv: "7 LOCAL_INV", OpBindMW: "8 BIND_MW", OpSendWithInv: "9 SEND_WITH_INV",
		OpRecv: "128 RECV", OpRecvWithImm: "129 RECV_RDMA_WITH_IMM", Opcode(77): "77 OPCODE(77)",
		SendFence: "1 FENCE", SendSignaled: "2 SIGNALED", SendSolicited: "4 SOLICITED", SendInline: "8 INLINE",
		SendFlags(0): "0 0", SendFence | SendInline | 64: "73 FENCE|INLINE|0x40",
		WCGRH: "1 GRH", WCWithImm: "2 WITH_IMM", WCIPCsumOK: "4 IP_CSUM_OK", WCWithInv: "8 WITH_INV",
		AccessLocalWrite: "1 LOCAL_WRITE", AccessRemoteWrite: "2 REMOTE_WRITE", AccessRemoteRead: "4 REMOTE_READ",
		AccessRemoteAtomic: "8 REMOTE_ATOMIC", AccessMWBind: "16 MW_BIND", AccessZeroBased: "32 ZERO_BASED",
		Access(64): "64 0x40",
		QPSReset:   "0 RESET", QPSInit: "1 INIT", QPSRTR: "2 RTR", QPSRTS: "3 RTS", QPSSQD: "4 SQD", QPSSQE: "5 SQE", QPSErr: "6 ERR",
		EventCQErr: "0 CQ_ERR", EventQPFatal: "1 QP_FATAL", EventQPReqErr: "2 QP_REQ_ERR", EventQPAccessErr: "3 QP_ACCESS_ERR",
		EventCommEst: "4 COMM_EST", EventSQDrained: "5 SQ_DRAINED", EventDeviceFatal: "8 DEVICE_FATAL",
		EventPortActive: "9 PORT_ACTIVE", EventPortErr: "10 PORT_ERR", EventSRQErr: "14 SRQ_ERR",
		EventSRQLimitReached: "15 SRQ_LIMIT_REACHED", EventQPLastWQEReached: "16 QP_LAST_WQE_REACHED",
		EventGIDChange: "18 GID_CHANGE", EventType(40): "40 EVENT(40)",
		NodeRNIC: "4 RNIC", NodeCA: "1 CA", NodeType(9): "9 NODE(9)",
		TransportIWARP: "1 iWARP", TransportIB: "0 InfiniBand", Transport(9): "9 TRANSPORT(9)",
		AtomicNone: "0 NONE", AtomicHCA: "1 HCA", AtomicGlob: "2 GLOB", AtomicCap(9): "9 ATOMIC(9)",
	} {
		require.Equal(t, want, fmt.Sprintf("%d %v", v, v), "%T", v)
	}
}

func TestRemoteBuf(t *testing.T) {
	b := RemoteBuf{Addr: 0x0102030405060708, RKey: 0x11121314, Len: 0x40}
	wire := "0102030405060708" + "11121314" + "00000040" // as rping sends it
	got, err := b.AppendBinary([]byte{0xff})
	require.NoError(t, err)
	require.Equal(t, "ff"+wire, hex.EncodeToString(got))
	back, err := ParseRemoteBuf(append(got[1:], 9, 9))
	require.NoError(t, err)
	require.Equal(t, b, back)

	var _ encoding.BinaryAppender = b
	var u encoding.BinaryUnmarshaler = &back
	m, err := b.MarshalBinary()
	require.NoError(t, err)
	require.NoError(t, u.UnmarshalBinary(m))
	require.Equal(t, b, back)
	for n := range RemoteBufSize {
		_, err := ParseRemoteBuf(m[:n])
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.ErrorIs(t, u.UnmarshalBinary(append(m, 0)), syscall.EINVAL)
	require.Equal(t, "addr 0x102030405060708 rkey 0x11121314 len 64", b.String())

	for _, c := range []struct {
		b      RemoteBuf
		off, n int
		want   RemoteBuf
	}{
		{b, 0, 64, b},
		{b, 4, 8, RemoteBuf{b.Addr + 4, b.RKey, 8}},
		{b, 64, 0, RemoteBuf{b.Addr + 64, b.RKey, 0}},
		{b, 64, 1, RemoteBuf{}},
		{b, 65, 0, RemoteBuf{}},
		{b, -1, 1, RemoteBuf{}},
		{b, 0, -1, RemoteBuf{}},
		{b, 1, math.MaxInt, RemoteBuf{}},
		{b, math.MaxInt, 1, RemoteBuf{}},
		{RemoteBuf{math.MaxUint64 - 3, 1, 64}, 3, 1, RemoteBuf{math.MaxUint64, 1, 1}},
		{RemoteBuf{math.MaxUint64 - 3, 1, 64}, 4, 1, RemoteBuf{}}, // the peer lied: the address wraps
	} {
		require.Equal(t, c.want, c.b.Slice(c.off, c.n), "%+v", c)
	}
}

func FuzzParseRemoteBuf(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), 3, 4)
	f.Add([]byte(nil), 0, 0)
	f.Fuzz(func(t *testing.T, p []byte, off, n int) {
		b, err := ParseRemoteBuf(p)
		if err != nil {
			require.Less(t, len(p), RemoteBufSize)
			return
		}
		out, err := b.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, p[:RemoteBufSize], out)
		if s := b.Slice(off, n); s != (RemoteBuf{}) {
			require.GreaterOrEqual(t, s.Addr, b.Addr)
			require.LessOrEqual(t, uint64(off)+uint64(s.Len), uint64(b.Len))
		}
	})
}

func TestErrors(t *testing.T) {
	require.ErrorIs(t, ErrClosed, net.ErrClosed)
	require.ErrorIs(t, ErrQueueFull, syscall.ENOMEM)
	require.ErrorIs(t, ErrNotShareable, syscall.EINVAL)
	require.NotErrorIs(t, ErrCQOverrun, net.ErrClosed)
	require.NotErrorIs(t, ErrClosed, syscall.EINVAL)

	op := &OpError{Op: "dial", Object: "10.0.0.1:7174", Err: fmt.Errorf("tcp: %w", syscall.ECONNREFUSED)}
	require.EqualError(t, op, "dial 10.0.0.1:7174: tcp: connection refused")
	require.ErrorIs(t, op, syscall.ECONNREFUSED)
	require.False(t, op.Timeout())
	require.NotErrorIs(t, op, os.ErrDeadlineExceeded)
	late := &OpError{Op: "dial", Err: context.DeadlineExceeded}
	require.EqualError(t, late, "dial: context deadline exceeded")
	require.ErrorIs(t, late, os.ErrDeadlineExceeded)
	require.ErrorIs(t, late, context.DeadlineExceeded)
	require.True(t, late.Timeout())
	require.True(t, (&OpError{Op: "dial", Err: syscall.ETIMEDOUT}).Timeout())
	require.False(t, (&OpError{Op: "dial", Err: context.Canceled}).Timeout())

	rej := &OpError{Op: "dial", Err: &RejectError{PrivateData: []byte("busy")}}
	var r *RejectError
	require.ErrorAs(t, rej, &r)
	require.Equal(t, "busy", string(r.PrivateData))
	require.ErrorIs(t, rej, syscall.ECONNREFUSED)
	require.Contains(t, rej.Error(), "4 octets of private data")
	require.NotContains(t, rej.Error(), "busy", "a peer's octets are not printed")
	require.EqualError(t, &RejectError{}, "connection rejected by the peer")
}

func TestTerminateError(t *testing.T) {
	for _, c := range []struct {
		e    TerminateError
		want string
	}{
		{TerminateError{Remote: true, Layer: 1, Type: 2, Code: 2}, "stream terminated by the peer: DDP untagged buffer error: invalid MSN, no buffer available (0x1202): a Send met no posted receive; iWARP has no retry, post receives before the peer may send"},
		{TerminateError{Layer: 0, Type: 1, Code: 2}, "stream terminated by this side: RDMA remote protection error: access rights violation (0x0102)"},
		{TerminateError{Remote: true, Layer: 2, Type: 0, Code: 2}, "stream terminated by the peer: MPA error: CRC mismatch (0x2002)"},
		{TerminateError{Layer: 0, Type: 0, Code: 0}, "stream terminated by this side: RDMA local catastrophic error (0x0000)"},
		{TerminateError{Remote: true, Layer: 1, Type: 1, Code: 77}, "stream terminated by the peer: DDP tagged buffer error (0x114d)"},
		{TerminateError{Remote: true, Layer: 9, Type: 9, Code: 9}, "stream terminated by the peer: unknown error (0x9909)"},
	} {
		require.EqualError(t, &c.e, c.want)
	}
	var term *TerminateError
	require.ErrorAs(t, &OpError{Op: "x", Err: &TerminateError{Layer: 1, Type: 2, Code: 5}}, &term)
	require.Equal(t, uint16(0x1205), term.Value())
	for v := range terminateCodes {
		e := TerminateError{Layer: uint8(v >> 12), Type: uint8(v >> 8 & 15), Code: uint8(v)}
		require.Equal(t, v, e.Value())
		require.Contains(t, terminateTypes, v>>8)
		require.Equal(t, 2, strings.Count(e.name(), ": ")+1)
	}
}
