package mpa

import "fmt"

// RTRKind is the ready-to-receive message of the peer-to-peer model, RFC 6581,
// Section 9.2.
type RTRKind uint8

// The messages an initiator may open the connection with. Each is empty.
const (
	RTRNone  RTRKind = iota // client/server model: no message of its own
	RTRWrite                // RDMA Write
	RTRRead                 // RDMA Read
	RTRSend                 // Send
)

// String names the message.
func (k RTRKind) String() string {
	switch k {
	case RTRNone:
		return "none"
	case RTRWrite:
		return "Write"
	case RTRRead:
		return "Read"
	case RTRSend:
		return "Send"
	}
	return fmt.Sprintf("RTRKind(%d)", uint8(k))
}

// RTRKinds is a set of ready-to-receive messages; zero is none, or the default.
type RTRKinds uint8

// Kinds returns the set of ks.
func Kinds(ks ...RTRKind) (s RTRKinds) {
	for _, k := range ks {
		if k != RTRNone {
			s |= 1 << (k - 1)
		}
	}
	return s
}

// Has reports whether the message is in the set.
func (s RTRKinds) Has(k RTRKind) bool { return s&Kinds(k) != 0 }

// orElse returns the set, or def where it is empty.
func (s RTRKinds) orElse(def RTRKinds) RTRKinds {
	if s == 0 {
		return def
	}
	return s
}

// rtr returns the messages the frame names.
func (f *Frame) rtr() (s RTRKinds) {
	if f.RTRWrite {
		s |= Kinds(RTRWrite)
	}
	if f.RTRRead {
		s |= Kinds(RTRRead)
	}
	if f.RTRSend {
		s |= Kinds(RTRSend)
	}
	return s
}

// setRTR makes the frame name the messages of s.
func (f *Frame) setRTR(s RTRKinds) {
	f.RTRWrite, f.RTRRead, f.RTRSend = s.Has(RTRWrite), s.Has(RTRRead), s.Has(RTRSend)
}

// depths returns IRD and ORD as the frame states them, -1 where it does not.
func (f *Frame) depths() (ird, ord int) {
	if !f.Enhanced {
		return -1, -1
	}
	return int(f.IRD), int(f.ORD)
}

func clip(depth int) int { return min(depth, MaxDepth) }

// ceiling is how far the IRD may be raised.
func (c *Config) ceiling() int { return clip(max(c.IRD, c.MaxIRD)) }

// requestFrame returns the Request an initiator sends under cfg.
func requestFrame(cfg *Config) Frame {
	f := Frame{CRC: !cfg.NoCRC, Markers: cfg.Markers, Rev: 1}
	if cfg.LargeFPDUs {
		f.Res = resLargeFPDU
	}
	if cfg.Rev1 {
		return f
	}
	f.Rev, f.Enhanced = 2, true
	f.IRD, f.ORD = uint16(clip(cfg.IRD)), uint16(clip(cfg.ORD))
	if !cfg.ClientServer {
		f.PeerToPeer = true
		f.setRTR(cfg.OfferRTR.orElse(Kinds(RTRRead)))
		if f.RTRRead {
			f.ORD = max(f.ORD, 1)
		}
	}
	return f
}

// refusal says why a responder under cfg will have nothing of a valid Request;
// empty if it will.
func refusal(cfg *Config, req *Frame) string {
	switch {
	case cfg.RefuseMarkers && req.Markers:
		return "the peer asks for markers"
	case cfg.RequireCRC && !req.CRC:
		return "the peer does not ask for CRC"
	case cfg.RequireRev2 && req.Rev < 2:
		return "the peer speaks MPA revision 1"
	case cfg.RequireRTR && !req.PeerToPeer:
		return "the peer offers no ready-to-receive message"
	}
	return ""
}

