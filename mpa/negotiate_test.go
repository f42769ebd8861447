package mpa

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func genConfig(t *rapid.T, name string) Config {
	depth := rapid.OneOf(rapid.IntRange(0, 4), rapid.IntRange(0, 200), rapid.SampledFrom([]int{MaxDepth, DepthUnstated, 70000}))
	c := Config{
		NoCRC: rapid.Bool().Draw(t, name+" NoCRC"), Rev1: rapid.Bool().Draw(t, name+" Rev1"),
		ClientServer: rapid.Bool().Draw(t, name+" ClientServer"), LegacyRTR: rapid.Bool().Draw(t, name+" LegacyRTR"),
		OfferRTR: RTRKinds(rapid.ByteMax(7).Draw(t, name+" OfferRTR")), TakeRTR: RTRKinds(rapid.ByteMax(7).Draw(t, name+" TakeRTR")),
		Markers: rapid.Bool().Draw(t, name+" Markers"), RefuseMarkers: rapid.Bool().Draw(t, name+" RefuseMarkers"),
		LargeFPDUs: rapid.Bool().Draw(t, name+" LargeFPDUs"), RequireORD: rapid.Bool().Draw(t, name+" RequireORD"),
		IRD: depth.Draw(t, name+" IRD"), ORD: depth.Draw(t, name+" ORD"), MaxIRD: depth.Draw(t, name+" MaxIRD"),
	}
	c.RequireCRC = !c.NoCRC && rapid.Bool().Draw(t, name+" RequireCRC")
	c.RequireRev2 = !c.Rev1 && rapid.Bool().Draw(t, name+" RequireRev2")
	c.RequireRTR = !c.Rev1 && !c.ClientServer && rapid.Bool().Draw(t, name+" RequireRTR")
	return c
}

// TestBothEnds lets two of our own ends meet under any two configurations: they
// agree, or both know that they do not.
func TestBothEnds(t *testing.T) {
	pool := newPool(t, poolConfig)
	rapid.Check(t, func(t *rapid.T) {
		ic, rc := genConfig(t, "initiator"), genConfig(t, "responder")
		x, y := streamPair(testMSS, 4096)
		i, r := NewConn(x, pool), NewConn(y, pool)
		require.NoError(t, i.Request(ic, nil))
		_, ok, err := r.RecvRequest(rc)
		if err != nil {
			weak := rc.RequireCRC && ic.NoCRC || rc.RequireRev2 && ic.Rev1 || rc.RequireRTR && (ic.Rev1 || ic.ClientServer)
			require.True(t, weak || rc.RefuseMarkers && ic.Markers || rc.Rev1 && !ic.Rev1)
			rep, ok, err := i.RecvReply()
			if errors.Is(err, ErrRefused) || ok {
				require.True(t, rep.Rejected)
			} else {
				require.Equal(t, CodeClosed, code2(err))
			}
			return
		}
		require.True(t, ok)
		rp, err := r.Accept(rc, nil)
		if err != nil {
			require.ErrorIs(t, err, ErrRefused)
			require.True(t, rc.RequireORD)
			rep, ok, err := i.RecvReply()
			require.NoError(t, err)
			require.True(t, ok)
			require.True(t, rep.Rejected)
			require.Greater(t, rep.PeerORD, ic.IRD)
			return
		}
		rep, ok, err := i.RecvReply()
		ip := rep.Params
		switch code2(err) {
		case CodeFrame:
			require.ErrorIs(t, err, ErrRefused)
			weak := ic.RequireCRC && rc.NoCRC && !ic.NoCRC == rp.CRC
			require.True(t, weak || ic.RefuseMarkers && rc.Markers)
			return
		case CodeRTR: // what is offered and what is taken have nothing in common
			offered, taken := ic.OfferRTR.orElse(Kinds(RTRRead)), rc.TakeRTR.orElse(Kinds(RTRWrite, RTRRead))
			require.Zero(t, offered&taken)
			return
		}
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, rp.CRC, ip.CRC, "MPA-22")
		require.Equal(t, !ic.NoCRC || !rc.NoCRC, ip.CRC, "MPA-22")
		require.Equal(t, []bool{ic.Markers, rc.Markers}, []bool{ip.MarkersIn, ip.MarkersOut}, "MPA-20")
		require.Equal(t, []bool{rc.Markers, ic.Markers}, []bool{rp.MarkersIn, rp.MarkersOut}, "MPA-20")
		require.Equal(t, rp.Rev, ip.Rev)
		require.Equal(t, rp.PeerToPeer, ip.PeerToPeer)
		require.Equal(t, rp.LargeFPDUs, ip.LargeFPDUs)
		if ip.Rev == 1 {
			require.Equal(t, ic.LegacyRTR, ip.RTR == RTRRead)
			return
		}
		require.Equal(t, rp.RTR, ip.RTR)
		require.LessOrEqual(t, ip.ORD, rp.IRD, "MPA-37")
		require.LessOrEqual(t, rp.ORD, ip.IRD, "MPA-37")
		require.LessOrEqual(t, max(ip.IRD, ip.ORD, rp.IRD, rp.ORD), MaxDepth, "MPA-41")
		require.LessOrEqual(t, rp.IRD, max(1, rc.IRD, rc.MaxIRD), "SEC-40")
		if ip.RTR == RTRRead {
			require.Positive(t, ip.ORD)
			require.Positive(t, rp.IRD, "IOP-17")
		}
	})
}

