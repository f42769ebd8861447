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
	OpWriteWithImm Opcode = 1 // RDMA Write, then immediate data, which takes a receive of the peer
	OpSend         Opcode = 2 // Send
	OpSendWithImm  Opcode = 3 // not on iWARP
	OpRead         Opcode = 4 // RDMA Read
	OpCompareSwap  Opcode = 5 // atomic compare and swap
	OpFetchAdd     Opcode = 6 // atomic fetch and add
	OpLocalInv     Opcode = 7 // invalidate a local key
	OpBindMW       Opcode = 8 // bind a memory window
	OpSendWithInv  Opcode = 9 // Send that invalidates a key of the peer

	OpRegMR Opcode = 32 // fast registration; not in libibverbs, the number is that of Linux's kernel verbs

	OpRecv Opcode = 128 // a receive took a Send
	// OpRecvWithImm: a receive took immediate data, WC.Imm. Nothing was written to
	// its memory, and WC.ByteLen is not about that: it says how many octets the
	// peer's RDMA Write put elsewhere, or 0 if the immediate data did not come right
	// behind one.
	OpRecvWithImm Opcode = 129
)

var opNames = [...]string{"RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ",
	"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "LOCAL_INV", "BIND_MW", "SEND_WITH_INV"}

// String returns the name in libibverbs without its prefix.
func (o Opcode) String() string {
	switch {
	case int(o) < len(opNames):
		return opNames[o]
	case o == OpRegMR:
		return "REG_MR"
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
	// CQ.Notify(true) waits for. It means nothing where no receive completes: on a
	// plain RDMA Write, a Read and an atomic.
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
//	Op              SGL        Inline  other fields
//	OpSend          0..max     yes     -
//	OpSendWithInv   0..max     yes     Inv: the peer's key to invalidate
//	OpWrite         0..max     yes     Remote
//	OpWriteWithImm  0..max     yes     Remote, Imm
//	OpRead          exactly 1  no      Remote; the SGE needs AccessLocalWrite
//	OpFetchAdd      exactly 1  no      Remote, Val, ValMask; the SGE likewise, of 8 octets
//	OpCompareSwap   exactly 1  no      Remote, Compare, CompareMask, Val, ValMask; likewise
//	OpBindMW        0 or 1     no      MW, Access; Key for a window of type 2
//	OpRegMR         none       no      MR, Access, Key
//	OpLocalInv      none       no      Inv: the key of ours to invalidate
//
// OpSendWithImm is refused: iWARP has no message for it. OpWriteWithImm without
// data carries the immediate data alone.
//
// A request moves at most 2^32-1 octets; none is fine too. Remote.Len is for
// the user's own bookkeeping: how much moves is said by the SGL, and whether the
// peer allows it is said by the peer.
//
// # Keys
//
// OpBindMW makes the memory window MW show the range of the SGE with the rights in
// Access, some of AccessRemoteWrite, AccessRemoteRead and AccessRemoteAtomic. The
// region must be of the same domain and have AccessMWBind, not AccessZeroBased, and
// AccessLocalWrite where the window is to be written by. A type 1 window leaves
// what it showed before; without octets it shows nothing. A type 2 window must be
// invalid; Key is the key it gets: only the last octet is free to choose, and 0
// takes the next one, [Key.Inc]. A bind that cannot be done completes with
// [WCMWBindErr] and ends the connection.
//
// OpRegMR makes a region of [PD.AllocFastMR], which must be invalid, valid with the
// rights in Access, under Key as above. It fails like a bind.
//
// OpLocalInv makes a type 2 window that this queue pair bound, or a region of
// [PD.AllocFastMR], invalid: when it completes no peer reaches anything by that key
// any more. On one that is invalid already it does nothing. It completes with
// [WCLocProtErr], and ends the connection, for a key that is unknown, of another
// domain or queue pair, or one of [PD.RegMR] or of a type 1 window; with
// [WCMWBindErr] for a region that has windows.
//
// These three begin when all requests before them have been sent, and OpLocalInv
// when reads and atomics before it that use the key have been answered; for others
// use SendFence. They are done before the next request begins.
//
// # Atomics
//
// An atomic changes the 8 octets at Remote.Addr, an unsigned number in the byte
// order of the peer's host, and puts what they were before into the SGE, in that
// of this host. The peer's region needs AccessRemoteAtomic, and the octets must
// be aligned to 8 in the peer's memory: the peer finds out, and ends the
// connection with Terminate 0x0207 if they are not. Atomics and reads share the
// queue pair's limit of requests in flight (ORD) and are done by the peer in
// posting order. They are atomic with respect to other atomics through the same
// device, and to its host's uses of [MR.Uint64], not to plain reads and writes.
//
// OpFetchAdd adds Val. Each bit set in ValMask is the top of a field whose carry
// is lost, so that one request can add to several small counters; 0 is a plain
// addition of 64 bits. Compare and CompareMask are not looked at.
//
// OpCompareSwap compares the bits in CompareMask with those of Compare and, if
// all are equal, replaces those in ValMask by those of Val. Both masks 0 stand
// for all 64 bits in both; any other pair means what it says: CompareMask 0
// always swaps, ValMask 0 only looks.
type SendWR struct {
	ID     uint64 // comes back in WC.ID
	Op     Opcode
	Flags  SendFlags
	SGL    []SGE     // gathered from, or for reads scattered to
	Inline []byte    // instead of SGL: copied at the post
	Remote RemoteBuf // the peer's memory
	Inv    Key       // to invalidate

	// Imm is the immediate data: 8 octets on iWARP (RFC 7306, Section 6), the most
	// significant first. What libibverbs calls imm_data, 32 bits, is the first four
	// of them: see [Imm32].
	Imm uint64

	Compare, CompareMask, Val, ValMask uint64 // operands of atomics

	MW     *MW    // to bind
	MR     *MR    // to register
	Key    Key    // for the window or region; 0: the next one
	Access Access // of the window or region
}

// Imm32 returns the immediate data that stands for the 32 bits of v, which
// programs with libibverbs write as imm_data = htonl(v): v in the first four
// octets, then four that are 0. [WC.Imm32] is the way back.
func Imm32(v uint32) uint64 { return uint64(v) << 32 }

// RecvWR is a work request for the receive queue: where the next Send goes. Its
// regions need AccessLocalWrite. Immediate data takes one too, and writes nothing
// to it.
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
	ByteLen uint32   // octets received (OpRecv), read (OpRead) or fetched (atomics: 8); see OpRecvWithImm
	QP      uint32   // number of the queue pair
	Flags   WCFlags  // which of Inv and Imm are set
	Inv     Key      // with WCWithInv: the key of ours that the peer invalidated
	Imm     uint64   // with WCWithImm: the peer's SendWR.Imm
	Time    int64    // nanoseconds since the Unix epoch; 0 where the provider takes none

	// VendorErr helps debugging an error: layer, type and code of the Terminate
	// message that was sent or received, as in 0x1202; else 0.
	VendorErr uint32
}

// Imm32 returns the immediate data where the peer gave 32 bits: see [Imm32].
func (wc *WC) Imm32() uint32 { return uint32(wc.Imm >> 32) }

// Err returns nil on success, else the [WCStatus] as an error. It does not
// allocate, and errors.Is compares it with the WC constants.
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return wc.Status
}
