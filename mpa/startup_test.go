package mpa

import (
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

const (
	hexReq = "4d504120494420526571204672616d65 "
	hexRep = "4d504120494420526570204672616d65 "
)

var anyRTR = Kinds(RTRWrite, RTRRead, RTRSend)

// helloFPDU is an FPDU with a CRC that is right.
var helloFPDU = wiretest.FPDUs()[0].Octets

func TestRequestOctets(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cfg     Config
		private string
		want    string
	}{
		{"IOP-21 default: A=1, D only, CRC, ORD at least 1", Config{}, "", "50 02 0004 8000 4001"},
		{"IOP-21 depths", Config{IRD: 16, ORD: 8}, "", "50 02 0004 8010 4008"},
		{"IOP-38 depths of 3 are asked for as 3", Config{IRD: 3, ORD: 3}, "", "50 02 0004 8003 4003"},
		{"IOP-21 option C and D (vector MPA-REQ-V2)", Config{IRD: 16, ORD: 8, OfferRTR: Kinds(RTRWrite, RTRRead)}, "hi\x00\x01", "50 02 0008 8010 c008 68690001"},
		{"IOP-21 option A=0", Config{IRD: 2, ClientServer: true, OfferRTR: anyRTR}, "", "50 02 0004 0002 0000"},
		{"MPA-42 C alone as configured", Config{IRD: 2, OfferRTR: Kinds(RTRWrite)}, "", "50 02 0004 8002 8000"},
		{"MPA-42 B alone as configured", Config{IRD: 2, OfferRTR: Kinds(RTRSend)}, "", "50 02 0004 c002 0000"},
		{"MPA-42 B as configured", Config{IRD: 2, ORD: 2, OfferRTR: Kinds(RTRRead, RTRSend)}, "", "50 02 0004 c002 4002"},
		{"MPA-23 IOP-07 MPA-60 C=1 by default", Config{ClientServer: true}, "", "50 02 0004 0000 0000"},
		{"IOP-10 MPA-21 M=0 by default", Config{ClientServer: true, NoCRC: true}, "", "10 02 0004 0000 0000"},
		{"MPA-20 M=1 asks for markers", Config{ClientServer: true, Markers: true}, "", "d0 02 0004 0000 0000"},
		{"MPA-20 M=1 in revision 1", Config{Rev1: true, Markers: true}, "", "c0 01 0000"},
		{"MPA-05 MPA-04 R and Res are 0", Config{ClientServer: true}, "", "50 02 0004 0000 0000"},
		{"MPA-49 by default B is never offered", Config{IRD: 3, ORD: 2}, "", "50 02 0004 8003 4002"},
		{"MPA-23 C=0 on demand alone", Config{NoCRC: true}, "", "10 02 0004 8000 4001"},
		{"MPA-30 revision 1 without the block", Config{Rev1: true, IRD: 4, ORD: 4}, "x", "40 01 0001 78"},
		{"MPA-30 revision 1, no CRC", Config{Rev1: true, NoCRC: true}, "", "00 01 0000"},
		{"MPA-41 depths of 14 bits", Config{IRD: 20000, ORD: 0x3fff}, "", "50 02 0004 bffe 7ffe"},
		{"MPA-74 large FPDUs", Config{LargeFPDUs: true}, "", "58 02 0004 8000 4001"},
		{"SEC-60 requiring changes nothing in the Request", Config{RequireCRC: true, RequireRev2: true}, "", "50 02 0004 8000 4001"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, near, far := newConn(t)
			require.NoError(t, c.Request(tc.cfg, []byte(tc.private)))
			require.Equal(t, wiretest.Hex(hexReq+tc.want), read(far))
			_, calls := near.Written()
			require.Equal(t, 1, calls, "MPA-09 IOP-22 one write")
		})
	}
	t.Run("MPA-09 IOP-22 the Request is one write", func(t *testing.T) {
		for _, n := range []int{0, 1, MaxPrivateEnhanced} {
			c, near, far := newConn(t)
			require.NoError(t, c.Request(Config{}, count(n)))
			_, calls := near.Written()
			require.Equal(t, 1, calls)
			require.Len(t, read(far), startupLen+enhancedLen+n)
		}
	})
	t.Run("IOP-24 MPA-30 revision 2 never without the block", func(t *testing.T) {
		for _, cfg := range everyConfig() {
			c, _, far := newConn(t)
			require.NoError(t, c.Request(cfg, nil))
			f, _, err := ParseFrame(read(far))
			require.NoError(t, err)
			require.Equal(t, f.Rev == 2, f.Enhanced)
			require.Equal(t, cfg.Rev1, f.Rev == 1)
		}
	})
	t.Run("IOP-11 MPA-38 no depth of 3fff is ever asked for", func(t *testing.T) {
		for _, depth := range []int{0, 1, 128, MaxDepth, DepthUnstated, 1 << 20} {
			c, _, far := newConn(t)
			require.NoError(t, c.Request(Config{IRD: depth, ORD: depth, MaxIRD: depth}, nil))
			f, _, err := ParseFrame(read(far))
			require.NoError(t, err)
			require.EqualValues(t, min(depth, MaxDepth), f.IRD)
			require.EqualValues(t, max(1, min(depth, MaxDepth)), f.ORD)
		}
	})
}

