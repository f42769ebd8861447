package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/google/gopacket"
)

// Startup is an MPA Request or Reply frame (RFC 5044, Section 7.1; RFC 6581, Section 6).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------------------------------+-------------------------------+
//	|                Key (16 octets)                                |
//	+-+-+-+-+-------+---------------+-------------------------------+
//	|M|C|R|S|  Res  |      Rev      |           PD_Length           |
//	+-+-+-+-+-------+---------------+-------------------------------+
type Startup struct {
	Contents []byte // the whole frame
	Payload  []byte // what follows it

	Reply                     bool
	Markers, CRC, Reject, Enh bool // M, C, R and S
	Res                       uint8
	Rev                       uint8
	Private                   []byte // all private data, the enhanced block included
}

const (
	keyRequest = "MPA ID Req Frame"
	keyReply   = "MPA ID Rep Frame"
	startupLen = 20
	maxPrivate = 512
)

// Enhanced is the block that leads the private data when S=1 and Rev is 2 or more
// (RFC 6581, Section 9). B, C and D name the ready-to-receive messages: a
// zero-length Send, Write and Read.
type Enhanced struct {
	A, B, C, D bool
	IRD, ORD   uint16
}

var errShort = errors.New("too few octets")

// startsWithKey tells whether b opens with a startup key; shorter input is judged by what is there.
func startsWithKey(b []byte) (request, reply bool) {
	n := min(len(b), len(keyRequest))
	return n > 0 && string(b[:n]) == keyRequest[:n], n > 0 && string(b[:n]) == keyReply[:n]
}

// decode reads one frame from the start of b. errShort: b ends before the frame does.
func (s *Startup) decode(b []byte) error {
	request, reply := startsWithKey(b)
	if !request && !reply {
		return fmt.Errorf("%w: unknown key", ErrStartup)
	}
	if len(b) < startupLen {
		return errShort
	}
	n := int(binary.BigEndian.Uint16(b[18:]))
	if n > maxPrivate {
		return fmt.Errorf("%w: PD_Length %d", ErrStartup, n)
	}
	if len(b) < startupLen+n {
		return errShort
	}
	f := b[16]
	*s = Startup{
		Contents: b[:startupLen+n], Payload: b[startupLen+n:],
		Reply: reply, Markers: f&0x80 != 0, CRC: f&0x40 != 0, Reject: f&0x20 != 0, Enh: f&0x10 != 0,
		Res: f & 0x0f, Rev: b[17], Private: b[startupLen : startupLen+n],
	}
	if s.Rev >= 2 && s.Enh && n < 4 {
		return fmt.Errorf("%w: S=1 with PD_Length %d", ErrStartup, n)
	}
	return nil
}

// Enhanced returns the enhanced block, if the frame has one.
func (s *Startup) Enhanced() (e Enhanced, ok bool) {
	if s.Rev < 2 || !s.Enh || len(s.Private) < 4 {
		return e, false
	}
	in, out := binary.BigEndian.Uint16(s.Private), binary.BigEndian.Uint16(s.Private[2:])
	return Enhanced{
		A: in&0x8000 != 0, B: in&0x4000 != 0, C: out&0x8000 != 0, D: out&0x4000 != 0,
		IRD: in & 0x3fff, ORD: out & 0x3fff,
	}, true
}

// ULPData returns the private data that belong to the ULP.
func (s *Startup) ULPData() []byte {
	if _, ok := s.Enhanced(); ok {
		return s.Private[4:]
	}
	return s.Private
}

// SerializeTo implements gopacket.SerializableLayer.
func (s *Startup) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	if err := b.Clear(); err != nil {
		return err
	}
	out, err := b.AppendBytes(startupLen + len(s.Private))
	if err != nil {
		return err
	}
	copy(out, keyRequest)
	if s.Reply {
		copy(out, keyReply)
	}
	out[16] = s.Res&0x0f | bit(s.Markers, 0x80) | bit(s.CRC, 0x40) | bit(s.Reject, 0x20) | bit(s.Enh, 0x10)
	out[17] = s.Rev
	binary.BigEndian.PutUint16(out[18:], uint16(len(s.Private)))
	copy(out[startupLen:], s.Private)
	return nil
}

func bit(set bool, mask uint8) uint8 {
	if set {
		return mask
	}
	return 0
}

// MPA is the framing of one FPDU (RFC 5044, Section 4.1): ULPDU_Length, the ULPDU, 0 to
// 3 octets of padding, CRC; with markers in between where the receiver asked for them.
type MPA struct {
	Contents []byte // the two length octets
	Payload  []byte // the ULPDU
	Pad      []byte
	CRC      uint32 // as on the wire, least significant octet first (MPA-57)
	Sum      uint32 // as computed over length, ULPDU and padding, and the markers among them
	InUse    bool   // the connection uses the CRC; false: the field may hold anything
	Markers  []Marker
}

const crcLen = 4

func castagnoli(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// CRCOK reports whether the CRC on the wire is the one computed.
func (m *MPA) CRCOK() bool { return m.CRC == m.Sum }

// decode reads one FPDU from the start of b and returns its size. errShort: b ends before it does.
func (m *MPA) decode(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, errShort
	}
	n := int(binary.BigEndian.Uint16(b))
	body := (2 + n + 3) &^ 3
	if len(b) < body+crcLen {
		return 0, errShort
	}
	m.Contents, m.Payload, m.Pad = b[:2], b[2:2+n], b[2+n:body]
	m.CRC = binary.LittleEndian.Uint32(b[body:])
	m.Sum = castagnoli(b[:body])
	return body + crcLen, nil
}

