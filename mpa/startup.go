package mpa

import (
	"errors"
	"fmt"
)

// Config is the policy of a connection's startup phase. The zero value wants
// CRC and no markers, speaks revision 2 with enhanced setup, and as initiator
// offers the peer-to-peer model with a zero-length Read as RTR: what siw, cxgb4
// and irdma all take.
type Config struct {
	// NoCRC does not ask for CRCs. They are used all the same if the peer does.
	NoCRC bool
	// RequireCRC refuses a peer that does not ask for CRCs itself. It excludes
	// NoCRC.
	RequireCRC bool

	// Rev1 speaks revision 1 only: no enhanced setup, and as responder the
	// stream is reset on a revision 2 Request, so that the peer can come again
	// with revision 1.
	Rev1 bool
	// RequireRev2 (responder) refuses a peer that speaks revision 1. It excludes
	// Rev1. An initiator of revision 2 never falls back by itself.
	RequireRev2 bool

	// ClientServer (initiator) asks for the client/server model, A=0: no RTR
	// message, the initiator's first message opens the connection. RFC 6581,
	// Section 9.2.
	ClientServer bool
	// OfferRTR (initiator) is what may open the connection. Zero offers the
	// Read alone, which every known responder takes.
	OfferRTR RTRKinds
	// TakeRTR (responder) is what the initiator may open the connection with.
	// Zero takes a Write and a Read.
	TakeRTR RTRKinds
	// RequireRTR refuses a peer of the client/server model, and with it one of
	// revision 1: no RTR message would be agreed on. It excludes Rev1 and
	// ClientServer.
	RequireRTR bool
	// LegacyRTR (initiator, where revision 1 is spoken) opens with a zero-length
	// Read that was not negotiated, as cxgb4 peers wait for.
	LegacyRTR bool

	// Markers asks the peer for markers, RFC 5044, Section 4.3. They are
	// removed and checked. Linux siw refuses a connection for it.
	Markers bool
	// RefuseMarkers refuses a peer that asks for markers, instead of inserting
	// them.
	RefuseMarkers bool

	// LargeFPDUs offers and accepts FPDUs larger than the EMSS, where the peer
	// offers the same.
	LargeFPDUs bool

	// PrivateLimit bounds the private data of the ULP, in octets, towards peers
	// that take less than a frame can hold: [MaxPrivateInterop] suits all known
	// ones. Zero is what the frame holds.
	PrivateLimit int

	// IRD and ORD are the wanted depths: how many RDMA Reads the peer may have
	// outstanding here, and how many we may have outstanding there. They are
	// clipped to MaxDepth. An initiator that offers a Read as RTR raises an ORD
	// of 0 to 1.
	IRD, ORD int
	// MaxIRD is how far a wanted IRD may be raised to meet the peer's ORD.
	// Less than IRD means IRD.
	MaxIRD int
	// RequireORD (responder) refuses an initiator whose IRD is below ORD,
	// instead of making do with it.
	RequireORD bool
}

func (c *Config) check() error {
	switch {
	case c.NoCRC && c.RequireCRC:
		return fmt.Errorf("mpa: Config: NoCRC excludes RequireCRC")
	case c.Rev1 && c.RequireRev2:
		return fmt.Errorf("mpa: Config: Rev1 excludes RequireRev2")
	case c.RequireRTR && (c.Rev1 || c.ClientServer):
		return fmt.Errorf("mpa: Config: RequireRTR excludes Rev1 and ClientServer")
	case (c.OfferRTR|c.TakeRTR)&^Kinds(RTRWrite, RTRRead, RTRSend) != 0:
		return fmt.Errorf("mpa: Config: unknown RTR message in %#x or %#x", uint8(c.OfferRTR), uint8(c.TakeRTR))
	case c.PrivateLimit < 0:
		return fmt.Errorf("mpa: Config: negative PrivateLimit %d", c.PrivateLimit)
	}
	return nil
}

func (c *Config) checkDepths() error {
	if c.IRD < 0 || c.ORD < 0 || c.MaxIRD < 0 {
		return fmt.Errorf("mpa: Config: negative depth: IRD %d, ORD %d, MaxIRD %d", c.IRD, c.ORD, c.MaxIRD)
	}
	return nil
}

// Params is what the two ends agreed on.
type Params struct {
	CRC        bool // CRCs are sent and checked, both ways
	MarkersIn  bool // the peer's FPDUs come with markers: we asked for them
	MarkersOut bool // our FPDUs go with markers: the peer asked for them
	LargeFPDUs bool // FPDUs may be larger than the EMSS
	Rev        byte // MPA revision; selects the DDP and RDMAP versions
	PeerToPeer bool // A
	// RTR is the message that opens the connection, sent by the initiator
	// before any other.
	RTR RTRKind
	// IRD and ORD are the local depths to use.
	IRD, ORD int
	// PeerIRD and PeerORD are the depths as the peer's frame stated them; -1
	// where the frame had none.
	PeerIRD, PeerORD int
}

