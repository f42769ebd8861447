package ddp

import (
	"errors"

	"github.com/softrdma/softrdma/mpa"
)

// rx is the receive half of a Stream.
type rx struct {
	queue [queues]queue
	seg   Segment
	lease Lease // of what tagged segments reach

	segments, placed uint64 // not yet in Stats
}

// Segment is one received DDP segment, borrowed until the following call of
// [Stream.Next].
type Segment struct {
	Header
	ulpdu *mpa.ULPDU
}

// Len returns the octets of the segment, header included.
func (g *Segment) Len() int { return g.ulpdu.Len() }

// PayloadLen returns the octets behind the DDP header.
func (g *Segment) PayloadLen() int { return g.ulpdu.Len() - len(g.Header) }

// Payload returns the first n octets of the payload, or all if there are fewer,
// in one slice. n is at most 54, enough for every RDMAP header.
func (g *Segment) Payload(n int) []byte {
	return g.ulpdu.Head(len(g.Header) + n)[len(g.Header):]
}

// Copy copies payload octets from off on to dst and returns how many.
func (g *Segment) Copy(dst []byte, off int) int {
	return g.ulpdu.CopyTo(dst, len(g.Header)+off)
}

// ErrShort is the cause of an *[mpa.Error] for a segment shorter than its
// header.
var ErrShort = errors.New("segment shorter than its header")

// Next returns the next segment. ok is false if more octets are needed. Its
// header has the length and the version it should have, nothing else has been
// looked at. Errors are those of [mpa.Conn.Next], an *[Error] for the version,
// and an *[mpa.Error] for a short segment.
func (s *Stream) Next() (g *Segment, ok bool, err error) {
	g = &s.rx.seg
	g.ulpdu, ok, err = s.conn.Next()
	if !ok || err != nil {
		return nil, false, err
	}
	s.rx.segments++
	g.Header, ok = ParseHeader(g.ulpdu.Head(UntaggedLen))
	switch {
	case !ok:
		return nil, false, s.Short()
	case g.Version() != Version && g.Tagged():
		return nil, false, s.Fail(g, TypeTagged, CodeTaggedVersion, nil)
	case g.Version() != Version:
		return nil, false, s.Fail(g, TypeUntagged, CodeUntaggedVersion, nil)
	}
	return g, true, nil
}

// PlaceTagged puts the payload of a tagged segment where its STag and TO say,
// if that memory grants the rights in need. An empty payload is not checked. The
// memory stays in use until Pause or a segment for another region. An error is an
// *[Error].
func (s *Stream) PlaceTagged(g *Segment, need Access) error {
	n := g.PayloadLen()
	if n == 0 {
		return nil
	}
	mem, err := s.rx.lease.Check(s.table, g.STag(), s.id, g.TO(), uint64(n), need)
	if err != nil {
		var f *Fault
		errors.As(err, &f)
		return s.Fail(g, TypeTagged, f.Kind.taggedCode(), f)
	}
	g.Copy(mem, 0)
	s.rx.placed += uint64(n)
	return nil
}

// Pause ends the [Lease] that PlaceTagged took and brings Stats up to date: the
// receive half calls it before it turns to anything but the next segment.
func (s *Stream) Pause() {
	r := &s.rx
	r.lease.End()
	if r.segments > 0 {
		s.stats.segmentsIn.Add(r.segments)
		s.stats.placedIn.Add(r.placed)
		r.segments, r.placed = 0, 0
	}
}

// Received returns how many segments Next has returned.
func (s *Stream) Received() uint64 { return s.stats.segmentsIn.Load() + s.rx.segments }

// Fail counts a refused segment and returns the error that describes it. The
// ULP uses it for faults of the DDP layer it finds itself.
func (s *Stream) Fail(g *Segment, typ, code uint8, cause error) *Error {
	s.stats.errors.Add(1)
	return &Error{Type: typ, Code: code, Header: g.CloneHeader(), SegLen: g.Len(), Err: cause}
}

// Short counts a segment too short for its header, DDP's or the ULP's, and
// returns the error for it.
func (s *Stream) Short() error {
	s.stats.errors.Add(1)
	return &mpa.Error{Code: mpa.CodeMarker, Err: ErrShort}
}

// CloneHeader returns a copy of the DDP header, to keep.
func (g *Segment) CloneHeader() []byte { return append([]byte(nil), g.Header...) }