// SerializeTo implements gopacket.SerializableLayer: it frames what the buffer holds.
// With FixLengths the padding gets its right length (known octets are kept), with
// ComputeChecksums the CRC is computed, otherwise CRC goes out as it stands.
func (m *MPA) SerializeTo(b gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	n := len(b.Bytes())
	if n > 0xffff {
		return fmt.Errorf("a ULPDU of %d octets does not fit into an FPDU", n)
	}
	pad := len(m.Pad)
	if opts.FixLengths {
		pad = -(2 + n) & 3
	}
	head, err := b.PrependBytes(2)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint16(head, uint16(n))
	tail, err := b.AppendBytes(pad + crcLen)
	if err != nil {
		return err
	}
	clear(tail[:pad])
	copy(tail[:pad], m.Pad)
	crc := m.CRC
	if opts.ComputeChecksums {
		all := b.Bytes()
		crc = castagnoli(all[:len(all)-crcLen])
	}
	binary.LittleEndian.PutUint32(tail[pad:], crc)
	return nil
}

// session explains a finished connection; nil: it did not speak MPA.
func (c *tcpConn) session() *Session {
	ini, res := 0, 1
	for i := range c.side {
		if request, _ := startsWithKey(c.side[i].data); request {
			ini, res = i, 1-i
			break
		}
		if _, reply := startsWithKey(c.side[i].data); reply {
			ini, res = 1-i, i
		}
	}
	_, reply := startsWithKey(c.side[res].data)
	request, _ := startsWithKey(c.side[ini].data)
	if !request && !reply {
		return nil
	}
	s := &Session{Initiator: c.flow(ini), Responder: c.flow(res)}
	req, rep := s.Initiator.Startup, s.Responder.Startup
	s.CRC = req != nil && req.CRC || rep != nil && rep.CRC
	s.Rejected = rep != nil && rep.Reject
	// M says what its sender wants to receive (MPA-20).
	s.Initiator.decode(s, rep != nil && rep.Markers)
	s.Responder.decode(s, req != nil && req.Markers)
	return s
}

// flow prepares one direction: it closes the stream and reads the startup frame.
func (c *tcpConn) flow(i int) Flow {
	st := &c.side[i]
	f := Flow{From: c.key[i].from, To: c.key[i].to, stream: st}
	f.Err = st.finish()
	f.FIN, f.RST = st.fin, st.rst
	f.Counts = Counts{Segments: st.segments, Retransmitted: st.retransmitted, OutOfOrder: st.outOfOrder,
		BadChecksum: st.badChecksum, Conflicts: st.conflicts}
	if len(st.data) == 0 {
		return f
	}
	var s Startup
	switch err := s.decode(st.data); {
	case err == nil:
		f.Startup = &s
	case errors.Is(err, errShort):
		f.Tail = len(st.data)
		if f.FIN {
			f.fail(fmt.Errorf("%w: %d octets of a startup frame", ErrTruncated, f.Tail))
		}
	default:
		f.fail(err)
	}
	return f
}

// decode reads the FPDUs of one direction.
func (f *Flow) decode(s *Session, marked bool) {
	if f.Startup == nil {
		return
	}
	rest := f.Startup.Payload
	off := len(f.Startup.Contents)
	switch {
	case len(rest) == 0:
		return
	case s.Rejected:
		f.Tail = len(rest)
		f.fail(ErrRejected)
		return
	}
	start := off
	for len(rest) > 0 {
		u := FPDU{Offset: off, MPA: MPA{InUse: s.CRC}}
		var n int
		var err, wrong error
		if marked {
			n, err = u.MPA.decodeMarked(rest, off-start)
			if errors.Is(err, ErrMarkers) {
				err, wrong = nil, err
			}
		} else {
			n, err = u.MPA.decode(rest)
		}
		if err != nil {
			f.Tail = len(rest)
			if f.FIN {
				f.fail(fmt.Errorf("%w: %d octets are left over", ErrTruncated, f.Tail))
			}
			return
		}
		u.Packet, u.Time = f.stream.source(off + n)
		u.decode()
		if wrong != nil {
			u.Err = wrong
		}
		f.count(&u)
		f.FPDUs = append(f.FPDUs, u)
		rest, off = rest[n:], off+n
	}
}

func (f *Flow) fail(err error) {
	if f.Err == nil {
		f.Err = err
	}
}

func (f *Flow) count(u *FPDU) {
	c := &f.Counts
	c.FPDUs++
	c.ULPDU += len(u.MPA.Payload)
	if u.Err != nil {
		c.Malformed++
	}
	if u.MPA.InUse && !u.MPA.CRCOK() {
		c.BadCRC++
	}
	if len(u.DDP.Contents) > 0 {
		c.ByOpcode[u.RDMAP.Opcode&0x0f]++
	}
}

// decode explains the ULPDU.
func (u *FPDU) decode() {
	u.Err = u.DDP.decode(u.MPA.Payload)
	if len(u.DDP.Contents) == 0 {
		return
	}
	if err := u.RDMAP.decode(&u.DDP); u.Err == nil {
		u.Err = err
	}
}
