package iwarp

import (
	"encoding/binary"
	"strings"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// session is what a peer that means well says on a scene of one shape: nothing in
// it is an error.
type session struct {
	name   string
	shape  uint16
	ulpdus [][]byte
}

func payload(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

// atomicRequest makes the segment of RFC 7306, Section 5.2.1.
func atomicRequest(msn, code, ident, stag uint32, to, val, mask, cmp, cmpMask uint64) []byte {
	var b []byte
	for _, v := range [...]uint32{code, ident, stag} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	for _, v := range [...]uint64{to, val, mask, cmp, cmpMask} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return wiretest.Untagged(10, true, 0, 1, msn, 0, b)
}

func atomicAnswer(msn, ident uint32, v uint64) []byte {
	b := binary.BigEndian.AppendUint32(nil, ident)
	return wiretest.Untagged(11, true, 0, 3, msn, 0, binary.BigEndian.AppendUint64(b, v))
}

// sessions returns the well-formed sessions. ident is the identifier that our own
// atomic on a busy scene has, window the key of its window.
func sessions(ident, window uint32) []session {
	const all, base = wiretest.RegionAll, wiretest.HostileBase
	send := func(op uint8, inv, msn uint32, n int) []byte {
		return wiretest.Untagged(op, true, inv, 0, msn, 0, payload(n))
	}
	list := []session{
		{"Writes and Sends", asResponder, [][]byte{
			wiretest.Tagged(0, true, 1, 0, nil), // as some peers open a connection
			wiretest.Tagged(0, true, all, base+8, payload(8)),
			wiretest.Tagged(0, false, all, base+100, payload(40)),
			wiretest.Tagged(0, true, all, base+140, payload(21)),
			send(3, 0, 1, 5),
			wiretest.Untagged(5, false, 0, 0, 2, 0, payload(7)),
			wiretest.Untagged(5, true, 0, 0, 2, 7, payload(9)),
			send(3, 0, 3, 0),
			send(6, stagAgain, 4, 33),
		}},
		{"a Send with Invalidate in parts", asResponder, [][]byte{
			send(4, stagAgain, 1, 3),
			wiretest.Untagged(6, false, stagAgain, 0, 2, 0, payload(4)),
			wiretest.Untagged(6, true, stagAgain, 0, 2, 4, payload(4)),
		}},
		{"Read Requests", asResponder, [][]byte{
			wiretest.ReadRequest(1, 1, 0, 0, 1, 0),
			wiretest.Tagged(0, true, all, base, payload(24)),
			wiretest.ReadRequest(2, 0x01020304, 0x99, 16, all, base+4),
			wiretest.ReadRequest(3, 0x01020304, 0xaa, 4096, all, base),
			send(3, 0, 1, 1),
		}},
		{"Read Responses", asResponderBusy, [][]byte{
			wiretest.Tagged(2, false, stagSink, 0x1000, payload(12)),
			wiretest.Tagged(2, true, stagSink, 0x100c, payload(4)),
			send(3, 0, 1, 2),
			wiretest.Tagged(2, true, stagSink, 0x1010, payload(24)),
		}},
		{"a window", asResponderBusy, [][]byte{
			wiretest.Tagged(2, true, stagSink, 0x1000, payload(16)),
			wiretest.Tagged(2, true, stagSink, 0x1010, payload(24)),
			atomicAnswer(1, ident, 0x29),
			wiretest.Tagged(0, true, window, base+1024, payload(256)),
			wiretest.ReadRequest(1, 5, 6, 256, window, base+1024),
			atomicRequest(2, 0, 7, window, base+1024, 1, 0, 0, ^uint64(0)),
		}},
		{"a window invalidated", asResponderBusy, [][]byte{
			wiretest.Tagged(2, true, stagSink, 0x1000, payload(16)),
			wiretest.Tagged(2, true, stagSink, 0x1010, payload(24)),
			atomicAnswer(1, ident, 0x29),
			wiretest.Tagged(0, true, window, base+1024, payload(256)),
			send(6, window, 1, 9),
		}},
		{"Read Responses among Writes", asInitiatorBusy, [][]byte{
			wiretest.Tagged(0, true, all, base+64, payload(8)),
			wiretest.Tagged(2, true, stagSink, 0x1000, payload(16)),
			wiretest.ReadRequest(1, 5, 6, 7, all, base+64),
			wiretest.Tagged(2, true, stagSink, 0x1010, payload(24)),
		}},
		{"an opening Read answered", asInitiatorRTR, [][]byte{
			wiretest.Tagged(2, true, 1, 0, nil),
			wiretest.Tagged(0, true, all, base, payload(3)),
			send(3, 0, 1, 3),
		}},
		{"a Terminate", asResponder, [][]byte{
			wiretest.Tagged(0, true, all, base, payload(5)),
			wiretest.Terminate(0x0207),
		}},
	}
	for i := range list {
		if s := &list[i]; !strings.Contains(s.name, "window") && (s.shape == asResponderBusy || s.shape == asInitiatorBusy) {
			s.ulpdus = append(s.ulpdus, atomicAnswer(1, ident, 0x29))
		}
	}
	return append(list,
		session{"atomics", asResponder, [][]byte{
			atomicRequest(1, 0, 7, all, base+8, 1, 0, 0, ^uint64(0)),
			atomicRequest(2, 2, 8, all, base+16, 0x1122334455667788, ^uint64(0), 0xa5a5a5a5a5a5a5a5, ^uint64(0)),
			wiretest.ReadRequest(3, 1, 2, 16, all, base+8),
			atomicRequest(4, 0, 9, all, base+16, 0xff, 0x8080, 0, ^uint64(0)),
		}},
		session{"Writes with immediate data", asResponder, [][]byte{
			wiretest.Tagged(0, true, all, base+8, payload(8)),
			wiretest.Untagged(8, true, 0, 0, 1, 0, payload(8)),
			wiretest.Tagged(0, false, all, base+8, payload(8)),
			wiretest.Tagged(0, true, all, base+16, payload(4)),
			wiretest.Untagged(9, true, 0, 0, 2, 0, payload(8)),
			wiretest.Untagged(8, true, 0, 0, 3, 0, payload(8)),
		}})
}
