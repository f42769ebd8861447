package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// Sessions is all that was found in one capture file.
type Sessions struct {
	// All holds the connections that spoke MPA, in the order of their first packet.
	All []*Session
	// Packets counts the packets in the file, TCP those of them that carry TCP,
	// Foreign the TCP connections that sent octets but did not start with an MPA frame.
	Packets, TCP, Foreign int
}

// Session is one TCP connection that spoke MPA.
type Session struct {
	// Initiator is what the MPA initiator sent, Responder what its peer sent.
	// The roles come from the startup frames, not from who sent the SYN (MPA-11).
	Initiator, Responder Flow
	// CRC says that the CRC field is in use: either startup frame asked for it (MPA-22).
	CRC bool
	// Rejected says that the Reply carried R=1; no FPDU may follow.
	Rejected bool
}

// Flow is one direction of a Session.
type Flow struct {
	From, To netip.AddrPort
	Startup  *Startup // nil: none was captured
	FPDUs    []FPDU   // whole FPDUs in stream order
	Tail     int      // octets after the last whole FPDU
	FIN, RST bool     // how the sender ended the stream, as far as it was captured
	Counts   Counts
	// Err is what ended the decoding of this direction early; nil when every
	// captured octet was explained. A Tail without FIN is no error: the capture
	// or the connection just ended there.
	Err error

	stream *tcpStream
}

// Counts sums up one Flow.
type Counts struct {
	FPDUs     int
	ULPDU     int // octets in all ULPDUs
	Malformed int // FPDUs with Err set
	BadCRC    int // FPDUs whose CRC is in use and wrong
	ByOpcode  [16]int

	Segments      int // TCP segments that carried octets, super-frames as one
	Retransmitted int // segments that brought nothing new
	OutOfOrder    int // segments that came before an earlier one
	BadChecksum   int // segments whose TCP checksum is wrong (and not left to a device)
	Conflicts     int // segments that repeat octets with another value
}

// FPDU is one framed ULPDU, explained.
type FPDU struct {
	Offset int       // of its first octet in the stream, counted from the first octet after the SYN
	Packet int       // number of the packet that completed it, from 1
	Time   time.Time // when that packet was captured
	MPA    MPA
	DDP    DDP
	RDMAP  RDMAP
	// Err says why the FPDU breaks the specifications; the fields are then filled
	// in as far as they could be read. A wrong CRC is not in Err but in MPA.
	Err error
}

// ErrMarkers is wrapped in the Err of an FPDU with a marker that points elsewhere than to
// its length field.
var ErrMarkers = errors.New("a marker and the FPDU around it disagree")

// Errors that end the decoding of a direction. They are wrapped with details.
var (
	ErrMissing   = errors.New("octets are missing from the capture")
	ErrTruncated = errors.New("the stream ends inside an FPDU")
	ErrStartup   = errors.New("malformed startup frame")
	ErrRejected  = errors.New("octets follow a rejected startup")
)

// DecodeFile reads a pcap or pcapng file and explains every MPA connection in it.
// The error is about the file alone; what is wrong on the wire is in the Sessions.
func DecodeFile(r io.Reader) (Sessions, error) {
	var s Sessions
	next, err := openFile(r)
	if err != nil {
		return s, err
	}
	var a assembler
	for {
		data, link, ci, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, fmt.Errorf("packet %d: %w", s.Packets+1, err)
		}
		s.Packets++
		p := gopacket.NewPacket(data, link, gopacket.DecodeOptions{Lazy: true, NoCopy: true})
		if a.packet(p, s.Packets, ci.Timestamp) {
			s.TCP++
		}
	}
	for _, c := range a.conns {
		if ses := c.session(); ses != nil {
			s.All = append(s.All, ses)
		} else if c.octets() > 0 {
			s.Foreign++
		}
	}
	return s, nil
}

