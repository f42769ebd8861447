package pktio

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// xdpChunk is the size of a buffer. The kernel takes no larger ones than a page, and keeps a piece at the start of
	// those it receives into.
	xdpChunk  = 4096
	xdpRxRoom = xdpChunk - unix.XDP_PACKET_HEADROOM
	// xdpPlain is how long a frame may be before drivers want to receive it in pieces: they keep 320 octets at the
	// end of a page, too.
	xdpPlain = xdpRxRoom - 320
	// xdpMeta is what goes in front of a frame on its way out to ask for its checksum: struct xsk_tx_metadata. The
	// kernel leaves the space there in every buffer, used or not.
	xdpMeta   = 24
	xdpTxRoom = xdpChunk - xdpMeta
	// xdpLeastRing is the size of rings that we have to have and do not use.
	xdpLeastRing = 64
	// A socket that was closed leaves its queue a moment later: how long a queue that is taken is tried again.
	xdpQueueTaken = 2 * time.Second
	xdpQueueAgain = 5 * time.Millisecond
)

// xdpQueue is what we have on one receive queue of the interface: memory of its own and one socket, or two where it
// transmits. The kernel transmits for whoever polls a socket that has a transmit ring. Frames that Go's poller sent
// thus, on whatever processor, would overtake others. So that ring is on a socket that nobody polls.
type xdpQueue struct {
	fd   int // the socket that receives and has the memory
	tfd  int // the socket that transmits from the same memory, or -1
	umem []byte
	meta bool // frames may ask for their checksum

	// The receiver's.
	fill, rx xdpRing
	lent     []uint64 // addresses of the buffers that are not given back

	// The sender's, on the queue that transmits.
	tx, done xdpRing
	free     []uint64 // addresses of the buffers that are free
}

// xdpSizes says how many buffers a queue has, each number a power of two. No tx means that it does not transmit.
type xdpSizes struct{ rx, tx int }

func (s xdpSizes) octets() int { return (s.rx + s.tx) * xdpChunk }

func xdpSocket(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return -1, fmt.Errorf("pktio: this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS): use the packet backend: %w", err)
	} else if err != nil {
		return -1, xdpError(name, "making an AF_XDP socket", err)
	}
	return fd, nil
}

// newXDPQueue makes a socket for a queue. It is not bound.
func newXDPQueue(name string, s xdpSizes) (*xdpQueue, error) {
	fd, err := xdpSocket(name)
	if err != nil {
		return nil, err
	}
	q := &xdpQueue{fd: fd, tfd: -1}
	if err := q.setup(name, s); err != nil {
		q.close()
		q.unmap()
		return nil, err
	}
	return q, nil
}

// setup makes what else there is to a queue.
func (q *xdpQueue) setup(name string, s xdpSizes) (err error) {
	if s.tx > 0 {
		if q.tfd, err = xdpSocket(name); err != nil {
			return err
		}
	}
	if q.umem, err = umemRegion(s.octets()); err != nil {
		return fmt.Errorf("pktio: no %d KiB of memory for the frames of interface %s: lower RxFrames or TxFrames: %w", s.octets()>>10, name, err)
	}
	if err := q.register(); err != nil {
		return umemError(name, s.octets(), err)
	}
	if err := q.mapRings(s); err != nil {
		return xdpError(name, "making the rings of an AF_XDP socket", err)
	}
	q.lent, q.free = make([]uint64, 0, s.rx), make([]uint64, 0, s.tx)
	at := uint64(0)
	for ; len(q.lent) < s.rx; at += xdpChunk {
		q.lent = append(q.lent, at)
	}
	for ; len(q.free) < s.tx; at += xdpChunk {
		q.free = append(q.free, at+xdpMeta)
	}
	q.giveBack()
	if s.tx > 0 {
		// In copy mode the kernel counts frames on their way out as if they were written to the socket.
		if unix.SetsockoptInt(q.tfd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 2*s.tx*xdpChunk) != nil {
			_ = unix.SetsockoptInt(q.tfd, unix.SOL_SOCKET, unix.SO_SNDBUF, 2*s.tx*xdpChunk)
		}
	}
	return nil
}

// register tells the kernel the memory for frames.
func (q *xdpQueue) register() error {
	reg := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&q.umem[0]))), Len: uint64(len(q.umem)), Size: xdpChunk,
		Flags: unix.XDP_UMEM_TX_METADATA_LEN, Tx_metadata_len: xdpMeta,
	}
	err := setXDPOption(q.fd, unix.XDP_UMEM_REG, &reg)
	q.meta = err == nil
	if errors.Is(err, unix.EINVAL) { // Linux before 6.11, or 6.8 if it does not mind the flag
		reg.Flags, reg.Tx_metadata_len = 0, 0
		err = setXDPOption(q.fd, unix.XDP_UMEM_REG, &reg)
	}
	return err
}

