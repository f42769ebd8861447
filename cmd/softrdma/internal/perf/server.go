package perf

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// Server runs the other side of tests, for many clients at once. The clients
// choose the tests; the server bounds what they may take.
type Server struct {
	Device      *verbs.Device
	MaxSessions int          // at once; 64 if 0
	MaxMemory   int64        // octets that all sessions may hold; 1 GiB if 0
	OnTest      func(Report) // is called at the end of each test, from the session's goroutine; may be nil

	mu       sync.Mutex
	sessions map[uint64]*session
	memory   int64
}

// Report is what the server knows of a test at its end.
type Report struct {
	Peer     netip.AddrPort
	Test     Test
	Messages uint64 // that the client says it has sent
	Wrong    uint64 // octets that were not what they should be; with Verify
	Elapsed  time.Duration
	Err      error
}

const (
	maxSessions = 64
	maxMemory   = 1 << 30
)

// Serve answers the requests of l until ctx ends or l is closed. Then it ends
// the sessions.
func (s *Server) Serve(ctx context.Context, l *rdmacm.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for req, err := range l.All(ctx) {
		if err != nil {
			return err
		}
		if err := s.route(ctx, &wg, req); err != nil {
			_ = req.Reject(ctx, []byte(err.Error())) // the peer may have gone already
		}
	}
	return nil
}

// route hands a request to the session it belongs to, a new one for a control
// connection. An error is the reason for a rejection.
func (s *Server) route(ctx context.Context, wg *sync.WaitGroup, req *rdmacm.Request) error {
	r, err := parseRole(req.PrivateData())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.data {
		ses := s.sessions[r.session]
		if ses == nil {
			return fmt.Errorf("there is no session %d", r.session)
		}
		select {
		case ses.incoming <- incoming{req, int(r.number)}:
			return nil
		default:
			return fmt.Errorf("session %d waits for no connection", r.session)
		}
	}
	limit := s.MaxSessions
	if limit == 0 {
		limit = maxSessions
	}
	if len(s.sessions) >= limit {
		return fmt.Errorf("there are %d sessions already", limit)
	}
	if s.sessions == nil {
		s.sessions = make(map[uint64]*session)
	}
	ses := &session{srv: s, incoming: make(chan incoming, MaxQPs)}
	for ses.id == 0 || s.sessions[ses.id] != nil {
		ses.id = rand.Uint64()
	}
	s.sessions[ses.id] = ses
	wg.Go(func() {
		defer s.forget(ctx, ses)
		ses.serve(ctx, req)
	})
	return nil
}

// forget ends a session; connections that came for it are turned away.
func (s *Server) forget(ctx context.Context, ses *session) {
	s.mu.Lock()
	delete(s.sessions, ses.id)
	s.mu.Unlock()
	for {
		select {
		case in := <-ses.incoming:
			_ = in.req.Reject(ctx, []byte("the session has ended")) // the peer may have gone already
		default:
			return
		}
	}
}

// reserve takes n octets out of what sessions may hold.
func (s *Server) reserve(n int64) error {
	limit := s.MaxMemory
	if limit == 0 {
		limit = maxMemory
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > limit-s.memory {
		return fmt.Errorf("the test takes %d octets of memory, and %d of %d are free here", n, limit-s.memory, limit)
	}
	s.memory += n
	return nil
}

func (s *Server) release(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory -= n
}