// openFile tells the two file formats apart and hands back a reader of packets.
func openFile(r io.Reader) (func() ([]byte, gopacket.Decoder, gopacket.CaptureInfo, error), error) {
	br := bufio.NewReaderSize(r, 1<<16)
	magic, err := br.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("not a capture file: %w", err)
	}
	if [4]byte(magic) == [4]byte{0x0a, 0x0d, 0x0d, 0x0a} {
		ng, err := pcapgo.NewNgReader(br, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, fmt.Errorf("pcapng: %w", err)
		}
		return func() ([]byte, gopacket.Decoder, gopacket.CaptureInfo, error) {
			b, ci, err := ng.ReadPacketData()
			if err != nil {
				return nil, nil, ci, err
			}
			link, _ := ci.AncillaryData[0].(layers.LinkType)
			return b, link, ci, nil
		}, nil
	}
	pc, err := pcapgo.NewReader(br)
	if err != nil {
		return nil, fmt.Errorf("pcap: %w", err)
	}
	// Super-frames are longer than the snap length some writers put into the header.
	pc.SetSnaplen(1 << 20)
	return func() ([]byte, gopacket.Decoder, gopacket.CaptureInfo, error) {
		b, ci, err := pc.ReadPacketData()
		return b, pc.LinkType(), ci, err
	}, nil
}

// FPDUs counts the whole FPDUs of all sessions and directions.
func (s Sessions) FPDUs() int { return s.sum(func(c *Counts) int { return c.FPDUs }) }

// BadCRC counts the FPDUs whose CRC is in use and wrong.
func (s Sessions) BadCRC() int { return s.sum(func(c *Counts) int { return c.BadCRC }) }

// Malformed counts the FPDUs that break the specifications.
func (s Sessions) Malformed() int { return s.sum(func(c *Counts) int { return c.Malformed }) }

// Retransmitted counts the TCP segments that brought nothing new.
func (s Sessions) Retransmitted() int { return s.sum(func(c *Counts) int { return c.Retransmitted }) }

func (s Sessions) sum(f func(*Counts) int) int {
	n := 0
	for _, ses := range s.All {
		n += f(&ses.Initiator.Counts) + f(&ses.Responder.Counts)
	}
	return n
}

// Err joins everything that is wrong in the file: directions that could not be
// read to their end, malformed FPDUs and wrong CRCs. nil: all was explained.
func (s Sessions) Err() error {
	var errs []error
	for _, ses := range s.All {
		for _, f := range []*Flow{&ses.Initiator, &ses.Responder} {
			errs = append(errs, f.errs()...)
		}
	}
	return errors.Join(errs...)
}

func (f *Flow) errs() []error {
	var errs []error
	add := func(err error) { errs = append(errs, fmt.Errorf("%v > %v: %w", f.From, f.To, err)) }
	for i := range f.FPDUs {
		u := &f.FPDUs[i]
		if u.Err != nil {
			add(fmt.Errorf("FPDU %d (packet %d): %w", i+1, u.Packet, u.Err))
		}
		if u.MPA.InUse && !u.MPA.CRCOK() {
			add(fmt.Errorf("FPDU %d (packet %d): CRC %#08x on the wire, %#08x computed", i+1, u.Packet, u.MPA.CRC, u.MPA.Sum))
		}
	}
	if f.Err != nil {
		add(f.Err)
	}
	return errs
}

// Stream returns the octets of the direction in order, startup frame included.
// The caller must not change them.
func (f *Flow) Stream() []byte { return f.stream.data }

// Encode builds the octets of the direction again from the decoded fields: the
// startup frame, then every FPDU with its CRC computed anew where the CRC is in
// use and was right. For a stream that was explained whole the result equals
// Stream up to Tail.
func (f *Flow) Encode() ([]byte, error) {
	var out []byte
	buf := gopacket.NewSerializeBuffer()
	if f.Startup != nil {
		if err := f.Startup.SerializeTo(buf, gopacket.SerializeOptions{FixLengths: true}); err != nil {
			return nil, err
		}
		out = append(out, buf.Bytes()...)
	}
	for i := range f.FPDUs {
		if err := f.FPDUs[i].serialize(buf); err != nil {
			return nil, fmt.Errorf("FPDU %d: %w", i+1, err)
		}
		out = append(out, f.FPDUs[i].MPA.weave(buf.Bytes())...)
	}
	return out, nil
}

func (u *FPDU) serialize(buf gopacket.SerializeBuffer) error {
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: u.MPA.InUse && u.MPA.CRCOK()}
	if len(u.DDP.Contents) == 0 { // too short for its header: nothing to build it from
		return gopacket.SerializeLayers(buf, opts, &u.MPA, gopacket.Payload(u.MPA.Payload))
	}
	return gopacket.SerializeLayers(buf, opts, &u.MPA, &u.DDP, &u.RDMAP, gopacket.Payload(u.RDMAP.Payload))
}