// mapRings makes the rings and maps those that are used: a queue that does not transmit still has to have a completion
// ring. Fill and completion ring have room for every buffer, so they are never full.
func (q *xdpQueue) mapRings(s xdpSizes) error {
	type offsets = unix.XDPMmapOffsets
	rings := []struct {
		fd, option, entries int
		page                int64
		ring                *xdpRing
		at                  func(*offsets) unix.XDPRingOffset
	}{
		{q.fd, unix.XDP_UMEM_FILL_RING, s.rx, unix.XDP_UMEM_PGOFF_FILL_RING, &q.fill, func(o *offsets) unix.XDPRingOffset { return o.Fr }},
		{q.fd, unix.XDP_RX_RING, s.rx, unix.XDP_PGOFF_RX_RING, &q.rx, func(o *offsets) unix.XDPRingOffset { return o.Rx }},
		{q.fd, unix.XDP_UMEM_COMPLETION_RING, max(s.tx, xdpLeastRing), unix.XDP_UMEM_PGOFF_COMPLETION_RING, &q.done, func(o *offsets) unix.XDPRingOffset { return o.Cr }},
		{q.tfd, unix.XDP_TX_RING, s.tx, unix.XDP_PGOFF_TX_RING, &q.tx, func(o *offsets) unix.XDPRingOffset { return o.Tx }},
	}
	have, use := 4, 4
	if s.tx == 0 {
		have, use = 3, 2
	}
	for i := range rings[:have] {
		if err := unix.SetsockoptInt(rings[i].fd, unix.SOL_XDP, rings[i].option, rings[i].entries); err != nil {
			return err
		}
	}
	var at offsets
	if _, err := xdpOption(q.fd, unix.XDP_MMAP_OFFSETS, &at); err != nil {
		return err
	}
	for i := range rings[:use] {
		r := &rings[i]
		var err error
		if *r.ring, err = mapXDPRing(r.fd, r.page, r.at(&at), r.entries); err != nil {
			return err
		}
	}
	return nil
}

// bind binds the sockets to queue id of the interface with index i. It waits a moment for a queue that is taken.
func (q *xdpQueue) bind(i, id int, flags uint16) error {
	sa := unix.SockaddrXDP{Flags: flags | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(i), QueueID: uint32(id)}
	err := unix.Bind(q.fd, &sa)
	for until := time.Now().Add(xdpQueueTaken); errors.Is(err, unix.EBUSY) && time.Now().Before(until); {
		time.Sleep(xdpQueueAgain)
		err = unix.Bind(q.fd, &sa)
	}
	if err != nil || q.tfd < 0 {
		return err
	}
	sa.Flags, sa.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(q.fd) // the other flags it has from there
	return unix.Bind(q.tfd, &sa)
}

// zeroCopy tells whether the device receives into the buffers and transmits from them itself.
func (q *xdpQueue) zeroCopy() bool {
	var options uint32
	_, err := xdpOption(q.fd, unix.XDP_OPTIONS, &options)
	return err == nil && options&unix.XDP_OPTIONS_ZEROCOPY != 0
}

// giveBack returns all lent buffers to the kernel.
func (q *xdpQueue) giveBack() {
	if len(q.lent) == 0 {
		return
	}
	f := &q.fill
	for _, at := range q.lent {
		f.addrs[f.ours&f.mask] = at
		f.ours++
	}
	q.lent = q.lent[:0]
	f.produced()
}

// wakeRx asks a driver that ran out of buffers to look at the fill ring again, if it wants to be asked.
func (q *xdpQueue) wakeRx() {
	if q.fill.needsWakeup() {
		_, _, _ = unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(q.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	}
}

// counters returns what the kernel has counted.
func (q *xdpQueue) counters() (c unix.XDPStatistics) {
	_, _ = xdpOption(q.fd, unix.XDP_STATISTICS, &c)
	if q.tfd >= 0 {
		var sent unix.XDPStatistics
		_, _ = xdpOption(q.tfd, unix.XDP_STATISTICS, &sent)
		c.Tx_invalid_descs = sent.Tx_invalid_descs
	}
	return c
}

// close leaves the queue to others. The rings go with it: as long as one is mapped the socket lives. What lies in the
// buffers stays.
func (q *xdpQueue) close() {
	for _, r := range []*xdpRing{&q.fill, &q.rx, &q.tx, &q.done} {
		r.unmap()
	}
	_ = unix.Close(q.fd)
	if q.tfd >= 0 {
		_ = unix.Close(q.tfd)
	}
}

// unmap returns the buffers' memory.
func (q *xdpQueue) unmap() {
	if q.umem != nil {
		umemRelease(q.umem)
		q.umem = nil
	}
}

// bufferOf returns the address of the buffer that an address lies in.
func bufferOf(at uint64) uint64 { return at &^ (xdpChunk - 1) }
