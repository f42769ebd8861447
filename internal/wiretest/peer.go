package wiretest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Peer is a scripted raw peer: it says exactly the octets it is told to say and holds
// what comes back against what is expected. It keeps no protocol state of its own.
// One goroutine uses it; every unexpected turn fails the test at once, so that must be
// the test's own goroutine.
type Peer struct {
	t    testing.TB
	conn net.Conn
	// CRC says that the CRC is in use: Send adds it, Next checks it. On at first.
	CRC bool
	// Patience bounds each wait for the other side. 5 s at first.
	Patience time.Duration
	buf      []byte
	pad      []byte // what stands in the padding of short messages; zeros if nil
}

// NewPeer plays over conn, which it closes at the end of the test.
func NewPeer(t testing.TB, conn net.Conn) *Peer {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	return &Peer{t: t, conn: conn, CRC: true, Patience: 5 * time.Second}
}

// DialPeer connects over kernel TCP and plays the initiating side of the TCP connection.
func DialPeer(t testing.TB, addr string) *Peer {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	require.NoError(t, err, "connect to %s", addr)
	return NewPeer(t, c)
}

// Conn returns the connection below, for half-closing and deadlines.
func (p *Peer) Conn() net.Conn { return p.conn }

// Write sends octets as they are, in one write.
func (p *Peer) Write(b []byte) {
	p.t.Helper()
	require.NoError(p.t, p.conn.SetWriteDeadline(time.Now().Add(p.Patience)))
	_, err := p.conn.Write(b)
	require.NoError(p.t, err, "write %d octets", len(b))
}

// Drip sends octets one write each, in order.
func (p *Peer) Drip(b []byte) {
	p.t.Helper()
	for i := range b {
		p.Write(b[i : i+1])
	}
}

// Send frames each ULPDU and sends all of them in one write.
func (p *Peer) Send(ulpdus ...[]byte) {
	p.t.Helper()
	var b []byte
	for _, u := range ulpdus {
		b = append(b, p.frame(u)...)
	}
	p.Write(b)
}

// short is the longest payload that siw sends from the buffer of its headers, in which old
// octets stand.
const short = 32

func (p *Peer) frame(ulpdu []byte) []byte {
	f := Frame(ulpdu, p.CRC)
	if p.pad == nil || len(ulpdu) > 18+short {
		return f
	}
	end := len(f) - 4
	copy(f[2+len(ulpdu):end], p.pad)
	if p.CRC {
		return appendCRC(f[:end], f[:end])
	}
	return f
}

// Startup reads one startup frame and nothing beyond it.
func (p *Peer) Startup() Startup {
	p.t.Helper()
	h := p.take(startupLen, "a startup frame")
	s := Startup{Flags: h[16], Rev: h[17]}
	switch key := string(h[:16]); key {
	case "MPA ID Req Frame":
	case "MPA ID Rep Frame":
		s.Reply = true
	default:
		require.Fail(p.t, "not a startup frame", "key %q", key)
	}
	if n := int(binary.BigEndian.Uint16(h[18:])); n > 0 {
		s.Private = p.take(n, "private data")
	}
	return s
}

// Initiate sends req and returns the Reply.
func (p *Peer) Initiate(req Startup) Startup {
	p.t.Helper()
	p.Write(req.Octets())
	rep := p.Startup()
	require.True(p.t, rep.Reply, "a Reply, not a Request, answers a Request")
	p.CRC = (req.Flags|rep.Flags)&FlagC != 0
	return rep
}

// Respond waits for the Request, answers it with rep and returns it.
func (p *Peer) Respond(rep Startup) Startup {
	p.t.Helper()
	req := p.Startup()
	require.False(p.t, req.Reply, "an initiator begins with a Request")
	rep.Reply = true
	p.Write(rep.Octets())
	p.CRC = (req.Flags|rep.Flags)&FlagC != 0
	return req
}

// Next reads one FPDU, checks padding and CRC, and returns its ULPDU.
func (p *Peer) Next() []byte {
	p.t.Helper()
	head := p.take(2, "ULPDU_Length")
	n := int(binary.BigEndian.Uint16(head))
	pad := -(2 + n) & 3
	rest := p.take(n+pad+4, "the rest of an FPDU")
	require.Equal(p.t, make([]byte, pad), rest[n:n+pad], "padding is zero")
	crc := binary.LittleEndian.Uint32(rest[n+pad:])
	if p.CRC {
		require.Equal(p.t, CRC32C(append(head, rest[:n+pad]...)), crc, "CRC of the FPDU")
	} else {
		require.Zero(p.t, crc, "the unused CRC field")
	}
	return rest[:n]
}

