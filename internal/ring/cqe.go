package ring

import "encoding/binary"

// CQE is a completion queue element, a view of 64 octets.
//
//	 0  ID, 8 octets
//	 8  status (ibv_wc_status)
//	 9  opcode (ibv_wr_opcode, or 128 and 129 for receives)
//	10  flags (ibv_wc_flags)
//	11  1: solicited
//	12  byte count, 4 octets
//	16  queue pair, 4 octets
//	20  shared receive queue, 4 octets
//	24  source queue pair, 4 octets
//	28  invalidated key, 4 octets
//	32  immediate data or tag, 8 octets
//	40  offset in the receive buffer, 8 octets
//	48  vendor error, 4 octets
//	52  not used yet
//	56  time, 8 octets
type CQE []byte

// CQESize is the stride of a completion queue, in octets.
const CQESize = 64

// Opcodes of receive completions (ibv_wc_opcode). A completion of the send queue
// carries the opcode of a work request: WRSend, WRRDMAWrite, WRRDMARead,
// WRAtomicCmpAndSwp, WRAtomicFetchAndAdd; one with immediate data or invalidation
// shows as the plain operation. (The send opcodes of ibv_wc_opcode number the same
// operations differently; one numbering is enough here.)
const (
	WCRecv            uint8 = 128
	WCRecvRDMAWithImm uint8 = 129
)

// Completion flags (ibv_wc_flags).
const (
	WCFlagGRH      uint8 = 1
	WCFlagWithImm  uint8 = 2
	WCFlagIPCsumOK uint8 = 4
	WCFlagWithInv  uint8 = 8
)

// Completion is a CQE outside the ring.
type Completion struct {
	ID        uint64 // of the work request
	Status    uint8  // ibv_wc_status
	Op        uint8  // WRSend and so on, WCRecv, WCRecvRDMAWithImm
	Flags     uint8  // ibv_wc_flags
	Solicited bool   // the message asked for an event; an error counts as solicited by itself
	ByteLen   uint32 // octets received, read or, by an atomic, fetched; with immediate data, written before
	QP        uint32 // the queue pair
	SRQ       uint32 // the shared receive queue the request came from
	SrcQP     uint32 // the sender, where the transport names one
	Inv       uint32 // the key that was invalidated
	VendorErr uint32 // layer, type and code of a Terminate
	Imm       uint64 // immediate data or tag
	Off       uint64 // where in the receive buffer the message begins
	Time      int64  // nanoseconds since the Unix epoch; 0: not taken
}

// Put writes e into the record.
func (r CQE) Put(e *Completion) {
	_ = r[CQESize-1]
	w := uint64(e.Status) | uint64(e.Op)<<8 | uint64(e.Flags)<<16 | uint64(e.ByteLen)<<32
	if e.Solicited {
		w |= 1 << 24
	}
	binary.LittleEndian.PutUint64(r[0:8], e.ID)
	binary.LittleEndian.PutUint64(r[8:16], w)
	binary.LittleEndian.PutUint64(r[16:24], uint64(e.QP)|uint64(e.SRQ)<<32)
	binary.LittleEndian.PutUint64(r[24:32], uint64(e.SrcQP)|uint64(e.Inv)<<32)
	binary.LittleEndian.PutUint64(r[32:40], e.Imm)
	binary.LittleEndian.PutUint64(r[40:48], e.Off)
	binary.LittleEndian.PutUint64(r[48:56], uint64(e.VendorErr))
	binary.LittleEndian.PutUint64(r[56:64], uint64(e.Time))
}

// Get reads the record into e.
func (r CQE) Get(e *Completion) {
	_ = r[CQESize-1]
	w := binary.LittleEndian.Uint64(r[8:16])
	e.ID = binary.LittleEndian.Uint64(r[0:8])
	e.Status, e.Op, e.Flags = uint8(w), uint8(w>>8), uint8(w>>16)
	e.Solicited = w>>24&1 != 0
	e.ByteLen = uint32(w >> 32)
	e.QP = binary.LittleEndian.Uint32(r[16:20])
	e.SRQ = binary.LittleEndian.Uint32(r[20:24])
	e.SrcQP = binary.LittleEndian.Uint32(r[24:28])
	e.Inv = binary.LittleEndian.Uint32(r[28:32])
	e.Imm = binary.LittleEndian.Uint64(r[32:40])
	e.Off = binary.LittleEndian.Uint64(r[40:48])
	e.VendorErr = binary.LittleEndian.Uint32(r[48:52])
	e.Time = int64(binary.LittleEndian.Uint64(r[56:64]))
}
