package simnet

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
)

// Stream is one end of a [StreamPair]. It has the methods of mpa.ByteStream
// with TCP's manners: bounded buffers, FIN behind the last octet, reset.
//
// One goroutine may read (Peek, Discard, Abort) while another one writes (Room,
// Writev, Stage, Commit, CloseWrite).
type Stream struct {
	pair *pair
	peer *Stream
	in   queue // what the peer wrote

	notify  chan struct{}
	onReady func()

	mss     int
	aborted bool  // by this end
	reset   error // by the peer

	cut     *rand.Rand // re-chunking; nil: off
	largest int        // piece
	shown   int        // octets let out so far by re-chunking, of those buffered
	peeked  int        // octets of the last Peek
	pieces  [][]byte   // of the last Peek

	stage  []byte // what Stage lends; nil: nothing
	lent   bool   // Stage has, and Commit did not end that
	writes int    // calls of Writev that took something
}

// pair is what both ends share; mu guards everything in them but the octets
// that the reader has peeked at.
type pair struct {
	mu sync.Mutex
}

// queue is a ring of octets. The writer fills only what is free, so that octets
// peeked at stay as they are without a lock.
type queue struct {
	buf   []byte
	r, n  int // first octet, octets
	fin   bool
	total uint64 // ever written
}

// StreamPair returns the two ends of a connection. mss is what MSS says at
// first, buffer how many octets each direction holds.
func StreamPair(mss, buffer int) (a, b *Stream) {
	p := &pair{}
	end := func() *Stream {
		return &Stream{pair: p, mss: mss, in: queue{buf: make([]byte, buffer)}, notify: make(chan struct{}, 1)}
	}
	a, b = end(), end()
	a.peer, b.peer = b, a
	return a, b
}

// Rechunk makes Peek cut what it returns in pieces of 0 to largest octets, and
// let arrived octets out little by little: each Peek shows some more, and
// readiness is signalled until all are out. The same seed does the same again.
// Largest 0 turns it off.
func (s *Stream) Rechunk(seed uint64, largest int) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.cut, s.largest, s.shown = nil, largest, 0
	if largest > 0 {
		s.cut = rand.New(rand.NewPCG(seed, 0x72656368756e6b))
	}
}

// Notify returns a channel that receives when the stream may have become
// readable or writable, or has ended. It holds one signal: look at the stream
// until it runs dry.
func (s *Stream) Notify() <-chan struct{} { return s.notify }

// OnReady sets a function that is called in addition to Notify's signal, from
// whichever goroutine caused it. It must not call the pair's methods.
func (s *Stream) OnReady(f func()) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.onReady = f
}

// signal wakes whoever waits for s.
//
// +checklocks:s.pair.mu
func (s *Stream) signal() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
	if s.onReady != nil {
		s.onReady()
	}
}

// Peek returns the received octets in order, and how the stream ends behind
// them: io.EOF after FIN, ECONNRESET after the peer's Abort, net.ErrClosed
// after one's own. The pieces are borrowed until Discard has passed them.
func (s *Stream) Peek() ([][]byte, error) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.pieces = s.pieces[:0]
	s.peeked = 0
	if s.aborted {
		return nil, fmt.Errorf("simnet: read: %w", net.ErrClosed)
	}
	n := s.in.n
	if s.cut != nil {
		s.shown = min(n, s.shown+s.cut.IntN(2*s.largest+1))
		if s.shown < n {
			s.signal()
		}
		n = s.shown
	}
	first, second := s.in.span(0, n)
	s.add(first)
	s.add(second)
	s.peeked = n
	var err error
	switch {
	case n < s.in.n: // more is there
	case s.reset != nil:
		err = fmt.Errorf("simnet: read: %w", s.reset)
	case s.in.fin:
		err = io.EOF
	}
	if n == 0 {
		return nil, err
	}
	return s.pieces, err
}

// add appends b to the pieces, cut up if need be.
func (s *Stream) add(b []byte) {
	for s.cut != nil && len(b) > 0 {
		n := min(len(b), s.cut.IntN(s.largest+1))
		s.pieces = append(s.pieces, b[:n:n])
		b = b[n:]
	}
	if len(b) > 0 {
		s.pieces = append(s.pieces, b[:len(b):len(b)])
	}
}

