package capture

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softrdma/softrdma/pktio"
)

const (
	// tapQueue is how many octets of frames wait for the writer at most.
	tapQueue = 16 << 20
	// tapPatience is how long traffic waits for a slow writer before frames go unrecorded.
	tapPatience = 500 * time.Millisecond
	// tapBuffer is how many octets are written at once.
	tapBuffer = 256 << 10
	// tapClosePatience is how long Close waits for the writer.
	tapClosePatience = 5 * time.Second

	// recordHeader precedes each waiting frame: time, length, CsumStart, CsumOffset, NeedsCsum.
	recordHeader = 8 + 4 + 2 + 2 + 1
)

// Tap is a [pktio.Port] that writes every frame it passes on, in both directions, to a pcapng file.
//
// Super-frames are written as they are, one packet each. In the written copy the checksum of a frame with NeedsCsum is
// finished, so that readers see valid packets. A sent frame is recorded just before it is handed to the port, so that
// no answer comes before its question; one that the port then had no room for is in the file all the same.
//
// A goroutine does the writing. If the writer is slow, traffic waits for it, half a second at most; after that
// frames pass unrecorded until the writer has caught up. Close tells how many are missing.
type Tap struct {
	port pktio.Port
	w    io.Writer
	ng   *pcapgo.NgWriter // the goroutine's, after NewTap

	mu      sync.Mutex
	queue   []byte        // records that wait for the goroutine
	room    chan struct{} // closed when the queue was emptied; nil if nobody waits for that
	stalled bool          // the queue is full and somebody has waited in vain
	closed  bool
	stats   TapStats
	err     error // the first from the writer

	more chan struct{} // tells the goroutine to look; closed by Close
	gone chan struct{} // closed when the goroutine has ended
}

// TapStats counts what a Tap did with the frames that passed it.
type TapStats struct {
	Recorded, Octets uint64 // queued for the file
	Missed           uint64 // not recorded because the writer was too slow
	Failed           uint64 // recorded, but for all we know not in the file, because the writer failed
}

// NewTap puts a tap on p and writes the head of the file to w. Close closes p but not w.
func NewTap(p pktio.Port, w io.Writer) (*Tap, error) {
	intf := pcapgo.NgInterface{Name: p.Link().Name, OS: runtime.GOOS, LinkType: layers.LinkTypeEthernet}
	opts := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{
		Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "softrdma",
	}}
	ng, err := pcapgo.NewNgWriterInterface(bufio.NewWriterSize(w, tapBuffer), intf, opts)
	if err == nil {
		err = ng.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("capture: the head of the file cannot be written: %w", err)
	}
	t := &Tap{port: p, w: w, ng: ng, more: make(chan struct{}, 1), gone: make(chan struct{})}
	go t.run()
	return t, nil
}

// Link describes the link of the tapped port.
func (t *Tap) Link() pktio.Link { return t.port.Link() }

// Recv receives from the tapped port and records what came, see [pktio.Port].
func (t *Tap) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	n, err := t.port.Recv(batch, wait)
	if n > 0 {
		t.record(batch[:n])
	}
	return n, err
}

// Send records the frames and sends them through the tapped port, see [pktio.Port].
func (t *Tap) Send(batch []pktio.Frame) (int, error) {
	if len(batch) > 0 {
		t.record(batch)
	}
	return t.port.Send(batch)
}

// Stats returns the counters.
func (t *Tap) Stats() TapStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// Close closes the tapped port and finishes the file. It returns an error if frames are missing from the file. It
// waits for the writer, five seconds at most; a writer with a SetWriteDeadline method is told when that is over.
func (t *Tap) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	t.freeRoom()
	t.mu.Unlock()
	err := t.port.Close()
	close(t.more)
	if d, ok := t.w.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = d.SetWriteDeadline(time.Now().Add(tapClosePatience)) // not every file can
		defer func() { _ = d.SetWriteDeadline(time.Time{}) }()
	}
	timer := time.NewTimer(tapClosePatience + time.Second)
	defer timer.Stop()
	select {
	case <-t.gone:
		return errors.Join(err, t.failure())
	case <-timer.C:
		return errors.Join(err, errors.New("capture: the writer does not come back: the end of the file is missing"))
	}
}

