package netstack

import (
	"encoding/binary"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// needInline leaves a test out of programs that were built to let gVisor process segments. That others do not is for
// TestCanInline to see.
func needInline(t testing.TB) {
	t.Helper()
	if !canInline() {
		t.Skip("LEFT OUT: built without the short way for segments")
	}
}

// bothWays runs f on a Config that lets segments be processed where they arrive, and on one that does not.
func bothWays(t *testing.T, c Config, f func(t *testing.T, c Config)) {
	t.Run("inline", func(t *testing.T) { needInline(t); f(t, c) })
	c.Handoff = true
	t.Run("handoff", func(t *testing.T) { f(t, c) })
}

// forever is for Config.KeepACKs where an acknowledgement that waits must not be sent for having waited.
const forever = time.Hour

// hold keeps Poll and the pump from receiving on w, nothing being under way; the receiver's lock is the caller's.
func (w *wire) hold() {
	l := w.h.user.link
	holdReceiver(l, func() { w.send(ethernet(l.info.Addr, wireMAC, 0x88b5), make([]byte, 46)) })
	for n := 1; n > 0; {
		var err error
		n, err = l.port.Recv(l.rx.frames, 0)
		require.NoError(w.t, err)
		l.take(n, nil)
	}
}

// arrive receives frames, all at once, as if Poll was awake. The caller holds the receiver.
func (w *wire) arrive(frames ...[]byte) {
	l := w.h.user.link
	l.rx.polled.Store(true)
	for _, f := range frames {
		w.send(f)
	}
	n, err := l.port.Recv(l.rx.frames, 0)
	require.NoError(w.t, err)
	require.Equal(w.t, len(frames), n)
	l.take(n, nil)
}

// burst is arrive for a caller that does not hold the receiver.
func (w *wire) burst(frames ...[]byte) {
	w.t.Helper()
	w.hold()
	defer w.h.user.link.rx.mu.Unlock()
	w.arrive(frames...)
}

// sent returns the segments that the stack has sent.
func (w *wire) sent() (all []header.TCP) {
	w.t.Helper()
	for {
		n, err := w.port.Recv(w.in, 0)
		require.NoError(w.t, err)
		if n == 0 {
			return all
		}
		b := make([]byte, w.in[0].Len())
		w.in[0].CopyTo(b)
		if seg := segmentOf(b); seg != nil {
			all = append(all, seg)
		}
	}
}

// packet is a frame with a packet from the peer.
func (w *wire) packet(proto uint8, payload []byte) []byte {
	return joined(w.eth(), ipPacket(w.fam.b, w.fam.a, proto, len(payload)), payload)
}

// segment is a segment from the peer with the octets of stream 0 that begin ahead of what comes next.
func (s *spoken) segment(flags header.TCPFlags, ahead, n int) []byte {
	b := make([]byte, n)
	pattern(b, 0, ahead)
	return tcpSegmentOf(s.fam.b, s.fam.a, header.TCPFields{
		SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq + uint32(ahead), AckNum: s.una, Flags: flags, WindowSize: window,
	}, b)
}

// frame is a frame with segment.
func (s *spoken) frame(flags header.TCPFlags, ahead, n int) []byte {
	return s.packet(6, s.segment(flags, ahead, n))
}

const (
	flagACK = header.TCPFlagAck
	flagPSH = header.TCPFlagAck | header.TCPFlagPsh
	flagFIN = header.TCPFlagAck | header.TCPFlagFin
	flagRST = header.TCPFlagRst
)

// icmpFrame is a frame with an ICMP error from the peer, see icmpError.
func (w *wire) icmpFrame(typ, code byte, rest uint32, packet []byte) []byte {
	icmp := append(binary.BigEndian.AppendUint32([]byte{typ, code, 0, 0}, rest), packet...)
	if w.fam.a.Is4() {
		binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
		return w.packet(1, icmp)
	}
	ip := ipPacket(w.fam.b, w.fam.a, 58, len(icmp))
	sumICMPv6(ip, icmp)
	return joined(w.eth(), ip, icmp)
}

// ends runs f, and ends the program if f does not return: what a test that fails then had to clean up is locked.
func ends(t testing.TB, what string, f func()) {
	t.Helper()
	alarm := time.AfterFunc(patience/3, func() {
		debug.SetTraceback("all")
		panic(t.Name() + ": no end of waiting: " + what)
	})
	defer alarm.Stop()
	f()
}
