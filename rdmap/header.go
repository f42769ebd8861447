package rdmap

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/ddp"
)

// opcode is the operation of a message: the low nibble of the RDMAP control
// octet, which travels as the first octet of DDP's RsvdULP. RFC 5040, Section
// 4.1 and RFC 7306, Section 10.
//
//	 0 1 2 3 4 5 6 7
//	+-+-+-+-+-+-+-+-+
//	|RV |Rsv| Opcode|
//	+-+-+-+-+-+-+-+-+
type opcode uint8

const (
	opWrite        opcode = 0x0
	opReadRequest  opcode = 0x1
	opReadResponse opcode = 0x2
	opSend         opcode = 0x3
	opSendInv      opcode = 0x4
	opSendSE       opcode = 0x5
	opSendSEInv    opcode = 0x6
	opTerminate    opcode = 0x7
	opImmediate    opcode = 0x8
	opImmediateSE  opcode = 0x9
	opAtomic       opcode = 0xa // request
	opAtomicAnswer opcode = 0xb // response
)

// version is RV, as MPA revisions 1 and 2 select it.
const version = 1

// Masks of the control octet. The two bits between are sent zero and ignored.
const (
	maskVersion = 0xc0
	maskOpcode  = 0x0f
)

// octet returns the control octet as it is sent.
func (o opcode) octet() byte { return version<<6 | byte(o) }

func versionOf(b byte) uint8 { return b >> 6 }

func opcodeOf(b byte) opcode { return opcode(b & maskOpcode) }

func (o opcode) solicited() bool {
	return o == opSendSE || o == opSendSEInv || o == opImmediateSE
}

func (o opcode) immediate() bool { return o == opImmediate || o == opImmediateSE }

func (o opcode) invalidates() bool { return o == opSendInv || o == opSendSEInv }

func sendOpcode(solicited, invalidate bool) opcode {
	switch {
	case solicited && invalidate:
		return opSendSEInv
	case solicited:
		return opSendSE
	case invalidate:
		return opSendInv
	}
	return opSend
}

func immediateOpcode(solicited bool) opcode {
	if solicited {
		return opImmediateSE
	}
	return opImmediate
}

// requestLen is the size of a Read Request header.
const requestLen = 28

// readRequest is a view of the RDMAP header of a Read Request, exactly
// requestLen octets. The sink is the requester's memory, the source ours when
// it arrives. RFC 5040, Section 4.4:
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Data Sink STag                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Data Sink Tagged Offset                   |
//	+                                                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     RDMA Read Message Size                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Data Source STag                          |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Data Source Tagged Offset                 |
//	+                                                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type readRequest []byte

func (q readRequest) sinkSTag() ddp.STag   { return ddp.STag(binary.BigEndian.Uint32(q)) }
func (q readRequest) sinkTO() uint64       { return binary.BigEndian.Uint64(q[4:]) }
func (q readRequest) size() uint32         { return binary.BigEndian.Uint32(q[12:]) }
func (q readRequest) sourceSTag() ddp.STag { return ddp.STag(binary.BigEndian.Uint32(q[16:])) }
func (q readRequest) sourceTO() uint64     { return binary.BigEndian.Uint64(q[20:]) }

// put fills the view.
func (q readRequest) put(sink ddp.STag, sinkTO uint64, size uint32, source ddp.STag, sourceTO uint64) {
	binary.BigEndian.PutUint32(q, uint32(sink))
	binary.BigEndian.PutUint64(q[4:], sinkTO)
	binary.BigEndian.PutUint32(q[12:], size)
	binary.BigEndian.PutUint32(q[16:], uint32(source))
	binary.BigEndian.PutUint64(q[20:], sourceTO)
}

// advance moves both ends of the request on by the octets that have been sent.
func (q readRequest) advance(sent uint32) {
	q.put(q.sinkSTag(), q.sinkTO()+uint64(sent), q.size()-sent, q.sourceSTag(), q.sourceTO()+uint64(sent))
}
