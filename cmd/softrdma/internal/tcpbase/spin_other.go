//go:build !linux

package tcpbase

import (
	"errors"
	"net"
)

// CanSpin tells whether this system has the spinning form.
const CanSpin = false

type spinStream struct{ net.TCPConn }

func spinning(conn *net.TCPConn, quit quitFunc) (*spinStream, error) {
	_ = conn.Close()
	return nil, errors.ErrUnsupported
}
