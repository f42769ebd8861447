package mpa

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/simnet"
	"github.com/softrdma/softrdma/internal/wiretest"
)

// outside checks that a connection whose startup phase ended in a rejection is
// not in FPDU mode: it sends no FPDU and hands none of the peer's out.
func outside(t *testing.T, c *Conn, near, far *simnet.Stream) {
	t.Helper()
	octets, calls := near.Written()
	for range 2 {
		require.False(t, c.CanWrite(0))
		require.False(t, c.CanWrite(22), "no room for a Terminate either")
		require.PanicsWithValue(t, `mpa: Write in state "rejected"`, func() { _ = c.Write(wiretest.Terminate(0x2002), nil) })
		require.NoError(t, c.Flush())
		write(t, far, helloFPDU)
		_, ok, _ := c.Next()
		require.False(t, ok, "an FPDU of the peer was handed out")
	}
	again, more := near.Written()
	require.Equal(t, octets, again, "octets behind the startup frame")
	require.Equal(t, calls, more)
	require.Equal(t, Stats{}, c.Stats())
}

// TestOutsideFPDUMode is what both ends of a rejection may not do.
func TestOutsideFPDUMode(t *testing.T) {
	const request = "50 02 0004 8010 4008"
	for name, reject := range map[string]func(c *Conn) error{
		"the ULP refuses": func(c *Conn) error { return c.Reject([]byte("no")) },
		"the initiator's IRD is too small for a required ORD": func(c *Conn) error {
			_, err := c.Accept(Config{IRD: 8, ORD: 64, RequireORD: true}, nil)
			require.ErrorIs(t, err, ErrRefused)
			return nil
		},
	} {
		t.Run("MPA-14 R=1 and FIN, and this side is not in FPDU mode: "+name, func(t *testing.T) {
			c, near, far := newConn(t)
			write(t, far, wiretest.Hex(hexReq+request))
			_, ok, err := c.RecvRequest(Config{})
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, reject(c))
			rep, _, err := ParseFrame(readEnd(t, far, io.EOF))
			require.NoError(t, err)
			require.True(t, rep.Reject)
			outside(t, c, near, far)
		})
	}
	t.Run("MPA-14 R=1 and FIN, and this side is not in FPDU mode: the policy refuses", func(t *testing.T) {
		c, near, far := newConn(t)
		write(t, far, wiretest.Hex(hexReq+"00 01 0000"))
		_, ok, err := c.RecvRequest(Config{RequireCRC: true})
		require.ErrorIs(t, err, ErrRefused)
		require.False(t, ok)
		rep, _, err := ParseFrame(readEnd(t, far, io.EOF))
		require.NoError(t, err)
		require.True(t, rep.Reject)
		outside(t, c, near, far)
	})
	for _, reply := range []string{"70 02 0006 0000 0000 6e6f", "70 02 0004 8001 4008", "20 01 0000"} {
		t.Run("MPA-12 MPA-14 a Reply with R=1 does not let the initiator send: "+reply, func(t *testing.T) {
			c, near, far := newConn(t)
			require.NoError(t, c.Request(Config{}, nil))
			require.False(t, c.CanWrite(0))
			write(t, far, wiretest.Hex(hexRep+reply))
			rep, ok, err := c.RecvReply()
			require.NoError(t, err)
			require.True(t, ok)
			require.True(t, rep.Rejected)
			outside(t, c, near, far)
		})
	}
}