// Request is a received Request frame, for the ULP to judge.
type Request struct {
	Rev                        byte
	Enhanced                   bool // the frame carried depths, RFC 6581
	CRC                        bool // wanted by the initiator
	PeerToPeer                 bool
	RTRSend, RTRWrite, RTRRead bool // offered; false without PeerToPeer
	PeerIRD, PeerORD           int  // as stated by the frame; -1 where it had none
	Private                    []byte
}

// Reply is a received Reply frame and what follows from it.
type Reply struct {
	Params
	Rejected bool // the responder said no; only PeerIRD, PeerORD, Rev and Private have a meaning
	Private  []byte
}

// startup is what has to be remembered until FPDU mode.
type startup struct {
	cfg  Config
	peer Frame // responder: the Request, without private data
	sent Frame // initiator: our Request, without private data
}

// Request starts the connection as initiator: it writes the Request frame, in
// one piece. It copies private. Errors: [ErrPrivateData], a contradicting
// Config, or an *[Error] if the stream is dead.
func (c *Conn) Request(cfg Config, private []byte) error {
	c.must(stateIdle, "Request")
	if err := errors.Join(cfg.check(), cfg.checkDepths()); err != nil {
		return err
	}
	f := requestFrame(&cfg)
	b, err := cfg.frame(f, private)
	if err != nil {
		return err
	}
	c.start = &startup{cfg: cfg, sent: f}
	c.advance(stateRequestSent)
	return c.writeStartup(b)
}

// RecvReply looks for the Reply frame. ok is false while it is not complete.
//
// An error with [CodeIRD] or [CodeRTR] comes with ok and a valid Reply: the
// connection is then in FPDU mode, for RDMAP to send a Terminate. After any
// other error the stream has been reset. A rejecting Reply is not an error;
// the caller closes the stream. Octets behind the frame are left for Next.
func (c *Conn) RecvReply() (rep Reply, ok bool, err error) {
	if c.rx.err != nil {
		return Reply{}, false, c.rx.err
	}
	c.must(stateRequestSent, "RecvReply")
	f, ok, err := c.recvFrame(true)
	if !ok || err != nil {
		return Reply{}, false, err
	}
	st := c.start
	if f.Reject {
		c.start = nil
		c.advance(stateRejected)
		rep = Reply{Rejected: true, Private: f.Private, Params: Params{Rev: f.Rev}}
		rep.PeerIRD, rep.PeerORD = f.depths()
		return rep, true, nil
	}
	p, why := conclude(&st.cfg, &st.sent, &f)
	if why != nil && why.Code == CodeFrame {
		return Reply{}, false, c.failStartup(why)
	}
	c.start = nil
	c.enterFPDU(p)
	rep = Reply{Params: p, Private: f.Private}
	if why != nil {
		return rep, true, why
	}
	return rep, true, nil
}

// RecvRequest looks for the Request frame. ok is false while it is not
// complete. After ok the ULP decides and the caller calls Accept or Reject. The
// depths of cfg are not looked at.
//
// After an error the stream is closed: reset where the frame was invalid, and
// with a rejecting Reply and FIN where it was refused by cfg ([ErrRefused]).
// Octets behind the frame are left for Next.
func (c *Conn) RecvRequest(cfg Config) (req Request, ok bool, err error) {
	if c.rx.err != nil {
		return Request{}, false, c.rx.err
	}
	c.must(stateIdle, "RecvRequest")
	if err := cfg.check(); err != nil {
		return Request{}, false, err
	}
	f, ok, err := c.recvFrame(false)
	if !ok || err != nil {
		return Request{}, false, err
	}
	if cfg.Rev1 && f.Rev > 1 {
		// RFC 6581, Section 6: known peers try again with revision 1 only
		// after a reset.
		return Request{}, false, c.failStartup(&Error{Code: CodeFrame, Err: fmt.Errorf("%w %d", ErrRevision, f.Rev)})
	}
	req = Request{Rev: f.Rev, Enhanced: f.Enhanced, CRC: f.CRC, PeerToPeer: f.PeerToPeer, Private: f.Private}
	if f.PeerToPeer {
		req.RTRSend, req.RTRWrite, req.RTRRead = f.RTRSend, f.RTRWrite, f.RTRRead
	}
	req.PeerIRD, req.PeerORD = f.depths()
	f.Private = nil
	c.start = &startup{cfg: cfg, peer: f}
	c.advance(stateRequestSeen)
	if why := refusal(&cfg, &f); why != "" {
		c.rx.err = &Error{Code: CodeFrame, Err: fmt.Errorf("%w: %s", ErrRefused, why)}
		if err := c.Reject(nil); err != nil {
			c.rx.err = err
		}
		return Request{}, false, c.rx.err
	}
	return req, true, nil
}

