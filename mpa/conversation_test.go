package mpa

import (
	"bytes"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/internal/wiretest"
)

func TestStartupSplit(t *testing.T) {
	reply := wiretest.Hex(hexRep + "50 02 0006 8008 4000 6e6f")
	request := wiretest.Hex(hexReq + "50 02 0006 8008 4004 6e6f")
	t.Run("MPA-08 octet by octet", func(t *testing.T) {
		c, _, far := newConn(t)
		for i := range request {
			_, ok, err := c.RecvRequest(Config{})
			require.NoError(t, err)
			require.False(t, ok)
			write(t, far, request[i:i+1])
		}
		req, ok, err := c.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "no", string(req.Private))

		c, _, far = newConn(t)
		require.NoError(t, c.Request(Config{}, nil))
		for i := range reply {
			_, ok, err := c.RecvReply()
			require.NoError(t, err)
			require.False(t, ok)
			write(t, far, reply[i:i+1])
		}
		rep, ok, err := c.RecvReply()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "no", string(rep.Private))
	})
	t.Run("MPA-08 in any pieces", func(t *testing.T) {
		for seed := range uint64(100) {
			c, near, far := newConn(t)
			near.Rechunk(seed, 1+int(seed%9))
			write(t, far, request)
			ok := false
			for rounds := 0; !ok; rounds++ {
				var err error
				_, ok, err = c.RecvRequest(Config{})
				require.NoError(t, err)
				require.Less(t, rounds, 1000)
			}
		}
	})
	t.Run("MPA-10 what follows belongs to FPDU mode", func(t *testing.T) {
		for _, initiator := range []bool{false, true} {
			c, _, far := newConn(t)
			if initiator {
				require.NoError(t, c.Request(Config{}, nil))
				write(t, far, append(bytes.Clone(reply), helloFPDU...))
				rep, ok, err := c.RecvReply()
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, "no", string(rep.Private))
			} else {
				write(t, far, append(bytes.Clone(request), helloFPDU...))
				req, ok, err := c.RecvRequest(Config{})
				require.NoError(t, err)
				require.True(t, ok)
				require.Equal(t, "no", string(req.Private))
				_, ok, err = c.Next()
				require.NoError(t, err)
				require.False(t, ok, "nothing before Accept")
				_, err = c.Accept(Config{}, nil)
				require.NoError(t, err)
			}
			u, ok, err := c.Next()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, wiretest.FPDUs()[0].ULPDU(), octets(t, u))
		}
	})
	t.Run("MPA-01 a frame has 20+PD_Length octets, and the next one is the first FPDU's", func(t *testing.T) {
		// whole takes a startup frame that is all that was sent.
		whole := func(t *testing.T, far *simnet.Stream, key string, private int) {
			b := read(far)
			require.GreaterOrEqual(t, len(b), 20)
			require.Equal(t, key, string(b[:16]))
			require.Equal(t, private, int(b[18])<<8|int(b[19]), "PD_Length")
			require.Len(t, b, 20+private)
		}
		// opened has c send an FPDU and receive one.
		opened := func(t *testing.T, c *Conn, far *simnet.Stream) {
			require.NoError(t, c.Write(wiretest.FPDUs()[0].ULPDU(), nil))
			require.NoError(t, c.Flush())
			require.Equal(t, helloFPDU, read(far))
			u, ok, err := c.Next()
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, wiretest.FPDUs()[0].ULPDU(), octets(t, u))
		}
		for _, n := range []int{0, 1, 2, 3, 4, 63, MaxPrivateEnhanced} {
			for _, v := range []struct {
				cfg   Config
				s     wiretest.Startup
				block int
			}{
				{Config{Rev1: true}, wiretest.Startup{Flags: wiretest.FlagC, Rev: 1, Private: count(n)}, 0},
				{Config{ClientServer: true}, wiretest.Startup{Flags: wiretest.FlagC | wiretest.FlagS, Rev: 2, Private: wiretest.Block(0, 0, count(n)...)}, 4},
			} {
				c, _, far := newConn(t)
				require.NoError(t, c.Request(v.cfg, count(n)))
				whole(t, far, "MPA ID Req Frame", v.block+n)
				theirs := v.s
				theirs.Reply = true
				write(t, far, append(theirs.Octets(), helloFPDU...))
				_, ok, err := c.RecvReply()
				require.NoError(t, err)
				require.True(t, ok)
				opened(t, c, far)

				request := v.s.Octets()
				c, _, far = newConn(t)
				write(t, far, append(request, helloFPDU...))
				_, ok, err = c.RecvRequest(Config{})
				require.NoError(t, err)
				require.True(t, ok)
				_, err = c.Accept(Config{}, count(n))
				require.NoError(t, err)
				whole(t, far, "MPA ID Rep Frame", v.block+n)
				opened(t, c, far)

				c, _, far = newConn(t)
				write(t, far, request)
				_, ok, err = c.RecvRequest(Config{})
				require.NoError(t, err)
				require.True(t, ok)
				require.NoError(t, c.Reject(count(n)))
				whole(t, far, "MPA ID Rep Frame", v.block+n)
				require.Empty(t, readEnd(t, far, io.EOF))
			}
		}
	})
	t.Run("MPA-17 FIN and reset at every octet", func(t *testing.T) {
		for _, fin := range []bool{true, false} {
			for n := range len(request) {
				for _, initiator := range []bool{false, true} {
					c, near, far := newConn(t)
					recv := func() (bool, error) { _, ok, err := c.RecvRequest(Config{}); return ok, err }
					in := request
					if initiator {
						require.NoError(t, c.Request(Config{}, nil))
						recv = func() (bool, error) { _, ok, err := c.RecvReply(); return ok, err }
						in = reply
					}
					write(t, far, in[:n])
					want := io.ErrUnexpectedEOF
					if fin {
						require.NoError(t, far.CloseWrite())
					} else {
						far.Abort()
						want = syscall.ECONNRESET
					}
					ok, err := recv()
					require.False(t, ok)
					require.Equal(t, CodeClosed, code(t, err))
					require.ErrorIs(t, err, want)
					require.True(t, near.Aborted())
				}
			}
		}
	})
	t.Run("MPA-11 the responder is silent", func(t *testing.T) {
		c, near, _ := newConn(t)
		_, ok, err := c.RecvRequest(Config{})
		require.NoError(t, err)
		require.False(t, ok)
		octets, _ := near.Written()
		require.Zero(t, octets)
	})
	t.Run("MPA-84 a peer that leaves before the answer is noticed", func(t *testing.T) {
		c, _, far := newConn(t)
		write(t, far, request)
		_, ok, err := c.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		_, ok, err = c.Next()
		require.NoError(t, err)
		require.False(t, ok)
		far.Abort()
		_, _, err = c.Next()
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = c.Accept(Config{}, nil)
		require.Equal(t, CodeClosed, code(t, err))
	})
}

