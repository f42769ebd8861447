package pktio

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrdma/softrdma/internal/cacheline"
)

// longRing is a socket of its own for frames longer than the MTU, with a ring of a few long slots beside the many short
// ones. Long slots for all frames would be too many octets: what is written and read in turn has to stay in the processors'
// caches, or each octet goes to memory and back.
type longRing struct {
	packetRing
	sock   *os.File
	raw    syscall.RawConn
	writer writer
}

// openLong has frames that f accepts put into a ring of their own.
func (p *Packet) openLong(c *PacketConfig, f filter) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("pktio: no second packet socket to be had from this kernel: %w", err)
	}
	l := &longRing{sock: os.NewFile(uintptr(fd), "packet:"+p.link.Name)}
	p.rx.long = l // closed with p, whatever comes
	if err := setPacketOptions(fd); err != nil {
		return err
	}
	if err := l.open(fd, c.MaxFrame, c.LongFrames); err != nil {
		return err
	}
	if err := p.receive(fd, f); err != nil {
		return err
	}
	l.raw, err = l.sock.SyscallConn()
	return err
}

// control calls f with the socket, if there is one.
func (l *longRing) control(f func(fd uintptr)) error {
	if l == nil {
		return nil
	}
	return l.raw.Control(f)
}

// giveBack returns all lent slots to the kernel.
func (l *longRing) giveBack() {
	if l.writer.far {
		l.flush()
	}
	l.packetRing.giveBack()
}

// closeSocket closes the socket, if there is one. The ring stays mapped.
func (l *longRing) closeSocket() {
	if l != nil {
		_ = l.sock.Close()
	}
}

// close unmaps the ring, if there is one.
func (l *longRing) close() {
	if l != nil {
		l.packetRing.close()
	}
}

// writer is the processor that writes frames into the ring: on a veth that of the sender, else the one that has the card's
// interrupts. It finds the lines of a slot in the cache of our processor, which has read them. That is a matter of little
// where the two share a cache. Where they do not it takes most of the writer's time, and it is better to have dropped from
// all caches what has been read.
type writer struct {
	far    bool
	frames uint32 // since the last look
	doubts int    // looks in a row that said otherwise
}

const (
	// lookDistance is after how many frames the distance is looked at: the threads may have gone elsewhere.
	lookDistance = 64
	// farFrom is how long a line takes from a processor that is far. Processors that share a cache have it of each other in
	// 20 to 60 ns, those of different sockets or clusters in 130 and more.
	farFrom = 100 * time.Nanosecond
	// certain is how many looks in a row it takes to believe them: an interrupt makes any line far.
	certain = 3
)

// look looks at how far the writer of frame is, which nobody has read, now and then.
func (w *writer) look(frame []byte) {
	if w.frames++; w.frames < lookDistance || !cacheline.CanFlush || len(frame) < cacheline.Span {
		return
	}
	w.frames = 0
	w.seen(cacheline.Distance(frame))
}

// seen takes a distance into account.
func (w *writer) seen(d time.Duration) {
	if (d >= farFrom) == w.far {
		w.doubts = 0
	} else if w.doubts++; w.doubts == certain {
		w.far, w.doubts = !w.far, 0
	}
}
