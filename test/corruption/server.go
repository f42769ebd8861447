package main

import (
	"context"
	"encoding/binary"

	"github.com/softrdma/softrdma/verbs"
)

// serve answers the client until the connection is over.
func (e *end) serve(ctx context.Context) {
	wcs := make([]verbs.WC, 32)
	for {
		n := e.wait(ctx, wcs)
		if n == 0 {
			return
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if wc.Status != verbs.WCSuccess {
				e.bad = true
				continue
			}
			switch {
			case wc.Op == verbs.OpRecvWithImm:
				e.written(wc)
			case wc.Op == verbs.OpRecv:
				e.request(e.mem[atRecv+int(wc.ID)*recvSize:][:wc.ByteLen])
			case wc.ID == idFiller:
				e.filled = false
				continue
			default:
				continue
			}
			if !e.bad {
				if _, err := e.conn.PostRecv([]verbs.RecvWR{e.recv(int(wc.ID))}); err != nil {
					e.bad = true
				}
			}
		}
		if e.bad {
			e.hangUp()
			return
		}
	}
}

// hangUp ends a connection that only this side knows to be of no use.
func (e *end) hangUp() {
	if e.torn {
		_ = e.conn.Close()
	}
}

func (e *end) request(b []byte) {
	m, ok := getMessage(b)
	if !ok {
		e.run.blame("%s: a message of %d octets is damaged", e.name, len(b))
		e.bad, e.torn = true, true
		return
	}
	slot := int(m.slot)
	switch m.kind {
	case kindWrite:
		e.took(slot, int(m.n), m.seed, "a Write")
		e.answer(message{kindAck, m.slot, m.n, m.seed}, 0)
	case kindSend:
		e.compare(b[messageLen:], m.seed, "a Send")
		n := uint32(mix(m.seed) % (recvSize - messageLen))
		e.answer(message{kindEcho, m.slot, n, m.seed + 1}, int(n))
	case kindPull:
		src := e.source(slot, int(m.n))
		fill(src, m.seed)
		e.peer.land[slot].next, e.peer.land[slot].n = m.seed, int(m.n)
		e.post(&verbs.SendWR{ID: uint64(slot), Op: verbs.OpWrite, SGL: []verbs.SGE{e.mr.SGE(atSource+slot*slotPitch, int(m.n))},
			Remote: e.peer.mr.Remote().Slice(atLanding+slot*slotPitch, slotSize)})
		e.answer(message{kindPulled, m.slot, m.n, m.seed}, 0)
	default:
		e.run.blame("%s: a message of kind %d", e.name, m.kind)
	}
}

// written takes a Write with immediate data, which says all about it.
func (e *end) written(wc *verbs.WC) {
	slot, n, seed := int(wc.Imm>>56), int(wc.Imm>>32&0xffffff), wc.Imm&0xffffffff
	if slot >= slots || n > slotSize {
		e.run.blame("%s: immediate data %#x is damaged", e.name, wc.Imm)
		e.bad, e.torn = true, true
		return
	}
	e.took(slot, n, seed, "a Write with immediate data")
	e.answer(message{kindAck, uint8(slot), uint32(n), seed}, 0)
}

// took compares what was written to a slot.
func (e *end) took(slot, n int, seed uint64, what string) {
	b := e.landed(slot, n)
	e.compare(b, seed, what)
	copy(e.land[slot].was, b)
	e.land[slot].n = 0
}

// answer sends a message with n octets of its seed behind it.
func (e *end) answer(m message, n int) {
	var head [messageLen]byte
	m.put(head[:])
	wr := verbs.SendWR{ID: uint64(m.slot), Op: verbs.OpSend, Flags: verbs.SendSignaled}
	if n == 0 {
		wr.Inline = head[:]
	} else {
		b := e.source(int(m.slot), messageLen+n)
		copy(b, head[:])
		fill(b[messageLen:], m.seed)
		wr.SGL = []verbs.SGE{e.mr.SGE(atSource+int(m.slot)*slotPitch, messageLen+n)}
	}
	e.post(&wr)
}

func (e *end) counter(slot int) uint64 {
	return e.mr.Uint64(atCounter + 8*slot).Load()
}

func nativeUint64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
