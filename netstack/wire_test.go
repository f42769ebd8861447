package netstack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/internal/leakcheck"
	"github.com/softrdma/softrdma/pktio"
)

// wire is the far end of a link with a stack on the near end: a test that speaks for the peer, frame by frame.
type wire struct {
	t    *testing.T
	port *pktio.Pipe
	h    *host
	in   []pktio.Frame
}

var wireMAC = [6]byte{2, 0, 0, 0, 0, 0xb}

func newWire(t *testing.T, c Config) *wire {
	near, far, err := pktio.NewPipe(pktio.PipeConfig{})
	require.NoError(t, err)
	leakcheck.Pool(t, near.Pool())
	leakcheck.Pool(t, far.Pool())
	c.Addrs = []netip.Prefix{netip.PrefixFrom(addrA, 24)}
	s, err := New(near, c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, far.Close())
		_, _ = far.Recv(nil, 0)
	})
	return &wire{t: t, port: far, h: newHost(t, s), in: make([]pktio.Frame, 1)}
}

// send puts the pieces, joined, on the wire.
func (w *wire) send(pieces ...[]byte) {
	w.t.Helper()
	n, err := w.port.Send([]pktio.Frame{{Data: pieces}})
	require.NoError(w.t, err)
	require.Equal(w.t, 1, n)
}

// recv returns the next frame that the stack sent and match likes.
func (w *wire) recv(what string, match func(b []byte) bool) []byte {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		w.h.poll(0)
		n, err := w.port.Recv(w.in, time.Millisecond)
		require.NoError(w.t, err)
		if n > 0 {
			b := make([]byte, w.in[0].Len())
			w.in[0].CopyTo(b)
			if match(b) {
				return b
			}
		}
	}
	w.t.Fatal("never sent: " + what)
	return nil
}

func ethernet(dst, src [6]byte, proto uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte(nil), dst[:]...), src[:]...), proto)
}

func isARPRequest(for_ netip.Addr) func(b []byte) bool {
	return func(b []byte) bool {
		return binary.BigEndian.Uint16(b[12:]) == 0x0806 && b[21] == 1 && netip.AddrFrom4([4]byte(b[38:])) == for_
	}
}

// answerARP answers the request of a stack.
func (w *wire) answerARP(request []byte) {
	reply := append([]byte(nil), request[14:]...)
	reply[7] = 2
	copy(reply[8:], wireMAC[:])
	copy(reply[14:], request[38:42])
	copy(reply[18:], request[22:32])
	w.send(ethernet([6]byte(request[6:]), wireMAC, 0x0806), reply)
}

func ipPacket(from, to netip.Addr, proto uint8, payload int) []byte {
	h := header.IPv4(make([]byte, header.IPv4MinimumSize))
	h.Encode(&header.IPv4Fields{
		TotalLength: uint16(header.IPv4MinimumSize + payload), TTL: 64, Protocol: proto,
		SrcAddr: toAddress(from), DstAddr: toAddress(to),
	})
	h.SetChecksum(^h.CalculateChecksum())
	return h
}

// tcpSegment makes a TCP segment from our peer.
func tcpSegment(fields header.TCPFields, payload []byte) []byte {
	b := make([]byte, header.TCPMinimumSize, header.TCPMinimumSize+len(payload))
	h := header.TCP(b)
	fields.DataOffset = header.TCPMinimumSize
	h.Encode(&fields)
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, toAddress(addrB), toAddress(addrA), uint16(len(b)+len(payload)))
	h.SetChecksum(^h.CalculateChecksum(checksum.Checksum(payload, sum)))
	return append(b, payload...)
}

func TestAnswersARPAndPing(t *testing.T) {
	w := newWire(t, Config{})
	mac := w.h.user.link.info.Addr
	request := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	request = append(append(request, wireMAC[:]...), addrB.AsSlice()...)
	request = append(append(request, make([]byte, 6)...), addrA.AsSlice()...)
	w.send(ethernet([6]byte{255, 255, 255, 255, 255, 255}, wireMAC, 0x0806), request)
	reply := w.recv("ARP reply", func(b []byte) bool { return binary.BigEndian.Uint16(b[12:]) == 0x0806 && b[21] == 2 })
	require.Equal(t, wireMAC[:], reply[:6])
	require.Equal(t, mac[:], reply[22:28])

	ping := append([]byte{8, 0, 0, 0, 1, 2, 0, 1}, "ping, ping, ping"...)
	binary.BigEndian.PutUint16(ping[2:], ^checksum.Checksum(ping, 0))
	w.send(ethernet(mac, wireMAC, 0x0800), ipPacket(addrB, addrA, 1, len(ping)), ping)
	pong := w.recv("echo reply", func(b []byte) bool { return b[23] == 1 && b[34] == 0 })
	require.Equal(t, ping[4:], pong[38:])
	require.EqualValues(t, 0xffff, checksum.Checksum(pong[34:], 0))
}