// everyConfig is every combination of what changes a Request.
func everyConfig() (all []Config) {
	for bits := range 1 << 6 {
		on := func(i int) bool { return bits>>i&1 != 0 }
		c := Config{NoCRC: on(0), Rev1: on(1), ClientServer: on(2), Markers: on(3), LargeFPDUs: on(4), LegacyRTR: on(5)}
		for _, k := range []RTRKinds{0, Kinds(RTRWrite), Kinds(RTRSend), anyRTR} {
			c.OfferRTR = k
			all = append(all, c)
		}
	}
	return all
}

func TestRequestRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"NoCRC with RequireCRC": {NoCRC: true, RequireCRC: true},
		"Rev1 with RequireRev2": {Rev1: true, RequireRev2: true},
		"RequireRTR with Rev1":  {RequireRTR: true, Rev1: true},
		"RequireRTR with A=0":   {RequireRTR: true, ClientServer: true},
		"unknown RTR to offer":  {OfferRTR: 0x08},
		"unknown RTR to take":   {TakeRTR: 0x80},
		"negative PrivateLimit": {PrivateLimit: -1},
		"negative IRD":          {IRD: -1},
		"negative ORD":          {ORD: -1},
		"negative MaxIRD":       {MaxIRD: -1},
	} {
		t.Run(name, func(t *testing.T) {
			c, near, far := newConn(t)
			require.Error(t, c.Request(cfg, nil))
			octets, _ := near.Written()
			require.Zero(t, octets)
			if cfg.IRD >= 0 && cfg.ORD >= 0 && cfg.MaxIRD >= 0 {
				_, _, err := c.RecvRequest(cfg)
				require.Error(t, err)
			}
			// It can be done right afterwards.
			require.NoError(t, c.Request(Config{}, nil))
			require.NotEmpty(t, read(far))
		})
	}
	t.Run("a dead stream", func(t *testing.T) {
		c, _, far := newConn(t)
		far.Abort()
		err := c.Request(Config{}, nil)
		require.Equal(t, CodeClosed, code(t, err))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	})
}

