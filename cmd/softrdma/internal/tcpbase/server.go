package tcpbase

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Server runs the other side of tests, for many clients at once.
type Server struct {
	MaxClients int                 // at once; 64 if 0
	Begin      func() (end func()) // called for each client, as end is when it has gone; nil for none
}

const (
	maxClients = 64
	// idleTime is how long a client may do nothing.
	idleTime = time.Minute
)

// Serve answers the connections of l until ctx ends or l is closed. Then it
// closes them.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	n := s.MaxClients
	if n == 0 {
		n = maxClients
	}
	room := make(chan struct{}, n)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		select {
		case room <- struct{}{}:
		default:
			_ = conn.Close() // it shows at the client
			continue
		}
		wg.Go(func() {
			defer func() { <-room }()
			if s.Begin != nil {
				defer s.Begin()()
			}
			answer(ctx, conn.(*net.TCPConn))
		})
	}
}

// answer runs one test to its end. How it ended shows at the client.
func answer(ctx context.Context, conn *net.TCPConn) {
	defer conn.Close()
	var over atomic.Bool
	defer context.AfterFunc(ctx, func() {
		over.Store(true)
		_ = conn.SetDeadline(time.Now()) // it fails where the test spins
	})()
	_ = conn.SetDeadline(time.Now().Add(dialTime))
	var b [headLen]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return
	}
	h, err := parseHead(b[:])
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s := stream(conn)
	if h.spin {
		s, err = spinning(conn, func(idle time.Duration) error {
			if over.Load() || idle > idleTime {
				return errCut
			}
			return nil
		})
		if err != nil {
			return
		}
		defer s.Close()
	}
	_ = serve(s, h)
}

func serve(s stream, h head) error {
	buf := make([]byte, max(h.size, h.call, requestLen))
	switch h.test {
	case sink:
		total := uint64(0)
		for {
			n, err := s.Read(buf[:h.call])
			total += uint64(n)
			if errors.Is(err, io.EOF) {
				_, err = s.Write(binary.BigEndian.AppendUint64(nil, total))
				return err
			}
			if err != nil {
				return err
			}
		}
	case source:
		for {
			if _, err := s.Write(buf[:h.call]); err != nil {
				return err // the client has closed
			}
		}
	}
	request := int(h.size)
	if h.test == respond {
		request = requestLen
	}
	for {
		if _, err := io.ReadFull(s, buf[:request]); err != nil {
			return err
		}
		if _, err := s.Write(buf[:h.size]); err != nil {
			return err
		}
	}
}
