package iwarp

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/ddp"
)

// model is a receiver that is slow, plain and made from the RFCs alone: it shares
// no code with the stack below. It is fed the FPDUs that a peer sends and says
// what they have to leave behind: every octet of memory, the completions, the
// answers, and how the stream ends.
type model struct {
	mem      []*modelRegion
	pd       uint32
	recvs    []modelRecv // posted and not used, oldest first
	reads    []modelRead // outstanding of ours, oldest first
	slots    int         // requests of the peer that may wait at once
	imm, ato bool        // RFC 7306 is spoken

	msn    [4]uint32 // of the message in progress or the next one, by queue
	tagged bool      // a tagged message is in progress, of kind taggedOp
	tagOp  byte
	open   bool   // a Send is in progress
	mo     uint32 // octets of it
	first  []byte // header of its first segment
	got    uint32 // octets of the response to the oldest read
	wrote  uint64 // octets of the Write that has ended last, with nothing behind it
	inWr   uint64 // octets of the Write in progress

	waiting []modelRequest // accepted and not answered
	answers [][]byte       // ULPDUs without cuts due for those answered, in order
	done    []modelDone    // completions with success
	busy    int            // the id of the receive in use, 0: none

	over bool // nothing is parsed any more
	term []byte
	peer bool // the peer has sent a Terminate
}

type modelRegion struct {
	stag   uint32
	base   uint64
	mem    []byte // of the shadow
	pd     uint32
	access ddp.Access
	revoke bool // the peer may invalidate it
	dead   bool // it has
	window bool // bound anew when it is needed: an invalid one is unknown
}

type modelRecv struct {
	id  uint64
	buf [][]byte // of the shadow
}

func (r *modelRecv) size() (n int) {
	for _, b := range r.buf {
		n += len(b)
	}
	return n
}

type modelRead struct {
	id     uint64
	stag   uint32
	to     uint64
	size   uint32
	hidden bool
	atomic bool
	ident  uint32
}

type modelRequest struct{ u []byte }

type modelDone struct {
	id    uint64
	n     uint32
	inv   uint32
	isInv bool
	imm   uint64
	isImm bool
}

// fault ends the stream with a Terminate; u is the segment at fault, nil if none
// is to be quoted.
func (m *model) fault(code uint16, u []byte) {
	m.over = true
	m.term = terminateFor(code, u)
}

// terminateFor is the Terminate for a segment: which headers it quotes follows
// the table of RFC 5040, Section 4.8.
func terminateFor(code uint16, u []byte) []byte {
	b := []byte{0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, byte(code >> 8), byte(code)}
	if u == nil || code>>12 == 2 || code>>8 == 0 {
		return append(b, 0, 0)
	}
	bits, read := byte(0xc0), u[1]&0xf == 1 && code>>8 == 1
	if read {
		bits = 0xe0
	}
	b = append(b, bits, 0, byte(len(u)>>8), byte(len(u)))
	if u[0]&0x80 != 0 {
		return append(b, u[:14]...)
	}
	b = append(b, u[:18]...)
	if read {
		b = append(b, u[18:46]...)
	}
	return b
}

// segment takes one ULPDU whose CRC was right.
func (m *model) segment(u []byte) {
	if m.over {
		return
	}
	if len(u) < 14 || u[0]&0x80 == 0 && len(u) < 18 {
		m.fault(0x2003, nil)
		return
	}
	t := u[0]&0x80 != 0
	switch {
	case u[0]&3 != 1 && t:
		m.fault(0x1104, u)
		return
	case u[0]&3 != 1:
		m.fault(0x1206, u)
		return
	case u[1]>>6 != 1:
		m.fault(0x0205, u)
		return
	}
	op := u[1] & 0xf
	switch {
	case op == 7:
		m.over, m.peer = true, true
	case op == 0 && t:
		m.write(u)
	case op == 2 && t:
		m.response(u)
	case op == 1 && !t:
		m.request(u)
	case op >= 3 && op <= 6 && !t:
		m.send(u, op)
	case (op == 8 || op == 9) && !t && m.imm:
		m.send(u, op)
	case op == 10 && !t && m.ato:
		m.request(u)
	case op == 11 && !t && m.ato:
		m.atomicAnswer(u)
	default:
		m.fault(0x0206, u)
	}
}

// find returns the memory a peer asks for, or the neutral fault: 1 STag, 2 PD,
// 3 wrap, 4 bounds, 5 right.
func (m *model) find(stag uint32, to, n uint64, need ddp.Access) ([]byte, *modelRegion, int) {
	for _, r := range m.mem {
		if r.stag != stag || r.dead {
			continue
		}
		size := uint64(len(r.mem))
		switch {
		case r.pd != m.pd:
			return nil, r, 2
		case n > 0 && to+(n-1) < to:
			return nil, r, 3
		case to < r.base || to-r.base > size || n > size-(to-r.base):
			return nil, r, 4
		case r.access&need != need:
			return nil, r, 5
		}
		return r.mem[to-r.base : to-r.base+n], r, 0
	}
	return nil, nil, 1
}

var (
	taggedFaults = [...]uint16{0, 0x1100, 0x1102, 0x1103, 0x1101, 0x1102}
	sourceFaults = [...]uint16{0, 0x0100, 0x0103, 0x0104, 0x0101, 0x0102}
)

func taggedOf(u []byte) (stag uint32, to uint64, payload []byte) {
	return binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint64(u[6:]), u[14:]
}

