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
	f := Frame{CRC: !cfg.NoCRC, Rev: 1}
	if cfg.LargeFPDUs {
		f.Res = resLargeFPDU
	}
	if cfg.Rev1 {
		return f
	}
	f.Rev, f.Enhanced = 2, true
	f.IRD, f.ORD = uint16(clip(cfg.IRD)), uint16(clip(cfg.ORD))
	if !cfg.ClientServer {
		f.PeerToPeer, f.RTRRead, f.RTRWrite, f.RTRSend = true, true, cfg.OfferWrite, cfg.OfferSend
		f.ORD = max(f.ORD, 1) // the Read needs one
	}
	return f
}

// refusal says why a responder under cfg will have nothing of a valid Request;
// empty if it will.
func refusal(cfg *Config, req *Frame) string {
	switch {
	case req.Markers:
		return "the peer asks for markers"
	case cfg.RequireCRC && !req.CRC:
		return "the peer does not ask for CRC"
	case cfg.RequireRev2 && req.Rev < 2:
		return "the peer speaks MPA revision 1"
	}
	return ""
}

// answer returns the Reply of a responder under cfg, and the parameters that
// follow from it. RFC 6581, Section 9.
func answer(cfg *Config, req *Frame) (Frame, Params) {
	f := Frame{Reply: true, Rev: req.Rev, Enhanced: req.Enhanced, CRC: req.CRC || !cfg.NoCRC}
	p := Params{CRC: f.CRC, Rev: req.Rev, IRD: clip(cfg.IRD), ORD: clip(cfg.ORD)}
	if cfg.LargeFPDUs && req.Res&resLargeFPDU != 0 {
		f.Res, p.LargeFPDUs = resLargeFPDU, true
	}
	p.PeerIRD, p.PeerORD = req.depths()
	if !req.Enhanced {
		return f, p
	}
	if req.PeerToPeer {
		f.PeerToPeer, p.PeerToPeer = true, true
		p.RTR = chooseRTR(cfg, req)
		f.RTRWrite, f.RTRRead, f.RTRSend = p.RTR == RTRWrite, p.RTR == RTRRead, p.RTR == RTRSend
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
			f.Reject = true
		} else {
			p.ORD = min(p.ORD, int(req.IRD))
		}
		f.ORD = uint16(p.ORD)
	}
	return f, p
}

// chooseRTR picks the one kind a responder announces. Where both are offered it
// is the Write, because cxgb4 prefers it too. Where nothing offered is
// supported it names the Read, and the initiator will find no match.
func chooseRTR(cfg *Config, req *Frame) RTRKind {
	switch {
	case req.RTRWrite:
		return RTRWrite
	case req.RTRRead:
		return RTRRead
	case req.RTRSend && cfg.OfferSend:
		return RTRSend
	}
	return RTRRead
}

// conclude returns the parameters of an initiator from its Request and the
// accepting Reply. The error has CodeFrame where the Reply is not acceptable at
// all; with CodeIRD and CodeRTR the parameters are valid.
func conclude(cfg *Config, req, rep *Frame) (Params, *Error) {
	switch {
	case rep.Enhanced != req.Enhanced:
		return Params{}, &Error{Code: CodeFrame, Err: ErrEnhanced}
	case rep.Markers:
		return Params{}, &Error{Code: CodeFrame, Err: fmt.Errorf("%w: the peer asks for markers", ErrRefused)}
	case cfg.RequireCRC && !rep.CRC:
		return Params{}, &Error{Code: CodeFrame, Err: fmt.Errorf("%w: the peer does not ask for CRC", ErrRefused)}
	}
	p := Params{
		CRC: req.CRC || rep.CRC, Rev: req.Rev,
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
