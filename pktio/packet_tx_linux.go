package pktio

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// packetTx is the transmit half of a Packet: whoever is in Send may touch it.
type packetTx struct {
	msg  unix.Msghdr
	vnet [vnetHdrLen]byte
	iov  []unix.Iovec

	// For trySend, which is made into a function once so that Send does not allocate.
	try   func(fd uintptr)
	batch []Frame
	n     int
	err   error
	down  bool // the kernel told of an outage
}

// Send sends through the interface, see [Port]. A frame that the kernel's queue or a filter drops counts as having
// found no room.
func (p *Packet) Send(batch []Frame) (int, error) {
	if !p.sending.CompareAndSwap(false, true) {
		panic("pktio: two goroutines in Send")
	}
	t := &p.tx
	t.batch, t.n, t.err = batch, 0, nil
	if p.raw.Control(t.try) != nil {
		t.err = ErrClosed
	}
	t.batch = nil
	n, err := t.n, t.err
	if t.down {
		// The event that the kernel woke the receiver with is gone if the sender took the error it stood for.
		t.down = false
		p.alarm.rouse(p.file)
	}
	p.sending.Store(false)
	return n, err
}

// trySend sends t.batch on fd.
func (p *Packet) trySend(fd uintptr) {
	t := &p.tx
	octets, super := 0, 0
	for ; t.n < len(t.batch); t.n++ {
		f := &t.batch[t.n]
		size := f.Len()
		if t.err = p.link.check(size, &f.Offload); t.err != nil {
			break
		}
		if errno := t.sendOne(fd, f); errno != 0 {
			t.err = p.dev.sendError(errno)
			break
		}
		octets += size
		if f.GSO != GSONone {
			super++
		}
	}
	p.txFrames.Add(uint64(t.n))
	p.txOctets.Add(uint64(octets))
	if super > 0 {
		p.txSuper.Add(uint64(super))
	}
	switch left := len(t.batch) - t.n; {
	case left == 0:
	case t.err == nil:
		p.txNoRoom.Add(uint64(left))
	default:
		p.txErrors.Add(1)
	}
}

func (t *packetTx) sendOne(fd uintptr, f *Frame) unix.Errno {
	t.putVnet(&f.Offload)
	t.iov = append(t.iov[:0], unix.Iovec{Base: &t.vnet[0], Len: vnetHdrLen})
	for _, d := range f.Data {
		if len(d) > 0 {
			t.iov = append(t.iov, unix.Iovec{Base: &d[0], Len: uint64(len(d))})
		}
	}
	t.msg.Iov = &t.iov[0]
	t.msg.Iovlen = uint64(len(t.iov))
	var errno unix.Errno
	for range 3 {
		// Raw: it never blocks, and telling the scheduler costs as much as a small frame does.
		_, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&t.msg)), 0)
		// EINTR is for trying again. So is ENETDOWN, once: the socket reports an outage that may be over.
		if errno == unix.ENETDOWN || errno == unix.ENXIO || errno == unix.ENODEV {
			t.down = true
		}
		if errno != unix.EINTR && errno != unix.ENETDOWN {
			break
		}
	}
	clear(t.iov) // the octets are the caller's again
	return errno
}

func (t *packetTx) putVnet(o *Offload) {
	clear(t.vnet[:])
	if o.NeedsCsum {
		t.vnet[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.LittleEndian.PutUint16(t.vnet[6:], o.CsumStart)
		binary.LittleEndian.PutUint16(t.vnet[8:], o.CsumOffset)
	}
	switch o.GSO {
	case GSONone:
		return
	case GSOTCPv4:
		t.vnet[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
	case GSOTCPv6:
		t.vnet[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6
	}
	binary.LittleEndian.PutUint16(t.vnet[2:], o.HdrLen)
	binary.LittleEndian.PutUint16(t.vnet[4:], o.GSOSize)
}

// sendError turns what the kernel said into what Send says: nil is "no room".
func (d *iface) sendError(errno unix.Errno) error {
	switch errno {
	case unix.EAGAIN, unix.ENOBUFS:
		return nil
	case unix.ENETDOWN:
		return d.downError()
	case unix.ENXIO, unix.ENODEV:
		return d.goneError()
	case unix.EMSGSIZE:
		return ErrTooLong
	case unix.EINVAL:
		return ErrBadFrame
	}
	return fmt.Errorf("pktio: interface %s does not send: %w", d.name, errno)
}