// untaggedOf returns queue, MSN and MO.
func untaggedOf(u []byte) (qn, msn, mo uint32) {
	return binary.BigEndian.Uint32(u[6:]), binary.BigEndian.Uint32(u[10:]), binary.BigEndian.Uint32(u[14:])
}

func last(u []byte) bool { return u[0]&0x40 != 0 }

func (m *model) within(op byte) bool { return m.tagged && m.tagOp == op }

func (m *model) write(u []byte) {
	stag, to, data := taggedOf(u)
	if m.within(2) {
		m.fault(0x0206, u)
		return
	}
	if len(data) > 0 {
		mem, _, bad := m.find(stag, to, uint64(len(data)), ddp.RemoteWrite)
		if bad != 0 {
			m.fault(taggedFaults[bad], u)
			return
		}
		copy(mem, data)
	}
	if !m.within(0) {
		m.inWr = 0
	}
	m.inWr += uint64(len(data))
	m.tagged, m.tagOp = !last(u), 0
	if last(u) {
		m.wrote = m.inWr
	}
}

func (m *model) response(u []byte) {
	stag, to, data := taggedOf(u)
	if len(m.reads) == 0 || m.reads[0].atomic || m.within(0) {
		m.fault(0x0206, u)
		return
	}
	rd := m.reads[0]
	n := uint32(len(data))
	switch {
	case n > 0 && stag != rd.stag:
		m.fault(0x1100, u)
		return
	case n > 0 && to != rd.to+uint64(m.got), uint64(m.got)+uint64(n) > uint64(rd.size):
		m.fault(0x1101, u)
		return
	case last(u) && m.got+n < rd.size:
		m.fault(0x0207, u)
		return
	}
	if n > 0 {
		mem, _, bad := m.find(stag, to, uint64(n), ddp.LocalWrite)
		if bad != 0 {
			m.fault(taggedFaults[bad], u)
			return
		}
		copy(mem, data)
	}
	m.got += n
	m.tagged, m.tagOp = !last(u), 2
	if !last(u) {
		return
	}
	m.got, m.reads = 0, m.reads[1:]
	if !rd.hidden {
		m.done = append(m.done, modelDone{id: rd.id, n: rd.size})
	}
	m.wrote = 0
}

func (m *model) send(u []byte, op byte) {
	qn, msn, mo := untaggedOf(u)
	inv := op == 4 || op == 6
	imm := op == 8 || op == 9
	switch {
	case qn != 0:
		m.fault(0x1201, u)
		return
	case msn != m.msn[0]:
		m.fault(0x1203, u)
		return
	case m.open && (op != m.first[1]&0xf || inv && string(u[2:6]) != string(m.first[2:6])):
		m.fault(0x0206, u)
		return
	}
	if !m.open {
		switch {
		case m.within(0):
			m.fault(0x0206, u)
			return
		case len(m.recvs) == 0:
			m.fault(0x1202, u)
			return
		}
		m.busy = int(m.recvs[0].id)
		if code := m.mayInvalidate(u); inv && code != 0 {
			m.fault(code, u)
			return
		}
	}
	rc := &m.recvs[0]
	data := u[18:]
	switch {
	case mo != m.mo:
		m.fault(0x1204, u)
		return
	case imm && (!last(u) || len(data) != 8):
		m.fault(0x0207, u)
		return
	case !imm && uint64(mo)+uint64(len(data)) > uint64(rc.size()):
		m.fault(0x1205, u)
		return
	}
	if !m.open {
		m.first, m.open = append([]byte(nil), u[:18]...), true
	}
	if !imm {
		scatter(rc.buf, int(mo), data)
		m.mo += uint32(len(data))
	}
	if !last(u) {
		return
	}
	d := modelDone{id: rc.id, n: m.mo}
	if imm {
		d.imm, d.isImm, d.n = binary.BigEndian.Uint64(data), true, uint32(m.wrote)
	}
	if inv {
		if code := m.mayInvalidate(u); code != 0 {
			m.fault(code, u)
			return
		}
		d.isInv, d.inv = true, binary.BigEndian.Uint32(u[2:])
		for _, r := range m.mem {
			if r.stag == d.inv {
				r.dead = true
			}
		}
	}
	m.done = append(m.done, d)
	m.recvs, m.open, m.mo, m.busy, m.wrote = m.recvs[1:], false, 0, 0, 0
	m.msn[0]++
}

// mayInvalidate says why the peer may not invalidate the STag of a Send.
func (m *model) mayInvalidate(u []byte) uint16 {
	for _, r := range m.mem {
		if r.stag != binary.BigEndian.Uint32(u[2:]) {
			continue
		}
		switch {
		case r.dead && r.window:
			return 0x0100
		case r.pd != m.pd || !r.revoke:
			return 0x0109
		}
		return 0
	}
	return 0x0100
}

func scatter(buf [][]byte, off int, data []byte) {
	for _, b := range buf {
		if off >= len(b) {
			off -= len(b)
			continue
		}
		data = data[copy(b[off:], data):]
		off = 0
	}
}

// fin takes the peer's FIN. part says that it came inside an FPDU, open that work
// of ours is in progress.
func (m *model) fin(part, open bool) {
	switch {
	case m.over:
	case part: // TCP is lost: there is nobody to tell
		m.over = true
	case m.tagged || m.open || open:
		m.fault(0x0207, nil)
	default:
		m.over = true
	}
}
