package iwarp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
)

// memTCP is a TCP connection in memory without any TCP: the near end is the
// connection under test, the far end is the test itself. Octets arrive in the
// very pieces they were sent in, and are overwritten when they are discarded, so
// that whoever still looks at them finds out. One goroutine uses it.
type memTCP struct {
	in     [][]byte // arrived, not discarded
	fin    bool     // the peer's FIN stands behind them
	reset  bool     // the peer's reset does
	out    []byte   // sent by the near end and not yet taken by the far one
	window int      // octets that out holds at most
	finOut bool     // our FIN stands behind out
	over   bool     // Close or Abort was called
	rst    bool     // Abort was
	dirty  bool     // something happened since the near end looked
	peeked int      // octets that Peek has shown
	view   [][]byte
	wrote  func() // called by Writev; may be nil
}

const memMSS = 1448

// arrive lets octets come in as one piece, which it copies.
func (m *memTCP) arrive(b []byte) {
	if len(b) > 0 && !m.over {
		m.in = append(m.in, append([]byte(nil), b...))
	}
	m.dirty = true
}

// takeOut is the far end reading all there is, which opens the window.
func (m *memTCP) takeOut() []byte {
	b := m.out
	m.out = nil
	m.dirty = true
	return b
}

func (m *memTCP) Peek() ([][]byte, error) {
	if m.over {
		return nil, net.ErrClosed
	}
	m.view, m.peeked = append(m.view[:0], m.in...), 0
	for _, p := range m.in {
		m.peeked += len(p)
	}
	var err error
	switch {
	case m.reset:
		err = fmt.Errorf("memory: read: %w", syscall.ECONNRESET)
	case m.fin:
		err = io.EOF
	}
	if m.peeked == 0 {
		return nil, err
	}
	return m.view, err
}

func (m *memTCP) Discard(n int) {
	if n < 0 || n > m.peeked {
		panic(fmt.Sprintf("Discard of %d octets, Peek has shown %d", n, m.peeked))
	}
	m.peeked -= n
	for n > 0 {
		k := min(n, len(m.in[0]))
		for i := range k {
			m.in[0][i] = 0xdd
		}
		m.in[0] = m.in[0][k:]
		n -= k
		if len(m.in[0]) == 0 {
			m.in = m.in[1:]
		}
	}
}

func (m *memTCP) Room() int {
	if m.over || m.reset || m.finOut {
		return 0
	}
	return m.window - len(m.out)
}

func (m *memTCP) Writev(parts [][]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	switch {
	case m.over || m.reset || m.finOut:
		return syscall.EPIPE
	case n > m.Room():
		return syscall.ENOBUFS
	}
	for _, p := range parts {
		m.out = append(m.out, p...)
	}
	if m.wrote != nil {
		m.wrote()
	}
	return nil
}

func (m *memTCP) CloseWrite() error {
	if m.over || m.reset {
		return syscall.EPIPE
	}
	m.finOut = true
	return nil
}

func (m *memTCP) Close() {
	if !m.over {
		m.over, m.finOut = true, true
		m.rst = len(m.in) > 0 // unread octets: TCP resets
	}
}

func (m *memTCP) Abort() {
	if !m.over {
		m.over, m.rst = true, true
	}
}

func (m *memTCP) Stage() []byte              { return nil }
func (m *memTCP) Commit(int) error           { panic("nothing was lent") }
func (m *memTCP) MSS() int                   { return memMSS }
func (m *memTCP) Connected() (bool, error)   { return true, nil }
func (m *memTCP) SetOwner(any)               {}
func (m *memTCP) LocalAddr() netip.AddrPort  { return netip.AddrPortFrom(PipeAddrA, 1) }
func (m *memTCP) RemoteAddr() netip.AddrPort { return netip.AddrPortFrom(PipeAddrB, 2) }