// Expect reads one FPDU and compares its ULPDU.
func (p *Peer) Expect(want []byte) {
	p.t.Helper()
	require.Equal(p.t, fmt.Sprintf("% x", want), fmt.Sprintf("% x", p.Next()))
}

// ExpectTerminate reads FPDUs until a Terminate comes, checks its header and code, and
// returns its payload after the DDP header. Any other message before it fails the test.
func (p *Peer) ExpectTerminate(code uint16) []byte {
	p.t.Helper()
	u := p.Next()
	require.GreaterOrEqual(p.t, len(u), 22, "a Terminate has 22 octets or more: % x", u)
	require.Equal(p.t, "41 47 00 00 00 00 00 00 00 02 00 00 00 01 00 00 00 00", fmt.Sprintf("% x", u[:18]), "the DDP header of a Terminate")
	require.Equal(p.t, fmt.Sprintf("%#04x", code), fmt.Sprintf("%#04x", binary.BigEndian.Uint16(u[18:])), "Terminate % x", u[18:])
	return u[18:]
}

// ExpectEOF waits for the peer's FIN; no octet may come before it.
func (p *Peer) ExpectEOF() {
	p.t.Helper()
	n, err := p.read()
	require.Zero(p.t, n, "octets before the end: % x", p.buf)
	require.ErrorIs(p.t, err, io.EOF)
}

// ExpectClosed waits until the connection has ended, by FIN or by RST; no octet may
// come before that.
func (p *Peer) ExpectClosed() {
	p.t.Helper()
	n, err := p.read()
	require.Zero(p.t, n, "octets before the end: % x", p.buf)
	require.Error(p.t, err)
	require.False(p.t, errors.Is(err, os.ErrDeadlineExceeded), "the connection stays open")
}

// ExpectReset waits for a RST.
func (p *Peer) ExpectReset() {
	p.t.Helper()
	n, err := p.read()
	require.Zero(p.t, n, "octets before the reset: % x", p.buf)
	require.ErrorIs(p.t, err, syscall.ECONNRESET)
}

// ExpectSilence fails if anything comes within d, the end of the connection included.
func (p *Peer) ExpectSilence(d time.Duration) {
	p.t.Helper()
	patience := p.Patience
	p.Patience = d
	n, err := p.read()
	p.Patience = patience
	require.Zero(p.t, n, "octets where silence was due: % x", p.buf)
	require.ErrorIs(p.t, err, os.ErrDeadlineExceeded)
}

// CloseWrite sends a FIN.
func (p *Peer) CloseWrite() {
	p.t.Helper()
	c, ok := p.conn.(interface{ CloseWrite() error })
	require.True(p.t, ok, "%T cannot close one half", p.conn)
	require.NoError(p.t, c.CloseWrite())
}

// Reset ends the connection with a RST.
func (p *Peer) Reset() {
	p.t.Helper()
	c, ok := p.conn.(*net.TCPConn)
	require.True(p.t, ok, "%T cannot be reset", p.conn)
	require.NoError(p.t, c.SetLinger(0))
	require.NoError(p.t, c.Close())
}

// take returns the next n octets.
func (p *Peer) take(n int, what string) []byte {
	p.t.Helper()
	for len(p.buf) < n {
		if _, err := p.read(); err != nil {
			require.NoError(p.t, err, "waiting for %s: have %d of %d octets: % x", what, len(p.buf), n, p.buf)
		}
	}
	out := p.buf[:n:n]
	p.buf = p.buf[n:]
	return out
}

// read waits for more octets and returns how many are unread.
func (p *Peer) read() (int, error) {
	if err := p.conn.SetReadDeadline(time.Now().Add(p.Patience)); err != nil {
		return len(p.buf), err
	}
	b := make([]byte, 1<<16)
	n, err := p.conn.Read(b)
	p.buf = append(p.buf, b[:n]...)
	if n > 0 {
		err = nil
	}
	return len(p.buf), err
}