// Accept accepts the Request: it settles the parameters, makes the connection
// ready to receive FPDUs and then writes the Reply frame, in one piece. It
// copies private. Depths, offers and Markers are taken from cfg; what is
// refused, and the PrivateLimit, are those of RecvRequest. A NoCRC of either
// counts.
//
// No FPDU may be written before the first one has been received (RFC 5044,
// Section 7.1.2): RDMAP sees to that.
//
// With RequireORD and an initiator of too small an IRD, Accept rejects instead
// and returns an error matching [ErrRefused].
func (c *Conn) Accept(cfg Config, private []byte) (Params, error) {
	c.must(stateRequestSeen, "Accept")
	if err := errors.Join(cfg.check(), cfg.checkDepths()); err != nil {
		return Params{}, err
	}
	cfg.NoCRC = cfg.NoCRC || c.start.cfg.NoCRC
	f, p := answer(&cfg, &c.start.peer)
	b, err := c.start.cfg.frame(f, private)
	if err != nil {
		return Params{}, err
	}
	c.start = nil
	if f.Reject {
		c.advance(stateRejected)
		err := &Error{Code: CodeIRD, Err: fmt.Errorf("%w: the initiator's IRD is %d, ORD %d is required", ErrRefused, p.PeerIRD, cfg.ORD)}
		if werr := c.writeStartup(b); werr != nil {
			return Params{}, werr
		}
		_ = c.bs.CloseWrite() // the refusal is what counts
		return Params{}, err
	}
	c.enterFPDU(p)
	return p, c.writeStartup(b)
}

// Reject answers the Request with a rejecting Reply and FIN. It copies private.
func (c *Conn) Reject(private []byte) error {
	c.must(stateRequestSeen, "Reject")
	req := &c.start.peer
	f := Frame{
		Reply: true, Reject: true, Rev: req.Rev, Enhanced: req.Enhanced,
		CRC: req.CRC || !c.start.cfg.NoCRC,
	}
	b, err := c.start.cfg.frame(f, private)
	if err != nil {
		return err
	}
	c.start = nil
	c.advance(stateRejected)
	if err := c.writeStartup(b); err != nil {
		return err
	}
	_ = c.bs.CloseWrite() // fails if the initiator has read the Reply and left already
	return nil
}

// recvFrame collects the startup frame. Its private data is copied.
func (c *Conn) recvFrame(wantReply bool) (f Frame, ok bool, err error) {
	var b [startupLen + MaxPrivate]byte
	pieces, end := c.bs.Peek()
	n := 0
	for _, p := range pieces {
		n += copy(b[n:], p)
	}
	f, size, err := ParseFrame(b[:n])
	switch {
	case err != nil:
		return Frame{}, false, c.failStartup(&Error{Code: CodeFrame, Err: err})
	case size == 0 && end != nil:
		return Frame{}, false, c.failStartup(lost(end))
	case size == 0:
		return Frame{}, false, nil
	case f.Reply && !wantReply:
		return Frame{}, false, c.failStartup(&Error{Code: CodeFrame, Err: ErrBothRespond})
	case !f.Reply && wantReply:
		return Frame{}, false, c.failStartup(&Error{Code: CodeFrame, Err: ErrBothInitiate})
	}
	f.Private = append([]byte(nil), f.Private...)
	c.bs.Discard(size)
	return f, true, nil
}

// frame encodes f with private data of the ULP.
func (c *Config) frame(f Frame, private []byte) ([]byte, error) {
	if c.PrivateLimit > 0 && len(private) > c.PrivateLimit {
		return nil, fmt.Errorf("%w: %d octets, the limit is set to %d", ErrPrivateData, len(private), c.PrivateLimit)
	}
	f.Private = private
	return f.Append(make([]byte, 0, startupLen+enhancedLen+len(private)))
}

// writeStartup writes a startup frame in one piece, so that it travels in one
// TCP segment.
func (c *Conn) writeStartup(b []byte) error {
	if err := c.bs.Writev([][]byte{b}); err != nil {
		c.tx.err = &Error{Code: CodeClosed, Err: err}
	}
	return c.tx.err
}
