package mpa

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
)

func TestStateMoves(t *testing.T) {
	legal := map[[2]state]bool{
		{stateIdle, stateRequestSent}:     true,
		{stateIdle, stateRequestSeen}:     true,
		{stateIdle, stateFailed}:          true,
		{stateRequestSent, stateFPDU}:     true,
		{stateRequestSent, stateRejected}: true,
		{stateRequestSent, stateFailed}:   true,
		{stateRequestSeen, stateFPDU}:     true,
		{stateRequestSeen, stateRejected}: true,
	}
	for from := stateIdle; from <= stateFailed; from++ {
		for to := stateIdle; to <= stateFailed; to++ {
			c, _, _ := newConn(t)
			c.state.Store(uint32(from))
			if legal[[2]state{from, to}] {
				require.NotPanics(t, func() { c.advance(to) }, "%v to %v", from, to)
				require.Equal(t, uint32(to), c.state.Load())
			} else {
				require.Panics(t, func() { c.advance(to) }, "%v to %v", from, to)
			}
		}
	}
}

// TestCallsOutOfOrder are mistakes of the caller.
func TestCallsOutOfOrder(t *testing.T) {
	request := wiretest.Startups()[0].Octets
	for name, f := range map[string]func(c *Conn){
		"RecvReply first":      func(c *Conn) { _, _, _ = c.RecvReply() },
		"Accept first":         func(c *Conn) { _, _ = c.Accept(Config{}, nil) },
		"Reject first":         func(c *Conn) { _ = c.Reject(nil) },
		"Write first":          func(c *Conn) { _ = c.Write(nil, nil) },
		"Request twice":        func(c *Conn) { _ = c.Request(Config{}, nil); _ = c.Request(Config{}, nil) },
		"Write before Reply":   func(c *Conn) { _ = c.Request(Config{}, nil); _ = c.Write(nil, nil) },
		"RecvRequest too":      func(c *Conn) { _ = c.Request(Config{}, nil); _, _, _ = c.RecvRequest(Config{}) },
		"ULPDU.Head too large": func(*Conn) { (&ULPDU{}).Head(MaxHead + 1) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _, _ := newConn(t)
			require.Panics(t, func() { f(c) })
		})
	}
	for name, f := range map[string]func(c *Conn){
		"RecvRequest again":   func(c *Conn) { _, _, _ = c.RecvRequest(Config{}) },
		"Accept twice":        func(c *Conn) { _, _ = c.Accept(Config{}, nil); _, _ = c.Accept(Config{}, nil) },
		"Reject after Accept": func(c *Conn) { _, _ = c.Accept(Config{}, nil); _ = c.Reject(nil) },
		"Accept after Reject": func(c *Conn) { _ = c.Reject(nil); _, _ = c.Accept(Config{}, nil) },
		"Request":             func(c *Conn) { _ = c.Request(Config{}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			c, _, far := newConn(t)
			write(t, far, request)
			_, ok, err := c.RecvRequest(Config{})
			require.NoError(t, err)
			require.True(t, ok)
			require.Panics(t, func() { f(c) })
		})
	}
}

func TestErrorStrings(t *testing.T) {
	require.Equal(t, "mpa: CRC mismatch", (&Error{Code: CodeCRC}).Error())
	require.Equal(t, "mpa: invalid startup frame: wrong key", (&Error{Code: CodeFrame, Err: ErrKey}).Error())
	seen := map[string]bool{}
	for c := range Code(9) {
		require.NotEmpty(t, c.String())
		require.False(t, seen[c.String()])
		seen[c.String()] = true
	}
	for k := range RTRKind(5) {
		require.False(t, seen[k.String()])
		seen[k.String()] = true
	}
	for s := range state(7) {
		require.False(t, seen[s.String()])
		seen[s.String()] = true
	}
}

func TestIdleConnIsSmall(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Conn{}), uintptr(448))
}