func TestDropsWhatIsNotForUs(t *testing.T) {
	w := newWire(t, Config{})
	mac := w.h.user.link.info.Addr
	ping := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}
	ip := ipPacket(addrB, addrA, 1, len(ping))
	bad := bytes.Clone(ip)
	bad[8]++
	for i, frame := range [][]byte{
		joined(ethernet([6]byte{2, 9, 9, 9, 9, 9}, wireMAC, 0x0800), ip, ping), // another host
		joined(ethernet(mac, wireMAC, 0x8100), []byte{0, 1, 8, 0}, ip, ping),   // a VLAN
		joined(ethernet(mac, wireMAC, 0x86dd), ip, ping),                       // IPv6
		joined(ethernet(mac, wireMAC, 0x0800), bad, ping),                      // IP checksum
		joined(ethernet(mac, wireMAC, 0x0800), ip[:10]),                        // cut off
		joined(ethernet(mac, wireMAC, 0x0800), []byte{0x43}, ip[1:], ping),     // header length 12
		joined(ethernet(mac, wireMAC, 0x0800), []byte{0x4f}, ip[1:], ping),     // header length 60
	} {
		w.send(frame)
		until(t, fmt.Sprintf("drop %d", i), func() bool { return w.h.Stats().DropsIn == uint64(i+1) }, w.h)
	}
	require.EqualValues(t, 1, w.h.Stats().ChecksumErrors)
	require.Zero(t, w.h.Stats().FramesOut, "none of them has an answer")
}

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestResetForUnknownPort(t *testing.T) {
	w := newWire(t, Config{})
	mac := w.h.user.link.info.Addr
	syn := tcpSegment(header.TCPFields{SrcPort: 1000, DstPort: 2000, SeqNum: 99, Flags: header.TCPFlagSyn, WindowSize: 1000}, nil)
	w.send(ethernet(mac, wireMAC, 0x0800), ipPacket(addrB, addrA, 6, len(syn)), syn)
	w.answerARP(w.recv("ARP request", isARPRequest(addrB)))
	rst := w.recv("reset", func(b []byte) bool { return b[23] == 6 })
	require.Equal(t, header.TCPFlags(header.TCPFlagRst|header.TCPFlagAck), header.TCP(rst[34:]).Flags())
	require.EqualValues(t, 100, header.TCP(rst[34:]).AckNumber())
	require.EqualValues(t, 1, w.h.Stats().ResetsOut)

	// A wrong checksum gets no answer.
	syn[3]++
	w.send(ethernet(mac, wireMAC, 0x0800), ipPacket(addrB, addrA, 6, len(syn)), syn)
	time.Sleep(20 * time.Millisecond)
	require.EqualValues(t, 1, w.h.Stats().ResetsOut)
}

func TestUnreachable(t *testing.T) {
	t.Run("no answer to ARP", func(t *testing.T) {
		t.Parallel()
		w := newWire(t, Config{})
		c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(addrB, 1))
		require.NoError(t, err)
		until(t, "failure", func() bool { _, err = c.Connected(); return err != nil && w.h.seen[c] > 0 }, w.h)
		require.ErrorIs(t, err, syscall.EHOSTUNREACH)
		c.Close()

		// The next attempt asks again.
		for n, _ := w.port.Recv(w.in, 0); n > 0; n, _ = w.port.Recv(w.in, 0) {
		}
		c, err = w.h.Dial(netip.Addr{}, netip.AddrPortFrom(addrB, 1))
		require.NoError(t, err)
		w.recv("ARP request", isARPRequest(addrB))
		c.Abort()
	})
	t.Run("no route", func(t *testing.T) {
		w := newWire(t, Config{})
		_, err := w.h.Dial(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:1"))
		require.ErrorIs(t, err, syscall.ENETUNREACH)
		_, err = w.h.Dial(netip.Addr{}, netip.MustParseAddrPort("[2001:db8::1]:1"))
		require.ErrorIs(t, err, syscall.EAFNOSUPPORT)
		require.Zero(t, w.h.Stats().Conns)
	})
	t.Run("told by ICMP", func(t *testing.T) {
		w := newWire(t, Config{})
		c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(addrB, 1))
		require.NoError(t, err)
		w.answerARP(w.recv("ARP request", isARPRequest(addrB)))
		syn := w.recv("SYN", func(b []byte) bool { return b[23] == 6 })
		icmp := append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, syn[14:14+28]...)
		binary.BigEndian.PutUint16(icmp[2:], ^checksum.Checksum(icmp, 0))
		w.send(ethernet([6]byte(syn[6:]), wireMAC, 0x0800), ipPacket(addrB, addrA, 1, len(icmp)), icmp)
		until(t, "failure", func() bool { _, err = c.Connected(); return err != nil && w.h.seen[c] > 0 }, w.h)
		require.ErrorIs(t, err, syscall.EHOSTUNREACH)
		c.Close()
	})
}

