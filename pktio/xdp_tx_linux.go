package pktio

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// xdpTx is the transmit half of an XDP: whoever is in Send may touch it.
type xdpTx struct {
	down   bool // the kernel told of an outage at the last system call
	socket packetTx
}

// Send sends through the interface, see [Port]. It copies the frames. What it took just before the interface went down
// goes out when it is up again.
func (p *XDP) Send(batch []Frame) (int, error) {
	old := p.state.Or(stateSending)
	if old&stateSending != 0 {
		panic("pktio: two goroutines in Send")
	}
	if old&stateClosed != 0 {
		p.leave(stateSending, 0)
		return 0, ErrClosed
	}
	n, err := p.send(batch)
	p.leave(stateSending, 0)
	return n, err
}

func (p *XDP) send(batch []Frame) (n int, err error) {
	if p.socket && !plain(batch) {
		return p.sendSocket(batch)
	}
	if p.tx.down { // still?
		if err := p.kick(); err != nil {
			p.txErrors.Add(1)
			return 0, err
		}
	}
	q := p.queues[0]
	q.reclaim()
	octets := 0
	for n < len(batch) {
		f := &batch[n]
		size := f.Len()
		if err = p.check(size, &f.Offload); err != nil {
			break
		}
		need := (size + xdpTxRoom - 1) / xdpTxRoom
		if need > len(q.free) {
			break
		}
		q.put(f, size)
		octets += size
		n++
	}
	if q.tx.pending() > 0 {
		q.tx.produced()
		if kicked := p.kick(); kicked != nil {
			err = kicked
		}
	}
	p.countSent(len(batch), n, octets, err)
	return n, err
}

// countSent counts what became of a batch of all frames: the first n, with as many octets, are sent.
func (p *XDP) countSent(all, n, octets int, err error) {
	p.txFrames.Add(uint64(n))
	p.txOctets.Add(uint64(octets))
	switch left := all - n; {
	case left == 0:
	case err == nil:
		p.txNoRoom.Add(uint64(left))
	default:
		p.txErrors.Add(1)
	}
}

// check returns why a frame cannot go out, if so. The kernel would stumble over a checksum that lies elsewhere than in
// the first buffer, at every try anew.
func (p *XDP) check(size int, o *Offload) error {
	if err := p.link.check(size, o); err != nil {
		return err
	}
	if o.NeedsCsum && int(o.CsumStart)+int(o.CsumOffset)+2 > min(size, xdpTxRoom) {
		return ErrBadFrame
	}
	return nil
}

// reclaim makes the buffers free that the kernel has done with.
func (q *xdpQueue) reclaim() {
	d := &q.done
	n := d.filled()
	if n == 0 {
		return
	}
	for range n {
		q.free = append(q.free, bufferOf(d.addrs[d.ours&d.mask])+xdpMeta)
		d.ours++
	}
	d.consumed()
}

// put copies a frame of size octets into free buffers, of which there are enough, and these into the transmit ring,
// which has room for all.
func (q *xdpQueue) put(f *Frame, size int) {
	pieces := f.Data
	var piece []byte
	for first := true; size > 0; first = false {
		at := q.free[len(q.free)-1]
		q.free = q.free[:len(q.free)-1]
		n := min(size, xdpTxRoom)
		size -= n
		d := &q.tx.descs[q.tx.ours&q.tx.mask]
		*d = unix.XDPDesc{Addr: at, Len: uint32(n)}
		if size > 0 {
			d.Options |= unix.XDP_PKT_CONTD
		}
		if first && f.NeedsCsum {
			d.Options |= unix.XDP_TX_METADATA
			askChecksum(q.umem[at-xdpMeta:at], &f.Offload)
		}
		for buf := q.umem[at : at+uint64(n)]; len(buf) > 0; {
			for len(piece) == 0 {
				piece, pieces = pieces[0], pieces[1:]
			}
			k := copy(buf, piece)
			buf, piece = buf[k:], piece[k:]
		}
		q.tx.ours++
	}
}

// askChecksum fills in a struct xsk_tx_metadata.
func askChecksum(meta []byte, o *Offload) {
	clear(meta)
	binary.NativeEndian.PutUint64(meta, unix.XDP_TXMD_FLAGS_CHECKSUM)
	binary.NativeEndian.PutUint16(meta[8:], o.CsumStart)
	binary.NativeEndian.PutUint16(meta[10:], o.CsumOffset)
}

// kick makes the kernel transmit what is in the ring. What it has no room for now it is asked for again, by the next
// Send or Recv or whoever waits in Recv. The sender calls it, and an error is an outage.
func (p *XDP) kick() error {
	errno := p.queues[0].kick()
	p.tx.down = errno == unix.ENETDOWN || errno == unix.ENXIO || errno == unix.ENODEV
	switch errno {
	case 0:
		return nil
	case unix.ENETDOWN:
		return p.dev.downError()
	case unix.ENXIO, unix.ENODEV:
		if p.dev.gone(p.news) {
			return p.dev.goneError()
		}
		// What a driver says that is about to be reset.
	case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM:
	default:
		return fmt.Errorf("pktio: interface %s does not send: %w", p.dev.name, errno)
	}
	if !p.kickDue.Swap(true) {
		p.alarm.rouse(p.file)
	}
	return nil
}

// kickAgain is for the receiver: it makes up for a kick that came to nothing.
func (p *XDP) kickAgain() {
	p.kickDue.Store(false)
	switch p.queues[0].kick() {
	case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM:
		p.kickDue.Store(true)
	}
}

// kick makes the system call that transmits, if one is needed, as long as it gets something done. Both sides may call
// it at once.
func (q *xdpQueue) kick() unix.Errno {
	for {
		if !q.tx.needsWakeup() {
			return 0
		}
		sent, done := atomic.LoadUint32(q.tx.cons), atomic.LoadUint32(q.done.prod)
		// Raw: it never blocks, and telling the scheduler costs as much as a small frame does.
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(q.tfd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != unix.EAGAIN && errno != unix.EBUSY ||
			sent == atomic.LoadUint32(q.tx.cons) && done == atomic.LoadUint32(q.done.prod) {
			return errno
		}
	}
}
