package iwarp

import (
	"encoding/binary"

	"github.com/softrdma/softrdma/ddp"
)

// request takes a Read Request or an Atomic Request.
func (m *model) request(u []byte) {
	atomic, whole := u[1]&0xf == 10, 46
	if atomic {
		whole = 70
	}
	qn, msn, mo := untaggedOf(u)
	switch {
	case !atomic && len(u) < 46:
		m.fault(0x2003, nil)
		return
	case qn != 1:
		m.fault(0x1201, u)
		return
	case m.within(0) || m.open:
		m.fault(0x0206, u)
		return
	case msn != m.msn[1], len(m.waiting) >= m.slots:
		m.fault(0x1203, u)
		return
	case !last(u) || mo != 0 || len(u) != whole:
		m.fault(0x0207, u)
		return
	}
	if code := m.mayAnswer(u); code != 0 {
		m.fault(code, u)
		return
	}
	m.msn[1]++
	m.waiting = append(m.waiting, modelRequest{append([]byte(nil), u...)})
	m.wrote = 0
}

// mayAnswer says why a request may not be answered, 0 if it may.
func (m *model) mayAnswer(u []byte) uint16 {
	if u[1]&0xf == 10 {
		if code := u[21] & 0xf; code != 0 && code != 2 {
			return 0x0206
		}
		_, r, bad := m.find(binary.BigEndian.Uint32(u[26:]), binary.BigEndian.Uint64(u[30:]), 8, ddp.RemoteAtomic)
		if bad != 0 {
			return sourceFaults[bad]
		}
		if (binary.BigEndian.Uint64(u[30:])-r.base)%8 != 0 {
			return 0x0207
		}
		return 0
	}
	size := uint64(binary.BigEndian.Uint32(u[30:]))
	if size == 0 {
		return 0
	}
	if _, _, bad := m.find(binary.BigEndian.Uint32(u[34:]), binary.BigEndian.Uint64(u[38:]), size, ddp.RemoteRead); bad != 0 {
		return sourceFaults[bad]
	}
	if to := binary.BigEndian.Uint64(u[22:]); to+(size-1) < to {
		return 0x0104
	}
	return 0
}

func (m *model) atomicAnswer(u []byte) {
	qn, msn, mo := untaggedOf(u)
	switch {
	case qn != 3:
		m.fault(0x1201, u)
		return
	case len(m.reads) == 0 || !m.reads[0].atomic || m.within(0) || m.open:
		m.fault(0x0206, u)
		return
	case msn != m.msn[3]:
		m.fault(0x1203, u)
		return
	case !last(u) || mo != 0 || len(u) != 30, binary.BigEndian.Uint32(u[18:]) != m.reads[0].ident:
		m.fault(0x0207, u)
		return
	}
	rd := m.reads[0]
	mem, _, bad := m.find(rd.stag, rd.to, 8, ddp.LocalWrite)
	if bad != 0 {
		m.fault(0x0000, nil)
		return
	}
	binary.NativeEndian.PutUint64(mem, binary.BigEndian.Uint64(u[22:]))
	m.msn[3]++
	m.reads = m.reads[1:]
	m.done = append(m.done, modelDone{id: rd.id, n: 8})
	m.wrote = 0
}

// answer does the n oldest requests that wait, as the sending side comes to them.
func (m *model) answer(n int) {
	for range n {
		u := m.waiting[0].u
		m.waiting = m.waiting[1:]
		if u[1]&0xf == 10 {
			mem, _, _ := m.find(binary.BigEndian.Uint32(u[26:]), binary.BigEndian.Uint64(u[30:]), 8, 0)
			a := append([]byte{0x41, 0x4b, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0}, u[22:26]...)
			old := binary.NativeEndian.Uint64(mem)
			m.answers = append(m.answers, binary.BigEndian.AppendUint64(a, old))
			binary.NativeEndian.PutUint64(mem, atomicResult(u, old))
			continue
		}
		size := binary.BigEndian.Uint32(u[30:])
		a := append([]byte{0xc1, 0x42}, u[18:30]...)
		if size > 0 {
			mem, _, _ := m.find(binary.BigEndian.Uint32(u[34:]), binary.BigEndian.Uint64(u[38:]), uint64(size), 0)
			a = append(a, mem...)
		}
		m.answers = append(m.answers, a)
	}
}

// sourceGone ends the stream if memory went away that the request next in turn asks
// for: the peer itself has invalidated it.
func (m *model) sourceGone() {
	if m.over || len(m.waiting) == 0 {
		return
	}
	if code := m.mayAnswer(m.waiting[0].u); code != 0 {
		m.fault(code, m.waiting[0].u)
	}
}

// atomicResult works bit by bit, as RFC 7306, Section 5.1 puts it.
func atomicResult(u []byte, old uint64) (v uint64) {
	val, mask := binary.BigEndian.Uint64(u[38:]), binary.BigEndian.Uint64(u[46:])
	if u[21]&0xf == 2 {
		if (old^binary.BigEndian.Uint64(u[54:]))&binary.BigEndian.Uint64(u[62:]) != 0 {
			return old
		}
		return old&^mask | val&mask
	}
	carry := uint64(0)
	for i := range 64 {
		s := old>>i&1 + val>>i&1 + carry
		v |= s & 1 << i
		if carry = s >> 1; mask>>i&1 != 0 {
			carry = 0
		}
	}
	return v
}