// answer returns the Reply of a responder under cfg, and the parameters that
// follow from it. RFC 6581, Section 9.
func answer(cfg *Config, req *Frame) (Frame, Params) {
	f := Frame{Reply: true, Rev: req.Rev, Enhanced: req.Enhanced, CRC: req.CRC || !cfg.NoCRC, Markers: cfg.Markers}
	p := Params{
		CRC: f.CRC, MarkersIn: f.Markers, MarkersOut: req.Markers,
		Rev: req.Rev, IRD: clip(cfg.IRD), ORD: clip(cfg.ORD),
	}
	if cfg.LargeFPDUs && req.Res&resLargeFPDU != 0 {
		f.Res, p.LargeFPDUs = resLargeFPDU, true
	}
	p.PeerIRD, p.PeerORD = req.depths()
	if !req.Enhanced {
		return f, p
	}
	if req.PeerToPeer {
		f.PeerToPeer, p.PeerToPeer = true, true
		p.RTR = chooseRTR(cfg.TakeRTR.orElse(Kinds(RTRWrite, RTRRead)), req.rtr())
		f.setRTR(Kinds(p.RTR))
	}
	f.IRD = DepthUnstated
	if req.ORD != DepthUnstated {
		p.IRD = max(p.IRD, min(int(req.ORD), cfg.ceiling()))
		f.IRD = uint16(p.IRD)
	}
	if p.RTR == RTRRead && p.IRD == 0 {
		p.IRD, f.IRD = 1, 1
	}
	f.ORD = DepthUnstated
	if req.IRD != DepthUnstated {
		if cfg.RequireORD && p.ORD > int(req.IRD) {
			f.Reject, f.Markers, f.Res = true, false, 0 // nothing is switched on
		} else {
			p.ORD = min(p.ORD, int(req.IRD))
		}
		f.ORD = uint16(p.ORD)
	}
	return f, p
}

// chooseRTR picks the one kind a responder announces. Where Write and Read are
// offered it is the Write, because cxgb4 prefers it too. Where nothing offered
// is taken it names one that is, and the initiator will find no match.
func chooseRTR(take, offered RTRKinds) RTRKind {
	for _, k := range [...]RTRKind{RTRWrite, RTRRead, RTRSend} {
		if take.Has(k) && offered.Has(k) {
			return k
		}
	}
	for _, k := range [...]RTRKind{RTRRead, RTRWrite} {
		if take.Has(k) {
			return k
		}
	}
	return RTRSend
}

// conclude returns the parameters of an initiator from its Request and the
// accepting Reply. The error has CodeFrame where the Reply is not acceptable at
// all; with CodeIRD and CodeRTR the parameters are valid.
func conclude(cfg *Config, req, rep *Frame) (Params, *Error) {
	switch {
	case rep.Enhanced != req.Enhanced:
		return Params{}, &Error{Code: CodeFrame, Err: ErrEnhanced}
	case cfg.RefuseMarkers && rep.Markers:
		return Params{}, &Error{Code: CodeFrame, Err: fmt.Errorf("%w: the peer asks for markers", ErrRefused)}
	case cfg.RequireCRC && !rep.CRC:
		return Params{}, &Error{Code: CodeFrame, Err: fmt.Errorf("%w: the peer does not ask for CRC", ErrRefused)}
	}
	p := Params{
		CRC: req.CRC || rep.CRC, MarkersIn: req.Markers, MarkersOut: rep.Markers, Rev: req.Rev,
		LargeFPDUs: req.Res&rep.Res&resLargeFPDU != 0,
		IRD:        clip(cfg.IRD), ORD: clip(cfg.ORD),
	}
	p.PeerIRD, p.PeerORD = rep.depths()
	if !req.Enhanced {
		if cfg.LegacyRTR {
			p.RTR, p.ORD = RTRRead, max(p.ORD, 1)
		}
		return p, nil
	}
	p.ORD = int(req.ORD)
	if rep.IRD != DepthUnstated {
		p.ORD = min(p.ORD, int(rep.IRD))
	}
	p.PeerToPeer = req.PeerToPeer
	if rep.ORD != DepthUnstated && int(rep.ORD) > p.IRD {
		if int(rep.ORD) > cfg.ceiling() {
			return p, &Error{Code: CodeIRD, Err: fmt.Errorf("the peer needs %d, the limit is %d", rep.ORD, cfg.ceiling())}
		}
		p.IRD = int(rep.ORD)
	}
	if !req.PeerToPeer {
		return p, nil
	}
	// A Read cannot open the connection where the peer takes no Reads.
	switch {
	case !rep.PeerToPeer:
		return p, &Error{Code: CodeRTR, Err: fmt.Errorf("the peer answers with the client/server model")}
	case req.RTRWrite && rep.RTRWrite:
		p.RTR = RTRWrite
	case req.RTRRead && rep.RTRRead && p.ORD > 0:
		p.RTR = RTRRead
	case req.RTRSend && rep.RTRSend:
		p.RTR = RTRSend
	default:
		return p, &Error{Code: CodeRTR}
	}
	return p, nil
}
