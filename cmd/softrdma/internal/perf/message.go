package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// Version of the protocol that this package speaks.
const Version = 1

// Port is where a Server listens unless told otherwise.
const Port = 7175

const (
	magic      = "SRPF"
	headLen    = 4
	maxMessage = 1024
	maxText    = 256
)

type msgType uint8

const (
	msgOpen msgType = 1 + iota
	msgReady
	msgRefused
	msgStart
	msgGo
	msgStop
	msgResult
)

// message is any control message. Which fields count is up to its type.
type message struct {
	typ msgType

	// Open
	op     Op
	kind   Kind
	verify bool
	size   uint32
	qps    uint16
	depth  uint16
	limit  uint32 // seconds that the test may take
	seed   uint64

	// Ready
	session  uint64
	receives uint16 // posted on each connection
	step     uint16 // receives between two credit messages
	slots    uint16
	stride   uint32

	// Ready: the server's memory, of all connections one after the other.
	// Start: the client's.
	addr uint64
	key  uint32
	len  uint64

	counts []uint64 // Stop: messages sent on each connection

	// Result
	messages uint64
	octets   uint64
	wrong    uint64 // octets that were not what they should be
	cpu      uint64 // nanoseconds of all processors that the server's process used

	// Refused; Result: where the first wrong octet was
	text string
}

// bodyLen is the fixed part of each body.
var bodyLen = [...]int{
	msgOpen: 28, msgReady: 38, msgRefused: 2, msgStart: 20, msgGo: 0, msgStop: 2, msgResult: 34,
}

var errGarbage = errors.New("not a control message of softrdma perf")

// append encodes m.
func (m *message) append(b []byte) []byte {
	be := binary.BigEndian
	start := len(b)
	b = append(b, Version, byte(m.typ), 0, 0)
	switch m.typ {
	case msgOpen:
		b = append(b, byte(m.op), byte(m.kind))
		b = be.AppendUint16(b, b2u(m.verify))
		b = be.AppendUint32(b, m.size)
		b = be.AppendUint16(b, m.qps)
		b = be.AppendUint16(b, m.depth)
		b = be.AppendUint32(b, m.limit)
		b = be.AppendUint64(b, m.seed)
		b = append(b, 0, 0, 0, 0)
	case msgReady:
		b = be.AppendUint64(b, m.session)
		b = be.AppendUint16(b, m.receives)
		b = be.AppendUint16(b, m.step)
		b = be.AppendUint16(b, m.slots)
		b = be.AppendUint32(b, m.stride)
		b = m.appendMemory(b)
	case msgStart:
		b = m.appendMemory(b)
	case msgStop:
		b = be.AppendUint16(b, uint16(len(m.counts)))
		for _, n := range m.counts {
			b = be.AppendUint64(b, n)
		}
	case msgResult:
		for _, n := range []uint64{m.messages, m.octets, m.wrong, m.cpu} {
			b = be.AppendUint64(b, n)
		}
		b = m.appendText(b)
	case msgRefused:
		b = m.appendText(b)
	}
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

func (m *message) appendMemory(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.addr)
	b = binary.BigEndian.AppendUint32(b, m.key)
	return binary.BigEndian.AppendUint64(b, m.len)
}

func (m *message) appendText(b []byte) []byte {
	t := m.text[:min(len(m.text), maxText)]
	b = binary.BigEndian.AppendUint16(b, uint16(len(t)))
	return append(b, t...)
}

// parseMessage decodes one received message, which must be b exactly.
func parseMessage(b []byte) (m message, err error) {
	be := binary.BigEndian
	if len(b) < headLen || len(b) > maxMessage || int(be.Uint16(b[2:])) != len(b) {
		return m, errGarbage
	}
	if b[0] != Version {
		return m, fmt.Errorf("the peer speaks version %d of the perf protocol, this side %d", b[0], Version)
	}
	m.typ = msgType(b[1])
	if m.typ < msgOpen || m.typ > msgResult {
		return m, errGarbage
	}
	b = b[headLen:]
	fixed := bodyLen[m.typ]
	if len(b) < fixed {
		return m, errGarbage
	}
	rest := len(b) - fixed
	switch m.typ {
	case msgOpen:
		m.op, m.kind = Op(b[0]), Kind(b[1])
		m.verify = be.Uint16(b[2:])&1 != 0
		m.size, m.qps, m.depth = be.Uint32(b[4:]), be.Uint16(b[8:]), be.Uint16(b[10:])
		m.limit, m.seed = be.Uint32(b[12:]), be.Uint64(b[16:])
	case msgReady:
		m.session = be.Uint64(b)
		m.receives, m.step, m.slots = be.Uint16(b[8:]), be.Uint16(b[10:]), be.Uint16(b[12:])
		m.stride = be.Uint32(b[14:])
		m.parseMemory(b[18:])
	case msgStart:
		m.parseMemory(b)
	case msgStop:
		n := int(be.Uint16(b))
		if n > MaxQPs || rest != 8*n {
			return m, errGarbage
		}
		rest = 0
		m.counts = make([]uint64, n)
		for i := range m.counts {
			m.counts[i] = be.Uint64(b[2+8*i:])
		}
	case msgResult:
		m.messages, m.octets, m.wrong, m.cpu = be.Uint64(b), be.Uint64(b[8:]), be.Uint64(b[16:]), be.Uint64(b[24:])
		rest, err = m.parseText(b[32:])
	case msgRefused:
		rest, err = m.parseText(b)
	}
	if err == nil && rest != 0 {
		err = errGarbage
	}
	return m, err
}

func (m *message) parseMemory(b []byte) {
	m.addr, m.key, m.len = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint64(b[12:])
}

// parseText returns how many octets are left behind the text.
func (m *message) parseText(b []byte) (rest int, err error) {
	n := int(binary.BigEndian.Uint16(b))
	if n > maxText || n > len(b)-2 {
		return 0, errGarbage
	}
	m.text = string(b[2 : 2+n])
	return len(b) - 2 - n, nil
}

// refusal is the error that a Refused message means. The text is the peer's:
// quoted, it cannot play tricks with a terminal.
func (m *message) refusal() error {
	return fmt.Errorf("%w: %s", ErrRefused, strconv.Quote(m.text))
}

// ErrRefused is matched by errors that the peer's Refused message caused.
var ErrRefused = errors.New("the server refused")

// role is what a connection is for, in the private data of its request.
type role struct {
	data    bool
	number  uint16 // data
	session uint64 // data
}

const roleLen = 16

func (r role) append(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, Version, byte(1+b2u(r.data)))
	b = binary.BigEndian.AppendUint16(b, r.number)
	return binary.BigEndian.AppendUint64(b, r.session)
}

func parseRole(b []byte) (r role, err error) {
	switch {
	case len(b) < roleLen || string(b[:4]) != magic:
		return r, errors.New("this port is for softrdma perf")
	case b[4] != Version:
		return r, fmt.Errorf("version %d of the perf protocol is not spoken here, only %d", b[4], Version)
	case b[5] != 1 && b[5] != 2:
		return r, fmt.Errorf("a connection of the perf protocol has role 1 or 2, not %d", b[5])
	}
	return role{data: b[5] == 2, number: binary.BigEndian.Uint16(b[6:]), session: binary.BigEndian.Uint64(b[8:])}, nil
}

func b2u(b bool) uint16 {
	if b {
		return 1
	}
	return 0
}
