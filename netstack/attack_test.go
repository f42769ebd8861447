package netstack

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrdma/softrdma/pktio"
)

// stranger returns the i-th address of the network that fam's hosts are not in, and an Ethernet address for it.
func stranger(fam family, i int) (netip.Addr, [6]byte) {
	mac := [6]byte{2, 0, 1, byte(i >> 16), byte(i >> 8), byte(i)}
	if fam.a.Is4() {
		return netip.AddrFrom4([4]byte{10, 77, 128 | byte(i>>8), byte(i)}), mac
	}
	b := fam.a.As16()
	b[12], b[13], b[14], b[15] = 1, byte(i>>16), byte(i>>8), byte(i)
	return netip.AddrFrom16(b), mac
}

// asks is the frame in which a host asks for the stack's address.
func (w *wire) asks(from netip.Addr, mac [6]byte) []byte {
	if from.Is4() {
		return arpRequest(mac, from, w.fam.a)
	}
	return solicitation(from, w.fam.a, mac)
}

// trickle sends many frames and lets the stack take them meanwhile.
func (w *wire) trickle(n int, frame func(i int) []byte) {
	w.t.Helper()
	for i := range n {
		w.send(frame(i))
		if i%64 == 63 {
			w.handled()
			w.swallow()
		}
	}
	w.handled()
	w.swallow()
}

// swallow takes what the stack has sent.
func (w *wire) swallow() {
	for {
		w.h.poll(0)
		if n, err := w.port.Recv(w.in, 0); n == 0 || err != nil {
			return
		}
	}
}

func heapNow() int64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Thousands of hosts, none of which exists, ask for us: what we know of neighbours stays small, and a connection goes on.
func TestFloodOfNeighbours(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		before := heapNow()
		for range 3 {
			s.trickle(2000, func(i int) []byte { a, mac := stranger(fam, i); return s.asks(a, mac) })
			s.alive()
			require.NoError(t, s.c.Writev([][]byte{make([]byte, 100)}))
			_, tcp := s.recvTCP("octets", func(tcp header.TCP) bool { return len(tcp.Payload()) > 0 && tcp.SequenceNumber() == s.una })
			s.una += uint32(len(tcp.Payload()))
			s.say(header.TCPFlagAck, s.seq, s.una)
		}
		// The peer's answer to the question for it comes among those of the strangers.
		{
			const gap = 100
			_ = s.h.user.tcp.RemoveNeighbor(nicID, protocolOf(fam.a), toAddress(fam.b))
			c, err := s.h.Dial(netip.Addr{}, netip.AddrPortFrom(fam.b, 77))
			require.NoError(t, err)
			asked, syn := 0, false
			for end := time.Now().Add(patience); time.Now().Before(end) && !syn; {
				var questions [][]byte
				for {
					s.h.poll(0)
					n, err := s.wire.port.Recv(s.in, time.Millisecond)
					require.NoError(t, err)
					if n == 0 {
						break
					}
					b := make([]byte, s.in[0].Len())
					s.in[0].CopyTo(b)
					if isWho(fam.b)(b) {
						questions = append(questions, b)
					}
					seg := segmentOf(b)
					syn = syn || seg != nil && seg.Flags() == header.TCPFlagSyn
				}
				asked += len(questions)
				for i := range gap {
					a, mac := stranger(fam, i)
					s.send(s.asks(a, mac))
					if i%64 == 63 {
						s.handled()
					}
				}
				s.handled()
				for _, q := range questions {
					s.answer(q)
				}
			}
			_, err = c.Connected()
			require.NoError(t, err)
			require.True(t, syn, "%d questions", asked)
			c.Abort()
		}
		// Octets wait for an answer that is pushed out of the table: they are sent again, and the connection lives.
		_ = s.h.user.tcp.RemoveNeighbor(nicID, protocolOf(fam.a), toAddress(fam.b))
		require.NoError(t, s.c.Writev([][]byte{make([]byte, 100)}))
		for range 3 {
			s.recv("a question", isWho(fam.b))
			s.trickle(600, func(i int) []byte { a, mac := stranger(fam, i); return s.asks(a, mac) })
		}
		_, err := s.c.Peek()
		require.NoError(t, err)
		_, tcp := s.recvTCP("octets", func(tcp header.TCP) bool { return len(tcp.Payload()) > 0 && tcp.SequenceNumber() == s.una })
		s.una += uint32(len(tcp.Payload()))
		s.say(header.TCPFlagAck, s.seq, s.una)
		s.alive()
		require.LessOrEqual(t, heapNow()-before, int64(8<<20))
		all, terr := s.h.user.tcp.Neighbors(nicID, protocolOf(fam.a))
		require.Nil(t, terr)
		require.LessOrEqual(t, len(all), 512)
		s.alive()
	})
}