func code2(err error) Code {
	var e *Error
	errors.As(err, &e)
	if e == nil {
		return 0
	}
	return e.Code
}

// TestForeignReply lets any Reply meet any configuration: no panic, and the
// depths hold.
func TestForeignReply(t *testing.T) {
	pool := newPool(t, poolConfig)
	rapid.Check(t, func(t *rapid.T) {
		cfg := genConfig(t, "initiator")
		x, y := streamPair(testMSS, 4096)
		c := NewConn(x, pool)
		require.NoError(t, c.Request(cfg, nil))
		f := genFrame(t)
		b, err := f.Append(nil)
		require.NoError(t, err)
		require.NoError(t, y.Writev([][]byte{b}))
		rep, ok, err := c.RecvReply()
		switch code2(err) {
		case CodeFrame:
			require.False(t, ok)
			require.True(t, x.Aborted(), "MPA-17")
			return
		case 0:
			require.NoError(t, err)
		default:
			require.Contains(t, []Code{CodeIRD, CodeRTR}, code2(err))
		}
		require.True(t, ok)
		require.Equal(t, f.Reject, rep.Rejected)
		if f.Reject || err != nil || !f.Enhanced {
			return
		}
		if f.IRD != DepthUnstated {
			require.LessOrEqual(t, rep.ORD, int(f.IRD), "MPA-37")
		}
		if f.ORD != DepthUnstated {
			require.GreaterOrEqual(t, rep.IRD, int(f.ORD), "MPA-37")
		}
		require.LessOrEqual(t, rep.IRD, max(cfg.IRD, cfg.MaxIRD), "SEC-40")
	})
}

// TestForeignRequest is the same for the responder, whose Reply must parse.
func TestForeignRequest(t *testing.T) {
	pool := newPool(t, poolConfig)
	rapid.Check(t, func(t *rapid.T) {
		cfg := genConfig(t, "responder")
		x, y := streamPair(testMSS, 4096)
		c := NewConn(x, pool)
		f := genFrame(t)
		b, err := f.Append(nil)
		require.NoError(t, err)
		require.NoError(t, y.Writev([][]byte{b}))
		_, ok, err := c.RecvRequest(cfg)
		if f.Reply {
			require.ErrorIs(t, err, ErrBothRespond)
			return
		}
		if cfg.Rev1 && f.Rev == 2 {
			require.ErrorIs(t, err, ErrRevision)
			require.True(t, x.Aborted(), "MPA-34")
			return
		}
		var p Params
		if err == nil {
			require.True(t, ok)
			p, err = c.Accept(cfg, nil)
		}
		pieces, end := y.Peek()
		require.Len(t, pieces, 1)
		rep, n, perr := ParseFrame(pieces[0])
		require.NoError(t, perr)
		require.Len(t, pieces[0], n, "MPA-01")
		require.True(t, rep.Reply)
		require.Equal(t, cfg.Markers && err == nil, rep.Markers, "MPA-20")
		require.Equal(t, err != nil, rep.Reject)
		require.Equal(t, f.Rev, rep.Rev, "MPA-33")
		require.Equal(t, f.Enhanced, rep.Enhanced, "MPA-33")
		if err != nil {
			require.ErrorIs(t, err, ErrRefused)
			require.Error(t, end, "MPA-14 FIN behind the rejection")
			return
		}
		require.NoError(t, end)
		require.Equal(t, rep.CRC, p.CRC, "MPA-24")
		require.Equal(t, f.PeerToPeer, rep.PeerToPeer, "MPA-43")
		bits := 0
		for _, b := range []bool{rep.RTRSend, rep.RTRWrite, rep.RTRRead} {
			if b {
				bits++
			}
		}
		want := 0
		if rep.PeerToPeer {
			want = 1
		}
		require.Equal(t, want, bits, "MPA-44 IOP-16")
	})
}