// Discard drops the first n octets of the last Peek. It overwrites them, so
// that whoever still looks at them finds out.
func (s *Stream) Discard(n int) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	if n < 0 || n > s.peeked {
		panic(fmt.Sprintf("simnet: Discard of %d octets, %d were peeked at", n, s.peeked))
	}
	first, second := s.in.span(0, n)
	fill(first)
	fill(second)
	clear(s.pieces)
	s.pieces = s.pieces[:0]
	s.in.r = (s.in.r + n) % len(s.in.buf)
	s.in.n -= n
	s.peeked -= n
	s.shown = max(0, s.shown-n)
	if n > 0 && !s.aborted {
		s.peer.signal()
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xdd
	}
}

// Room returns how many octets Writev takes now.
func (s *Stream) Room() int {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	out := &s.peer.in
	if s.dead() != nil || out.fin {
		return 0
	}
	return len(out.buf) - out.n
}

func (s *Stream) dead() error {
	if s.aborted {
		return net.ErrClosed
	}
	return s.reset
}

// Writev sends the parts: all or nothing. It fails with ENOBUFS if they do not
// fit, with ECONNRESET after the peer's Abort, EPIPE after CloseWrite.
func (s *Stream) Writev(parts [][]byte) error {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	out := &s.peer.in
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	switch err := s.dead(); {
	case err != nil:
		return fmt.Errorf("simnet: write: %w", err)
	case out.fin:
		return fmt.Errorf("simnet: write after CloseWrite: %w", syscall.EPIPE)
	case n > len(out.buf)-out.n:
		return fmt.Errorf("simnet: write of %d octets, room for %d: %w", n, len(out.buf)-out.n, syscall.ENOBUFS)
	case n == 0:
		return nil
	}
	for _, p := range parts {
		first, second := out.span(out.n, len(p))
		copy(second, p[copy(first, p):])
		out.n += len(p)
		out.total += uint64(len(p))
	}
	s.writes++
	s.peer.signal()
	return nil
}

// Lend makes Stage lend n octets of memory; 0: none, as at first.
func (s *Stream) Lend(n int) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.stage = nil
	if n > 0 {
		s.stage = make([]byte, n)
	}
}

// Stage lends memory for Commit, if Lend said so.
func (s *Stream) Stage() []byte {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.lent = s.stage != nil
	return s.stage
}

// Lent reports whether Stage has lent memory that Commit did not take back.
func (s *Stream) Lent() bool {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	return s.lent
}

// Commit is Writev of the first n octets of what Stage lent, which are not the
// writer's any more: it overwrites all of it, so that whoever still counts on
// them finds out.
func (s *Stream) Commit(n int) error {
	s.pair.mu.Lock()
	lent := s.lent
	s.lent = false
	s.pair.mu.Unlock()
	if !lent {
		panic("simnet: Commit of what was not lent")
	}
	err := s.Writev([][]byte{s.stage[:n]})
	if n == 0 {
		err = nil
	}
	for i := range s.stage {
		s.stage[i] = 0xdb
	}
	return err
}

// span returns n octets of the ring from the at'th on.
func (q *queue) span(at, n int) (first, second []byte) {
	if n == 0 {
		return nil, nil
	}
	start := (q.r + at) % len(q.buf)
	if m := len(q.buf) - start; n > m {
		return q.buf[start:], q.buf[:n-m]
	}
	return q.buf[start : start+n], nil
}

// MSS returns the maximum segment size in octets.
func (s *Stream) MSS() int {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	return s.mss
}

// SetMSS changes what MSS returns.
func (s *Stream) SetMSS(mss int) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	s.mss = mss
}

// CloseWrite sends FIN after what was written. Again it does nothing.
func (s *Stream) CloseWrite() error {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	if err := s.dead(); err != nil {
		return fmt.Errorf("simnet: close: %w", err)
	}
	if !s.peer.in.fin {
		s.peer.in.fin = true
		s.peer.signal()
	}
	return nil
}

// Abort resets the stream: the peer still reads what has arrived, then gets
// ECONNRESET; its writes get it at once. What this end has not read is lost.
// After both sides sent FIN there is nothing to reset. Again it does nothing.
func (s *Stream) Abort() {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	if s.aborted {
		return
	}
	s.aborted = true
	p := s.peer
	if !p.aborted && !(s.in.fin && s.in.n == 0 && p.in.fin) {
		p.reset = syscall.ECONNRESET
		p.signal()
	}
	s.signal()
}

// Written returns how many octets this end has written, and in how many calls
// of Writev.
func (s *Stream) Written() (octets uint64, calls int) {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	return s.peer.in.total, s.writes
}

// Buffered returns how many octets wait to be discarded by this end.
func (s *Stream) Buffered() int {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	return s.in.n
}

// Aborted reports whether this end was aborted.
func (s *Stream) Aborted() bool {
	s.pair.mu.Lock()
	defer s.pair.mu.Unlock()
	return s.aborted
}