// fragment returns a frame with a fragment of a packet from the peer.
func (w *wire) fragment(from netip.Addr, id uint32, proto uint8, at int, more bool, payload []byte) []byte {
	if from.Is4() {
		ip := header.IPv4(ipPacket(from, w.fam.a, proto, len(payload)))
		binary.BigEndian.PutUint16(ip[4:], uint16(id))
		flags := uint16(at / 8)
		if more {
			flags |= 1 << 13
		}
		binary.BigEndian.PutUint16(ip[6:], flags)
		ip.SetChecksum(0)
		ip.SetChecksum(^ip.CalculateChecksum())
		return joined(w.eth(), ip, payload)
	}
	ip := ipPacket(from, w.fam.a, 44, 8+len(payload))
	ext := make([]byte, 8)
	ext[0] = proto
	flags := uint16(at)
	if more {
		flags |= 1
	}
	binary.BigEndian.PutUint16(ext[2:], flags)
	binary.BigEndian.PutUint32(ext[4:], id)
	return joined(w.eth(), ip, ext, payload)
}

// Fragments of packets that never become whole take some memory, and no more.
func TestFloodOfFragments(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		before := heapNow()
		size := 1440
		for _, size = range []int{1440, 8} {
			s.trickle(12_000, func(i int) []byte {
				a, _ := stranger(fam, i>>14)
				return s.fragment(a, uint32(i), 6, 8*(i%2), true, make([]byte, size))
			})
			grown := heapNow() - before
			t.Logf("with %d octets a fragment: %d KiB", size, grown>>10)
			require.LessOrEqual(t, grown, int64(24<<20))
		}
		// Tiny ones of one packet.
		start := time.Now()
		s.trickle(8000, func(i int) []byte { return s.fragment(fam.b, 1<<20, 6, 8*((i*5003)%8000), true, make([]byte, 8)) })
		t.Log("one packet of 8000 fragments:", time.Since(start))
		// Overlaps, ends before the start, beyond the end of any packet.
		r := rand.New(rand.NewPCG(1, 2))
		s.trickle(4000, func(i int) []byte {
			return s.fragment(fam.b, uint32(2_000_000+r.IntN(4)), uint8(r.IntN(256)), 8*r.IntN(8192), r.IntN(2) == 0, make([]byte, r.IntN(300)))
		})
		s.alive()
		// A segment in two fragments, the second one first.
		seg := tcpSegmentOf(fam.b, fam.a, header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: s.seq, AckNum: s.una, Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: window}, make([]byte, 100))
		s.send(s.fragment(fam.b, 77, 6, 64, false, seg[64:]))
		s.send(s.fragment(fam.b, 77, 6, 0, true, seg[:64]))
		s.seq += 100
		until(t, "the segment", func() bool {
			pieces, err := s.c.Peek()
			require.NoError(t, err)
			return length(pieces) == 100
		}, s.h)
		s.c.Discard(100)
		s.alive()
	})
}

// Thousands of peers that do not exist open connections.
func TestFloodOfSYN(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		goroutines := runtime.NumGoroutine()
		before := heapNow()
		const n = 20_000
		s.trickle(n, func(i int) []byte {
			seg := tcpSegmentOf(fam.b, fam.a, header.TCPFields{SrcPort: uint16(2000 + i), DstPort: spokenPort, SeqNum: uint32(i), Flags: header.TCPFlagSyn, WindowSize: 1000}, nil)
			return joined(s.eth(), ipPacket(fam.b, fam.a, 6, len(seg)), seg)
		})
		grown := heapNow() - before
		t.Logf("%d SYNs: %d KiB, %d goroutines more", n, grown>>10, runtime.NumGoroutine()-goroutines)
		require.LessOrEqual(t, grown, int64(256<<20))
		s.alive()
		other := &spoken{wire: s.wire, l: s.l, port: 1999}
		other.connect(5_000_000)
		other.alive()
		require.NoError(t, s.l.Close())
		until(t, "memory", func() bool { return heapNow()-before < 32<<20 }, s.h)
		t.Logf("listener closed: %d KiB, %d goroutines more", (heapNow()-before)>>10, runtime.NumGoroutine()-goroutines)
		s.alive()
	})
}

// Whoever says all the time that he has our address makes one piece of news in five seconds and one announcement in ten.
func TestFloodOfConflicts(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{})
		time.Sleep(60 * time.Millisecond)
		s.swallow()
		before := heapNow()
		start := time.Now()
		said, news := 0, 0
		const n = 20_000
		for i := range n {
			other, mac := stranger(fam, i)
			frame := announcement(fam.a, mac)
			if i%2 == 1 && fam == inet6 {
				frame = solicitation(fam.a, fam.a, mac)
			} else if i%2 == 1 {
				frame = arpRequest(mac, fam.a, other)
			}
			s.send(frame)
			if i%64 == 63 {
				s.handled()
				if s.h.Conflict() != nil {
					news++
				}
				for n, _ := s.wire.port.Recv(s.in, 0); n > 0; n, _ = s.wire.port.Recv(s.in, 0) {
					said++
				}
			}
		}
		s.handled()
		took := time.Since(start)
		require.EqualValues(t, n, s.h.Stats().AddressConflicts)
		require.LessOrEqual(t, news, 1+int(took/tellEvery))
		require.LessOrEqual(t, said, 1+int(took/defendEvery))
		require.LessOrEqual(t, heapNow()-before, int64(4<<20))
		s.alive()
	})
}

