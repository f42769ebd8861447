package netstack

import (
	"errors"
	"runtime"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrdma/softrdma/pktio"
)

const (
	// txBatch is how many frames are handed to the port at once.
	txBatch = 64
	// txPatience is how long a port without room is asked again before frames are dropped. Waiting that long costs
	// less than the loss, which TCP would take for congestion.
	txPatience = 200 * time.Microsecond
)

// WritePackets sends packets. gVisor calls it from wherever TCP has something to say: the goroutine of a Writev, its
// own, the pump. A frame for which the port keeps having no room is lost as if on the wire: counted, and sent again
// when TCP misses it.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	for _, pkt := range pkts.AsSlice() {
		if !l.keep(pkt) {
			l.write(pkt)
		}
	}
	l.flush()
	return pkts.Len(), nil
}

// noQueue hands the link one packet at a time. gVisor's own way makes a list of it first, in memory that is new each time.
type noQueue struct{ link *link }

// WritePacket is part of stack.QueueingDiscipline.
func (q noQueue) WritePacket(pkt *stack.PacketBuffer) tcpip.Error {
	l := q.link
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	if !l.keep(pkt) {
		l.write(pkt)
		l.flush()
	}
	return nil
}

// Close is part of stack.QueueingDiscipline.
func (noQueue) Close() {}

// write puts pkt into the batch, as one frame or as many.
func (l *link) write(pkt *stack.PacketBuffer) {
	gso := &pkt.GSOOptions
	partial := gso.Type != stack.GSONone && gso.NeedsCsum
	payload := pkt.Data().Size()
	var tcp header.TCP
	if partial {
		tcp = pkt.TransportHeader().Slice()
		l.note(pkt, tcp, payload)
		if isWindowProbe(tcp, payload) {
			l.addAck(pkt)
		}
	}
	cut := partial && payload > int(gso.MSS)
	if cut && !l.hostGSO() {
		l.segment(pkt, payload)
		return
	}
	if partial && !l.info.Checksum {
		finishChecksum(pkt)
	}
	f := l.nextFrame()
	views, skip := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		b := v.AsSlice()
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		f.Data = append(f.Data, b[skip:])
		skip = 0
	}
	if partial && l.info.Checksum {
		offload(f, len(pkt.NetworkHeader().Slice()), len(tcp))
		if cut {
			f.GSO = pktio.GSOTCPv4
			if gso.Type == stack.GSOTCPv6 {
				f.GSO = pktio.GSOTCPv6
			}
			f.GSOSize = gso.MSS
		}
	}
}

// note tells the connection of pkt what is sent for it.
func (l *link) note(pkt *stack.PacketBuffer, tcp header.TCP, payload int) {
	f, ok := pkt.Owner.(*flow)
	if !ok {
		return
	}
	if mss := int32(pkt.GSOOptions.MSS); f.mss.Load() != mss {
		f.mss.Store(mss)
	}
	if w := uint32(tcp.WindowSize()); f.tail.window.Load() != w {
		f.tail.window.Store(w)
	}
	if l.rx.inline != nil {
		if now := l.clock.now(); f.lead.until-now < leadFor/2 {
			f.lead.learn(pkt, tcp, now)
		}
	}
	if payload > 0 {
		l.noteSent(f, sentSegment{pkt: pkt, tcp: tcp, payload: payload, mss: int(pkt.GSOOptions.MSS)})
	}
}

// sentSegment is a segment with octets of a connection, as it is sent.
type sentSegment struct {
	pkt          *stack.PacketBuffer // its octets
	head         []byte              // its headers; nil if pkt has them
	tcp          header.TCP
	payload, mss int
}

// noteSent tells a connection that s is sent. Caller holds tx.mu.
func (l *link) noteSent(f *flow, s sentSegment) {
	f.sent.Add(1)
	l.said.Add(1)
	if l.rx.inline != nil && f.sample.mark(&s, l.clock) {
		f.tail.follow(&s)
	}
}

// offload asks the port to finish the TCP checksum, which holds the sum of the pseudo header. The headers of IP and TCP
// are that long.
func offload(f *pktio.Frame, ip, tcp int) {
	f.NeedsCsum = true
	f.CsumStart = uint16(ethernetHeader + ip)
	f.CsumOffset = header.TCPChecksumOffset
	f.HdrLen = f.CsumStart + uint16(tcp)
}

// seal finishes a frame that begins with its headers, with the TCP checksum or by asking the port for it. pseudo is the
// sum of the pseudo header.
func (l *link) seal(f *pktio.Frame, ip int, tcp header.TCP, pseudo uint16) {
	if l.info.Checksum {
		tcp.SetChecksum(pseudo)
		offload(f, ip, len(tcp))
		return
	}
	var sum checksum.Checksumer
	for _, b := range f.Data[1:] {
		sum.Add(b)
	}
	tcp.SetChecksum(0)
	tcp.SetChecksum(^checksum.Combine(checksum.Checksum(tcp, pseudo), sum.Checksum()))
}

// finishChecksum turns the sum of the pseudo header into the TCP checksum.
func finishChecksum(pkt *stack.PacketBuffer) {
	tcp := header.TCP(pkt.TransportHeader().Slice())
	tcp.SetChecksum(^checksum.Combine(checksum.Checksum(tcp, 0), pkt.Data().Checksum()))
}

// nextFrame returns an empty frame of the batch, which it sends first if it is full.
func (l *link) nextFrame() *pktio.Frame {
	if l.tx.n == txBatch {
		l.flush()
	}
	l.tx.n++
	return &l.tx.frames[l.tx.n-1]
}

// flush sends the batch.
func (l *link) flush() {
	batch := l.tx.frames[:l.tx.n]
	l.tx.n = 0
	if len(batch) == 0 {
		return
	}
	sent, bad, octets := 0, 0, 0
	var full time.Time // since when there is no room
	for rest := batch; len(rest) > 0; {
		n, err := l.port.Send(rest)
		for i := range rest[:n] {
			octets += rest[i].Len()
		}
		sent += n
		rest = rest[n:]
		switch {
		case len(rest) == 0:
		case errors.Is(err, pktio.ErrTooLong), errors.Is(err, pktio.ErrBadFrame):
			bad++
			rest = rest[1:] // it alone is at fault: the interface's MTU was lowered, for instance
		case err == nil && full.IsZero():
			full = time.Now()
		case err == nil && time.Since(full) < txPatience:
			runtime.Gosched()
		default:
			bad += len(rest)
			rest = nil
		}
	}
	for i := range batch {
		clear(batch[i].Data)
		batch[i] = pktio.Frame{Data: batch[i].Data[:0]}
	}
	l.count.framesOut.Add(uint64(sent))
	l.count.octetsOut.Add(uint64(octets))
	l.count.dropsOut.Add(uint64(bad))
}

// walk goes through the octets of a packet.
type walk struct {
	v   *buffer.View
	off int
}

// skip leaves out n octets.
func (w *walk) skip(n int) {
	w.off += n
	for w.v != nil && w.off >= w.v.Size() {
		w.off -= w.v.Size()
		w.v = w.v.Next()
	}
}

// next returns the next octets, at most n, as they lie together.
func (w *walk) next(n int) []byte {
	if w.v == nil {
		return nil
	}
	b := w.v.AsSlice()[w.off:]
	b = b[:min(n, len(b))]
	w.skip(len(b))
	return b
}