func TestGateway(t *testing.T) {
	gateway := netip.MustParseAddr("10.77.0.254")
	w := newWire(t, Config{Gateway: gateway})
	c, err := w.h.Dial(netip.Addr{}, netip.MustParseAddrPort("192.0.2.1:7"))
	require.NoError(t, err)
	w.answerARP(w.recv("ARP request for the gateway", isARPRequest(gateway)))
	syn := w.recv("SYN", func(b []byte) bool { return b[23] == 6 })
	require.Equal(t, wireMAC[:], syn[:6])
	require.Equal(t, []byte{192, 0, 2, 1}, syn[30:34])
	c.Abort()
}

func TestConnectTimeout(t *testing.T) {
	w := newWire(t, Config{ConnectTimeout: 50 * time.Millisecond})
	c, err := w.h.Dial(netip.Addr{}, netip.AddrPortFrom(addrB, 1))
	require.NoError(t, err)
	w.answerARP(w.recv("ARP request", isARPRequest(addrB)))
	w.recv("SYN", func(b []byte) bool { return b[23] == 6 })
	until(t, "timeout", func() bool { _, err = c.Connected(); return err != nil && w.h.seen[c] > 0 }, w.h)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	c.Close()
}

// broken is a port that gives up.
type broken struct {
	pktio.Port
	err chan error
}

func (p *broken) Recv(batch []pktio.Frame, wait time.Duration) (int, error) {
	select {
	case err := <-p.err:
		return 0, err
	default:
	}
	if wait < 0 {
		wait = time.Millisecond
	}
	for {
		n, err := p.Port.Recv(batch, wait)
		if n > 0 || err != nil || wait == 0 {
			return n, err
		}
		select {
		case err := <-p.err:
			return 0, err
		default:
		}
	}
}

func TestInterfaceGone(t *testing.T) {
	var bad *broken
	p, _ := newRecordedPair(t, pipe1500, Config{}, func(port pktio.Port) pktio.Port {
		bad = &broken{port, make(chan error, 1)}
		return bad
	})
	ca, cb := p.exchange(1000)
	_ = ca
	dialling, err := p.b.Dial(netip.Addr{}, netip.MustParseAddrPort("10.77.0.9:1"))
	require.NoError(t, err)
	require.NoError(t, p.b.Err())
	events := p.b.seen[cb]
	bad.err <- fmt.Errorf("gone: %w", syscall.ENETDOWN)
	p.until("the news", func() bool { return p.b.seen[cb] > events && p.b.seen[dialling] > 0 })
	_, err = cb.Peek()
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.ErrorIs(t, cb.Writev([][]byte{{1}}), syscall.ENETDOWN)
	_, err = dialling.Connected()
	require.ErrorIs(t, err, syscall.ENETDOWN)
	require.ErrorIs(t, p.b.Err(), syscall.ENETDOWN)
	cb.Abort()
	dialling.Abort()
}

func TestConfigErrors(t *testing.T) {
	ok := netip.MustParsePrefix("10.0.0.1/24")
	for name, c := range map[string]Config{
		"no address":      {},
		"invalid address": {Addrs: []netip.Prefix{{}}},
		"IPv6":            {Addrs: []netip.Prefix{netip.MustParsePrefix("fd77::1/64")}},
		"multicast":       {Addrs: []netip.Prefix{netip.MustParsePrefix("224.0.0.1/24")}},
		"loopback":        {Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
		"far gateway":     {Addrs: []netip.Prefix{ok}, Gateway: netip.MustParseAddr("10.0.1.1")},
		"small buffer":    {Addrs: []netip.Prefix{ok}, RecvBuffer: 1000},
		"large buffer":    {Addrs: []netip.Prefix{ok}, SendBuffer: MaxBuffer + 1},
		"recovery":        {Addrs: []netip.Prefix{ok}, Recovery: 9},
		"large MTU":       {Addrs: []netip.Prefix{ok}, MTU: 9000},
		"small MTU":       {Addrs: []netip.Prefix{ok}, MTU: 60},
	} {
		t.Run(name, func(t *testing.T) {
			near, far, err := pktio.NewPipe(pktio.PipeConfig{})
			require.NoError(t, err)
			defer far.Close()
			_, err = New(near, c)
			require.Error(t, err)
			if name == "IPv6" {
				require.ErrorIs(t, err, errors.ErrUnsupported)
			}
			_, err = near.Recv(nil, 0)
			require.ErrorIs(t, err, pktio.ErrClosed, "New takes the port, also when it fails")
		})
	}
	_, err := NewKernel(KernelConfig{RecvBuffer: -1})
	require.Error(t, err)
}

func TestStackKnowsItself(t *testing.T) {
	w := newWire(t, Config{})
	require.Equal(t, 1500, w.h.MTU())
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}, w.h.Addrs())
	k, err := NewKernel(KernelConfig{})
	require.NoError(t, err)
	defer k.Close()
	require.Zero(t, k.MTU())
	require.Contains(t, k.Addrs(), netip.MustParsePrefix("127.0.0.1/8"))
}
