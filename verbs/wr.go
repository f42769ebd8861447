package verbs

import (
	"fmt"
	"strings"
)

// Opcode says what a work request does, and in a [WC] what was done. The values
// are those of ibv_wr_opcode; the two receive opcodes are those of
// ibv_wc_opcode. As in libibverbs, a WC shows a request with immediate data or
// invalidation as the plain operation.
type Opcode uint8

const (
	OpWrite        Opcode = 0 // RDMA Write
	OpWriteWithImm Opcode = 1 // RDMA Write, then immediate data that takes a receive
	OpSend         Opcode = 2 // Send
	OpSendWithImm  Opcode = 3 // not on iWARP
	OpRead         Opcode = 4 // RDMA Read
	OpCompareSwap  Opcode = 5 // atomic compare and swap
	OpFetchAdd     Opcode = 6 // atomic fetch and add
	OpLocalInv     Opcode = 7 // invalidate a local key
	OpBindMW       Opcode = 8 // bind a memory window
	OpSendWithInv  Opcode = 9 // Send that invalidates a key of the peer

	OpRecv        Opcode = 128 // a receive took a Send
	OpRecvWithImm Opcode = 129 // a receive took the immediate data of an RDMA Write
)

var opNames = [...]string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "SEND_WITH_INV"}

// String returns the name in libibverbs without its prefix.
func (o Opcode) String() string {
	switch {
	case int(o) < len(opNames):
		return opNames[o]
	case o == OpRecv:
		return "RECV"
	case o == OpRecvWithImm:
		return "RECV_RDMA_WITH_IMM"
	}
	return fmt.Sprintf("OPCODE(%d)", uint8(o))
}

// SendFlags modify a work request of the send queue. The values are those of
// ibv_send_flags.
type SendFlags uint8

const (
	// SendFence delays the start of the request until all earlier reads and
	// atomics of this queue have completed (RFC 5040, Section 5.5).
	SendFence SendFlags = 1
	// SendSignaled asks for a completion on success. Without it (and without
	// QPConfig.SignalAll) only an error makes one.
	SendSignaled SendFlags = 2
	// SendSolicited makes the peer's receive completion a solicited one, which
	// CQ.Notify(true) waits for. It means nothing on RDMA Write and Read.
	SendSolicited SendFlags = 4
	// SendInline copies the octets of the SGL at the post: the memory may be
	// reused at once and its keys are not checked. SendWR.Inline implies it.
	SendInline SendFlags = 8

	sendFlags = SendFence | SendSignaled | SendSolicited | SendInline
)

var sendFlagNames = []string{"FENCE", "SIGNALED", "SOLICITED", "INLINE"}

func (f SendFlags) String() string { return flagString(uint32(f), sendFlagNames) }

// WCFlags say which optional fields of a [WC] are set. The values are those of
// ibv_wc_flags.
type WCFlags uint8

const (
	WCGRH      WCFlags = 1
	WCWithImm  WCFlags = 2 // WC.Imm is set
	WCIPCsumOK WCFlags = 4
	WCWithInv  WCFlags = 8 // WC.Inv is set
)

var wcFlagNames = []string{"GRH", "WITH_IMM", "IP_CSUM_OK", "WITH_INV"}

func (f WCFlags) String() string { return flagString(uint32(f), wcFlagNames) }

// flagString joins the names of the bits set in v; unknown bits show as a number.
func flagString(v uint32, names []string) string {
	if v == 0 {
		return "0"
	}
	var b strings.Builder
	for i, n := range names {
		if v&(1<<i) != 0 {
			if b.Len() > 0 {
				b.WriteByte('|')
			}
			b.WriteString(n)
			v &^= 1 << i
		}
	}
	if v != 0 {
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		fmt.Fprintf(&b, "%#x", v)
	}
	return b.String()
}

// SGE is a scatter-gather element: Len octets of MR from octet Off on. An
// element with Len 0 stands for nothing and its MR may be nil. [MR.SGE] makes
// one.
type SGE struct {
	MR  *MR
	Off int
	Len int
}

// SendWR is a work request for the send queue. Nothing of it is kept after
// [QP.PostSend] has returned; the memory its SGL names is lent until the
// completion was polled, or, for an unsignaled request, that of a later one.
//
//	Op             SGL        Inline  other fields
//	OpSend         0..max     yes     -
//	OpSendWithInv  0..max     yes     Inv: the peer's key to invalidate
//	OpWrite        0..max     yes     Remote
//	OpRead         exactly 1  no      Remote; the SGE needs AccessLocalWrite
//
// The other opcodes are refused with an error that matches
// [errors.ErrUnsupported]; their fields keep their places.
//
// A request moves at most 2^32-1 octets; none is fine too. Remote.Len is for
// the user's own bookkeeping: how much moves is said by the SGL, and whether the
// peer allows it is said by the peer.
type SendWR struct {
	ID     uint64 // comes back in WC.ID
	Op     Opcode
	Flags  SendFlags
	SGL    []SGE     // gathered from, or for reads scattered to
	Inline []byte    // instead of SGL: copied at the post
	Remote RemoteBuf // the peer's memory
	Inv    Key
	Imm    uint64 // 8 octets on iWARP (RFC 7306, Section 6)

	Compare, CompareMask, Val, ValMask uint64 // operands of atomics
}

// RecvWR is a work request for the receive queue: where the next Send goes. Its
// regions need AccessLocalWrite.
type RecvWR struct {
	ID  uint64 // comes back in WC.ID
	SGL []SGE
}

// WC is a work completion. When Status is not [WCSuccess] only ID, Status, QP,
// VendorErr and Time are set.
type WC struct {
	ID      uint64   // of the work request
	Status  WCStatus // how it went
	Op      Opcode   // what it did
	ByteLen uint32   // octets received (OpRecv) or read (OpRead)
	QP      uint32   // number of the queue pair
	Flags   WCFlags  // which of Inv and Imm are set
	Inv     Key      // with WCWithInv: the key of ours that the peer invalidated
	Imm     uint64   // with WCWithImm
	Time    int64    // nanoseconds since the Unix epoch; 0 where the provider takes none

	// VendorErr helps debugging an error: layer, type and code of the Terminate
	// message that was sent or received, as in 0x1202; else 0.
	VendorErr uint32
}

// Err returns nil on success, else the [WCStatus] as an error. It does not
// allocate, and errors.Is compares it with the WC constants.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return wc.Status
}