// failure returns what there is to complain of.
func (t *Tap) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch missing := t.stats.Missed + t.stats.Failed; {
	case t.err != nil:
		return fmt.Errorf("capture: %d of %d frames are missing from the file: %w", missing, t.stats.Recorded+t.stats.Missed, t.err)
	case missing > 0:
		return fmt.Errorf("capture: %d of %d frames are missing from the file: the writer was too slow", missing, t.stats.Recorded+t.stats.Missed)
	}
	return nil
}

// record queues frames for the file.
func (t *Tap) record(batch []pktio.Frame) {
	now := time.Now().UnixNano()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for i := range batch {
		f := &batch[i]
		n := f.Len()
		if !t.fits(recordHeader + n) {
			t.stats.Missed++
			continue
		}
		q := binary.NativeEndian.AppendUint64(t.queue, uint64(now))
		q = binary.NativeEndian.AppendUint32(q, uint32(n))
		q = binary.NativeEndian.AppendUint16(q, f.CsumStart)
		q = binary.NativeEndian.AppendUint16(q, f.CsumOffset)
		if f.NeedsCsum {
			q = append(q, 1)
		} else {
			q = append(q, 0)
		}
		for _, d := range f.Data {
			q = append(q, d...)
		}
		t.queue = q
		t.stats.Recorded++
		t.stats.Octets += uint64(n)
	}
	t.kick()
}

// kick sends the goroutine to the queue. t.mu is held.
func (t *Tap) kick() {
	if !t.closed {
		select {
		case t.more <- struct{}{}:
		default:
		}
	}
}

// fits waits until the queue has room for n octets and tells whether it has. t.mu is held, and let go of meanwhile.
func (t *Tap) fits(n int) bool {
	if t.closed || t.stalled {
		return false
	}
	if len(t.queue)+n <= tapQueue {
		return true
	}
	t.kick()
	timer := time.NewTimer(tapPatience)
	defer timer.Stop()
	for !t.stalled && !t.closed {
		if t.room == nil {
			t.room = make(chan struct{})
		}
		room := t.room
		t.mu.Unlock()
		late := false
		select {
		case <-room:
		case <-timer.C:
			late = true
		}
		t.mu.Lock()
		if !t.closed && len(t.queue)+n <= tapQueue {
			return true
		}
		t.stalled = t.stalled || late
	}
	return false
}

// freeRoom wakes those who wait for room. t.mu is held.
func (t *Tap) freeRoom() {
	t.stalled = false
	if t.room != nil {
		close(t.room)
		t.room = nil
	}
}

// run writes what record queues, until Close.
func (t *Tap) run() {
	defer close(t.gone)
	var spare []byte
	for open := true; open; {
		_, open = <-t.more
		t.mu.Lock()
		work, failed := t.queue, t.err != nil
		t.queue = spare[:0]
		t.freeRoom()
		t.mu.Unlock()
		spare = work

		total, err := t.write(work, failed)
		if !open && err == nil && !failed {
			err = t.finish()
		}
		if err != nil || failed {
			t.mu.Lock()
			t.stats.Failed += uint64(total)
			if t.err == nil {
				t.err = err
			}
			t.mu.Unlock()
		}
	}
}

// write writes queued records and returns how many there were. With failed set it only counts them.
func (t *Tap) write(work []byte, failed bool) (total int, err error) {
	for len(work) > 0 {
		when := time.Unix(0, int64(binary.NativeEndian.Uint64(work)))
		n := int(binary.NativeEndian.Uint32(work[8:]))
		o := pktio.Offload{
			CsumStart:  binary.NativeEndian.Uint16(work[12:]),
			CsumOffset: binary.NativeEndian.Uint16(work[14:]),
			NeedsCsum:  work[16] != 0,
		}
		data := work[recordHeader : recordHeader+n]
		work = work[recordHeader+n:]
		total++
		if failed || err != nil {
			continue
		}
		o.FinishChecksum(data)
		err = t.ng.WritePacket(gopacket.CaptureInfo{Timestamp: when, CaptureLength: n, Length: n}, data)
	}
	if !failed && err == nil {
		err = t.ng.Flush()
	}
	return total, err
}

// finish writes the statistics that end the file.
func (t *Tap) finish() error {
	t.mu.Lock()
	s := pcapgo.NgInterfaceStatistics{
		LastUpdate:      time.Now(),
		PacketsReceived: t.stats.Recorded + t.stats.Missed,
		PacketsDropped:  t.stats.Missed,
	}
	t.mu.Unlock()
	return errors.Join(t.ng.WriteInterfaceStats(0, s), t.ng.Flush())
}
