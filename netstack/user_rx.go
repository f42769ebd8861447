package netstack

import (
	"fmt"
	"io"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	// peekEnough is how much Peek is content with: more than the largest FPDU (65544 octets) and whatever part of
	// another may precede it. Looking for more would walk a long queue again for each FPDU.
	peekEnough = 128 << 10
	// peekMost is where it stops looking.
	peekMost = 256 << 10
	// giveBackAt is how many discarded octets are given back to TCP at the latest, for the window to follow the
	// reader: a quarter of the smallest receive buffer's window.
	giveBackAt = MinBuffer / 8
)

// userInbox is the receive half of a userConn.
type userInbox struct {
	up  bool  // connected
	err error // why there is no connection, or how the stream ended
	// view is what Peek returned. The memory is that of segments in TCP's receive queue, where a segment stays until
	// the last of it is read, even if the peer resets the connection.
	view   view
	unread int  // octets discarded that TCP does not know of yet
	due    bool // in userStack.due
	sink   sink
}

// view collects the pieces of TCP's receive queue.
type view struct {
	pieces [][]byte
	first  int // pieces in front of it are discarded
	n      int // octets in pieces[first:]
	cut    bool
}

type errEnough struct{}

func (errEnough) Error() string { return "enough" }

// Write takes the next piece of the queue, without copying it.
func (v *view) Write(p []byte) (int, error) {
	if v.n >= peekMost {
		v.cut = true
		return 0, errEnough{}
	}
	v.pieces = append(v.pieces, p)
	v.n += len(p)
	return len(p), nil
}

// sink swallows the octets that are read to be dropped, as many as it says.
type sink int

func (g *sink) Write(p []byte) (int, error) {
	n := min(len(p), int(*g))
	*g -= sink(n)
	if n < len(p) {
		return n, errEnough{}
	}
	return n, nil
}

// forget drops all pointers to TCP's memory.
func (in *userInbox) forget() {
	clear(in.view.pieces)
	in.view = view{pieces: in.view.pieces[:0]}
}

func (uc *userConn) peek() ([][]byte, error) {
	in := &uc.in
	if !in.up {
		_, err := uc.connected()
		if !in.up {
			return nil, err
		}
	}
	if in.err == nil {
		if in.view.n < peekEnough && uc.fresh.Load() {
			uc.fetch()
		}
		if in.err == nil {
			in.err = uc.c.st.Err()
		}
		if in.err != nil && in.err != io.EOF {
			uc.c.out.fail(in.err) // the same reason for both halves
			uc.c.st.lost(in.err)
		}
	}
	if in.view.n == 0 {
		return nil, in.err
	}
	return in.view.pieces[in.view.first:], in.err
}

// fetch looks at TCP's receive queue anew.
func (uc *userConn) fetch() {
	in := &uc.in
	uc.giveBack()
	for {
		uc.fresh.Store(false)
		before := uc.state()
		in.forget()
		_, terr := uc.ep.Read(&in.view, tcpip.ReadOptions{Peek: true})
		if in.view.cut {
			uc.fresh.Store(true)
			return
		}
		after := uc.state()
		switch {
		case !ended(after) && terr != nil && !wouldBlock(terr):
			in.err = streamError(uc.c.remote, toError(terr))
		case !ended(after):
		case !ended(before):
			continue // the end came with or after the last look: what precedes it may not be in view yet
		case after != tcp.StateError:
			in.err = io.EOF
		default:
			in.err = uc.cause(terr)
		}
		return
	}
}

// ended reports whether nothing more can arrive in state st of an established connection.
func ended(st tcp.EndpointState) bool {
	switch st {
	case tcp.StateCloseWait, tcp.StateLastAck, tcp.StateClosing, tcp.StateTimeWait, tcp.StateClose, tcp.StateError:
		return true
	}
	return false
}

func wouldBlock(err tcpip.Error) bool {
	_, ok := err.(*tcpip.ErrWouldBlock)
	return ok
}

// cause finds out what broke the stream. gVisor tells it once, to whoever asks first: the read just done, us, or a
// write.
func (uc *userConn) cause(read tcpip.Error) error {
	err := toError(read)
	if _, told := read.(*tcpip.ErrClosedForReceive); told || err == nil {
		err = toError(uc.ep.LastError())
	}
	if err != nil {
		return streamError(uc.c.remote, err)
	}
	if err := uc.c.out.why(); err != nil {
		return err
	}
	return streamError(uc.c.remote, syscall.ECONNRESET)
}

func (uc *userConn) discard(n int) {
	in := &uc.in
	v := &in.view
	if n < 0 || n > v.n {
		panic(fmt.Sprintf("netstack: Discard of %d octets with %d peeked", n, v.n))
	}
	v.n -= n
	in.unread += n
	for n > 0 {
		p := v.pieces[v.first]
		if n < len(p) {
			v.pieces[v.first] = p[n:]
			break
		}
		n -= len(p)
		v.pieces[v.first] = nil
		v.first++
	}
	switch u := uc.c.st.user; {
	case in.unread >= giveBackAt:
		uc.giveBack()
	case v.n == 0 && !in.due: // whoever got the octets has an answer to send first
		in.due = true
		u.due = append(u.due, uc)
	}
}

// settle gives TCP back what is due. For Poll, which has nothing else to do.
func (u *userStack) settle() {
	for i, uc := range u.due {
		u.due[i], uc.in.due = nil, false
		uc.giveBack()
	}
	u.due = u.due[:0]
}

// giveBack lets TCP reuse the memory of discarded octets and open its window.
func (uc *userConn) giveBack() {
	in := &uc.in
	if in.unread == 0 {
		return
	}
	in.sink = sink(in.unread)
	in.unread = 0
	_, _ = uc.ep.Read(&in.sink, tcpip.ReadOptions{})
}
