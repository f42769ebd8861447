package ring

import "encoding/binary"

// WQE is a work queue element: one work request in a send, receive or shared
// receive queue. It is a view; the setters are the producer's, the getters never
// read outside the record whatever its octets say.
//
//	  0  ID, 8 octets
//	  8  opcode (ibv_wr_opcode)
//	  9  flags (ibv_send_flags)
//	 10  number of SGEs, 2 octets
//	 12  octets of inline data, 4 octets
//	 16  remote address, 8 octets
//	 24  remote key, 4 octets
//	 28  key to invalidate, 4 octets
//	 32  immediate data, 8 octets
//	 40  compare, compare mask, value, value mask: 8 octets each
//	 72  new key of a window or region, 4 octets
//	 76  key of the region a window is bound to, 4 octets
//	 80  offset and length in it, 8 octets each
//	 96  rights (ibv_access_flags)
//	 97  not used yet
//	112  SGEs of 16 octets: offset 8, key 4, length 4
//
// Inline data starts at 40: no operation has both inline data and the operands
// of an atomic or a bind. A receive uses the ID and the SGEs alone.
type WQE []byte

const (
	WQESize   = 128 // octets of a WQE with one SGE
	SGESize   = 16  // octets of each further SGE
	wqeSGEs   = 112
	wqeInline = 40
)

// WQEStride returns the record size for work requests with up to sges SGEs and
// up to inline octets of inline data.
func WQEStride(sges, inline int) int {
	n := max(WQESize, wqeSGEs+sges*SGESize, wqeInline+inline)
	return (n + SGESize - 1) / SGESize * SGESize
}

// Work request opcodes (ibv_wr_opcode).
const (
	WRRDMAWrite uint8 = iota
	WRRDMAWriteWithImm
	WRSend
	WRSendWithImm
	WRRDMARead
	WRAtomicCmpAndSwp
	WRAtomicFetchAndAdd
	WRLocalInv
	WRBindMW
	WRSendWithInv
)

// WRRegMR makes a region valid. Its number is that of the Linux kernel.
const WRRegMR uint8 = 0x20

// Send flags (ibv_send_flags). Signaled is set by the poster also where the
// queue pair signals everything.
const (
	FlagFence     uint8 = 1
	FlagSignaled  uint8 = 2
	FlagSolicited uint8 = 4
	FlagInline    uint8 = 8
)

// ID returns the user's identifier.
func (w WQE) ID() uint64 { return binary.LittleEndian.Uint64(w[0:8]) }

// Op returns the opcode.
func (w WQE) Op() uint8 { return w[8] }

// Flags returns the send flags.
func (w WQE) Flags() uint8 { return w[9] }

// RemoteAddr returns the address at the peer.
func (w WQE) RemoteAddr() uint64 { return binary.LittleEndian.Uint64(w[16:24]) }

// RKey returns the key at the peer.
func (w WQE) RKey() uint32 { return binary.LittleEndian.Uint32(w[24:28]) }

// Inv returns the key to invalidate.
func (w WQE) Inv() uint32 { return binary.LittleEndian.Uint32(w[28:32]) }

// Imm returns the immediate data.
func (w WQE) Imm() uint64 { return binary.LittleEndian.Uint64(w[32:40]) }

// Compare returns what a compare and swap compares with.
func (w WQE) Compare() uint64 { return binary.LittleEndian.Uint64(w[40:48]) }

// CompareMask returns the mask of Compare.
func (w WQE) CompareMask() uint64 { return binary.LittleEndian.Uint64(w[48:56]) }

// Val returns what is added or swapped in.
func (w WQE) Val() uint64 { return binary.LittleEndian.Uint64(w[56:64]) }

// ValMask returns the mask of Val.
func (w WQE) ValMask() uint64 { return binary.LittleEndian.Uint64(w[64:72]) }

// Bind is what a request to bind a window or to make a region valid says.
type Bind struct {
	Key    uint32 // of the window or region: its index, and the key octet it gets
	Region uint32 // key of the region a window is bound to
	Off    uint64 // of the window in it
	Len    uint64
	Access uint8 // ibv_access_flags
}

// Bind returns what a bind says.
func (w WQE) Bind() Bind {
	return Bind{
		Key: binary.LittleEndian.Uint32(w[72:76]), Region: binary.LittleEndian.Uint32(w[76:80]),
		Off: binary.LittleEndian.Uint64(w[80:88]), Len: binary.LittleEndian.Uint64(w[88:96]), Access: w[96],
	}
}