func TestPrivateData(t *testing.T) {
	t.Run("MPA-28 carried unchanged, on accept and on reject", func(t *testing.T) {
		for _, rev1 := range []bool{false, true} {
			for _, n := range []int{0, 1, MaxPrivateInterop, 252, MaxPrivateEnhanced, MaxPrivate} {
				for _, accept := range []bool{true, false} {
					if !rev1 && n > MaxPrivateEnhanced {
						continue
					}
					cfg := Config{Rev1: rev1}
					a, b := connect(t)
					there, back := count(n), bytes.Repeat([]byte{0xa5}, n)
					require.NoError(t, a.Request(cfg, there))
					req, ok, err := b.RecvRequest(Config{})
					require.NoError(t, err)
					require.True(t, ok)
					require.True(t, bytes.Equal(there, req.Private))
					if accept {
						_, err = b.Accept(Config{}, back)
					} else {
						err = b.Reject(back)
					}
					require.NoError(t, err)
					rep, ok, err := a.RecvReply()
					require.NoError(t, err)
					require.True(t, ok)
					require.Equal(t, !accept, rep.Rejected)
					require.True(t, bytes.Equal(back, rep.Private))
				}
			}
		}
	})
	t.Run("MPA-28 too much is refused before anything is sent", func(t *testing.T) {
		a, b := connect(t)
		require.ErrorIs(t, a.Request(Config{}, count(MaxPrivateEnhanced+1)), ErrPrivateData)
		require.ErrorIs(t, a.Request(Config{Rev1: true}, count(MaxPrivate+1)), ErrPrivateData)
		require.NoError(t, a.Request(Config{}, nil))
		_, ok, err := b.RecvRequest(Config{})
		require.NoError(t, err)
		require.True(t, ok)
		_, err = b.Accept(Config{}, count(MaxPrivateEnhanced+1))
		require.ErrorIs(t, err, ErrPrivateData)
		require.ErrorIs(t, b.Reject(count(MaxPrivateEnhanced+1)), ErrPrivateData)
		_, err = b.Accept(Config{}, count(MaxPrivateEnhanced))
		require.NoError(t, err)
		rep, ok, err := a.RecvReply()
		require.NoError(t, err)
		require.True(t, ok)
		require.Len(t, rep.Private, MaxPrivateEnhanced)
	})
}

