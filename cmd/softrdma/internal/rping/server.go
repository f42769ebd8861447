package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// Server answers pings of many clients at once. Its Serve returns when all of
// them have ended.
type Server struct {
	Device     *verbs.Device
	MaxClients int                    // at once; 64 if 0. A further one is rejected
	OnPing     func(Ping)             // is called for each, from the client's goroutine; Time is not set; may be nil
	OnEnd      func(End)              // is called when a client has gone; may be nil
	OnStart    func(p netip.AddrPort) // is called when a client has come; may be nil
}

// End is how a client's connection ended.
type End struct {
	Peer  netip.AddrPort
	Pings int
	Err   error // nil: in order
}

const maxClients = 64

// Serve answers the requests of l until ctx ends or l is closed. Then it ends
// the connections.
func (s *Server) Serve(ctx context.Context, l *rdmacm.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	n := s.MaxClients
	if n == 0 {
		n = maxClients
	}
	room := make(chan struct{}, n)
	for req, err := range l.All(ctx) {
		if err != nil {
			return err
		}
		select {
		case room <- struct{}{}:
		default:
			_ = req.Reject(ctx, []byte("too many clients")) // it may have gone already
			continue
		}
		wg.Go(func() {
			defer func() { <-room }()
			end := End{Peer: req.RemoteAddr()}
			end.Pings, end.Err = s.client(ctx, req)
			if s.OnEnd != nil {
				s.OnEnd(end)
			}
		})
	}
	return nil
}

// client serves one client to its end.
func (s *Server) client(ctx context.Context, req *rdmacm.Request) (pings int, err error) {
	e, err := newEndpoint(s.Device, MaxSize, verbs.AccessLocalWrite)
	if err != nil {
		_ = req.Reject(ctx, []byte("no memory")) // it may have gone already
		return 0, err
	}
	defer e.close()
	e.conn, err = req.Accept(ctx, rdmacm.AcceptConfig{
		PD: e.pd, QP: e.qpConfig(), Prepare: e.prepare, IRD: readDepth, ORD: readDepth,
	})
	if err != nil {
		return 0, err
	}
	if s.OnStart != nil {
		s.OnStart(req.RemoteAddr())
	}
	for {
		size, err := e.answer(ctx)
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return pings, nil
		case err != nil:
			return pings, err
		}
		if s.OnPing != nil {
			s.OnPing(Ping{Seq: pings, Size: size, Text: e.data.Bytes()[:size]})
		}
		pings++
	}
}

// answer does one round and returns the size of the ping.
func (e *endpoint) answer(ctx context.Context) (int, error) {
	src, err := e.next(ctx)
	if err != nil {
		return 0, err
	}
	size := int(src.size)
	if size < 1 || size > MaxSize {
		return 0, fmt.Errorf("the client names %d octets, more or less than a ping has", src.size)
	}
	if err := e.drain(ctx); err != nil {
		return 0, err
	}
	if err := e.readIn(ctx, src.remote()); err != nil {
		return 0, err
	}
	if err := e.post(e.message(info{})); err != nil {
		return 0, err
	}
	sink, err := e.next(ctx)
	if err != nil {
		return 0, err
	}
	n := textLen(e.data.Bytes()[:size])
	if uint64(n) > uint64(sink.size) {
		return 0, fmt.Errorf("the client's sink has %d octets, its ping %d", sink.size, n)
	}
	to := sink.remote()
	to.Len = uint32(n)
	if err := e.drain(ctx); err != nil {
		return 0, err
	}
	return size, e.post(
		verbs.SendWR{ID: idWrite, Op: verbs.OpWrite, Remote: to, SGL: []verbs.SGE{e.data.SGE(0, n)}},
		e.message(info{}),
	)
}

func (i info) remote() verbs.RemoteBuf {
	return verbs.RemoteBuf{Addr: i.addr, RKey: verbs.Key(i.key), Len: i.size}
}
