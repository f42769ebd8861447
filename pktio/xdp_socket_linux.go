package pktio

import "golang.org/x/sys/unix"

// In copy mode the kernel makes a packet of each frame in the transmit ring and carries it to the peer before it looks
// at the next: on a veth that is the better part of what a frame of 1500 octets costs, for both ends together. A packet
// socket hands it super-frames. They stay whole up to the peer, or up to its native XDP program, for which the kernel cuts
// them and hands them over together.
//
// For frames that are none the ring is the faster way, by half a microsecond. A veth takes frames at once, from wherever
// they come, so both ways are gone. Elsewhere those of the ring would overtake the others, which wait in the queue of the
// interface.

// openSocket makes the packet socket one that sends super-frames. An old kernel that does not do that leaves the port with
// the ring.
func (p *XDP) openSocket() {
	if unix.SetsockoptInt(p.groups, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1) != nil {
		return
	}
	if unix.SetsockoptInt(p.groups, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, defaultSendBuffer) != nil {
		_ = unix.SetsockoptInt(p.groups, unix.SOL_SOCKET, unix.SO_SNDBUF, defaultSendBuffer)
	}
	p.socket = true
	p.link.GSO, p.link.MaxFrame = true, MaxSuperFrame
}

// plain tells whether a batch has no super-frame.
func plain(batch []Frame) bool {
	for i := range batch {
		if batch[i].GSO != GSONone {
			return false
		}
	}
	return true
}

// sendSocket sends through the packet socket. The caller is in Send, which keeps it open.
func (p *XDP) sendSocket(batch []Frame) (n int, err error) {
	if p.queues[0].tx.pending() > 0 { // the kernel had no room for them, and none may overtake them
		if err := p.kick(); err != nil || p.queues[0].tx.pending() > 0 {
			p.txNoRoom.Add(uint64(len(batch)))
			return 0, err
		}
	}
	octets := 0
	for ; n < len(batch); n++ {
		f := &batch[n]
		size := f.Len()
		if err = p.link.check(size, &f.Offload); err != nil {
			break
		}
		if errno := p.tx.socket.sendOne(uintptr(p.groups), f); errno != 0 {
			err = p.dev.sendError(errno)
			break
		}
		octets += size
	}
	p.countSent(len(batch), n, octets, err)
	return n, err
}