// connect returns two connections that have not begun, joined by a stream.
func connect(t testing.TB) (a, b *Conn) {
	t.Helper()
	x, y := streamPair(testMSS, testBuffer)
	pool := newPool(t, poolConfig)
	return NewConn(x, pool), NewConn(y, pool)
}

// noFIN is a stream whose peer is gone before our FIN.
type noFIN struct{ *simnet.Stream }

func (noFIN) CloseWrite() error { return syscall.ENOTCONN }

// TestRejectedLeaves is an initiator that leaves as soon as it has read the
// rejecting Reply: the rejection has succeeded.
func TestRejectedLeaves(t *testing.T) {
	x, y := streamPair(testMSS, testBuffer)
	pool := newPool(t, poolConfig)
	a, b := NewConn(x, pool), NewConn(noFIN{y}, pool)
	require.NoError(t, a.Request(Config{}, nil))
	_, ok, err := b.RecvRequest(Config{})
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, b.Reject([]byte("no")))
	rep, ok, err := a.RecvReply()
	require.NoError(t, err)
	require.True(t, ok && rep.Rejected)
}

func TestBothInitiate(t *testing.T) {
	t.Run("MPA-03 both ends learn it", func(t *testing.T) {
		a, b := connect(t)
		require.NoError(t, a.Request(Config{}, nil))
		require.NoError(t, b.Request(Config{}, nil))
		_, _, err := a.RecvReply()
		require.ErrorIs(t, err, ErrBothInitiate)
		_, _, err = b.RecvReply()
		require.ErrorIs(t, err, ErrBothInitiate)
	})
}

// TestPeerKinds plays the startup frames of every known implementation.
func TestPeerKinds(t *testing.T) {
	for _, k := range wiretest.PeerKinds() {
		t.Run("IOP-35 SEC-49 "+k.Name, func(t *testing.T) {
			cfg := Config{IRD: 1, ORD: 1}
			c, _, far := newConn(t)
			write(t, far, k.Request.Octets())
			_, ok, err := c.RecvRequest(cfg)
			require.NoError(t, err)
			require.True(t, ok)
			p, err := c.Accept(cfg, nil)
			require.NoError(t, err)
			require.True(t, p.CRC, "we ask for it where the peer does not")
			require.Equal(t, k.Request.Rev, p.Rev)

			if k.Reply.Rev == 1 {
				cfg.Rev1, cfg.NoCRC = true, true
			}
			c, _, far = newConn(t)
			require.NoError(t, c.Request(cfg, nil))
			read(far)
			write(t, far, k.Reply.Octets())
			rep, ok, err := c.RecvReply()
			require.NoError(t, err)
			require.True(t, ok)
			if rep.Rejected {
				require.NotZero(t, k.Reply.Flags&wiretest.FlagR)
				return
			}
			require.Equal(t, RTRRead, rep.RTR)
			require.Equal(t, 1, rep.ORD)
		})
	}
}
