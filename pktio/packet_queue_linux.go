package pktio

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// longQueue is where frames longer than a slot of the ring come from if there is no ring for them: the kernel puts their
// first octets into the ring and all of them into the socket's receive queue (PACKET_COPY_THRESH), without a copy. So the
// octets of a super-frame are copied by the receiver, once, to where they stay, and not by whoever sends it on a veth
// first.
//
// The kernel queues under the lock under which it takes slots: the n-th slot marked TP_STATUS_COPY is of the n-th frame
// in the queue.
type longQueue struct {
	head  [vnetHdrLen + maxHead]byte // what the ring has already
	spare [][]byte                   // for frames of a batch that have no Room, by place
	msg   unix.Msghdr
	iov   [2]unix.Iovec

	// For fetchFd, which is made into a function once so that Recv does not allocate.
	fetch func(fd uintptr)
	n     int
	errno unix.Errno
}

const (
	// maxHead is the longest Ethernet, IP and TCP header of a frame whose payload is put apart.
	maxHead = EthernetHeader + 60 + 60
	// queueOctets is how many octets of long frames may wait: more than a peer may send unacknowledged. The kernel counts
	// its memory for them, which is up to twice as much.
	queueOctets = 16 << 20
)

// openQueue has the kernel queue what is longer than a slot of the ring on the socket fd, if it lets us: what it lets
// everyone have holds a handful of super-frames.
func openQueue(fd int) *longQueue {
	// The kernel takes twice of what it is told.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 2*queueOctets) != nil ||
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_COPY_THRESH, 1) != nil {
		return nil
	}
	q := new(longQueue)
	q.fetch = q.fetchFd
	return q
}

// next takes the oldest frame out of the queue. It has size octets, of which known are in the ring. The payload of a
// TCP segment goes to the start of room with its headers left in the ring; all else goes there whole.
func (q *longQueue) next(p *Packet, data [][]byte, known, room []byte, size int) ([][]byte, error) {
	head := 0
	if s, ok := tcpSegment(known, size); ok && s.payload <= maxHead {
		head = s.payload
	}
	q.iov[0] = unix.Iovec{Base: &q.head[0], Len: uint64(vnetHdrLen + head)}
	q.iov[1] = unix.Iovec{Base: &room[0], Len: uint64(size - head)}
	if err := q.receive(p, 2); err != nil {
		return nil, err
	}
	if q.n != vnetHdrLen+size {
		return nil, fmt.Errorf("pktio: a frame of %d octets in the ring on %s has %d in the queue", size, p.link.Name, q.n-vnetHdrLen)
	}
	if head > 0 {
		data = append(data, known[:head:head])
	}
	return append(data, room[:size-head:size-head]), nil
}

// drop takes the oldest frame out of the queue for nobody.
func (q *longQueue) drop(p *Packet) error {
	q.iov[0] = unix.Iovec{Base: &q.head[0], Len: vnetHdrLen}
	return q.receive(p, 1)
}

// place returns memory for a frame at place i of a batch.
func (q *longQueue) place(i, size int) []byte {
	for len(q.spare) <= i {
		q.spare = append(q.spare, nil)
	}
	if len(q.spare[i]) < size {
		q.spare[i] = make([]byte, max(size, MaxSuperFrame))
	}
	return q.spare[i]
}

func (q *longQueue) receive(p *Packet, pieces int) error {
	q.msg.Iov, q.msg.Iovlen = &q.iov[0], uint64(pieces)
	if p.raw.Control(q.fetch) != nil {
		return ErrClosed
	}
	clear(q.iov[:])
	if q.errno != 0 {
		return fmt.Errorf("pktio: interface %s: a long frame is not to be had: %w", p.link.Name, q.errno)
	}
	return nil
}

func (q *longQueue) fetchFd(fd uintptr) {
	for range 3 {
		// Raw, as it never blocks: the frame is there.
		n, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&q.msg)), unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		q.n, q.errno = int(n), errno
		// An outage is reported once, and seen to by whoever looks at the interface.
		if errno != unix.EINTR && errno != unix.ENETDOWN {
			return
		}
	}
}
