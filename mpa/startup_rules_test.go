package mpa

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

// TestStartupRules are rules of the startup phase that no single frame shows.
func TestStartupRules(t *testing.T) {
	t.Run("MPA-12 IOP-08 no FPDU before a valid Reply, nor behind the Request in its write", func(t *testing.T) {
		c, near, far := newConn(t)
		require.False(t, c.CanWrite(0), "before the Request")
		require.NoError(t, c.Request(Config{ClientServer: true}, nil))
		require.False(t, c.CanWrite(0), "before the Reply")
		require.Panics(t, func() { _ = c.Write(nil, nil) })
		require.NoError(t, c.Flush())
		_, calls := near.Written()
		require.Equal(t, 1, calls)
		require.Len(t, read(far), startupLen+enhancedLen, "the Request and nothing else")
		reply := wiretest.Hex(hexRep + "50 02 0004 0000 0000")
		write(t, far, reply[:len(reply)-1])
		_, ok, err := c.RecvReply()
		require.NoError(t, err)
		require.False(t, ok)
		require.False(t, c.CanWrite(0), "while the Reply is not whole")
		write(t, far, reply[len(reply)-1:])
		_, ok, err = c.RecvReply()
		require.NoError(t, err)
		require.True(t, ok)
		require.True(t, c.CanWrite(0))
	})
	t.Run("IOP-08 MPA-13 nothing behind the Reply in its write", func(t *testing.T) {
		c, near, far := newConn(t)
		write(t, far, wiretest.Hex(hexReq+"d0 02 0004 8001 4001")) // with markers
		_, ok, err := c.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		_, err = c.Accept(Config{IRD: 1, ORD: 1}, nil)
		require.NoError(t, err)
		require.NoError(t, c.Flush())
		_, calls := near.Written()
		require.Equal(t, 1, calls)
		require.Equal(t, wiretest.Hex(hexRep+"50 02 0004 8001 4001"), read(far), "the Reply, and no marker either")
	})
	t.Run("MPA-09 IOP-22 the Reply is one write", func(t *testing.T) {
		for _, accept := range []bool{true, false} {
			for _, n := range []int{0, MaxPrivate} {
				c, near, far := newConn(t)
				write(t, far, wiretest.Hex(hexReq+"40 01 0000"))
				_, ok, err := c.RecvRequest(Config{})
				require.NoError(t, err)
				require.True(t, ok)
				if accept {
					_, err = c.Accept(Config{}, count(n))
				} else {
					err = c.Reject(count(n))
				}
				require.NoError(t, err)
				_, calls := near.Written()
				require.Equal(t, 1, calls)
				require.Len(t, read(far), startupLen+n)
			}
		}
	})
	t.Run("MPA-18 revision and private data are told, on either side", func(t *testing.T) {
		for _, rev1 := range []bool{true, false} {
			rev := byte(2)
			if rev1 {
				rev = 1
			}
			a, b := connect(t)
			require.NoError(t, a.Request(Config{Rev1: rev1}, []byte("there")))
			req, ok, err := b.RecvRequest(Config{})
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, rev, req.Rev)
			require.Equal(t, "there", string(req.Private))
			p, err := b.Accept(Config{}, []byte("back"))
			require.NoError(t, err)
			require.Equal(t, rev, p.Rev)
			rep, ok, err := a.RecvReply()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, rev, rep.Rev)
			require.Equal(t, "back", string(rep.Private))
		}
	})
	t.Run("MPA-19 MPA-17 MPA-80 nothing is sent after a bad Reply: the stream is reset, code 4", func(t *testing.T) {
		for _, bad := range []string{
			"", // a Request
			hexRep + "40 00 0000", hexRep + "50 02 0003 800840", hexRep + "40 02 0000", hexRep + "50 02 0201",
			"48545450 2f312e31 20343030 20426164",
		} {
			if bad == "" {
				bad = hexReq + "50 02 0004 8001 4001"
			}
			c, near, far := newConn(t)
			require.NoError(t, c.Request(Config{}, nil))
			sent, calls := near.Written()
			write(t, far, wiretest.Hex(bad))
			_, ok, err := c.RecvReply()
			require.False(t, ok)
			require.Equal(t, CodeFrame, code(t, err))
			require.True(t, near.Aborted())
			require.False(t, c.CanWrite(22), "no Terminate either")
			require.Panics(t, func() { _ = c.Write(wiretest.Terminate(0x2004), nil) })
			again, more := near.Written()
			require.Equal(t, sent, again)
			require.Equal(t, calls, more)
		}
	})
	t.Run("MPA-19 nothing is sent after a Request that is not acceptable", func(t *testing.T) {
		c, near, far := newConn(t)
		write(t, far, wiretest.Hex(hexReq+"40 07 0000"))
		_, _, err := c.RecvRequest(Config{})
		require.Equal(t, CodeFrame, code(t, err))
		octets, _ := near.Written()
		require.Zero(t, octets)
		require.False(t, c.CanWrite(22))
	})
	t.Run("MPA-29 IOP-12 private data of more than 251 octets, where the limit is set", func(t *testing.T) {
		cfg := Config{PrivateLimit: MaxPrivateInterop}
		a, b := connect(t)
		require.ErrorIs(t, a.Request(cfg, count(252)), ErrPrivateData)
		require.NoError(t, a.Request(cfg, count(251)))
		req, ok, err := b.RecvRequest(cfg)
		require.NoError(t, err)
		require.True(t, ok)
		require.Len(t, req.Private, 251)
		_, err = b.Accept(Config{}, count(252))
		require.ErrorIs(t, err, ErrPrivateData)
		require.ErrorIs(t, b.Reject(count(252)), ErrPrivateData)
		_, err = b.Accept(Config{}, count(251))
		require.NoError(t, err)
		rep, ok, err := a.RecvReply()
		require.NoError(t, err)
		require.True(t, ok)
		require.Len(t, rep.Private, 251)
	})
	t.Run("SEC-39 MPA-07 a frame with the wrong PD_Length is not read beyond", func(t *testing.T) {
		for length := range 601 {
			if length > 512 {
				length += 65535 - 600 // 64936 to 65535
			}
			for _, flags := range []byte{flagCRC, flagCRC | flagEnhanced} {
				b := startupOctets(keyRequest, flags, 2, uint16(length), min(length, 600))
				c, near, far := newConn(t)
				write(t, far, b)
				req, ok, err := c.RecvRequest(Config{})
				if length > MaxPrivate || flags&flagEnhanced != 0 && length < enhancedLen {
					require.ErrorIs(t, err, ErrLength)
					require.True(t, near.Aborted())
					continue
				}
				require.NoError(t, err)
				require.True(t, ok)
				require.LessOrEqual(t, len(req.Private), length)
				require.Zero(t, near.Buffered())
			}
		}
	})
	t.Run("MPA-80 the codes are those of the registry", func(t *testing.T) {
		require.Equal(t, []Code{1, 2, 3, 4, 5, 6, 7},
			[]Code{CodeClosed, CodeCRC, CodeMarker, CodeFrame, CodeLocal, CodeIRD, CodeRTR})
	})
}

