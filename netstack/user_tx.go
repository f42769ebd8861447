package netstack

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// headersFor is how much of a packet to a the headers of IP and TCP take, with as many TCP options as gVisor makes room
// for.
func headersFor(a netip.Addr) int {
	if a.Is4() {
		return header.IPv4MinimumSize + header.TCPHeaderMaximumSize
	}
	return header.IPv6MinimumSize + header.TCPHeaderMaximumSize
}

// flow is known to gVisor as the owner of a connection's segments. That is how the link endpoint, which sees the
// segment size gVisor cuts at, can tell the connection: there is no other way to ask for it.
type flow struct {
	mss  atomic.Int32
	sent atomic.Uint32 // segments with octets, each of which acknowledges all that has arrived

	sample sample
	tail   tail
	lead   lead
}

// KUID and KGID make flow a tcpip.PacketOwner. Nothing here looks at them.
func (*flow) KUID() uint32 { return 0 }

// KGID see KUID.
func (*flow) KGID() uint32 { return 0 }

// write is sender.write.
func (uc *userConn) write(parts [][]byte, n int) (int, error) {
	clock := uc.c.st.user.link.clock
	clock.hold()
	if uc.snd != nil && n <= quickMost {
		took, err := uc.writeQuick(parts, n)
		clock.release()
		return took, err
	}
	uc.pay = payload{parts: parts, left: n}
	took, terr := uc.ep.Write(&uc.pay, tcpip.WriteOptions{Atomic: true})
	uc.pay = payload{}
	clock.release()
	if terr != nil && !wouldBlock(terr) {
		return int(took), streamError(uc.c.remote, toError(terr))
	}
	return int(took), nil
}

// quickMost is how many octets a write may have to be copied into memory of its own size.
const quickMost = StageSize / 2

// writeQuick is write for few octets of a connection that can send them without much ado, see inline_send.go.
func (uc *userConn) writeQuick(parts [][]byte, n int) (int, error) {
	v := viewFor(n)
	b := v.AsSlice()
	for _, p := range parts {
		b = b[copy(b, p):]
	}
	took, terr := queueChunk(uc, uc.c.st.user.link.clock, v)
	if took {
		return n, nil
	}
	v.Release()
	if terr != nil && !wouldBlock(terr) {
		return 0, streamError(uc.c.remote, toError(terr))
	}
	return 0, nil
}

// StageSize is how many octets of memory Conn.Stage lends: what the payload of one super-frame takes.
const StageSize = buffer.MaxChunkSize

// lend is Conn.Stage.
func (uc *userConn) lend() []byte {
	if !canInline() {
		return nil
	}
	if uc.stage == nil {
		uc.stage = uncleared()
	}
	return uc.stage.AsSlice()
}

// commit is Conn.Commit. Few octets are copied to memory of their size, or a connection could hold a multiple of its
// buffer in memory.
func (uc *userConn) commit(n int) error {
	v := uc.stage
	if v == nil || n < 0 || n > StageSize {
		panic(fmt.Sprintf("netstack: Commit of %d octets, of what Stage lent", n))
	}
	uc.stage = nil
	if n >= StageSize/2 {
		v.CapLength(n)
		return uc.c.out.commit(v)
	}
	defer v.Release()
	if n == 0 {
		return nil
	}
	uc.few[0] = v.AsSlice()[:n]
	err := uc.c.out.writev(uc.few[:])
	uc.few[0] = nil
	return err
}

// give is sender.give.
func (uc *userConn) give(chunk *buffer.View) (bool, error) {
	clock := uc.c.st.user.link.clock
	clock.hold()
	took, terr := queueChunk(uc, clock, chunk)
	clock.release()
	if terr != nil && !wouldBlock(terr) {
		return false, streamError(uc.c.remote, toError(terr))
	}
	return took, nil
}

// finish is sender.finish.
func (uc *userConn) finish() error {
	if terr := uc.ep.Shutdown(tcpip.ShutdownWrite); terr != nil {
		return streamError(uc.c.remote, toError(terr))
	}
	return nil
}

func (uc *userConn) mss() int { return int(uc.flow.mss.Load()) }

// payload reads the parts of a write. gVisor copies from it with the endpoint's lock held.
type payload struct {
	parts [][]byte
	first int // parts in front of it are read
	off   int // octets of parts[first] are read
	left  int
}

// Len is part of tcpip.Payloader.
func (p *payload) Len() int { return p.left }

// Read is part of tcpip.Payloader.
func (p *payload) Read(b []byte) (n int, err error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	for n < len(b) && p.left > 0 {
		k := copy(b[n:], p.parts[p.first][p.off:])
		n += k
		p.left -= k
		if p.off += k; p.off == len(p.parts[p.first]) {
			p.first++
			p.off = 0
		}
	}
	return n, nil
}