// TestReplyOctets plays the initiator octet by octet: Request in, Reply out.
func TestReplyOctets(t *testing.T) {
	base := Config{IRD: 4, ORD: 4, MaxIRD: 32}
	for _, tc := range []struct {
		name    string
		cfg     Config
		private string
		request string
		reply   string
		params  Params
	}{
		{"IOP-21 MPA-36 the default of both sides", base, "", "50 02 0004 8010 4008", "50 02 0004 8008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-36 vector MPA-REP-V2", Config{IRD: 8, ORD: 16}, "", "50 02 0004 8010 4008", "50 02 0004 8008 4010",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 16, PeerIRD: 16, PeerORD: 8}},
		{"MPA-36 private data both ways", base, "no", "50 02 0006 8010 4008 6869", "50 02 0006 8008 4004 6e6f",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-33 revision 1 (vectors MPA-REQ-V1, MPA-REP-V1)", base, "", "40 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-33 revision 2 without the block", base, "", "40 02 0000", "40 02 0000",
			Params{CRC: true, Rev: 2, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-32 revision 1 with the S bit", base, "", "50 01 0004 8010 4008", "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-22 IOP-06 SEC-49 C=0 asked, C=1 wanted", base, "", "00 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-22 C=0 both", Config{NoCRC: true}, "", "00 01 0000", "00 01 0000", Params{Rev: 1, PeerIRD: -1, PeerORD: -1}},
		{"MPA-24 C=1 asked, not wanted: echoed and used", Config{NoCRC: true}, "", "40 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, PeerIRD: -1, PeerORD: -1}},
		{"MPA-04 Res bits are not echoed", base, "", "4f 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-74 large FPDUs when both want", Config{LargeFPDUs: true}, "", "48 01 0000", "48 01 0000",
			Params{CRC: true, LargeFPDUs: true, Rev: 1, PeerIRD: -1, PeerORD: -1}},
		{"MPA-74 large FPDUs not offered", Config{LargeFPDUs: true}, "", "47 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, PeerIRD: -1, PeerORD: -1}},
		{"MPA-05 R=1 in a Request", base, "", "60 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-42 A=0: B, C, D ignored", base, "", "50 02 0004 4010 c008", "50 02 0004 0008 0004",
			Params{CRC: true, Rev: 2, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-44 C offered", base, "", "50 02 0004 8010 8008", "50 02 0004 8008 8004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRWrite, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-44 IOP-16 C and D offered", base, "", "50 02 0004 8010 c008", "50 02 0004 8008 8004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRWrite, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-44 B, C and D offered", Config{IRD: 4, ORD: 4, MaxIRD: 32, TakeRTR: anyRTR}, "", "50 02 0004 c010 c008", "50 02 0004 8008 8004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRWrite, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-44 B and D offered", Config{IRD: 4, ORD: 4, MaxIRD: 32, TakeRTR: anyRTR}, "", "50 02 0004 c010 4008", "50 02 0004 8008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-44 MPA-49 B alone, taken if configured", Config{IRD: 4, ORD: 4, MaxIRD: 32, TakeRTR: anyRTR}, "", "50 02 0004 c010 0008", "50 02 0004 c008 0004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRSend, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-45 B alone, not supported: D", base, "", "50 02 0004 c010 0008", "50 02 0004 8008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-43 nothing offered: at least one all the same", base, "", "50 02 0004 8010 0008", "50 02 0004 8008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-44 C and D offered, D alone taken", Config{IRD: 4, ORD: 4, MaxIRD: 32, TakeRTR: Kinds(RTRRead)}, "", "50 02 0004 8010 c008", "50 02 0004 8008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-45 D offered, C alone taken: C", Config{IRD: 4, ORD: 4, MaxIRD: 32, TakeRTR: Kinds(RTRWrite)}, "", "50 02 0004 8010 4008", "50 02 0004 8008 8004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRWrite, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-45 C and D offered, B alone taken: B", Config{IRD: 4, ORD: 4, MaxIRD: 32, TakeRTR: Kinds(RTRSend)}, "", "50 02 0004 8010 c008", "50 02 0004 c008 0004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRSend, IRD: 8, ORD: 4, PeerIRD: 16, PeerORD: 8}},
		{"MPA-20 MPA-21 IOP-23 M=1 asked: markers out, none in", base, "", "c0 01 0000", "40 01 0000",
			Params{CRC: true, MarkersOut: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"MPA-20 M=1 in the Reply: markers in, none out", Config{Markers: true}, "", "40 01 0000", "c0 01 0000",
			Params{CRC: true, MarkersIn: true, Rev: 1, PeerIRD: -1, PeerORD: -1}},
		{"MPA-20 M=1 both ways, with the block", Config{Markers: true, RefuseMarkers: false}, "", "d0 02 0004 0000 0000", "d0 02 0004 0000 0000",
			Params{CRC: true, MarkersIn: true, MarkersOut: true, Rev: 2, PeerIRD: 0, PeerORD: 0}},
		{"MPA-04 IOP-37 Res bits of the Request switch nothing on", base, "", "4f 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 4, ORD: 4, PeerIRD: -1, PeerORD: -1}},
		{"IOP-17 IRD 0 and D chosen: IRD 1", Config{}, "", "50 02 0004 8000 4000", "50 02 0004 8001 4000",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 1, PeerIRD: 0, PeerORD: 0}},
		{"IOP-30 depths of 0", Config{}, "", "50 02 0004 0000 0000", "50 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}},
		{"MPA-38 ORD not negotiated", base, "", "50 02 0004 0010 3fff", "50 02 0004 3fff 0004",
			Params{CRC: true, Rev: 2, IRD: 4, ORD: 4, PeerIRD: 16, PeerORD: 0x3fff}},
		{"MPA-38 IRD not negotiated", base, "", "50 02 0004 3fff 0008", "50 02 0004 0008 3fff",
			Params{CRC: true, Rev: 2, IRD: 8, ORD: 4, PeerIRD: 0x3fff, PeerORD: 8}},
		{"MPA-38 neither, D chosen, IRD 0", Config{ORD: 3}, "", "50 02 0004 bfff 7fff", "50 02 0004 8001 7fff",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 1, ORD: 3, PeerIRD: 0x3fff, PeerORD: 0x3fff}},
		{"SEC-40 a peer that wants 16382 reads gets the limit", base, "", "50 02 0004 0010 3ffe", "50 02 0004 0020 0004",
			Params{CRC: true, Rev: 2, IRD: 32, ORD: 4, PeerIRD: 16, PeerORD: 0x3ffe}},
		{"MPA-37 the peer's IRD bounds ORD", base, "", "50 02 0004 0003 0000", "50 02 0004 0004 0003",
			Params{CRC: true, Rev: 2, IRD: 4, ORD: 3, PeerIRD: 3, PeerORD: 0}},
		{"IOP-38 IRD 3 and ORD 3 are agreed as 3", Config{IRD: 1, ORD: 16, MaxIRD: 32}, "", "50 02 0004 0003 0003", "50 02 0004 0003 0003",
			Params{CRC: true, Rev: 2, IRD: 3, ORD: 3, PeerIRD: 3, PeerORD: 3}},
		{"IOP-38 own depths of 3 are answered as 3", Config{IRD: 3, ORD: 3}, "", "50 02 0004 8010 4001", "50 02 0004 8003 4003",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 3, ORD: 3, PeerIRD: 16, PeerORD: 1}},
		{"MPA-41 local limits clipped", Config{IRD: 20000, ORD: 20000}, "", "50 02 0004 3ffe 0000", "50 02 0004 3ffe 3ffe",
			Params{CRC: true, Rev: 2, IRD: 0x3ffe, ORD: 0x3ffe, PeerIRD: 0x3ffe, PeerORD: 0}},
		{"MPA-40 insisting on an ORD that is granted", Config{ORD: 8, RequireORD: true}, "", "50 02 0004 0008 0000", "50 02 0004 0000 0008",
			Params{CRC: true, Rev: 2, ORD: 8, PeerIRD: 8, PeerORD: 0}},
		{"SEC-60 required and given", Config{RequireCRC: true, RequireRev2: true}, "", "50 02 0004 0000 0000", "50 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}},
		{"IOP revision 1 alone takes revision 1", Config{Rev1: true}, "", "40 01 0000", "40 01 0000",
			Params{CRC: true, Rev: 1, PeerIRD: -1, PeerORD: -1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, near, far := newConn(t)
			request := wiretest.Hex(hexReq + tc.request)
			write(t, far, request)
			req, ok, err := c.RecvRequest(tc.cfg)
			require.NoError(t, err)
			require.True(t, ok)
			frame, _, err := ParseFrame(request)
			require.NoError(t, err)
			require.Equal(t, frame.Private, req.Private)
			require.Equal(t, tc.params.Rev, req.Rev, "MPA-18")
			require.Equal(t, tc.params.PeerIRD, req.PeerIRD)
			require.Equal(t, tc.params.PeerORD, req.PeerORD)
			require.Empty(t, read(far), "nothing is sent before Accept")
			p, err := c.Accept(tc.cfg, []byte(tc.private))
			require.NoError(t, err)
			require.Equal(t, tc.params, p)
			require.Equal(t, wiretest.Hex(hexRep+tc.reply), read(far))
			_, calls := near.Written()
			require.Equal(t, 1, calls, "MPA-09 one write")
			require.Equal(t, p.CRC, c.rx.crc)
			require.Equal(t, p.CRC, c.tx.crc)
		})
	}
}

// TestRequestRefused are Requests a responder will have nothing of.
func TestRequestRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cfg     Config
		request string
		reply   string // empty: the stream is reset
		cause   error
	}{
		{"MPA-27 M=1 is answered R=1, if told so", Config{RefuseMarkers: true}, "c0 01 0000", "60 01 0000", ErrRefused},
		{"MPA-27 IOP-23 M=1 with the block", Config{RefuseMarkers: true, Markers: true}, "d0 02 0004 8001 4001", "70 02 0004 0000 0000", ErrRefused},
		{"SEC-60 A=0 where an RTR message is required", Config{RequireRTR: true}, "50 02 0004 0001 0001", "70 02 0004 0000 0000", ErrRefused},
		{"SEC-60 revision 1 where an RTR message is required", Config{RequireRTR: true}, "40 01 0000", "60 01 0000", ErrRefused},
		{"SEC-60 no CRC where it is required", Config{RequireCRC: true}, "10 02 0004 8001 4001", "70 02 0004 0000 0000", ErrRefused},
		{"SEC-60 revision 1 where 2 is required", Config{RequireRev2: true}, "40 01 0000", "60 01 0000", ErrRefused},
		{"MPA-04 Res 0f is not echoed by a refusal", Config{RefuseMarkers: true}, "cf 01 0000", "60 01 0000", ErrRefused},
		{"MPA-04 MPA-74 Res 0f, with the block and large FPDUs", Config{RefuseMarkers: true, LargeFPDUs: true}, "df 02 0004 8001 4001", "70 02 0004 0000 0000", ErrRefused},
		{"MPA-34 the enhanced block where only revision 1 is spoken", Config{Rev1: true}, "50 02 0004 8001 4001", "", ErrRevision},
		{"MPA-34 revision 2 without the block likewise", Config{Rev1: true}, "40 02 0000", "", ErrRevision},
		{"MPA-06 IOP-15 revision 0", Config{}, "40 00 0000", "", ErrRevision},
		{"MPA-06 revision 3", Config{}, "40 03 0000", "", ErrRevision},
		{"MPA-06 revision 255", Config{}, "40 ff 0000", "", ErrRevision},
		{"MPA-07 PD_Length 513", Config{}, "40 01 0201", "", ErrLength},
		{"MPA-31 S=1 with 3 octets", Config{}, "50 02 0003 800140", "", ErrLength},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, near, far := newConn(t)
			write(t, far, wiretest.Hex(hexReq+tc.request))
			_, ok, err := c.RecvRequest(tc.cfg)
			require.False(t, ok)
			require.ErrorIs(t, err, tc.cause)
			require.Equal(t, CodeFrame, code(t, err))
			_, _, again := c.RecvRequest(tc.cfg)
			require.Equal(t, err, again, "the error sticks")
			_, ok, again = c.Next()
			require.False(t, ok)
			require.Equal(t, err, again)
			if tc.reply == "" {
				require.Empty(t, readEnd(t, far, syscall.ECONNRESET), "MPA-02 no Reply")
				return
			}
			require.Equal(t, wiretest.Hex(hexRep+tc.reply), readEnd(t, far, io.EOF))
			require.False(t, near.Aborted(), "a reset could overtake the Reply")
		})
	}
	t.Run("MPA-02 wrong key", func(t *testing.T) {
		c, _, far := newConn(t)
		write(t, far, []byte("GET / HTTP/1.1\r\n"))
		_, _, err := c.RecvRequest(Config{})
		require.ErrorIs(t, err, ErrKey)
		require.Empty(t, readEnd(t, far, syscall.ECONNRESET))
	})
	t.Run("a Reply where a Request was due", func(t *testing.T) {
		c, _, far := newConn(t)
		write(t, far, wiretest.Hex(hexRep+"40 01 0000"))
		_, _, err := c.RecvRequest(Config{})
		require.ErrorIs(t, err, ErrBothRespond)
		require.Empty(t, readEnd(t, far, syscall.ECONNRESET))
	})
	t.Run("MPA-40 the responder's ORD cannot be had", func(t *testing.T) {
		c, _, far := newConn(t)
		write(t, far, wiretest.Hex(hexReq+"50 02 0004 8004 4001"))
		_, ok, err := c.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		_, err = c.Accept(Config{ORD: 8, IRD: 1, RequireORD: true}, nil)
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, wiretest.Hex(hexRep+"70 02 0004 8001 4008"), readEnd(t, far, io.EOF))
		require.False(t, c.CanWrite(0))
	})
	t.Run("MPA-04 MPA-74 a refusal has Res 0 where large FPDUs would have been on", func(t *testing.T) {
		c, _, far := newConn(t)
		write(t, far, wiretest.Hex(hexReq+"5f 02 0004 8004 4001"))
		_, ok, err := c.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		_, err = c.Accept(Config{ORD: 8, IRD: 1, RequireORD: true, LargeFPDUs: true}, nil)
		require.ErrorIs(t, err, ErrRefused)
		require.Equal(t, wiretest.Hex(hexRep+"70 02 0004 8001 4008"), readEnd(t, far, io.EOF))
	})
}