// TestFPDURules are rules of FPDU mode that one FPDU does not show.
func TestFPDURules(t *testing.T) {
	t.Run("MPA-52 one ULPDU an FPDU, of its exact length, without header, pad and CRC", func(t *testing.T) {
		for _, p := range []Params{{}, {CRC: true}, bothMarked} {
			c, near, far := openWide(t, p)
			w := open(NewConn(far, newPool(t, poolConfig)), p)
			var want [][]byte
			for n := range 1100 {
				want = append(want, bytes.Repeat([]byte{byte(n) | 1}, n%550))
				require.NoError(t, w.Write(want[n], nil))
				if n%7 == 0 {
					require.NoError(t, w.Flush())
				}
			}
			require.NoError(t, w.Flush())
			got, err := drain(t, c)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Zero(t, near.Buffered())
		}
	})
	bad := func() []byte {
		b := bytes.Clone(helloFPDU)
		b[20] ^= 1
		return b
	}
	t.Run("MPA-56 MPA-59 nothing of an FPDU is handed out before its CRC is checked", func(t *testing.T) {
		for n := range len(helloFPDU) {
			c, near, far := openConn(t, Params{CRC: true})
			write(t, far, bad()[:n])
			_, ok, err := c.Next()
			require.NoError(t, err)
			require.False(t, ok, "%d octets", n)
			require.Equal(t, n, near.Buffered())
		}
		c, _, far := openConn(t, Params{CRC: true})
		write(t, far, bad())
		u, ok, err := c.Next()
		require.False(t, ok)
		require.Zero(t, u.Len())
		require.Equal(t, CodeCRC, code(t, err))
	})
	t.Run("MPA-79 MPA-82 after an error nothing is handed out, whatever comes", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		write(t, far, bad())
		_, _, first := c.Next()
		require.Equal(t, CodeCRC, code(t, first))
		for range 3 { // sent again, as for an FPDU that was dropped
			write(t, far, helloFPDU)
			_, ok, err := c.Next()
			require.False(t, ok)
			require.Equal(t, first, err)
		}
		_, err := c.Drain()
		require.NoError(t, err)
		_, ok, err := c.Next()
		require.False(t, ok)
		require.Equal(t, first, err)
	})
	for _, tc := range []struct {
		name string
		p    Params
		bend func(f []byte)
		code Code
	}{
		{"a bad CRC", Params{CRC: true}, func(f []byte) { f[20] ^= 1 }, CodeCRC},
		{"a bad CRC, with markers", bothMarked, func(f []byte) { f[20] ^= 1 }, CodeCRC},
		{"a wrong marker", bothMarked, func(f []byte) { f[3] = 8; sum(f) }, CodeMarker},
		{"a wrong marker, CRC off", Params{MarkersIn: true}, func(f []byte) { f[3] = 8 }, CodeMarker},
	} {
		t.Run("MPA-79 after "+tc.name+" nothing is handed out, nor when what was there has been dropped", func(t *testing.T) {
			// Of two places that the next FPDU could be taken to have, with markers.
			for _, skipped := range []bool{true, false} {
				c, _, far := openConn(t, tc.p)
				u := wiretest.FPDUs()[0].ULPDU()
				m := wiretest.Marks{CRC: tc.p.CRC}
				frame := func() []byte {
					if tc.p.MarkersIn {
						return m.Frame(u)
					}
					return wiretest.Frame(u, tc.p.CRC)
				}
				f := frame()
				tc.bend(f)
				if skipped {
					m.Pos = 0
				}
				write(t, far, f)
				_, ok, first := c.Next()
				require.False(t, ok)
				require.Equal(t, tc.code, code(t, first))
				n, err := c.Drain()
				require.NoError(t, err)
				require.Equal(t, len(f), n)
				for range 3 {
					write(t, far, frame())
					got, err := drain(t, c)
					require.Empty(t, got, "an FPDU behind the error was handed out")
					require.Equal(t, first, err)
				}
			}
		})
	}
	t.Run("MPA-79 the end of the stream within an FPDU stays what it was when its octets have been dropped", func(t *testing.T) {
		c, _, far := openConn(t, Params{CRC: true})
		write(t, far, helloFPDU[:9])
		require.NoError(t, far.CloseWrite())
		_, _, first := c.Next()
		require.Equal(t, CodeClosed, code(t, first))
		_, err := c.Drain()
		require.Equal(t, io.EOF, err)
		_, ok, again := c.Next()
		require.False(t, ok)
		require.Equal(t, first, again)
	})
	t.Run("MPA-81 a bad CRC does not close the stream: the Terminate goes out, then FIN", func(t *testing.T) {
		c, near, far := openConn(t, Params{CRC: true})
		write(t, far, bad())
		_, _, err := c.Next()
		require.Equal(t, CodeCRC, code(t, err))
		require.False(t, near.Aborted())
		require.NoError(t, c.Write(wiretest.Terminate(0x2002), nil))
		require.NoError(t, c.CloseWrite())
		require.Equal(t, wiretest.Frame(wiretest.Terminate(0x2002), true), readEnd(t, far, io.EOF))
	})
	t.Run("MPA-77 no more than one FPDU is held", func(t *testing.T) {
		require.Equal(t, 65544, FPDUSize(65535))
		near := &counted{}
		c := open(NewConn(near, newPool(t, poolConfig)), Params{CRC: true})
		near.b = wiretest.Frame(count(65535), true)
		for cut := 0; cut < len(near.b); cut += 4099 {
			near.shown = cut
			_, ok, err := c.Next()
			require.NoError(t, err)
			require.False(t, ok)
		}
		require.Zero(t, near.gone, "an FPDU in progress stays where it is, and nothing of it is copied")
		near.shown = len(near.b)
		_, ok, err := c.Next()
		require.NoError(t, err)
		require.True(t, ok)
		_, _, err = c.Next()
		require.NoError(t, err)
		require.Equal(t, 65544, near.gone)
	})
	t.Run("MPA-60 SEC-49 CRC works where it can be switched off", func(t *testing.T) {
		a, b := connect(t)
		require.NoError(t, a.Request(Config{NoCRC: true}, nil))
		_, ok, err := b.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		p, err := b.Accept(Config{IRD: 1}, nil)
		require.NoError(t, err)
		require.True(t, p.CRC)
		_, ok, err = a.RecvReply()
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, a.Write(wiretest.FPDUs()[0].ULPDU(), nil))
		require.NoError(t, a.Flush())
		pieces, _ := b.bs.Peek()
		require.Equal(t, helloFPDU, bytes.Join(pieces, nil), "with its CRC")
	})
}

// counted shows the first octets of b and counts what is given back.
type counted struct {
	loop
	b           []byte
	shown, gone int
}

func (s *counted) Peek() ([][]byte, error) {
	if s.gone == s.shown {
		return nil, nil
	}
	return [][]byte{s.b[s.gone:s.shown]}, nil
}

func (s *counted) Discard(n int) { s.gone += n }