// MaxSGE returns how many SGEs the record has room for.
func (w WQE) MaxSGE() int { return (len(w) - wqeSGEs) / SGESize }

// NumSGE returns the number of SGEs, never more than MaxSGE.
func (w WQE) NumSGE() int {
	return min(int(binary.LittleEndian.Uint16(w[10:12])), w.MaxSGE())
}

// SGE returns the i-th scatter-gather element, i < NumSGE: length octets of the
// region named by key, from octet off of the region on.
func (w WQE) SGE(i int) (key, length uint32, off uint64) {
	s := w[wqeSGEs+i*SGESize:][:SGESize]
	return binary.LittleEndian.Uint32(s[8:12]), binary.LittleEndian.Uint32(s[12:16]), binary.LittleEndian.Uint64(s[0:8])
}

// MaxInline returns how many octets of inline data the record has room for.
func (w WQE) MaxInline() int { return len(w) - wqeInline }

// InlineLen returns the octets of inline data, never more than MaxInline.
func (w WQE) InlineLen() int {
	return int(min(uint64(binary.LittleEndian.Uint32(w[12:16])), uint64(w.MaxInline())))
}

// Inline returns the inline data, which lives in the record.
func (w WQE) Inline() []byte { n := w.InlineLen(); return w[wqeInline : wqeInline+n : wqeInline+n] }

// Valid reports that the counts in the record fit the record. A consumer that
// does not trust the producer asks before it uses its copy.
func (w WQE) Valid() bool {
	return len(w) >= WQESize &&
		int(binary.LittleEndian.Uint16(w[10:12])) <= w.MaxSGE() &&
		uint64(binary.LittleEndian.Uint32(w[12:16])) <= uint64(w.MaxInline())
}

// SetHead writes what every work request has and forgets the SGEs, the inline
// data, the remote side, the key to invalidate and the immediate data.
func (w WQE) SetHead(id uint64, op, flags uint8) {
	_ = w[39]
	binary.LittleEndian.PutUint64(w[0:8], id)
	binary.LittleEndian.PutUint64(w[8:16], uint64(op)|uint64(flags)<<8)
	clear(w[16:40])
}

// SetSGE writes the i-th SGE. SetNumSGE says how many there are.
func (w WQE) SetSGE(i int, key, length uint32, off uint64) {
	s := w[wqeSGEs+i*SGESize:][:SGESize]
	binary.LittleEndian.PutUint64(s[0:8], off)
	binary.LittleEndian.PutUint32(s[8:12], key)
	binary.LittleEndian.PutUint32(s[12:16], length)
}

// SetNumSGE writes the number of SGEs.
func (w WQE) SetNumSGE(n int) { binary.LittleEndian.PutUint16(w[10:12], uint16(n)) }

// AppendInline copies p behind the inline data that is there already.
func (w WQE) AppendInline(p []byte) {
	n := int(binary.LittleEndian.Uint32(w[12:16]))
	if copy(w[wqeInline+n:], p) != len(p) {
		panic("ring: inline data larger than the record")
	}
	binary.LittleEndian.PutUint32(w[12:16], uint32(n+len(p)))
}

// SetRemote names memory of the peer.
func (w WQE) SetRemote(addr uint64, rkey uint32) {
	binary.LittleEndian.PutUint64(w[16:24], addr)
	binary.LittleEndian.PutUint32(w[24:28], rkey)
}

// SetInv names the key to invalidate.
func (w WQE) SetInv(key uint32) { binary.LittleEndian.PutUint32(w[28:32], key) }

// SetImm writes the immediate data.
func (w WQE) SetImm(imm uint64) { binary.LittleEndian.PutUint64(w[32:40], imm) }

// SetAtomic writes the operands of an atomic operation.
func (w WQE) SetAtomic(compare, compareMask, val, valMask uint64) {
	binary.LittleEndian.PutUint64(w[40:48], compare)
	binary.LittleEndian.PutUint64(w[48:56], compareMask)
	binary.LittleEndian.PutUint64(w[56:64], val)
	binary.LittleEndian.PutUint64(w[64:72], valMask)
}

// SetBind writes what a bind says.
func (w WQE) SetBind(b Bind) {
	binary.LittleEndian.PutUint32(w[72:76], b.Key)
	binary.LittleEndian.PutUint32(w[76:80], b.Region)
	binary.LittleEndian.PutUint64(w[80:88], b.Off)
	binary.LittleEndian.PutUint64(w[88:96], b.Len)
	w[96] = b.Access
}