// A Stack is closed while it asks neighbours, asks idle peers, defends its address and is spoken to.
func TestClosedUnderAttack(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for i := range 30 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				s := newSpoken(t, fam, Config{AddressProbe: time.Millisecond, Keepalive: Keepalive{Idle: 5 * time.Millisecond, Interval: 5 * time.Millisecond, Count: 100}})
				stop := make(chan struct{})
				done := make(chan struct{})
				go func() {
					defer close(done)
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						a, mac := stranger(fam, i)
						for _, b := range [][]byte{s.asks(a, mac), announcement(fam.a, mac), announcement(fam.b, wireMAC), s.fragment(fam.b, uint32(i), 6, 0, true, make([]byte, 64))} {
							_, _ = s.wire.port.Send(frameOf(b))
						}
						time.Sleep(50 * time.Microsecond)
					}
				}()
				for range 3 {
					_, err := s.h.Dial(netip.Addr{}, netip.AddrPortFrom(netip.MustParseAddr(map[bool]string{true: "10.77.0.77", false: "fd77::77"}[fam.a.Is4()]), 1))
					require.NoError(t, err)
				}
				time.Sleep(time.Duration(i) * time.Millisecond)
				require.NoError(t, s.h.Close())
				close(stop)
				<-done
			})
		}
	})
}

func frameOf(b []byte) []pktio.Frame { return []pktio.Frame{{Data: [][]byte{b}}} }

// A peer that sends single octets, in order or with gaps, to an application that does not read: what they take is bounded
// by the receive buffer, not by the number of octets in it.
func TestFloodOfOctets(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		for name, step := range map[string]uint32{"in order": 1, "with gaps": 2} {
			t.Run(name, func(t *testing.T) {
				s := newSpoken(t, fam, Config{RecvBuffer: 1 << 20})
				before := heapNow()
				at := s.seq + step - 1
				s.trickle(60_000, func(int) []byte {
					seg := tcpSegmentOf(fam.b, fam.a, header.TCPFields{SrcPort: s.port, DstPort: spokenPort, SeqNum: at, AckNum: s.una, Flags: header.TCPFlagAck | header.TCPFlagPsh, WindowSize: window}, []byte{1})
					at += step
					return joined(s.eth(), ipPacket(fam.b, fam.a, 6, len(seg)), seg)
				})
				grown := heapNow() - before
				pieces, err := s.c.Peek()
				t.Logf("%d KiB for %d octets, %v", grown>>10, length(pieces), err)
				require.LessOrEqual(t, grown, int64(16<<20))
			})
		}
	})
}

// Whoever says all the time that a peer's host has just started does not keep a peer alive that answers nothing.
func TestAnnouncementsKeepNobodyAlive(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		s := newSpoken(t, fam, Config{Keepalive: KeepaliveWithin(3 * time.Second)})
		start := time.Now()
		next := start
		var err error
		for time.Since(start) < patience/2 && err == nil {
			if time.Now().After(next) {
				next = time.Now().Add(steadyTime + 50*time.Millisecond)
				s.send(announcement(fam.b, wireMAC))
			}
			s.swallow()
			_, err = s.c.Peek()
			time.Sleep(5 * time.Millisecond)
		}
		t.Log(time.Since(start), err)
		require.ErrorIs(t, err, syscall.ETIMEDOUT)
	})
}

// A flood of frames while an address is asked for does not make New wait longer, and our own questions that come back to us
// are no conflict.
func TestProbeUnderFlood(t *testing.T) {
	bothFamilies(t, func(t *testing.T, fam family) {
		near, far, err := pktio.NewPipe(pktio.PipeConfig{})
		require.NoError(t, err)
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			in := make([]pktio.Frame, 16)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				n, _ := far.Recv(in, 0)
				if n > 0 {
					_, _ = far.Send(in[:n]) // a loop in the network
				}
				a, mac := stranger(fam, i)
				_, _ = far.Send(frameOf(announcement(a, mac)))
				_, _ = far.Send(frameOf(question(a, mac)))
				_, _ = far.Send(frameOf(make([]byte, 14)))
			}
		}()
		start := time.Now()
		s, err := New(near, Config{Addrs: []netip.Prefix{netip.PrefixFrom(fam.a, fam.bits)}, AddressProbe: 150 * time.Millisecond})
		t.Log(time.Since(start))
		close(stop)
		<-done
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 150*time.Millisecond)
		require.Less(t, time.Since(start), 20*time.Second)
		require.NoError(t, s.Close())
		require.NoError(t, far.Close())
		_, _ = far.Recv(nil, 0)
	})
}