// TestRecvReply plays the responder octet by octet.
func TestRecvReply(t *testing.T) {
	base := Config{IRD: 4, ORD: 4, MaxIRD: 16}
	for _, tc := range []struct {
		name   string
		cfg    Config
		reply  string
		params Params
		code   Code  // with an error that leaves FPDU mode for a Terminate
		cause  error // the stream is reset
	}{
		{"IOP-21 MPA-36 the default of both sides", base, "50 02 0004 8008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 4, ORD: 4, PeerIRD: 8, PeerORD: 4}, 0, nil},
		{"MPA-37 the peer's IRD bounds ORD", base, "50 02 0004 8002 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 4, ORD: 2, PeerIRD: 2, PeerORD: 4}, 0, nil},
		{"IOP-38 IRD 3 and ORD 3 are agreed as 3", Config{IRD: 1, ORD: 16, MaxIRD: 16}, "50 02 0004 8003 4003",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 3, ORD: 3, PeerIRD: 3, PeerORD: 3}, 0, nil},
		{"MPA-36 MPA-37 IRD raised to the peer's ORD", base, "50 02 0004 8008 4010",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 16, ORD: 4, PeerIRD: 8, PeerORD: 16}, 0, nil},
		{"MPA-39 IRD cannot be raised that far", base, "50 02 0004 8008 4011",
			Params{CRC: true, Rev: 2, PeerToPeer: true, IRD: 4, ORD: 4, PeerIRD: 8, PeerORD: 17}, CodeIRD, nil},
		{"MPA-38 neither depth negotiated", base, "50 02 0004 bfff 7fff",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, IRD: 4, ORD: 4, PeerIRD: 0x3fff, PeerORD: 0x3fff}, 0, nil},
		{"MPA-44 the Write was not offered", base, "50 02 0004 8008 8004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, IRD: 4, ORD: 4, PeerIRD: 8, PeerORD: 4}, CodeRTR, nil},
		{"MPA-45 no kind at all", base, "50 02 0004 8008 0004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, IRD: 4, ORD: 4, PeerIRD: 8, PeerORD: 4}, CodeRTR, nil},
		{"MPA-43 A not copied", base, "50 02 0004 0008 4004",
			Params{CRC: true, Rev: 2, PeerToPeer: true, IRD: 4, ORD: 4, PeerIRD: 8, PeerORD: 4}, CodeRTR, nil},
		{"MPA-46 the Write before the Read", Config{ORD: 1, OfferRTR: anyRTR}, "50 02 0004 c008 c000",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRWrite, ORD: 1, PeerIRD: 8}, 0, nil},
		{"MPA-46 the Read before the Send", Config{ORD: 1, OfferRTR: anyRTR}, "50 02 0004 c008 4000",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, ORD: 1, PeerIRD: 8}, 0, nil},
		{"MPA-46 the Send alone", Config{ORD: 1, OfferRTR: Kinds(RTRRead, RTRSend)}, "50 02 0004 c008 8000",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRSend, ORD: 1, PeerIRD: 8}, 0, nil},
		{"MPA-37 a Read cannot open where none is taken", base, "50 02 0004 8000 4000",
			Params{CRC: true, Rev: 2, PeerToPeer: true, IRD: 4, PeerIRD: 0, PeerORD: 0}, CodeRTR, nil},
		{"MPA-42 A=0 asked: flags in the Reply ignored", Config{ClientServer: true, IRD: 1, ORD: 1}, "50 02 0004 c001 c001",
			Params{CRC: true, Rev: 2, IRD: 1, ORD: 1, PeerIRD: 1, PeerORD: 1}, 0, nil},
		{"IOP-21 a wanted ORD of 0 is 1", Config{}, "50 02 0004 8001 4000",
			Params{CRC: true, Rev: 2, PeerToPeer: true, RTR: RTRRead, ORD: 1, PeerIRD: 1, PeerORD: 0}, 0, nil},
		{"MPA-22 SEC-49 C=0 in the Reply, CRC on all the same", Config{ClientServer: true}, "10 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-22 not asked for, but by the peer", Config{ClientServer: true, NoCRC: true}, "50 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-22 nobody asks", Config{ClientServer: true, NoCRC: true}, "10 02 0004 0000 0000",
			Params{Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"IOP-37 echoed Res bits switch nothing on", Config{ClientServer: true}, "5f 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-20 MPA-21 M=1 answered: markers out", Config{ClientServer: true}, "d0 02 0004 0000 0000",
			Params{CRC: true, MarkersOut: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-20 M=1 asked, M=0 answered: markers in", Config{ClientServer: true, Markers: true}, "50 02 0004 0000 0000",
			Params{CRC: true, MarkersIn: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-20 MPA-74 M=1 and large FPDUs both ways", Config{ClientServer: true, Markers: true, LargeFPDUs: true}, "d8 02 0004 0000 0000",
			Params{CRC: true, MarkersIn: true, MarkersOut: true, LargeFPDUs: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-74 large FPDUs not answered", Config{ClientServer: true, LargeFPDUs: true}, "57 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"MPA-74 large FPDUs when both want", Config{ClientServer: true, LargeFPDUs: true}, "58 02 0004 0000 0000",
			Params{CRC: true, LargeFPDUs: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},
		{"revision 1", Config{Rev1: true, IRD: 3, ORD: 2}, "40 01 0000",
			Params{CRC: true, Rev: 1, IRD: 3, ORD: 2, PeerIRD: -1, PeerORD: -1}, 0, nil},
		{"IOP-19 legacy RTR", Config{Rev1: true, LegacyRTR: true}, "40 01 0000",
			Params{CRC: true, Rev: 1, RTR: RTRRead, ORD: 1, PeerIRD: -1, PeerORD: -1}, 0, nil},
		{"SEC-60 required and given", Config{ClientServer: true, RequireCRC: true, RequireRev2: true}, "50 02 0004 0000 0000",
			Params{CRC: true, Rev: 2, PeerIRD: 0, PeerORD: 0}, 0, nil},

		{"MPA-03 a Request", base, "REQ 50 02 0004 8008 4004", Params{}, 0, ErrBothInitiate},
		{"MPA-06 revision 0", base, "40 00 0000", Params{}, 0, ErrRevision},
		{"MPA-06 revision 255", base, "40 ff 0000", Params{}, 0, ErrRevision},
		{"MPA-07 PD_Length 65535", base, "50 02 ffff", Params{}, 0, ErrLength},
		{"MPA-31 S=1 with 2 octets", base, "50 02 0002 8008", Params{}, 0, ErrLength},
		{"MPA-35 S=1 sent, S=0 answered", base, "40 02 0000", Params{}, 0, ErrEnhanced},
		{"MPA-35 S=1 sent, revision 1 answered", base, "50 01 0004 8008 4004", Params{}, 0, ErrEnhanced},
		{"MPA-33 S=1 not asked for", Config{Rev1: true}, "50 02 0004 8008 4004", Params{}, 0, ErrEnhanced},
		{"MPA-27 M=1 where markers are refused", Config{RefuseMarkers: true}, "d0 02 0004 8008 4004", Params{}, 0, ErrRefused},
		{"SEC-60 no CRC where it is required", Config{RequireCRC: true}, "10 02 0004 8008 4004", Params{}, 0, ErrRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, near, far := newConn(t)
			require.NoError(t, c.Request(tc.cfg, nil))
			sent := len(read(far))
			_, ok, err := c.RecvReply()
			require.NoError(t, err)
			require.False(t, ok)
			var reply []byte
			if rest, is := strings.CutPrefix(tc.reply, "REQ"); is {
				reply = wiretest.Hex(hexReq + rest)
			} else {
				reply = wiretest.Hex(hexRep + tc.reply)
			}
			write(t, far, reply)
			rep, ok, err := c.RecvReply()
			if tc.cause != nil {
				require.ErrorIs(t, err, tc.cause)
				require.Equal(t, CodeFrame, code(t, err))
				require.False(t, ok)
				octets, _ := near.Written()
				require.EqualValues(t, sent, octets, "MPA-19 nothing is sent")
				require.True(t, near.Aborted(), "MPA-17")
				require.False(t, c.CanWrite(0), "MPA-12")
				_, _, again := c.RecvReply()
				require.Equal(t, err, again)
				return
			}
			require.True(t, ok)
			require.Equal(t, Reply{Params: tc.params}, rep)
			if tc.code != 0 {
				require.Equal(t, tc.code, code(t, err), "MPA-80")
			} else {
				require.NoError(t, err)
			}
			require.False(t, near.Aborted())
			require.True(t, c.CanWrite(22), "FPDU mode; with an error, for the Terminate")
		})
	}
}

func TestRejected(t *testing.T) {
	for _, tc := range []struct {
		name, reply string
		want        Reply
	}{
		{"MPA-15 MPA-36 vector MPA-REP-V2-REJECT", "70 02 0006 0000 0000 6e6f",
			Reply{Rejected: true, Private: []byte("no"), Params: Params{Rev: 2}}},
		{"MPA-36 depths of a rejection", "70 02 0004 8001 4008",
			Reply{Rejected: true, Params: Params{Rev: 2, PeerIRD: 1, PeerORD: 8}}},
		{"revision 1 answers revision 2", "20 01 0002 6e6f",
			Reply{Rejected: true, Private: []byte("no"), Params: Params{Rev: 1, PeerIRD: -1, PeerORD: -1}}},
		{"even with M=1", "b0 02 0004 0000 0000", Reply{Rejected: true, Params: Params{Rev: 2}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, near, far := newConn(t)
			require.NoError(t, c.Request(Config{}, nil))
			write(t, far, wiretest.Hex(hexRep+tc.reply))
			rep, ok, err := c.RecvReply()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, tc.want, rep)
			require.False(t, near.Aborted())
			require.False(t, c.CanWrite(0), "MPA-15 no FPDU")
			require.PanicsWithValue(t, `mpa: Write in state "rejected"`, func() { _ = c.Write(nil, nil) })
		})
	}
	for _, tc := range []struct {
		name, request string
		cfg           Config
		private, want string
	}{
		{"MPA-14 vector MPA-REP-V2-REJECT", "50 02 0004 8010 4008", Config{}, "no", "70 02 0006 0000 0000 6e6f"},
		{"MPA-33 revision 1", "40 01 0000", Config{}, "", "60 01 0000"},
		{"MPA-04 MPA-74 Res 0f", "5f 02 0004 8010 4008", Config{LargeFPDUs: true}, "", "70 02 0004 0000 0000"},
		{"C=0 where nobody wants it", "00 01 0000", Config{NoCRC: true}, "", "20 01 0000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, near, far := newConn(t)
			write(t, far, wiretest.Hex(hexReq+tc.request))
			_, ok, err := c.RecvRequest(tc.cfg)
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, c.Reject([]byte(tc.private)))
			require.Equal(t, wiretest.Hex(hexRep+tc.want), readEnd(t, far, io.EOF))
			_, calls := near.Written()
			require.Equal(t, 1, calls, "MPA-09 one write")
			require.False(t, near.Aborted())
		})
	}
}
